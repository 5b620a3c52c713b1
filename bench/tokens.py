"""How fast a corpus becomes tokens: `headstart tokens` beside `datasets.map`, same text, same tokenizer, one machine.

    python -m bench.tokens                    # one row, and bench/results/tokens.json
    python -m bench.tokens --kind bpe --megabytes 120 --repeats 5

Each run is a process of its own, ours and theirs by turns. The clock covers everything from files to a finished store
on our side (reading, hashing, splitting, encoding, writing); on theirs only `map`, with the text already in Arrow
form, the faster `encode_batch_fast`, and one thread in each process. Memory is the most that all processes of a run
held at once, as the sum of their resident sets. Both must give the same ids, or there is no row.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache" / "bench-tokens"
DATA = Path(os.environ.get("HEADSTART_DATA", HERE.parents[1] / "shared" / "data"))
CORPORA = ("fr-europarl", "en-wiki")  # half of the text from each
GOALS = {"unigram": 3.0, "bpe": 2.5, "wordpiece": 1.5}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = _parser().parse_args(arguments)
    text = _text(options.megabytes)
    tokenizer = _tokenizer(options.kind, options.size, text)
    runs: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
    for _ in range(options.repeats):
        for side, results in runs.items():
            results.append(_measure(side, text, tokenizer, options.workers))
    if len({run["ids"] for results in runs.values() for run in results}) != 1:
        raise SystemExit("bench tokens: the two sides do not give the same ids")
    row = _row(runs, text.stat().st_size / 1e6)
    goal = GOALS[options.kind]
    result = {**vars(options), **row, "goal": goal, "text": text.name, "runs": runs, "versions": _versions()}
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "tokens.json").write_text(json.dumps(result, indent=2) + "\n")
    print(
        f"tokens  {row['megabytes_of_text']:.0f} MB, {options.kind} {options.size:,}, {options.workers} processes:  "
        f"ours {row['ours_mb_per_s']:.1f} MB/s ({row['ours_peak_mb']:.0f} MB held),  "
        f"datasets.map {row['theirs_mb_per_s']:.1f} MB/s ({row['theirs_peak_mb']:.0f} MB held),  "
        f"ratio {row['ratio']:.2f} (goal {goal})"
    )
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.tokens", description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kind", choices=("unigram", "bpe", "wordpiece"), default="unigram")
    parser.add_argument("--size", type=int, default=16_000, help="tokens in the vocabulary")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    return parser


def _row(runs: dict[str, list[dict[str, Any]]], megabytes: float) -> dict[str, Any]:
    seconds = {side: [run["seconds"] for run in results] for side, results in runs.items()}
    pairs = zip(seconds["theirs"], seconds["ours"], strict=True)
    row: dict[str, Any] = {"megabytes_of_text": megabytes}
    for side, results in runs.items():
        row[f"{side}_mb_per_s"] = megabytes / statistics.median(seconds[side])
        row[f"{side}_peak_mb"] = max(run["peak_mb"] for run in results)
    row["ratio"] = statistics.median(theirs / ours for theirs, ours in pairs)  # neighbours in time, side by side
    return row


# What both sides are given


def _text(megabytes: int) -> Path:
    """One document a line: from the real corpora where they are, generated otherwise."""
    sources = [DATA / "corpora" / f"{name}.txt.xz" for name in CORPORA]
    real = all(source.is_file() for source in sources)
    path = CACHE / f"{'real' if real else 'made'}-{megabytes}mb.txt"
    if not path.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        with new.open("w", encoding="utf-8", newline="\n") as file:
            for lines in [_real_lines(source) for source in sources] if real else [_made_lines()]:
                left = megabytes * 1_000_000 // (len(sources) if real else 1)
                for line in lines:
                    left -= len(line.encode())
                    if left < 0:
                        break
                    file.write(line)
        new.replace(path)
    return path


def _real_lines(path: Path) -> Iterator[str]:
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        yield from file


def _made_lines() -> Iterator[str]:
    """Words whose frequencies fall as they do in a language, in lines of a few hundred."""
    chance = random.Random(0)
    letters = "eeeeaaaiiiooonnnrrrttssllldduucmpvhgfbqyéèàç"
    words = ["".join(chance.choices(letters, k=chance.randint(1, 12))) for _ in range(200_000)]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    totals = [sum(weights[:1])]
    for weight in weights[1:]:
        totals.append(totals[-1] + weight)
    while True:
        yield " ".join(chance.choices(words, cum_weights=totals, k=chance.randint(20, 800))) + ".\n"


def _tokenizer(kind: str, size: int, text: Path) -> Path:
    from headstart.tokenizers.tokenizer import Tokenizer

    folder = CACHE / f"{text.stem}-{kind}-{size}"
    if not (folder / "tokenizer.json").is_file():
        with text.open(encoding="utf-8") as file:
            Tokenizer.train(islice(file, 0, None, 4), kind=kind, size=size).save(folder)
    return folder


# One run, in a process of its own


def _measure(side: str, text: Path, tokenizer: Path, workers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        command = [sys.executable, __file__, side, str(text), str(tokenizer), str(workers), work]
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_DATASETS_OFFLINE": "1", "HF_HOME": work}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        peak = 0
        while process.poll() is None:
            peak = max(peak, resident(process.pid))
            time.sleep(0.02)
        assert process.stdout is not None
        output = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"bench tokens: the run of {side} ended with {process.returncode}")
    return {**json.loads(output.splitlines()[-1]), "peak_mb": peak / 1e6}


def resident(pid: int) -> int:
    """Bytes of memory that a process and its descendants hold now."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):  # it has just ended
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(resident(int(child)) for child in children)


def _ours(text: Path, tokenizer: Path, workers: int, work: Path) -> tuple[float, str]:
    from headstart.store.write import write_store
    from headstart.tokenizers.tokenizer import Tokenizer

    loaded = Tokenizer.load(tokenizer)
    began = time.perf_counter()
    store = write_store([text], loaded, work / "store", valid=0, workers=workers)
    seconds = time.perf_counter() - began
    return seconds, sha256(store.split("train").ids.astype("<u4").tobytes()).hexdigest()


def _theirs(text: Path, tokenizer: Path, workers: int, work: Path) -> tuple[float, str]:
    import datasets

    import tokenizers

    datasets.disable_progress_bars()
    loaded = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    lines = datasets.load_dataset("text", data_files=str(text), split="train", cache_dir=str(work))

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"ids": [each.ids for each in loaded.encode_batch_fast(batch["text"], add_special_tokens=False)]}

    began = time.perf_counter()
    encoded = lines.map(encode, batched=True, num_proc=workers, remove_columns=["text"])
    seconds = time.perf_counter() - began
    digest = sha256()
    for chunk in encoded.data.column("ids").chunks:
        digest.update(chunk.flatten().to_numpy().astype("<u4").tobytes())
    return seconds, digest.hexdigest()


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("headstart", "tokenizers", "datasets", "pyarrow", "numpy")}
    return {"python": platform.python_version(), "machine": platform.machine(), **packages}


if __name__ == "__main__":
    if len(sys.argv) == 6 and sys.argv[1] in ("ours", "theirs"):
        run = _ours if sys.argv[1] == "ours" else _theirs
        taken, ids = run(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
        print(json.dumps({"seconds": taken, "ids": ids}))
    else:
        main()
