"""Text for pretraining, turned into a token store beside the run folder: OUT-tokens.

OUT-tokens/
  corpus.toml   the text and how it is read; other settings want another folder
  tokenizer/    trained on the text, unless one was given
  store/        the token store; interrupted, it goes on where it stopped
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from hashlib import blake2b
from json import dumps
from pathlib import Path

from headstart.checkpoints.exchange import open_model
from headstart.config import read_toml, to_toml
from headstart.errors import OutputError
from headstart.files import write_text
from headstart.parallel import Parallel
from headstart.reading.documents import expand_paths, read_documents
from headstart.reading.skipped import SkippedRows
from headstart.store.write import write_store
from headstart.studies.settings import PretrainSettings
from headstart.tokenizers.load import FILE
from headstart.tokenizers.tokenizer import Tokenizer

VOCABULARY = 16_000  # tokens of a tokenizer that is trained on the corpus
SAMPLE = 30_000_000  # bytes of it that are enough for that: of four times as much, tokens a byte are the same
HOW = ("corpus", "vocabulary", "column", "blank_lines", "skip_bad", "tokenizer", "init")


def make_store(
    settings: PretrainSettings, out: Path, *, parallel: Parallel, workers: int | None, log: Callable[[str], None]
) -> Path:
    """The token store of the corpus: begun, gone on with, or as it is where it is done."""
    assert settings.corpus
    beside = out if out.name else out.resolve()  # the current folder is called by its own name
    folder = beside.parent / f"{beside.name}-tokens"
    expand_paths(settings.corpus)  # a file that is missing, before anything is written
    if parallel.is_main:
        _open_folder(folder, settings)
    tokenizer = _tokenizer(settings, folder / "tokenizer", parallel, log)
    if not (folder / "store" / "store.json").is_file():
        log(f"encoding {_names(settings)} into the token store {folder / 'store'}")
    store = write_store(
        settings.corpus,
        tokenizer,
        folder / "store",
        workers=workers,
        column=settings.column,
        blank_lines=bool(settings.blank_lines),
        skip_bad=bool(settings.skip_bad),
        parallel=parallel,
    )
    return store.folder


def write_texts(texts: Iterable[str], folder: Path) -> Path:
    """A file of texts, a line each, named by its content: the same texts are the same file."""
    lines = "".join(dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    path = folder / f"texts-{blake2b(lines.encode(), digest_size=4).hexdigest()}.jsonl"
    if not path.is_file():
        write_text(path, lines)
    return path


def _open_folder(folder: Path, settings: PretrainSettings) -> None:
    given = settings.to_mapping()
    wanted = {f.name: given[f.name] for f in fields(settings) if f.name in HOW and f.name in given}
    begun = (folder / "tokenizer" / FILE).is_file() or (folder / "store").exists()
    if begun and (folder / "corpus.toml").is_file():
        if read_toml(folder / "corpus.toml") != wanted:
            raise OutputError(f"{folder} holds the tokens of another text or tokenizer: name another folder with --out")
    else:
        write_text(folder / "corpus.toml", to_toml(wanted))


def _tokenizer(settings: PretrainSettings, folder: Path, parallel: Parallel, log: Callable[[str], None]) -> Tokenizer:
    """The one that is given, that of the model to go on from, or one that is trained on the corpus."""
    if settings.tokenizer is not None:
        return Tokenizer.load(settings.tokenizer)
    own = None if settings.init is None else open_model(settings.init).tokenizer
    if own is not None:
        return own
    if parallel.is_main and not (folder / FILE).is_file():
        size = settings.vocabulary or VOCABULARY
        log(f"training a tokenizer of at most {size:,} tokens on {_names(settings)}")
        skipped = SkippedRows() if settings.skip_bad else None
        how = {"column": settings.column, "blank_lines": bool(settings.blank_lines)}
        documents = read_documents(settings.corpus or (), skipped=skipped, **how)  # type: ignore[arg-type]
        Tokenizer.train(sample(document.text for document in documents), size=size).save(folder)
    parallel.barrier()
    return Tokenizer.load(folder)


def sample(texts: Iterable[str], most: int = SAMPLE) -> list[str]:
    """All of the texts, or every second, fourth, eighth … of them, so that they have at most so many bytes.

    >>> sample(["aa", "bb", "cc", "dd", "ee"], most=6)
    ['aa', 'cc', 'ee']
    """
    kept: list[str] = []
    stride, size = 1, 0
    for number, text in enumerate(texts):
        if number % stride:
            continue
        kept.append(text)
        size += len(text.encode())
        while size > most and len(kept) > 1:
            kept, stride = kept[::2], 2 * stride
            size = sum(len(text.encode()) for text in kept)
    return kept


def _names(settings: PretrainSettings) -> str:
    return ", ".join(settings.corpus or ())
