"""Settings as frozen data, checked whole: every mistake in one error, with the nearest right name.

    >>> ModelConfig.from_mapping({"widht": 200, "heads": 3, "layers": -1, "width": 200,
    ...                           "vocabulary": 10, "feed_forward": 200}, "my.toml")
    Traceback (most recent call last):
        ...
    headstart.errors.ConfigError: my.toml: 3 mistakes
      - unknown setting 'widht': did you mean 'width'?
      - layers is -1, and must be at least 1
      - width 200 does not divide by heads 3: choose a width that is a multiple of the heads

Nothing here knows torch, files other than TOML, or the command line.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from headstart.errors import ConfigError, ModelError, did_you_mean, shown
from headstart.files import read_text

Direction = Literal["causal", "bidirectional", "both"]
Positions = Literal["sinusoidal", "learned", "rotary", "relative", "none"]
Norm = Literal["post", "pre"]
Activation = Literal["relu", "gelu", "gelu-tanh", "silu"]
Pool = Literal["first", "last", "mean"]
LARGEST = 2**63 - 1  # of 64 bits, which is what files and tensors take
Family = Literal["bert", "roberta", "camembert", "distilbert", "mpnet", "gpt2", "lab", "headstart"]


class Settings:
    """The base of every frozen dataclass of settings.

    A field's type says what it takes; its metadata may hold `least`, `most`, `above`, `below` and `help`. inf and nan
    are refused everywhere. `rules` yields what is wrong between fields; it is asked only about fields that are well in
    themselves.
    """

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in _hints(type(self))}
        problems = _problems(type(self), values)
        if problems:
            raise ConfigError(type(self).__name__, problems)

    @classmethod
    def rules(cls, value: Mapping[str, Any], well: Callable[..., bool]) -> Iterator[str]:
        """What is wrong between fields; `well("width", "heads")` says whether these may be looked at."""
        yield from ()

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], where: str) -> Self:
        """Read settings strictly: an unknown, missing or unfit one is an error that names them all."""
        hints = _hints(cls)
        problems = [
            f"unknown setting {shown(name)}: {did_you_mean(name, hints)}" for name in mapping if name not in hints
        ]
        values = _defaults(cls) | {name: value for name, value in mapping.items() if name in hints}
        problems += _problems(cls, values)
        if problems:
            raise ConfigError(where, problems)
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})

    def to_mapping(self) -> dict[str, Any]:
        """The settings as plain data, which `from_mapping` reads back to an equal object; None is left out."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {name: list(v) if isinstance(v, tuple) else v for name, v in found.items() if v is not None}


_KNOWN: dict[Any, dict[str, Any]] = {}  # types worked out once: they are strings until then, and that is slow


def _hints(cls: Any) -> dict[str, Any]:
    if cls not in _KNOWN:
        hints = get_type_hints(cls)
        _KNOWN[cls] = {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}
    return _KNOWN[cls]


def _defaults(cls: Any) -> dict[str, Any]:
    return {f.name: f.default for f in fields(cls) if f.default is not MISSING}


def _problems(cls: type[Settings], values: Mapping[str, Any]) -> list[str]:
    """Everything wrong with `values` as settings of `cls`, in the order of the fields, then between them."""
    problems: list[str] = []
    unfit: set[str] = set()
    for f in fields(cls):  # type: ignore[arg-type]
        if f.name not in values:
            problem: str | None = f"{f.name} is missing"
        else:
            problem = _unfit(f.name, values[f.name], _hints(cls)[f.name], f.metadata)
        if problem:
            problems.append(problem)
            unfit.add(f.name)
    problems += cls.rules(values, lambda *names: unfit.isdisjoint(names))
    return problems


def _unfit(name: str, value: Any, hint: Any, limits: Mapping[str, Any]) -> str | None:
    options = get_args(hint)
    if type(None) in options:
        if value is None:
            return None
        hint = Union[tuple(option for option in options if option is not type(None))]  # noqa: UP007
        options = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        problems = {option: _unfit(name, value, option, limits) for option in options}
        if None in problems.values():
            return None
        of_its_type = [problem for option, problem in problems.items() if option is type(value)]
        kinds = [", ".join(map(str, get_args(o))) if get_origin(o) is Literal else o.__name__ for o in options]
        return of_its_type[0] if of_its_type else f"{name} is {shown(value)}, and must be {' or '.join(kinds)}"
    if get_origin(hint) is Literal:
        if value in options:
            return None
        return f"{name} is {shown(value)}: {did_you_mean(str(value), map(str, options))}"
    if get_origin(hint) is tuple:
        if isinstance(value, list | tuple) and all(isinstance(v, options[0]) for v in value):
            return None
        return f"{name} is {shown(value)}, and must be a list of {options[0].__name__}"
    accepted = (int, float) if hint is float else (hint,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        return f"{name} is {shown(value)}, and must be of type {hint.__name__}"
    limit = _broken_limit(value, limits)
    return None if limit is None else f"{name} is {shown(value)}, and must be {limit}"


def _broken_limit(value: Any, limits: Mapping[str, Any]) -> str | None:
    """The limit that a value is beyond, in words; a nan is beyond every one."""
    if "least" in limits and not value >= limits["least"]:
        return f"at least {limits['least']}"
    if "most" in limits and not value <= limits["most"]:
        return f"at most {limits['most']:,}"
    if "above" in limits and not value > limits["above"]:
        return f"above {limits['above']}"
    if "below" in limits and not value < limits["below"]:
        return f"below {limits['below']}"
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        return f"within ±{LARGEST}, the whole numbers of 64 bits"
    return None


SIZE = {"least": 1}
LARGEST_TABLE = 2**26  # numbers in a table of positions that is not learned, which is made before any weight is read
SHARE = {"least": 0.0, "below": 1.0}


@dataclass(frozen=True)
class ModelConfig(Settings):
    """Which transformer it is. BERT, GPT-2 and the lab's model differ in these values and in nothing else."""

    # The largest sizes are far above any published model: what is beyond them is a mistake, and would take memory or
    # time without end.
    vocabulary: int = field(metadata=SIZE | {"most": 10_000_000})
    width: int = field(metadata=SIZE | {"most": 131_072})
    layers: int = field(metadata=SIZE | {"most": 1_000})
    heads: int = field(metadata=SIZE)
    feed_forward: int = field(metadata=SIZE | {"most": 1_048_576})
    window: int = field(default=512, metadata=SIZE | {"most": 1_048_576})  # the longest sequence, in tokens
    direction: Direction = "bidirectional"  # both: a batch says which; a classifier reads both sides
    positions: Positions = "learned"
    position_offset: int = field(
        default=0, metadata={"least": 0, "most": 65_536}
    )  # RoBERTa's table begins two rows late
    relative_buckets: int = field(default=32, metadata={"least": 4, "below": 512})  # of the relative bias
    segments: int = field(
        default=0, metadata={"least": 0, "most": 65_536}
    )  # rows of the segment table; 0: there is none
    norm: Norm = "post"
    norm_epsilon: float = field(default=1e-5, metadata={"least": 0.0})
    activation: Activation = "gelu"
    gated: bool = False  # feed-forward as down(activation(gate(x)) * up(x))
    bias: bool = True  # in linear layers and norms
    embedding_scale: bool = False  # token embeddings times √width, before positions are added
    embedding_norm: bool = True
    pooler: bool = False  # BERT's dense layer and tanh on the first token, trained with the backbone
    tied: bool = True  # a language-model head shares the embedding's weight
    dropout: float = field(default=0.1, metadata=SHARE)
    attention_dropout: float = field(default=0.1, metadata=SHARE)
    family: Family = "headstart"  # whose initialisation it starts from and whose names it is exchanged under

    @classmethod
    def rules(cls, value: Mapping[str, Any], well: Callable[..., bool]) -> Iterator[str]:
        if not well("width", "heads", "positions"):
            return
        width, heads, positions = value["width"], value["heads"], value["positions"]
        if width % heads:
            yield (f"width {width} does not divide by heads {heads}: choose a width that is a multiple of the heads")
        elif positions == "rotary" and (width // heads) % 2:
            yield (
                f"rotary positions turn pairs of numbers, and a head of width {width // heads} is odd: "
                "choose width / heads even"
            )
        if positions == "sinusoidal" and width % 2:
            yield f"sinusoidal positions are pairs of sine and cosine, and width {width} is odd: choose it even"
        if positions == "relative" and well("direction") and value["direction"] != "bidirectional":
            yield "relative positions are for a bidirectional model: choose rotary or learned for a causal one"
        if positions == "relative" and well("relative_buckets") and value["relative_buckets"] % 4:
            yield f"relative_buckets is {value['relative_buckets']}, and must be a multiple of 4"
        if well("window"):
            columns = {"sinusoidal": width, "rotary": width // heads, "relative": value["window"]}.get(positions, 0)
            if value["window"] * columns > LARGEST_TABLE:
                yield (
                    f"window {value['window']:,} with {positions} positions needs a table of {value['window']:,} × "
                    f"{columns:,} numbers, and the limit is {LARGEST_TABLE:,}: choose a smaller window"
                )

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def learned_rows(self) -> int:
        """Rows of the table of learned positions; 0 where there is none (MPNet has one beside its bias)."""
        return self.window + self.position_offset if self.positions in ("learned", "relative") else 0

    def with_window(self, window: int | None) -> Self:
        """This config with a window of at least so many tokens: positions that are not learned are computed."""
        if window is None or window <= self.window:
            return self
        if self.learned_rows:
            raise ModelError(
                f"a window of {window} tokens is longer than the {self.window} positions that the model learns"
            )
        return replace(self, window=window)


@dataclass(frozen=True)
class NextTokenConfig(Settings):
    """A head for a causal model: the next token, at every token."""

    kind: Literal["next-token"] = "next-token"


@dataclass(frozen=True)
class MaskedConfig(Settings):
    """A head for a bidirectional model: the token behind a mask (BERT's transform, then the vocabulary)."""

    kind: Literal["masked"] = "masked"


@dataclass(frozen=True)
class CausalMaskedConfig(Settings):
    """One head for both objectives on a backbone of both directions: a masked token, too, is predicted at the token
    before it, as the next one (Charpentier and Samuel 2024).
    """

    kind: Literal["causal+masked"] = "causal+masked"


@dataclass(frozen=True)
class ReplacedConfig(Settings):
    """Was this token replaced by a generator? One logit a token, on a bidirectional model (ELECTRA).

    `generator` is the generator's width as a share of the model's. It is there in training; the model that is kept has
    none.
    """

    generator: float | None = field(default=None, metadata={"above": 0.0, "most": 1})
    kind: Literal["replaced"] = "replaced"


@dataclass(frozen=True)
class NextSentenceConfig(Settings):
    """Does the second segment follow the first? Two classes on the pooled first token."""

    kind: Literal["next-sentence"] = "next-sentence"


@dataclass(frozen=True)
class MaskedNextSentenceConfig(Settings):
    """BERT's two pretraining heads side by side."""

    kind: Literal["masked+next-sentence"] = "masked+next-sentence"


@dataclass(frozen=True)
class ClassifierConfig(Settings):
    """One label for a whole text.

    `pooler` says what the pooled vector passes through before the last layer: `none`, the `backbone`'s own pretrained
    pooler (BERT), or a fresh dense layer with `tanh` (RoBERTa) or `relu` (DistilBERT). `read` says which layers a
    token's vector is taken from: the `last`, or the mean of `all`, where a frozen backbone knows more than at its end.
    """

    classes: int = field(metadata={"least": 2, "most": 1_000_000})
    pool: Pool = "first"  # `last` is the last real token; there is no padding to mistake it for
    pooler: Literal["none", "backbone", "tanh", "relu"] = "none"
    read: Literal["last", "all"] = "last"
    bias: bool = True
    dropout: float = field(default=0.1, metadata=SHARE)
    kind: Literal["classifier"] = "classifier"


HeadConfig = (
    NextTokenConfig
    | MaskedConfig
    | CausalMaskedConfig
    | ReplacedConfig
    | NextSentenceConfig
    | MaskedNextSentenceConfig
    | ClassifierConfig
)
HEADS: dict[str, type[HeadConfig]] = {
    "next-token": NextTokenConfig,
    "masked": MaskedConfig,
    "causal+masked": CausalMaskedConfig,
    "replaced": ReplacedConfig,
    "next-sentence": NextSentenceConfig,
    "masked+next-sentence": MaskedNextSentenceConfig,
    "classifier": ClassifierConfig,
}


def read_head(mapping: Mapping[str, Any], where: str) -> HeadConfig:
    """The head that `mapping["kind"]` names.

    >>> read_head({"kind": "classifier", "classes": 2}, "config.json").classes
    2
    """
    kind = mapping.get("kind")
    if not isinstance(kind, str) or kind not in HEADS:
        raise ConfigError(where, [f"head kind is {shown(kind)}: {did_you_mean(str(kind), HEADS)}"])
    return HEADS[kind].from_mapping(mapping, where)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain data, or a ConfigError that names the file and the place."""
    try:
        return tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise ConfigError(str(path), ["there is no such file"]) from None
    except (ValueError, RecursionError, OSError) as error:  # a number of 5,000 digits is a plain ValueError
        raise ConfigError(str(path), [f"not readable as TOML: {error}"]) from None


def read_pairs(pairs: Iterable[str], where: str) -> dict[str, Any]:
    """Settings written as `name=value`.

    >>> read_pairs(("width=128", "dropout=0.1", "norm=pre", "tied=false"), "change")
    {'width': 128, 'dropout': 0.1, 'norm': 'pre', 'tied': False}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(where, [f"{pair!r} is no setting: write it as name=value"])
        found[name.strip()] = read_value(value.strip())
    return found


def read_value(text: str) -> Any:
    """A value as a person types it: a number, true or false, or a word.

    >>> [read_value(text) for text in ("8", "1e-5", "true", "adamw")]
    [8, 1e-05, True, 'adamw']
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text, text)


def to_toml(mapping: Mapping[str, Any]) -> str:
    """Plain data as TOML, tables last, which `tomllib` reads back to the same data.

    >>> print(to_toml({"lr": 0.001, "model": {"width": 200, "names": ["a", "b"]}}), end="")
    lr = 0.001
    <BLANKLINE>
    [model]
    width = 200
    names = ["a", "b"]
    """
    lines: list[str] = []

    def write(table: Mapping[str, Any], name: str) -> None:
        if name:
            lines.append(f"\n[{name}]")
        for key, value in table.items():
            if not isinstance(value, Mapping):
                lines.append(f"{_toml_key(key)} = {_toml_value(value)}")
        for key, value in table.items():
            if isinstance(value, Mapping):
                write(value, f"{name}.{_toml_key(key)}" if name else _toml_key(key))

    write(mapping, "")
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_key(key: str) -> str:
    bare = key.replace("-", "").replace("_", "").isalnum() and key.isascii()
    return key if bare else _toml_value(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, str):  # a TOML basic string is a JSON one, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(str(value), repr(value))
    if isinstance(value, int):
        return str(value)
    raise TypeError(f"no TOML for {value!r}")
