"""Every error that headstart raises on purpose.

    HeadstartError
    ├── ConfigError       a setting that is unknown, of the wrong type or out of range
    ├── DataError         a file of text or labels that cannot be read as what it should be
    ├── TokenizerError    a tokenizer that is missing, damaged or not the one expected
    ├── CheckpointError   a model folder or weight file that is missing, damaged or of another shape
    ├── ModelError        a combination of parts that could not give an honest answer
    │   └── NotFinite     weights or scores that are inf or nan
    ├── TrainingError     a run that cannot go on: a loss that is no number, too little memory, damaged checkpoints
    ├── OutputError       a place that cannot be written to, or that holds something else
    └── MissingExtra      an optional package that the command needs

An error says the value that was found, the limit or form that was expected, and the next step. The command
line prints the message on one or more lines without a traceback and ends with `exit_code`. Passwords and tokens are
taken out of every message: it may quote a setting, and it may be kept in a file. It may also quote names and labels of
any number and length: a long message is shortened in the middle.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from headstart.redaction import redacted

LONGEST = 100  # characters of a value that is shown
MANY = 30  # mistakes that one message names; of a damaged file there may be thousands
MOST_CHARACTERS = 4000  # in a message
MOST_NAMES = 50  # that a message lists
MOST_COMPARED = 10_000  # names that the nearest is searched among


class HeadstartError(Exception):
    """Something the user can mend."""

    exit_code = 2

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*(shortened(redacted(part)) if isinstance(part, str) else part for part in arguments))

    def __reduce__(self) -> tuple[Any, ...]:
        """So that an error reaches the parent of the process it was raised in, whatever its __init__ takes."""
        return _revive, (type(self), self.args, vars(self))


def _revive(kind: type[HeadstartError], arguments: tuple[Any, ...], attributes: dict[str, Any]) -> HeadstartError:
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(attributes)
    return error


class ConfigError(HeadstartError):
    """A setting that is unknown, of the wrong type or out of range; every mistake found is in the message."""

    def __init__(self, where: str, problems: Iterable[str]) -> None:
        self.where = where
        self.problems = tuple(problems)
        if len(self.problems) == 1:
            message = f"{where}: {self.problems[0]}"
        else:
            lines = "".join(f"\n  - {problem}" for problem in self.problems[:MANY])
            if len(self.problems) > MANY:
                lines += f"\n  - and {len(self.problems) - MANY:,} more"
            message = f"{where}: {len(self.problems)} mistakes{lines}"
        super().__init__(message)


class DataError(HeadstartError):
    """A file of text or labels that cannot be read as what it should be.

    >>> str(DataError("train.csv", "found 3 fields, expected 2", line=812, fix="quote the comma"))
    'train.csv, line 812: found 3 fields, expected 2. To mend it: quote the comma'
    """

    def __init__(
        self, path: str | Path, problem: str, *, line: int | None = None, fix: str | None = None, lines: int = 1
    ) -> None:
        self.path = str(path)
        self.line = line
        self.lines = lines  # that cannot be used: a quote that is not closed takes many
        self.problem = problem
        self.fix = fix
        place = self.path if line is None else f"{self.path}, line {line}"
        super().__init__(f"{place}: {problem}" + (f". To mend it: {fix}" if fix else ""))


class TokenizerError(HeadstartError):
    """A tokenizer that is missing, damaged or not the one expected."""


class CheckpointError(HeadstartError):
    """A model folder or weight file that is missing, damaged or of another shape."""


class ModelError(HeadstartError):
    """A combination of parts that could not give an honest answer."""


class NotFinite(ModelError):
    """Weights or scores that are inf or nan, so that every answer would be made up."""


class TrainingError(HeadstartError):
    """A run that cannot go on: a loss that is no number, too little memory, damaged checkpoints."""

    exit_code = 1


class OutputError(HeadstartError):
    """A place that cannot be written to, or that holds something else."""


class MissingExtra(HeadstartError):
    """An optional package that the command needs.

    >>> str(MissingExtra("huggingface_hub", "hub", "fetching a model by its hub name"))
    "fetching a model by its hub name needs huggingface_hub: pip install 'headstart[hub]'"
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}: pip install 'headstart[{extra}]'")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest right one, or all of them, or the first.

    >>> did_you_mean("widht", ["width", "layers"])
    "did you mean 'width'?"
    >>> did_you_mean("colour", ["width", "layers"])
    'known: layers, width'
    """
    names = sorted(known)
    near = difflib.get_close_matches(name[:100], names, n=1, cutoff=0.6) if len(names) <= MOST_COMPARED else []
    return f"did you mean {near[0]!r}?" if near else f"known: {listed_names(names)}"


def listed_names(names: Sequence[str]) -> str:
    """Names separated by commas, the first of them where there are many.

    >>> listed_names(["pos", "neg"]), listed_names([str(number) for number in range(1000)])[-19:]
    ('pos, neg', '48, 49 and 950 more')
    """
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the system or a GPU had no more memory to give; torch raises a RuntimeError for either.

    A library that is loaded late, when there is no room for it, is an ImportError.
    """
    words = ("allocate memory", "out of memory", "failed to map segment")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | ImportError) and any(word in str(error) for word in words)
    )


def shown(value: object) -> str:
    """A value from a file, as an error shows it: its beginning where it is long.

    >>> shown("relu"), shown("x" * 500)[-9:]
    ("'relu'", 'xxxxxxxx…')
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number of thousands of digits; lists within lists
        return f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def shortened(message: str) -> str:
    """The message with its middle left out where it is too long: the beginning says where, the end what to do.

    >>> len(shortened("a" * 5000))
    3999
    """
    if len(message) <= MOST_CHARACTERS:
        return message
    end = MOST_CHARACTERS // 4
    return f"{message[: MOST_CHARACTERS - end - 6]} […] {message[-end:]}"
