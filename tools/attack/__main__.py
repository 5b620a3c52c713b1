"""The whole attack: files, options, kills, limits and requests at random, from a seed, on this machine alone.

    python -m tools.attack                       all of it, in full size: about an hour
    python -m tools.attack --scale 0.02          a fiftieth of it
    python -m tools.attack readers kills         these tests alone

Prints a table, and exits with 1 where there was a traceback, a hang, a crash, a wrong answer, or something lost. Each
case is drawn from the seed and its number; every process has limits on time and memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["OMP_NUM_THREADS"] = "1"  # everything is tiny

from attack.cases import GOOD

TESTS = {  # in full size
    "readers": ("damaged data files", 10_000),
    "tokenizer": ("damaged tokenizers", 2_000),
    "models": ("damaged model folders", 2_000),
    "studies": ("damaged comparisons, served", 500),
    "bases": ("damaged bases", 200),
    "checkpoints": ("damaged runs, resumed", 500),
    "options": ("odd options and recipes", 5_000),
    "kills": ("kills of commands that write", 200),
    "processes": ("two processes, one killed", 100),
    "disks": ("full disks", 200),
    "descriptors": ("few file descriptors", 200),
    "memory": ("little memory", 200),
    "service": ("requests to the service", 100_000),
}
BEGIN, END = "<!-- attack table -->", "<!-- end attack table -->"
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
REQUESTS = 1000  # to one service, from its start to its end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", metavar="TEST", help=f"of {', '.join(TESTS)}; all by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size, at least one case of each")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    asked = parser.parse_args()
    if unknown := set(asked.tests) - set(TESTS):
        parser.error(f"no test {', '.join(sorted(unknown))}: there are {', '.join(TESTS)}")
    began, rows, failed = time.monotonic(), ["| test | tried | outcome |", "|---|---|---|"], False
    for name in asked.tests or TESTS:
        title, size = TESTS[name]
        counts, failures = run(name, max(1, round(size * asked.scale)), asked.seed)
        failed = failed or bool(failures)
        rows.append(f"| {title} (`{name}`) | {sum(counts.values()):,} | {outcome(counts)} |")
        print("\n".join([*failures[:20], rows[-1]]), flush=True)
    minutes = (time.monotonic() - began) / 60
    heading = (
        f"{time.strftime('%Y-%m-%d')}, seed {asked.seed}, {asked.scale:g} of the full size, {minutes:.0f} minutes:"
    )
    text = "\n".join([heading, "", *rows])
    print(f"\n{text}")
    if asked.write:
        write_table(PAGE, text)
    sys.exit(failed)


def run(name: str, cases: int, seed: int) -> tuple[Counter[str], list[str]]:
    """How often there was each outcome, and a text about each that is not good."""
    test = import_module(f"attack.{name}")
    if name == "service":
        found = test.run(cases, max(1, cases // REQUESTS), seed)
        failed = test.failures(found)
        counts: Counter[str] = Counter()
        for (kind, what), number in found.items():
            bad = (kind, what) in failed
            counts[f"{kind}: {what}" if bad else what if kind == "ordinary request" else "hostile, kept off"] += number
        return counts, [f"{kind}: {what}" for kind, what in failed]
    outcomes = test.run(cases, seed)
    counts = Counter(outcome.kind for outcome in outcomes)
    return counts, [f"{each.kind}: {name}, {each.case}\n{each.detail}\n" for each in outcomes if not each.good]


def outcome(counts: Counter[str]) -> str:
    """
    >>> outcome(Counter({"refused": 1200, "answered": 300, "hang": 1}))
    '1,200 refused, 300 answered, **1 hang**'
    """
    good = (*GOOD, "503 at the end", "no connection at the end", "reset at the end", "hostile, kept off")
    words = [f"{number:,} {kind}" for kind, number in counts.most_common()]
    kinds = [kind for kind, _ in counts.most_common()]
    return ", ".join(word if kind in good else f"**{word}**" for word, kind in zip(words, kinds, strict=True))


def write_table(page: Path, text: str) -> None:
    """Put the table between its two marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2] if END in rest else rest
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
