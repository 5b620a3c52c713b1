"""The files of a checkpoint of a run: safetensors and JSON, each with a digest. Nothing in them can run code.

    state.safetensors                    the tensors, each whole
    state-00000-of-00002.safetensors …   in its place, where weights are sharded: each process writes its own rows
    state.json                           the numbers, the digest of each file above, and that of state.json itself

A tensor that every part has is sharded by rows, in the order of the parts; one that the first part alone has is whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr  # values of a damaged file may be long
from typing import Any, TypeGuard

import torch
from torch import Tensor

from headstart.checkpoints.folder import read_json, read_safetensors, write_safetensors
from headstart.errors import CheckpointError, TrainingError
from headstart.files import system_error
from headstart.parallel import Parallel
from headstart.training.sharding import is_sharded, local_rows
from headstart.wording import reason

TENSORS, NUMBERS, PART = "state.safetensors", "state.json", "state-{:05d}-of-{:05d}.safetensors"
COUNTS = ("epoch", "in_epoch", "step", "tokens", "shares", "bad_steps", "since_best")
MICRO_BATCHES = 2**20  # of a batch; each takes its time, however empty
LARGEST = 2**53  # every whole number up to it is a float64 too


# --- writing ----------------------------------------------------------------------------------------------------------


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], parallel: Parallel) -> dict[str, str]:
    """Write the tensors of this process; in the main one, the digest of every file. A disk full for one is for all."""
    digests: dict[str, str] = {}
    problem = None
    try:
        digests = _write_own(folder, tensors, parallel)
    except Exception as error:
        problem = system_error(error)
        if problem is None:
            raise
    gathered = parallel.gather((digests, problem))
    problem = parallel.broadcast(next((each for _, each in gathered if each is not None), None))
    if problem is not None:
        raise OSError(problem)
    return {name: digest for each, _ in gathered for name, digest in each.items()}


def _write_own(folder: Path, tensors: Mapping[str, Tensor], parallel: Parallel) -> dict[str, str]:
    """Tensors that are whole are the same in every process: the main one writes them."""
    sharded = {name: local_rows(t) for name, t in tensors.items() if is_sharded(t)}
    whole = {name: t for name, t in tensors.items() if name not in sharded and parallel.is_main}
    if not (sharded or parallel.is_main):
        return {}
    path = folder / (PART.format(parallel.rank, parallel.world_size) if sharded else TENSORS)
    write_safetensors(path, _to_cpu({**whole, **sharded}))
    return {path.name: _digest_of(path)}


def _to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies from a GPU go on a stream of their own: on the default one they would wait for the steps queued there."""
    device = next((t.device for t in tensors.values() if t.is_cuda), None)
    if device is None:
        return {name: t.contiguous() for name, t in tensors.items()}
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))  # `tensors` are copies that it may still be making
    with torch.cuda.stream(stream):
        return {name: t.contiguous().cpu() for name, t in tensors.items()}


def write_numbers(folder: Path, numbers: Mapping[str, Any], digests: Mapping[str, str]) -> None:
    values = {**numbers, "sha256": dict(sorted(digests.items()))}
    values["digest"] = _digest_of_values(values)
    (folder / NUMBERS).write_text(json.dumps(values) + "\n", encoding="utf-8")


# --- reading ----------------------------------------------------------------------------------------------------------


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, each in one piece, and the numbers; a CheckpointError where anything is not as it was written."""
    numbers = read_json(folder / NUMBERS)
    digest = numbers.pop("digest", None)  # earlier versions wrote none
    if digest is not None and digest != _digest_of_values(numbers):
        raise CheckpointError(f"the digest of {folder / NUMBERS} is not the one it was written with")
    digests = numbers.pop("sha256", None)
    names = _part_names(folder, digests)
    problem = _problem(numbers)
    if problem is not None:
        raise CheckpointError(f"{folder / NUMBERS}: {problem}")
    for name in names:
        if not (folder / name).is_file() or _digest_of(folder / name) != digests[name]:
            raise CheckpointError(f"the checksum of {folder / name} is not the one it was written with")
    return _joined(folder, [read_safetensors(folder / name) for name in names]), numbers


def _part_names(folder: Path, digests: Any) -> list[str]:
    """The files of tensors. No other file is opened: another form, such as torch's, is read by running what it says."""
    names = sorted(digests) if isinstance(digests, dict) else []
    if names in ([TENSORS], [PART.format(i, len(names)) for i in range(len(names))]) and names:
        return names
    if ".metadata" in names:
        raise TrainingError(
            f"{folder} was written by several processes of an earlier headstart, in a form that could run code when it "
            "is read: finish the run with that version, or start again in another folder"
        )
    raise CheckpointError(f"{folder / NUMBERS} names the files {', '.join(names) or 'none'}, expected {TENSORS}")


def _joined(folder: Path, parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    first, *others = parts
    names = others[0].keys() if others else set()
    if not names <= first.keys() or any(part.keys() != names for part in others):
        raise CheckpointError(f"the parts of {folder} do not hold the same tensors")
    try:
        return {**first, **{name: torch.cat([part[name] for part in parts]) for name in names}}
    except RuntimeError as error:
        raise CheckpointError(f"the parts of {folder} do not fit together ({reason(error)})") from None


def _problem(numbers: Mapping[str, Any]) -> str | None:
    """What is wrong with the numbers that a run goes on from."""
    for name in COUNTS:
        if not is_count(numbers.get(name)):
            return f"{name!r} is {repr(numbers.get(name))}, expected a whole number of 0 or more"
    if not 1 <= numbers["shares"] <= MICRO_BATCHES:
        return f"'shares' is {numbers['shares']}, expected 1 to {MICRO_BATCHES:,} micro-batches"
    if not isinstance(numbers.get("optimizer"), dict):
        return f"'optimizer' is {repr(numbers.get('optimizer'))}, expected an object"
    best = numbers.get("best")
    if best is None:
        return None
    scores = best.get("scores") if isinstance(best, dict) and best.keys() == {"step", "epoch", "scores"} else None
    if not isinstance(scores, dict) or not all(map(is_number, [best["step"], best["epoch"], *scores.values()])):
        return f"'best' is {repr(best)}, expected null or a step, an epoch and scores"
    return None


def is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= LARGEST


def is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float)


# --- digests ----------------------------------------------------------------------------------------------------------


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of_values(values: Mapping[str, Any]) -> str:
    """Of the JSON text, which is the same for values that were read back from it."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
