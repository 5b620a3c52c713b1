// The page: one text as it is typed, many at once, a text continued, and the arms of a comparison (study.js). No library, no network but this service.
import { $, PAUSE, ask, bars, coloured, complain, counted, element, fillBar, percent, signed, useToken, wait } from "./shared.js";
import { beginStudy, showStudy } from "./study.js";
import { fromLines, read, toCsv } from "./table.js";

const SHOWN = 200; // rows of the table; the csv has them all
const BIGGEST = 20_000_000; // bytes of a file

let info = null, model = null;

// --- one text -------------------------------------------------------------------------------------------------------

let asking = new AbortController();

function changed() {
  asking.abort();
  asking = new AbortController();
  $("trouble").textContent = "";
  const given = current();
  if (given === null) return clear();
  $("answer").classList.add("stale");
  $("why").classList.add("stale");
  answerOne(given, asking.signal).catch(complain);
}

/** The text, or the pair; null where there is none. */
function current() {
  const first = $("text").value, second = $("pair").open ? $("second").value : "";
  if (!first.trim() && !second.trim()) return null;
  return second.trim() ? [first, second] : first;
}

async function answerOne(text, signal) {
  const asked = model;
  await wait(PAUSE, signal);
  const [said] = (await ask("predict", { text, model: asked.name }, signal)).predictions;
  if (signal.aborted) return; // another text has come meanwhile
  showAnswer(said);
  const why = await ask("explain", { text, model: asked.name, faithfulness: false }, signal);
  if (signal.aborted) return;
  showWords(text, why);
}

function clear() {
  $("label").textContent = "–";
  $("said").textContent = "";
  $("bars").replaceChildren(...bars(model.labels.map(label => [label, 0]), null));
  $("answer").classList.remove("stale");
  $("why").hidden = true;
}

function showAnswer(said) {
  $("answer").classList.remove("stale");
  $("label").textContent = said.label;
  const shares = Object.entries(said.probabilities);
  if (shares.length > 6) shares.sort((a, b) => b[1] - a[1]);
  const old = [...$("bars").querySelectorAll("li[data-label]")];
  const same = old.length > 0 && old.every((item, at) => item.dataset.label === shares[at][0]);
  if (same) old.forEach((item, at) => fillBar(item, shares[at][1], shares[at][0] === said.label));
  else $("bars").replaceChildren(...bars(shares, said.label));
  $("said").textContent = `${said.label}, ${percent(said.probabilities[said.label])}`;
}

function showWords(text, why) {
  const parts = Array.isArray(text) ? text : [text];
  const most = Math.max(1e-9, ...why.words.map(word => Math.abs(word.weight)));
  ["words", "words-second"].forEach((id, number) => {
    $(id).hidden = number >= parts.length;
    if (number < parts.length) {
      const mine = why.words.filter(word => Boolean(word.second) === Boolean(number));
      $(id).replaceChildren(...coloured(parts[number], mine, most));
    }
  });
  const strongest = [...why.words].sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight)).slice(0, 4);
  $("for-label").textContent = why.label;
  const list = strongest.map(word => `${word.text} ${signed(word.weight)}`).join(", ");
  const cut = why.cut ? ` The end of the text, ${counted(why.cut, "token", "tokens")}, was not read: the model's window is full.` : "";
  $("strongest").textContent = (list && `Strongest: ${list}.`) + cut;
  $("why").hidden = !why.words.length;
  $("why").classList.remove("stale");
}

// --- many texts -----------------------------------------------------------------------------------------------------

let table = null, job = null, done = null;

function takeTable(found, name) {
  table = found;
  done = null;
  $("download").hidden = $("rows-box").hidden = true;
  $("many-said").textContent = "";
  $("column-line").hidden = !found || found.columns.length < 2;
  if (!found) return;
  $("file-name").textContent = name ? `${name}: ${counted(found.rows.length, "text", "texts")}` : "";
  $("column").replaceChildren(...found.columns.map((column, at) => new Option(column || `column ${at + 1}`, at, false, at === found.column)));
}

async function takeFile(file) {
  $("trouble").textContent = "";
  try {
    if (file.size > BIGGEST) throw new Error(`${file.name} has ${(file.size / 1e6).toFixed(0)} MB, and this page reads 20: use headstart predict.`);
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    $("lines").value = "";
    takeTable(read(file.name, text), file.name);
    $("classify").focus();
  } catch (error) {
    $("trouble").textContent = error instanceof TypeError ? `${file.name} is not UTF-8 text.` : error.message;
  }
}

async function classifyAll() {
  $("trouble").textContent = "";
  if ($("lines").value.trim()) takeTable(fromLines($("lines").value), "");
  if (!table || !table.rows.length) {
    $("many-said").textContent = "There is no text yet: paste some, or choose a file.";
    return;
  }
  job = new AbortController();
  const asked = model, { signal } = job, column = Number($("column").value), source = table;
  const texts = source.rows.map(row => row[column] ?? "");
  const answers = new Array(texts.length);
  working(true, texts.length);
  try {
    const pieces = slices(texts);
    let answered = 0;
    const worker = async () => {
      for (let piece = pieces.shift(); piece; piece = pieces.shift()) {
        const said = await patiently(() => ask("predict", { texts: texts.slice(...piece), model: asked.name }, signal), signal);
        said.predictions.forEach((one, at) => { answers[piece[0] + at] = one; });
        answered += said.predictions.length;
        $("progress").value = answered;
      }
    };
    await Promise.all([worker(), worker()]);
    done = { source, column, answers, labels: asked.labels };
    showMany();
  } catch (error) {
    job.abort();
    if (error.name === "AbortError") $("many-said").textContent = "Stopped.";
    complain(error);
  } finally {
    working(false);
  }
}

/** [from, to) for each request: within the limits for texts and for bytes. */
function slices(texts) {
  const most = Math.min(info.limits.texts, 64), bytes = info.limits.body / 2, found = [];
  let from = 0, size = 0;
  texts.forEach((text, at) => {
    const own = 6 + JSON.stringify(text).length * 3;
    if (at > from && (at - from >= most || size + own > bytes)) { found.push([from, at]); from = at; size = 0; }
    size += own;
  });
  if (texts.length > from) found.push([from, texts.length]);
  return found;
}

/** Ask again when the service has too much to do, as long as it says when. */
async function patiently(act, signal) {
  for (let tries = 0; ; tries++) {
    try {
      return await act();
    } catch (error) {
      if (error.status !== 429 || tries > 20) throw error;
      await wait(1000 * error.after, signal);
    }
  }
}

function working(yes, count) {
  $("progress").hidden = $("stop").hidden = !yes;
  $("classify").disabled = yes;
  if (yes) {
    $("progress").max = count;
    $("progress").value = 0;
    $("many-said").textContent = `Classifying ${counted(count, "text", "texts")}.`;
    $("download").hidden = $("rows-box").hidden = true;
  }
}

function showMany() {
  const { source, column, answers, labels } = done;
  const counts = labels.map(label => [label, answers.filter(one => one.label === label).length]).filter(([, n]) => n);
  counts.sort((a, b) => b[1] - a[1]);
  const rest = answers.length > SHOWN ? ` The first ${SHOWN} are shown; the csv has them all.` : "";
  $("many-said").textContent = `${counted(answers.length, "text", "texts")}: ${counts.map(([label, n]) => `${n.toLocaleString("en")} ${label}`).join(", ")}.${rest}`;
  $("rows").tBodies[0].replaceChildren(...answers.slice(0, SHOWN).map((one, at) => {
    const row = document.createElement("tr");
    row.append(element("td", "", one.label), element("td", "r", percent(one.probabilities[one.label])), element("td", "", source.rows[at][column]));
    return row;
  }));
  $("rows-box").hidden = $("download").hidden = false;
}

function download() {
  const { source, answers, labels } = done;
  const header = [...source.columns, "predicted", ...labels.map(label => `probability:${label}`)];
  const width = source.columns.length;
  const rows = source.rows.map((row, at) => [
    ...Array.from({ length: width }, (_, i) => row[i] ?? ""), answers[at].label, ...labels.map(label => answers[at].probabilities[label]),
  ]);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([toCsv([header, ...rows])], { type: "text/csv" }));
  link.download = "predictions.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// --- a text continued -----------------------------------------------------------------------------------------------

let seed = 0;

async function goOn() {
  $("trouble").textContent = "";
  const text = $("prompt").value;
  $("write").disabled = true;
  try {
    const body = { text, model: model.name, max_tokens: Number($("length").value), temperature: Number($("warmth").value), seed: seed++ };
    const said = await ask("continue", body);
    $("written").replaceChildren(element("span", "given", text), said.text, said.stopped === "end" ? " ∎" : " …");
  } catch (error) {
    complain(error);
  } finally {
    $("write").disabled = false;
  }
}

// --- the page -------------------------------------------------------------------------------------------------------

function choose(name) {
  model = info.models.find(one => one.name === name);
  const classifies = model.kind === "classifier", compares = model.kind === "study";
  $("one").hidden = $("many").hidden = !classifies;
  $("go-on").hidden = classifies || compares;
  $("study").hidden = !compares;
  $("name").textContent = model.title.replaceAll(" %", "\u00a0%");
  document.title = `${model.title} – headstart`;
  $("facts").textContent = facts(model).join(" · ");
  if (compares) return showStudy(model);
  $("length").max = info.limits.new_tokens;
  for (const [id, target] of [["examples", "text"], ["prompts", "prompt"]]) {
    $(id).hidden = !model.examples.length;
    $(id).replaceChildren(...model.examples.map(example => exampleButton(example, target)));
  }
  if (classifies) { $("bars").replaceChildren(); clear(); takeTable(table && { ...table }, ""); changed(); }
}

function facts(one) {
  const named = one.name === one.title ? [] : [one.name];
  const labels = counted(one.labels.length, "label", "labels");
  if (one.kind === "study") return [...named, labels, counted(new Set(one.arms.map(arm => arm.name)).size, "arm", "arms")];
  const kind = one.kind === "classifier" ? labels : "a causal language model";
  return [...named, kind, counted(one.parameters, "parameter", "parameters"), `reads ${counted(one.window, "token", "tokens")}`];
}

/** What a model is called in the list: its title, and its name too where two have the same title. */
function called(one) {
  const same = info.models.filter(other => other.title === one.title).length > 1;
  return same && one.title !== one.name ? `${one.title} (${one.name})` : one.title;
}

function exampleButton(example, target) {
  const [first, second] = Array.isArray(example) ? example : [example, ""];
  const made = element("button", "", second ? `${first} / ${second}` : first);
  made.type = "button";
  made.addEventListener("click", () => {
    $(target).value = first;
    if (target === "text") {
      if (second) $("pair").open = true;
      $("second").value = second;
      changed();
    }
  });
  return made;
}

async function begin() {
  try {
    info = await ask("info");
  } catch (error) {
    return complain(error);
  }
  $("lock").hidden = true;
  $("trouble").textContent = "";
  $("version").textContent = info.version;
  $("choice").hidden = info.models.length < 2;
  $("model").replaceChildren(...info.models.map(one => new Option(called(one), one.name)));
  choose(info.models[0].name);
}

$("text").addEventListener("input", changed);
$("second").addEventListener("input", changed);
$("pair").addEventListener("toggle", () => { if ($("second").value) changed(); });
$("model").addEventListener("change", event => choose(event.target.value));
$("lock").addEventListener("submit", event => { event.preventDefault(); useToken($("token").value); begin(); });
$("classify").addEventListener("click", classifyAll);
$("stop").addEventListener("click", () => job?.abort());
$("download").addEventListener("click", download);
$("pick").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", event => { if (event.target.files[0]) takeFile(event.target.files[0]); event.target.value = ""; });
$("lines").addEventListener("input", () => { if ($("lines").value) { $("file-name").textContent = ""; takeTable(null); } });
$("write").addEventListener("click", goOn);
$("prompt").addEventListener("keydown", event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) goOn(); });
for (const kind of ["dragenter", "dragover"]) {
  document.addEventListener(kind, event => { event.preventDefault(); $("drop").classList.add("over"); });
}
for (const kind of ["dragleave", "drop"]) {
  document.addEventListener(kind, event => { event.preventDefault(); $("drop").classList.remove("over"); });
}
$("drop").addEventListener("drop", event => { if (event.dataTransfer.files[0]) takeFile(event.dataTransfer.files[0]); });
beginStudy();
begin();
