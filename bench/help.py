"""What a command costs before it does anything: `headstart --help`, and a cold `predict` of one text.

The peer is `import torch`: `--help` must avoid it, and `predict` should cost little more.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.report import report
from headstart import demo
from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.folder import Checkpoint, save
from headstart.model.presets import usual_head

REPEATS = 5


def cost(*command: str) -> tuple[float, float]:
    """CPU seconds and wall-clock seconds of one command; the children's clock is read before and after."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def prepare(folder: Path) -> tuple[str, str]:
    """A classifier on the base that ships, and a file of one text."""
    base = open_model(demo.BASE)
    model = base.model.with_head(usual_head(base.model.config, "classifier", 2))
    save(Checkpoint(model, ("neg", "pos"), base.tokenizer), folder / "model")
    (folder / "text.txt").write_text("Une histoire tendre et drôle.\n", encoding="utf-8")
    return str(folder / "model"), str(folder / "text.txt")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        commands = {
            "--help": ("-m", "headstart", "--help"),
            "predict": ("-m", "headstart", "predict", *prepare(Path(name))),
            "import torch": ("-c", "import torch"),
        }
        rounds = [{what: cost(*command) for what, command in commands.items()} for _ in range(REPEATS)]
    cpu = {what: median(each[what][0] for each in rounds) for what in commands}
    row = {f"{what}, CPU s": seconds for what, seconds in cpu.items()}
    row |= {
        "predict / import torch": cpu["predict"] / cpu["import torch"],
        "predict, wall s": median(each["predict"][1] for each in rounds),
        "goal of --help, CPU s": 0.3,
        "goal of predict, wall s": 2.0,
    }
    report("help", row)


if __name__ == "__main__":
    main()
