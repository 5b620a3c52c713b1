"""Every example in a docstring of headstart is run."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import headstart

HOME = Path(headstart.__file__).parent
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules_with_examples() -> list[str]:
    """By reading the files, so that a module that cannot be imported fails its own test and no other."""
    paths = sorted(path for path in HOME.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))
    dotted = [".".join(path.relative_to(HOME.parent).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in dotted]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name), optionflags=FLAGS, raise_on_error=False, verbose=False)
    assert outcome.attempted > 0, f"{name} holds '>>> ' and no example that doctest finds"
    assert outcome.failed == 0, f"{outcome.failed} of {outcome.attempted} examples of {name} failed: see the output"


def test_the_examples_are_found() -> None:
    assert {"headstart.config", "headstart.errors", "headstart.model.attention"} <= set(modules_with_examples())
