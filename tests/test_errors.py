"""Errors: the tree that is drawn is the tree that is there, and what each says."""

from __future__ import annotations

import copy
import pickle

import pytest

from headstart import errors
from headstart.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    HeadstartError,
    MissingExtra,
    ModelError,
    OutputError,
    TokenizerError,
    TrainingError,
    did_you_mean,
)

EVERY = [
    ConfigError("my.toml", ["width is 0, and must be at least 1", "layers is missing"]),
    DataError("train.csv", "found 3 fields, expected 2", line=812, fix="quote the comma"),
    TokenizerError("no tokenizer"),
    CheckpointError("no weights"),
    ModelError("no head"),
    TrainingError("the loss is no number"),
    OutputError("no room"),
    MissingExtra("optuna", "sweep", "a search"),
]


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    there = {kind.__name__ for kind in HeadstartError.__subclasses__() if kind.__module__ == errors.__name__}
    assert errors.__doc__ is not None
    drawn = {line.split()[1] for line in errors.__doc__.splitlines() if line.strip().startswith(("├──", "└──"))}
    assert drawn == there == {type(error).__name__ for error in EVERY}


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_every_error_can_be_caught_at_once_and_says_how_a_command_ends(error: HeadstartError) -> None:
    """With 2 where the user asked for what cannot be; with 1 where a run that was well asked for went wrong."""
    assert isinstance(error, HeadstartError)
    assert error.exit_code == (1 if isinstance(error, TrainingError) else 2)


def test_a_config_error_with_one_mistake_is_one_line() -> None:
    error = ConfigError("my.toml", ["width is 0, and must be at least 1"])
    assert str(error) == "my.toml: width is 0, and must be at least 1"


def test_a_config_error_lists_every_mistake() -> None:
    error = ConfigError("my.toml", iter(["one", "two"]))
    assert str(error) == "my.toml: 2 mistakes\n  - one\n  - two"
    assert (error.where, error.problems) == ("my.toml", ("one", "two"))


def test_a_data_error_names_the_place_the_problem_and_the_mending() -> None:
    error = DataError("train.csv", "found 3 fields, expected 2", line=812, fix="quote the comma")
    assert str(error) == "train.csv, line 812: found 3 fields, expected 2. To mend it: quote the comma"
    assert str(DataError("train.csv", "is empty")) == "train.csv: is empty"
    assert (error.path, error.line, error.problem, error.fix) == (
        "train.csv",
        812,
        "found 3 fields, expected 2",
        "quote the comma",
    )


@pytest.mark.parametrize(
    "error",
    [
        DataError("a.csv", f"label 'x' is not one of {'class, ' * 10_000}", fix="mend it"),
        ConfigError("a.toml", ["y" * 100_000, "mend it"]),
        CheckpointError("z" * 10**6 + ": mend it"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_message_is_short_whatever_it_quotes(error: HeadstartError) -> None:
    assert len(str(error)) <= 4000
    assert "[…]" in str(error)
    assert str(error).endswith("mend it"), "the next step is still there"


def test_many_names_are_not_all_listed() -> None:
    names = [f"class {number}" for number in range(20_000)]
    assert did_you_mean("x", names).endswith(" and 19,950 more")
    assert did_you_mean("x", names).count("class") == 50


def test_a_missing_extra_says_what_to_install() -> None:
    assert str(MissingExtra("optuna", "sweep", "a search")) == "a search needs optuna: pip install 'headstart[sweep]'"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("widht", "did you mean 'width'?"),
        ("layer", "did you mean 'layers'?"),
        ("colour", "known: heads, layers, width"),
        ("", "known: heads, layers, width"),
    ],
)
def test_the_nearest_name_or_all_of_them(name: str, expected: str) -> None:
    assert did_you_mean(name, ["width", "layers", "heads"]) == expected
    assert did_you_mean(name, iter(["width", "layers", "heads"])) == expected


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_an_error_reaches_the_parent_of_the_process_it_was_raised_in(error: HeadstartError) -> None:
    """A pool of workers sends errors home by pickle; one that cannot be rebuilt there breaks the whole pool."""
    sent = pickle.loads(pickle.dumps(error))
    assert type(sent) is type(error)
    assert str(sent) == str(error)
    assert vars(sent) == vars(error)
    assert str(copy.copy(error)) == str(error)
