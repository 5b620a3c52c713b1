// What the sections of the page share: asking the service, bars, words in colour.

export const PAUSE = 200; // ms without a key before the service is asked

export const $ = id => document.getElementById(id);
export const wait = (ms, signal) => new Promise((done, fail) => {
  const timer = setTimeout(done, ms);
  signal?.addEventListener("abort", () => { clearTimeout(timer); fail(signal.reason); });
});
export const percent = share => `${(100 * share).toFixed(1)} %`;
export const counted = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
export const signed = weight => (weight < 0 ? "−" : "+") + Math.abs(weight).toFixed(2);

let token = "";

export function useToken(given) { token = given; }

class Refused extends Error {
  constructor(status, message, after) { super(message); this.status = status; this.after = after; }
}

export async function ask(path, body, signal) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method: body ? "POST" : "GET", headers, signal, body: body && JSON.stringify(body) });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, "The service does not answer. Is it still running?");
  }
  const said = await answer.json();
  if (answer.ok) return said;
  if (answer.status === 401) askForToken();
  throw new Refused(answer.status, said.error.message, Number(answer.headers.get("Retry-After")) || 1);
}

function askForToken() {
  $("lock").hidden = false;
  if (token) $("trouble").textContent = "That was not the token.";
  $("token").focus();
}

export function complain(error) {
  if (error.name === "AbortError" || error.status === 401) return;
  $("trouble").textContent = error.message;
}

export function element(kind, name, text) {
  const made = document.createElement(kind);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text ?? "";
  return made;
}

/** A bar for each share, up to `most` of them. */
export function bars(shares, best, most = 12) {
  const made = shares.slice(0, most).map(([label, share]) => {
    const item = document.createElement("li");
    item.dataset.label = label;
    item.append(element("span", "name", label), element("span", "share", ""), element("div", "track"));
    item.lastChild.append(element("div", "bar"));
    item.lastChild.setAttribute("aria-hidden", "true");
    fillBar(item, share, label === best);
    return item;
  });
  if (shares.length > most) made.push(element("li", "more", `and ${shares.length - most} more`));
  return made;
}

export function fillBar(item, share, best) {
  item.classList.toggle("best", best);
  item.querySelector(".share").textContent = percent(share);
  item.querySelector(".bar").style.width = `${100 * share}%`;
}

/** The text, each word marked. Places are counted in characters, and a string in JavaScript in halves of some. */
export function coloured(text, words, most) {
  const characters = Array.from(text), made = [];
  let at = 0;
  for (const word of words) {
    if (word.start < at) continue;
    made.push(characters.slice(at, word.start).join(""));
    const mark = element("mark", word.weight < 0 ? "against" : "for", characters.slice(word.start, word.end).join(""));
    mark.style.setProperty("--w", (Math.abs(word.weight) / most).toFixed(3));
    mark.title = signed(word.weight);
    made.push(mark);
    at = word.end;
  }
  made.push(characters.slice(at).join(""));
  return made;
}
