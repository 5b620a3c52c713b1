"""`make bench`: every case, ours and the peer on the same work in one run; rows on the screen, JSON in bench/results/.

python -m bench            all of them
python -m bench tokens     one
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CASES = {
    "help": "CPU seconds of `headstart --help` and of a cold `predict`, against those of importing torch",
    "tokens": "a corpus into ids, against datasets.map with as many processes",
    "predict": "texts a second, against the pipeline of transformers",
    "serve": "the service under load, against predict offline",
    "training": "the lab's language model against its plain form, fine-tuning against the Trainer of transformers",
    "pretraining": "batches from a token store, tokens a second; on a GPU training on them, against ready-made batches",
    "growth": "how the cost of a step grows with length, width, vocabulary and batch",
    "processes": "two processes on twice the batch, against one: weights copied, and sharded",
    "saving": "what a checkpoint costs the training that goes on meanwhile",
}


def main() -> None:
    asked = sys.argv[1:] or list(CASES)
    for name in asked:
        if name not in CASES:
            sys.exit(f"no case {name!r}: {', '.join(CASES)}")
    for name in asked:
        print(f"\n{name}: {CASES[name]}", flush=True)
        subprocess.run([sys.executable, "-m", f"bench.{name}"], check=True, cwd=Path(__file__).parents[1])


if __name__ == "__main__":
    main()
