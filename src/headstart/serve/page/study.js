// A comparison: one text, and a card for each arm.
import { $, PAUSE, ask, bars, coloured, complain, counted, element, percent, signed, wait } from "./shared.js";

const SHOWN = 4; // probabilities of a card, the highest first

let study = null, budget = null, cards = new Map();
let label = null; // of the example that was clicked, while its text is unchanged
let asking = new AbortController();

export function showStudy(chosen) {
  study = chosen;
  const several = study.budgets.length > 1;
  $("budgets").hidden = !several;
  $("budgets").replaceChildren(element("legend", "", "Labels to learn from"), ...study.budgets.map(budgetChoice));
  const missing = study.missing.map(each => `${each.name}${several ? ` with ${counted(each.budget, "label", "labels")}` : ""} (${each.reason})`);
  $("missing").textContent = missing.length ? `Missing: ${missing.join(", ")}.` : "";
  chooseBudget(study.budgets.at(-1));
}

function budgetChoice(each) {
  const choice = element("label"), box = element("input");
  Object.assign(box, { type: "radio", name: "budget", value: each, checked: each === study.budgets.at(-1) });
  box.addEventListener("change", () => chooseBudget(each));
  choice.append(box, ` ${each.toLocaleString("en")}`);
  return choice;
}

function chooseBudget(each) {
  budget = each;
  const arms = study.arms.filter(arm => arm.budget === budget);
  cards = new Map(arms.map(arm => [arm.name, card(arm)]));
  $("arms").replaceChildren(...cards.values());
  const runs = arms.map(arm => arm.run).join("; ");
  $("which-runs").textContent = `Accuracy is the mean over all runs of an arm, with its 95\u00a0% interval; one of them answers here: ${runs}.`;
  const examples = study.examples[budget] ?? [];
  $("study-examples").hidden = !examples.length;
  const known = examples.some(example => example.label !== null);
  $("disagree").textContent = known ? "Texts of valid on which these arms disagree" : "Examples";
  $("disagreeing").replaceChildren(...examples.map(exampleButton));
  changed();
}

function exampleButton(example) {
  const [first, second] = Array.isArray(example.text) ? example.text : [example.text, ""];
  const made = element("button", "", second ? `${first} / ${second}` : first);
  made.type = "button";
  made.addEventListener("click", () => {
    $("study-text").value = first;
    $("study-pair").open = Boolean(second);
    $("study-second").value = second;
    label = example.label;
    changed();
  });
  return made;
}

function card(arm) {
  const made = element("li", "arm");
  made.dataset.arm = arm.name;
  made.append(element("h3", "", arm.title), element("p", "help score", onTest(arm.accuracy)), element("p", "label-line"),
    element("ul", "bars"), element("div", "words-of"), element("p", "help strongest"));
  made.querySelector(".bars").setAttribute("aria-label", `Probabilities, ${arm.title}`);
  return made;
}

function onTest(accuracy) {
  if (!accuracy) return "not scored on test";
  const [low, high] = [accuracy.low, accuracy.high].map(share => (100 * share).toFixed(1));
  return `${percent(accuracy.value)} on test${accuracy.low === null ? "" : ` (${low}–${high})`}, ${counted(accuracy.runs, "run", "runs")}`;
}

// --- asking ---------------------------------------------------------------------------------------------------------

function changed() {
  asking.abort();
  asking = new AbortController();
  $("trouble").textContent = "";
  const text = current();
  $("true-label").textContent = label === null || text === null ? "" : `Its label: ${label}`;
  if (text === null) return clear();
  for (const each of cards.values()) each.classList.add("stale");
  answer(text, asking.signal).catch(error => {
    if (error.name !== "AbortError") clear();
    complain(error);
  });
}

/** The text, or the pair; null where there is none. */
function current() {
  const first = $("study-text").value, second = $("study-pair").open ? $("study-second").value : "";
  if (!first.trim() && !second.trim()) return null;
  return second.trim() ? [first, second] : first;
}

/** All labels at once, which is fast; then the words, arm by arm. */
async function answer(text, signal) {
  const asked = { text, model: study.name, budget };
  await wait(PAUSE, signal);
  const said = await ask("compare", { ...asked, words: false }, signal);
  if (signal.aborted) return; // another text has come meanwhile
  said.arms.forEach(showLabel);
  $("arms-said").textContent = said.arms.map(arm => `${arm.title}: ${arm.error ?? arm.label}`).join("; ");
  for (const arm of said.arms.filter(each => !each.error)) {
    const [explained] = (await ask("compare", { ...asked, arm: arm.name, words: true }, signal)).arms;
    if (signal.aborted) return;
    showWords(text, explained);
  }
}

// --- showing --------------------------------------------------------------------------------------------------------

function clear() {
  $("arms-said").textContent = "";
  for (const each of cards.values()) {
    each.classList.remove("stale", "stale-words");
    each.querySelector(".label-line").replaceChildren(element("strong", "", "–"));
    for (const part of [".bars", ".words-of", ".strongest"]) each.querySelector(part).replaceChildren();
  }
}

function showLabel(arm) {
  const own = cards.get(arm.name);
  own.classList.remove("stale");
  own.classList.add("stale-words");
  const line = own.querySelector(".label-line");
  if (arm.error) {
    line.replaceChildren(element("span", "trouble", arm.error));
    for (const part of [".bars", ".words-of", ".strongest"]) own.querySelector(part).replaceChildren();
    return;
  }
  line.replaceChildren(element("strong", "", arm.label));
  if (label !== null) line.append(element("span", arm.label === label ? "right" : "wrong", arm.label === label ? "right" : "wrong"));
  const shares = Object.entries(arm.probabilities).sort((a, b) => b[1] - a[1]);
  own.querySelector(".bars").replaceChildren(...bars(shares, arm.label, shares.length > SHOWN + 1 ? SHOWN : shares.length));
}

function showWords(text, arm) {
  const own = cards.get(arm.name), parts = Array.isArray(text) ? text : [text];
  own.classList.remove("stale-words");
  if (arm.error) return showLabel(arm);
  const most = Math.max(1e-9, ...arm.words.map(word => Math.abs(word.weight)));
  own.querySelector(".words-of").replaceChildren(...parts.map((part, number) => {
    const words = arm.words.filter(word => Boolean(word.second) === Boolean(number));
    const made = element("p", "words");
    made.append(...coloured(part, words, most));
    return made;
  }));
  const strongest = [...arm.words].sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight)).slice(0, 3);
  const cut = arm.cut ? ` The last ${counted(arm.cut, "token", "tokens")} did not fit into the model's window.` : "";
  own.querySelector(".strongest").textContent = strongest.map(word => `${word.text} ${signed(word.weight)}`).join(", ") + cut;
}

export function beginStudy() {
  for (const id of ["study-text", "study-second"]) {
    $(id).addEventListener("input", () => { label = null; changed(); });
  }
  $("study-pair").addEventListener("toggle", () => { if ($("study-second").value) changed(); });
}
