"""Writing a token store: a corpus is encoded by many processes, and can be interrupted at any moment.

Documents are taken in chunks of about a megabyte, in the order of the files; processes encode the chunks and one
writer appends them in order, so the bytes do not depend on the number of processes. Started again after an interrupt,
the writer reads the corpus from its beginning, skips the chunks whose text and files agree with `progress.log`, and
goes on from the first that does not.

Where `torchrun` started several processes, each reads the whole corpus and encodes its share of the chunks; the main
process writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path

from headstart.errors import ConfigError, DataError
from headstart.parallel import SINGLE, Parallel
from headstart.reading.skipped import SkippedRows
from headstart.store.encoder import encode_chunks
from headstart.store.plan import StorePlan
from headstart.store.store import Store, read_manifest
from headstart.store.writer import OnProgress, clear_unfinished, open_writer
from headstart.tokenizers.tokenizer import Tokenizer


def write_store(
    paths: Sequence[str | Path],
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    valid: float = 0.01,
    workers: int | None = None,
    column: str | None = None,
    blank_lines: bool = False,
    skip_bad: bool = False,
    repeat: Mapping[str, int] | None = None,
    on_progress: OnProgress = lambda progress: None,
    parallel: Parallel = SINGLE,
) -> Store:
    """Encode the documents of files, folders and globs into a token store at `out`.

    `valid` is the share of documents held out, `workers` the number of processes (all cores if None; 1 encodes in
    this process). `column`, `blank_lines` and `skip_bad` say how files are read, as in `read_documents`. `repeat` says
    how often a file counts, by its name or path: its documents stand in the store so many times.

    What an interrupted run has finished is kept. Where `out` already holds the complete store of the same files,
    tokenizer and options, it is checked and returned; where it holds anything else, that is an error.
    The processes of `parallel` call it with the same arguments and share the work; all must be able to read `out`.

    Workers are fresh processes, which import the calling script: call this under `if __name__ == "__main__":`.
    """
    _check_settings(valid, workers)
    out = Path(out)
    reading = {"column": column, "blank_lines": blank_lines, "skip_bad": skip_bad}
    plan = StorePlan.of(paths, tokenizer, valid=valid, repeat=repeat or {}, reading=reading)
    parallel.require_same("corpus, tokenizer or options", plan.manifest)
    if parallel.broadcast((out / "store.json").exists()):
        return _existing_store(out, plan) if parallel.is_main else Store.open(out)
    skipped = SkippedRows() if skip_bad else None
    chunks = _chunks(plan, skipped)
    encode = partial(encode_chunks, encoder=(out, plan.manifest["dtype"], valid), workers=workers, parallel=parallel)
    if parallel.is_main:
        with open_writer(out, plan, on_progress) as writer:
            tokenizer.save(out)
            rest = writer.skip_finished(chunks, lambda: parallel.broadcast(True))
            parallel.broadcast(False)
            with closing(encode(rest)) as encoded:
                for chunk in encoded:
                    writer.append(chunk)
            plan.require_unchanged()
            writer.finish(skipped or SkippedRows())
    else:
        while parallel.broadcast(None):  # for each chunk that an earlier run finished
            next(chunks)
        deque(encode(chunks), maxlen=0)  # the main process writes them
        plan.require_unchanged()
    parallel.barrier()  # the store is complete
    return Store.open(out, tokenizer.fingerprint)


def _check_settings(valid: float, workers: int | None) -> None:
    if not 0 <= valid <= 1:
        raise ConfigError("valid", [f"{valid} is not a share of the documents, expected 0 to 1"])
    if workers is not None and workers < 1:
        raise ConfigError("workers", [f"{workers} processes, expected at least 1"])


def _existing_store(out: Path, plan: StorePlan) -> Store:
    """The store that is there already, if it is the one that was asked for."""
    plan.require_same(out, "a complete store", read_manifest(out))
    store = Store.open(out)
    store.verify()
    clear_unfinished(out)  # a run may have been killed in its last moment
    return store


def _chunks(plan: StorePlan, skipped: SkippedRows | None) -> Iterator[list[str]]:
    """The chunks of a corpus; one without a single document is refused here, before anything is written."""
    chunks = plan.chunks(skipped)
    first = next(chunks, None)
    if first is None:
        fix = "\n  ".join(["every one was left out:", *map(str, skipped.first)]) if skipped else None
        raise DataError(plan.files[0], "not one document that can be read, expected at least one", fix=fix)
    return chain([first], chunks)
