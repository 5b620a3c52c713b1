"""Reversible renames between our tensors and a family's.

A table maps our names to theirs, a module at a time; `{i}` stands for the number of a layer:

    "layers.{i}.attention.out": "encoder.layer.{i}.attention.output.dense"

A tuple names tensors that we concatenate (queries, keys and values are one matrix here), `Transposed` a matrix that
they store transposed. Nothing else ever happens to a tensor, so every rename can be undone, bit for bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.errors import CheckpointError


class Transposed(str):
    """Their matrix is (in, out), as GPT-2's `Conv1D` has it, and ours (out, in); biases are alike."""


Theirs = str | tuple[str, str, str]
Table = Mapping[str, Theirs]


@dataclass(frozen=True)
class Source:
    """Where one of our tensors comes from."""

    names: tuple[str, ...]
    transposed: bool = False


def sources(ours: Iterable[str], table: Table, backbone_prefix: str = "") -> dict[str, Source]:
    """For each of our tensor names, the names of theirs that it is made of; those of the backbone get the prefix.

    >>> table = {"layers.{i}.attention.qkv": ("h.{i}.q", "h.{i}.k", "h.{i}.v")}
    >>> sources(["layers.3.attention.qkv.weight"], table)["layers.3.attention.qkv.weight"].names
    ('h.3.q.weight', 'h.3.k.weight', 'h.3.v.weight')
    """
    found = {}
    for name in ours:
        number = re.search(r"\.(\d+)\.", name)
        general = name.replace(number[0], ".{i}.", 1) if number else name
        # The table names a module, or a single parameter such as a head's bias.
        entry, dot, leaf = (general, "", "") if general in table else general.rpartition(".")
        if entry not in table:
            raise CheckpointError(f"this family has no place for our tensor {name!r}")
        theirs = table[entry]
        prefix, layer = backbone_prefix if name.startswith("backbone.") else "", number[1] if number else ""
        parts = theirs if isinstance(theirs, tuple) else (theirs,)
        names = tuple(prefix + part.replace("{i}", layer) + dot + leaf for part in parts)
        found[name] = Source(names, isinstance(theirs, Transposed) and leaf == "weight")
    return found


def rename_in(theirs: Mapping[str, Tensor], table: Mapping[str, Source], where: str) -> dict[str, Tensor]:
    """Their tensors under our names; an error names those that are missing or unexpected."""
    needed = {name for source in table.values() for name in source.names}
    check_keys(where, missing=needed - theirs.keys(), unexpected=theirs.keys() - needed)
    ours = {}
    for name, source in table.items():
        parts = [theirs[n] for n in source.names]
        shapes = [tuple(part.shape) for part in parts]
        if len(set(shapes)) > 1 or (source.transposed and len(shapes[0]) != 2) or (len(parts) > 1 and not shapes[0]):
            expected = "a matrix" if source.transposed else "one shape, and not a single number"
            found = ", ".join(map(str, shapes))
            raise CheckpointError(f"{where}: {', '.join(source.names)} has shape {found}, expected {expected}")
        if source.transposed:
            parts = [part.T for part in parts]
        ours[name] = (torch.cat(parts) if len(parts) > 1 else parts[0]).contiguous()
    return ours


def rename_out(ours: Mapping[str, Tensor], table: Mapping[str, Source]) -> dict[str, Tensor]:
    """Our tensors under their names: the inverse of `rename_in`."""
    theirs = {}
    for name, source in table.items():
        parts = ours[name].chunk(len(source.names))
        for theirs_name, part in zip(source.names, parts, strict=True):
            theirs[theirs_name] = (part.T if source.transposed else part).contiguous()
    return theirs


def check_keys(where: str, *, missing: Iterable[str], unexpected: Iterable[str]) -> None:
    """Raise a CheckpointError that names missing and unexpected tensors, if there are any."""
    lines = [
        f"{kind} {len(names)}: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
        for kind, names in (("missing tensors", sorted(missing)), ("unexpected tensors", sorted(unexpected)))
        if names
    ]
    if lines:
        raise CheckpointError(f"{where} does not hold the tensors of this model; " + "; ".join(lines))
