// Files of texts in, a csv out.

/** Rows of cells, as RFC 4180 has them: quotes around a cell, doubled inside; lines may end in CRLF. */
export function parse(text, delimiter) {
  const rows = [];
  let row = [], cell = "", quoted = false, touched = false;
  const endCell = () => { row.push(cell); cell = ""; touched = false; };
  const endRow = () => { endCell(); if (row.length > 1 || row[0] !== "") rows.push(row); row = []; };
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (quoted) {
      if (c !== '"') cell += c;
      else if (text[i + 1] === '"') { cell += '"'; i++; }
      else quoted = false;
    } else if (c === '"' && cell === "" && !touched) { quoted = true; touched = true; }
    else if (c === delimiter) endCell();
    else if (c === "\n" || c === "\r") { if (c === "\r" && text[i + 1] === "\n") i++; endRow(); }
    else cell += c;
  }
  if (cell !== "" || touched || row.length) endRow();
  return rows;
}

/** A file as {columns, rows, column}: a txt has one text a line, a table its names in the first row. */
export function read(name, text) {
  const bare = text.replace(/^\uFEFF/, "");
  if (!/\.(csv|tsv)$/i.test(name)) return fromLines(bare);
  const first = bare.slice(0, (bare + "\n").indexOf("\n"));
  const count = mark => first.split(mark).length;
  const delimiter = /\.tsv$/i.test(name) ? "\t" : [",", ";", "\t"].reduce((a, b) => (count(b) > count(a) ? b : a));
  const [columns = [], ...rows] = parse(bare, delimiter);
  return { columns, rows, column: guess(columns, rows) };
}

export function fromLines(text) {
  const rows = text.split(/\r\n|\n|\r/).filter(line => line.trim()).map(line => [line]);
  return { columns: ["text"], rows, column: 0 };
}

/** The column that is called text, or one of its usual names, or that has the most in it. */
function guess(columns, rows) {
  const usual = ["text", "sentence", "review", "content", "body", "comment", "message"];
  for (const name of usual) {
    const at = columns.findIndex(column => column.trim().toLowerCase() === name);
    if (at >= 0) return at;
  }
  const size = at => rows.slice(0, 200).reduce((sum, row) => sum + (row[at] || "").length, 0);
  return columns.reduce((best, _, at) => (size(at) > size(best) ? at : best), 0);
}

/** Rows as csv, each cell quoted where it must be, and guarded. */
export function toCsv(rows) {
  const cell = value => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  return rows.map(row => row.map(value => cell(guarded(String(value)))).join(",") + "\r\n").join("");
}

/** A spreadsheet takes a cell that begins like this for a formula; after an apostrophe it is text. Numbers stay. */
function guarded(value) {
  return /^\s*[=+\-@＝＋－＠]/.test(value) && !/^\s*[+-]?[\d.,]+(e[+-]?\d+)?\s*$/i.test(value) ? `'${value}` : value;
}
