"""The labelled answers of the Grand Débat national that ship with headstart, made from the set they are taken from.

    python tools/debat.py RAW PILE        # src/headstart/demo/debat/*.csv, and the two tables of DATASHEET.md there

RAW has train.csv, valid.csv and test.csv with the columns label and text. PILE is the text that the base `debat-fr`
was pretrained on, one document a line, compressed or not. A row is dropped where it has contact details,
would be scored and stands in the pile, stands in another that is scored, or is a copy that `headstart doctor` finds.
The same input gives the same bytes.
"""

from __future__ import annotations

import csv
import hashlib
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from headstart.doctor.examine import examine
from headstart.doctor.near_duplicates import words
from headstart.reading.documents import read_documents
from headstart.reading.examples import Example, Examples, read_examples

HERE = Path(__file__).resolve().parents[1] / "src" / "headstart" / "demo" / "debat"
SPLITS = ("train", "valid", "test")
LABELS = {name: name for name in ("chauffage", "climat", "emploi", "immigration", "retraite", "transports")} | {
    "ecole": "école",
    "elus": "élus",
    "impots": "impôts",
    "incivilites": "incivilités",
    "laicite": "laïcité",
    "sante": "santé",
}
CONTACT = re.compile(
    r"\S@\S|https?:|\bwww\.|\w\.(?:com|eu|fr|net|org)\b"  # e-mail addresses and links
    r"|(?:\+33|\b0)[\s.-]*[1-9](?:[\s.-]*\d\d){4}\b"  # telephone numbers
)
REASONS = CONTACT_DETAILS, PRETRAINED, SCORED, DOCTOR = (
    "contact details",
    "in the pretraining text",
    "in a split that is scored",
    "found by `headstart doctor`",
)
COPIES = ("leak", "near-leak", "conflict", "duplicate", "near-duplicate")  # findings of the doctor
RUN = 10  # words in a row that a scored answer may share neither with the pile nor with train

Rows = dict[str, list[Example]]
Dropped = dict[str, Counter[str]]  # reasons by split


def has_contact(text: str) -> bool:
    """Whether a text has an e-mail address, a link, the name of a site or a telephone number.

    >>> [has_contact(text) for text in ("a@b.fr", "voir ameli.fr", "01 23 45 67 89", "15 000 euros en 2019. Oui")]
    [True, True, True, False]
    """
    return CONTACT.search(text) is not None


def standing_in(texts: Iterable[str], lines: Iterable[str]) -> set[str]:
    """The texts that share ten words in a row with a line; a shorter text, where all of its words stand in one.

    >>> pile = ["On l'a dit: baisser les impôts, vite !", "un deux trois quatre cinq six sept huit neuf dix onze"]
    >>> texts = ["Baisser les impôts.", "Les impôts, baisser", "un deux trois quatre cinq six sept huit neuf dix !"]
    >>> sorted(standing_in(texts, pile))
    ['Baisser les impôts.', 'un deux trois quatre cinq six sept huit neuf dix !']
    """
    runs: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for text in texts:
        found = tuple(words(text))
        for i in range(max(1, len(found) - RUN + 1)):
            runs[found[i : i + RUN]].add(text)
    lengths: dict[str, set[int]] = defaultdict(set)  # of the runs that begin with a word
    for run in runs:
        lengths[run[0]].add(len(run))
    standing = set()
    for line in lines:
        found = tuple(words(line))
        for i, first in enumerate(found):
            for length in lengths.get(first, ()):
                standing |= runs.get(found[i : i + length], set())
    return standing


def drop(rows: Rows, dropped: Dropped, reason: str, wrong: Mapping[str, set[str]]) -> None:
    """Take the wrong texts of each split out of `rows`, and count them."""
    for split, texts in wrong.items():
        kept = [row for row in rows[split] if row.text not in texts]
        dropped[split][reason] += len(rows[split]) - len(kept)
        rows[split] = kept


def doctors_finding(rows: Rows) -> dict[str, set[str]]:
    """The copies that the doctor finds: of two, the one in the split that is scored less, or else the later one."""
    found: dict[str, set[str]] = {split: set() for split in SPLITS}
    files = {(row.path, row.line): row.text for split in SPLITS for row in rows[split]}
    train, valid, test = (Examples(tuple(rows[split])) for split in SPLITS)
    for finding in examine(train, valid, test).findings:
        for row in finding.examples if finding.kind in COPIES else ():
            other = row.partner or row
            wrong = min(row, other, key=lambda each: (SPLITS.index(each.split), -each.line))
            found[wrong.split].add(files[wrong.path, wrong.line])
    return found


def subset(raw: Path, pile: Iterable[str]) -> tuple[Rows, Dropped]:
    """The rows that stay, and how many were dropped from each split for each reason."""
    rows: Rows = {split: list(read_examples(raw / f"{split}.csv", text="text", label="label").rows) for split in SPLITS}
    dropped: Dropped = {split: Counter() for split in SPLITS}
    contact = {split: {row.text for row in rows[split] if has_contact(row.text)} for split in SPLITS}
    drop(rows, dropped, CONTACT_DETAILS, contact)
    texts = {split: [row.text for row in rows[split]] for split in SPLITS}
    standing = standing_in(texts["valid"] + texts["test"], pile)
    drop(rows, dropped, PRETRAINED, dict.fromkeys(SPLITS[1:], standing))
    copied = {
        "train": standing_in(texts["train"], texts["valid"] + texts["test"]),
        "valid": standing_in(texts["valid"], texts["test"]),
    }
    drop(rows, dropped, SCORED, copied)
    while any((wrong := doctors_finding(rows)).values()):  # it names five rows of each kind at a time
        drop(rows, dropped, DOCTOR, wrong)
    labelled = {split: [replace(row, label=LABELS[row.label or ""]) for row in rows[split]] for split in SPLITS}
    return labelled, dropped


def write(rows: Rows, folder: Path) -> None:
    for split in SPLITS:
        with (folder / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(("label", "text"))
            table.writerows((row.label, row.text) for row in rows[split])


def files_table(folder: Path) -> str:
    """The files as DATASHEET.md lists them: rows, size, SHA-256."""
    lines = ["| file | rows | bytes | SHA-256 |", "|---|---|---|---|"]
    for split in SPLITS:
        content = (folder / f"{split}.csv").read_bytes()
        rows = len(read_examples(folder / f"{split}.csv", text="text", label="label").rows)
        lines.append(f"| `{split}.csv` | {rows:,} | {len(content):,} | `{hashlib.sha256(content).hexdigest()}` |")
    return "\n".join(lines) + "\n"


def dropped_table(dropped: Dropped) -> str:
    """What was dropped, as DATASHEET.md lists it."""
    lines = [f"| dropped | {' | '.join(SPLITS)} |", "|---|---|---|---|"]
    for reason in REASONS:
        lines += [f"| {reason} | {' | '.join(str(dropped[split][reason]) for split in SPLITS)} |"]
    return "\n".join(lines) + "\n"


def replace_table(page: str, table: str) -> str:
    """A page with the table of the same first line replaced.

    >>> replace_table("Now:\\n\\n| a |\\n| old |\\n\\nrest", "| a |\\n| new |\\n")
    'Now:\\n\\n| a |\\n| new |\\n\\nrest'
    """
    first = re.escape(table.splitlines()[0])
    return re.sub(rf"^{first}\n(?:\|.*\n)*", lambda _: table, page, flags=re.MULTILINE)


def main(arguments: Sequence[str]) -> None:
    if len(arguments) != 2:
        sys.exit("name the folder of the raw set and the pretraining text: python tools/debat.py RAW PILE")
    rows, dropped = subset(Path(arguments[0]), (document.text for document in read_documents([arguments[1]])))
    write(rows, HERE)
    sheet = HERE / "DATASHEET.md"
    page = sheet.read_text(encoding="utf-8")
    for table in (files_table(HERE), dropped_table(dropped)):
        page = replace_table(page, table)
        print(table)
    sheet.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
