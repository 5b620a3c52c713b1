"""The glossary of docs/concepts.md and the walks of docs/python.md name files that are there, and what is in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8").split("\n## Glossary\n")[1]
WALKS = (ROOT / "docs" / "python.md").read_text(encoding="utf-8").split("\n## Reading the code\n")[1]
TERMS = re.findall(r"^\| ([^|]+?) \| [^|]+ \| \[[^]]+\]\(\.\./(\S+)\) \|$", GLOSSARY, flags=re.M)
STEPS = re.findall(r"^\d+\. \[([^]]+)\]\(\.\./(\S+)\): (.+)$", WALKS, flags=re.M)


def words(text: str) -> str:
    """Lower case, one space between words, CamelCase and snake_case taken apart.

    >>> words("class LossModule: batch_size")
    'class loss module batch size'
    """
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("'s", "s").lower()
    return " ".join(re.findall(r"[a-z0-9]+", apart))


def test_the_glossary_has_every_kind_of_term() -> None:
    assert len(TERMS) >= 30
    assert [term for term, _ in TERMS] == sorted((term for term, _ in TERMS), key=str.lower)
    assert len({term for term, _ in TERMS}) == len(TERMS)


@pytest.mark.parametrize(("term", "file"), TERMS)
def test_a_term_occurs_in_its_file(term: str, file: str) -> None:
    assert words(term) in words(f"{file} {(ROOT / file).read_text(encoding='utf-8')}")


@pytest.mark.parametrize(("name", "file", "step"), STEPS)
def test_a_step_of_a_walk_names_what_its_file_has(name: str, file: str, step: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert file == f"src/headstart/{name}"
    for code in re.findall(r"`([A-Za-z_.]+)`", step.split(" (")[0]):
        if "." not in code or code[0].isupper():
            assert code.split(".")[-1] in text, code


def test_there_are_three_walks() -> None:
    assert len(re.findall("^### ", WALKS, flags=re.M)) == 3
    assert len(STEPS) > 30
