"""Pieces: files of SentencePiece pieces, one text a line, with their labels on the same lines of a file beside them."""

from __future__ import annotations

from pathlib import Path

from headstart.errors import DataError
from headstart.reading.lines import COMPRESSIONS, bounded_lines, open_bytes


def decode_pieces(pieces: str) -> str:
    """The text of SentencePiece pieces that are separated by spaces.

    >>> decode_pieces("▁Un ▁livre ▁cap tiv ant .")
    'Un livre captivant.'
    """
    return pieces.replace(" ", "").replace("▁", " ").removeprefix(" ")


def piece_file(path: Path, suffix: str) -> Path:
    """The file of pieces, where it or the file of its labels is named."""
    return path if suffix == ".spm" else companion(path, ".review.spm", ".spm")


def companion(path: Path, *endings: str) -> Path:
    """The other file of a pair: the same name with one of the endings."""
    name = path.name
    for ending in (*COMPRESSIONS, ".spm", ".label", ".review"):
        name = name.removesuffix(ending)
    for ending in endings:
        for compression in ("", *COMPRESSIONS):
            other = path.with_name(name + ending + compression)
            if other.is_file():
                return other
    problem = f"{name + endings[0]} is not beside it, and the two are read together"
    raise DataError(path, problem, fix=f"put {name + endings[0]} into {path.parent}")


def raw_lines(path: Path) -> list[bytes]:
    """The lines of a file as bytes, without blank ones at its end."""
    with open_bytes(path) as stream:
        lines = list(bounded_lines(stream))
    while lines and not lines[-1].strip():
        lines.pop()
    return lines
