"""Settings: everything wrong in one error, everything right there and back again."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.config import (
    HEADS,
    Activation,
    CausalMaskedConfig,
    ClassifierConfig,
    Direction,
    Family,
    HeadConfig,
    MaskedConfig,
    MaskedNextSentenceConfig,
    ModelConfig,
    NextSentenceConfig,
    NextTokenConfig,
    Norm,
    Pool,
    Positions,
    ReplacedConfig,
    Settings,
    read_head,
    read_toml,
    to_toml,
)
from headstart.errors import ConfigError
from headstart.serve.limits import Limits
from headstart.studies.settings import CompareSettings, FinetuneSettings, PretrainSettings, SweepSettings
from headstart.use.generate import Sampling

SIZES: dict[str, Any] = {"vocabulary": 10, "width": 8, "layers": 1, "heads": 2, "feed_forward": 8}


def mistakes(settings: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_mapping(settings, "my.toml")
    assert caught.value.where == "my.toml"
    return caught.value.problems


# What is wrong


def test_every_mistake_is_in_one_error_with_the_nearest_right_name() -> None:
    wrong = {
        "vocabulary": -3,
        "widht": 8,
        "layers": 2.5,
        "heads": True,
        "feed_forward": "wide",
        "norm": "psot",
        "dropout": 1,
        "gated": 1,
        "colour": "red",
    }
    assert mistakes(wrong) == (
        "unknown setting 'widht': did you mean 'width'?",
        f"unknown setting 'colour': known: {', '.join(sorted(f.name for f in fields(ModelConfig)))}",
        "vocabulary is -3, and must be at least 1",
        "width is missing",
        "layers is 2.5, and must be of type int",
        "heads is True, and must be of type int",
        "feed_forward is 'wide', and must be of type int",
        "norm is 'psot': did you mean 'post'?",
        "gated is 1, and must be of type bool",
        "dropout is 1, and must be below 1.0",
    )


def test_all_of_it_stands_in_the_message() -> None:
    with pytest.raises(ConfigError, match=r"(?s)my.toml: 2 mistakes.*layers is 0.*heads is 0"):
        ModelConfig.from_mapping(SIZES | {"layers": 0, "heads": 0}, "my.toml")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"width": 200, "heads": 3},
            "width 200 does not divide by heads 3: choose a width that is a multiple of the heads",
        ),
        (
            {"width": 6, "positions": "rotary"},
            "rotary positions turn pairs of numbers, and a head of width 3 is odd: choose width / heads even",
        ),
        (
            {"width": 9, "heads": 3, "positions": "sinusoidal"},
            "sinusoidal positions are pairs of sine and cosine, and width 9 is odd: choose it even",
        ),
        (
            {"positions": "relative", "direction": "causal"},
            "relative positions are for a bidirectional model: choose rotary or learned for a causal one",
        ),
        (
            {"positions": "relative", "relative_buckets": 10},
            "relative_buckets is 10, and must be a multiple of 4",
        ),
        ({"relative_buckets": 3}, "relative_buckets is 3, and must be at least 4"),
        ({"window": 0}, "window is 0, and must be at least 1"),
        ({"position_offset": -1}, "position_offset is -1, and must be at least 0"),
        ({"segments": -1}, "segments is -1, and must be at least 0"),
        ({"dropout": -0.1}, "dropout is -0.1, and must be at least 0.0"),
        ({"attention_dropout": 1.0}, "attention_dropout is 1.0, and must be below 1.0"),
        ({"dropout": math.nan}, "dropout is nan, and must be at least 0.0"),
        ({"norm_epsilon": math.nan}, "norm_epsilon is nan, and must be at least 0.0"),
        ({"norm_epsilon": -1e-5}, "norm_epsilon is -1e-05, and must be at least 0.0"),
        ({"norm_epsilon": math.inf}, "norm_epsilon is inf, and must be a finite number"),
        ({"layers": 1_000_000}, "layers is 1000000, and must be at most 1,000"),
        ({"window": 10**9}, "window is 1000000000, and must be at most 1,048,576"),
        ({"vocabulary": 10**30}, f"vocabulary is {10**30}, and must be at most 10,000,000"),
        (
            {"width": 10_000, "window": 10_000, "positions": "sinusoidal"},
            "window 10,000 with sinusoidal positions needs a table of 10,000 × 10,000 numbers, and the limit is "
            "67,108,864: choose a smaller window",
        ),
        ({"activation": "x" * 200}, f"activation is '{'x' * 99}…: known: gelu, gelu-tanh, relu, silu"),
        ({"positions": "rotray"}, "positions is 'rotray': did you mean 'rotary'?"),
        ({"direction": 1}, "direction is 1: known: bidirectional, both, causal"),
        ({"direction": ["causal"]}, "direction is ['causal']: did you mean 'causal'?"),
        ({"activation": None}, "activation is None: known: gelu, gelu-tanh, relu, silu"),
        ({"width": None}, "width is None, and must be of type int"),
        ({"width": [8]}, "width is [8], and must be of type int"),
        ({"bias": "yes"}, "bias is 'yes', and must be of type bool"),
    ],
)
def test_one_mistake(changes: dict[str, Any], problem: str) -> None:
    assert mistakes(SIZES | changes) == (problem,)
    with pytest.raises(ConfigError) as caught:
        ModelConfig(**(SIZES | changes))
    assert str(caught.value) == f"ModelConfig: {problem}"


def test_what_is_wrong_between_fields_is_asked_of_good_fields_alone() -> None:
    """A width of 0 divides by everything, and heads of 0 by nothing: neither may add a second complaint."""
    assert mistakes(SIZES | {"width": 0}) == ("width is 0, and must be at least 1",)
    assert mistakes(SIZES | {"heads": 0}) == ("heads is 0, and must be at least 1",)
    assert mistakes(SIZES | {"width": "8"}) == ("width is '8', and must be of type int",)


def test_rules_that_are_broken_at_once_are_told_at_once() -> None:
    assert len(mistakes(SIZES | {"width": 9, "positions": "sinusoidal"})) == 2
    assert len(mistakes(SIZES | {"positions": "relative", "direction": "causal", "relative_buckets": 6})) == 2


def test_everything_missing_is_named() -> None:
    assert mistakes({}) == tuple(f"{name} is missing" for name in SIZES)


@pytest.mark.parametrize("name", [f.name for f in fields(ModelConfig)])
@pytest.mark.parametrize("value", [None, "?", [], {}, -1, math.nan], ids=repr)
def test_no_setting_takes_what_it_should_not(name: str, value: Any) -> None:
    assert [problem for problem in mistakes(SIZES | {name: value}) if problem.startswith(f"{name} is ")]


def test_the_example_of_the_class_is_the_one_of_the_issue() -> None:
    """Unknown key, width not divisible by heads, negative size: three mistakes, one error."""
    wrong = SIZES | {"widht": 200, "width": 200, "heads": 3, "layers": -1}
    assert mistakes(wrong) == (
        "unknown setting 'widht': did you mean 'width'?",
        "layers is -1, and must be at least 1",
        "width 200 does not divide by heads 3: choose a width that is a multiple of the heads",
    )


# What is right


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("direction", Direction),
        ("positions", Positions),
        ("norm", Norm),
        ("activation", Activation),
        ("family", Family),
    ],
)
def test_every_option_is_taken(name: str, options: Any) -> None:
    for option in get_args(options):
        assert getattr(ModelConfig.from_mapping(SIZES | {name: option}, "test"), name) == option


def test_whole_numbers_are_numbers() -> None:
    assert ModelConfig.from_mapping(SIZES | {"dropout": 0}, "test").dropout == 0


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        ModelConfig(**SIZES).width = 9  # type: ignore[misc]


def test_equal_settings_are_equal_and_can_be_a_key() -> None:
    assert {ModelConfig(**SIZES): 1}[ModelConfig(**SIZES)] == 1


def test_sizes_that_follow_from_others() -> None:
    config = ModelConfig(**(SIZES | {"width": 12, "heads": 3, "window": 20, "position_offset": 2}))
    assert config.head_width == 4
    assert config.learned_rows == 22
    rows = {p: ModelConfig(**(SIZES | {"positions": p, "window": 20})).learned_rows for p in get_args(Positions)}
    assert rows == {"sinusoidal": 0, "learned": 20, "rotary": 0, "relative": 20, "none": 0}


def options(hint: Any, limits: Any) -> st.SearchStrategy[Any]:
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.integers(limits["least"], 40)
    if hint is float:
        return st.floats(limits["least"], limits.get("below", 1.0), exclude_max=True)
    return st.sampled_from(get_args(hint))


@st.composite
def mappings(draw: st.DrawFn) -> dict[str, Any]:
    """Any settings of a model that are well each in itself."""
    hints = get_type_hints(ModelConfig)
    return {f.name: draw(options(hints[f.name], f.metadata)) for f in fields(ModelConfig)}


@settings(deadline=None)
@given(mappings())
def test_what_is_accepted_comes_back_equal_and_what_is_not_breaks_a_rule(mapping: dict[str, Any]) -> None:
    width, heads, positions = mapping["width"], mapping["heads"], mapping["positions"]
    fit = (
        width % heads == 0
        and not (positions == "rotary" and (width // heads) % 2)
        and not (positions == "sinusoidal" and width % 2)
        and not (
            positions == "relative" and (mapping["direction"] != "bidirectional" or mapping["relative_buckets"] % 4)
        )
    )
    if not fit:
        assert mistakes(mapping)
        return
    config = ModelConfig.from_mapping(mapping, "test")
    assert config.to_mapping() == mapping
    assert ModelConfig.from_mapping(config.to_mapping(), "test") == config
    assert ModelConfig.from_mapping(json.loads(json.dumps(config.to_mapping())), "test") == config
    assert ModelConfig.from_mapping(tomllib.loads(to_toml({"model": config.to_mapping()}))["model"], "t") == config


# Settings of other shapes


@dataclass(frozen=True)
class Sweep(Settings):
    """Not of headstart: a list, a setting that may be absent, and a rule."""

    names: tuple[str, ...] = ()
    seed: int | None = field(default=None, metadata={"least": 0})
    mode: Literal["grid", "search"] | None = None
    rate: float = field(default=0.1, metadata={"above": 0.0})

    @classmethod
    def rules(cls, value: Any, well: Any) -> Iterator[str]:
        if well("names") and len(value["names"]) > 2:
            yield "too many names"


def test_lists_become_tuples_and_back() -> None:
    sweep = Sweep.from_mapping({"names": ["a", "b"]}, "test")
    assert sweep == Sweep(names=("a", "b"))
    assert sweep.to_mapping() == {"names": ["a", "b"], "rate": 0.1}


def test_none_is_left_out_and_filled_in_again() -> None:
    assert Sweep().to_mapping() == {"names": [], "rate": 0.1}
    assert Sweep.from_mapping({"seed": None}, "test") == Sweep()
    assert Sweep.from_mapping({"seed": 3, "mode": "grid"}, "test") == Sweep(seed=3, mode="grid")


@pytest.mark.parametrize(
    ("mapping", "problem"),
    [
        ({"names": "ab"}, "names is 'ab', and must be a list of str"),
        ({"names": ["a", 1]}, "names is ['a', 1], and must be a list of str"),
        ({"names": ["a", "b", "c"]}, "too many names"),
        ({"seed": -1}, "seed is -1, and must be at least 0"),
        ({"seed": "x"}, "seed is 'x', and must be of type int"),
        ({"rate": 0}, "rate is 0, and must be above 0.0"),
        ({"rate": math.nan}, "rate is nan, and must be above 0.0"),
        ({"rate": math.inf}, "rate is inf, and must be a finite number"),
        ({"rate": -math.inf}, "rate is -inf, and must be above 0.0"),
        (
            {"seed": 2**63},
            "seed is 9223372036854775808, and must be within ±9223372036854775807, the whole numbers of 64 bits",
        ),
        ({"mode": "gird"}, "mode is 'gird': did you mean 'grid'?"),
    ],
)
def test_their_mistakes(mapping: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Sweep.from_mapping(mapping, "test")
    assert caught.value.problems == (problem,)


def every_setting() -> list[tuple[type[Settings], str]]:
    """Each setting of headstart that is a number, with its class."""
    classes: tuple[type[Settings], ...] = (
        ModelConfig,
        ClassifierConfig,
        FinetuneSettings,
        CompareSettings,
        PretrainSettings,
        SweepSettings,
        Sampling,
        Limits,
    )
    kinds = (int, float)
    return [
        (cls, name)
        for cls in classes
        for name, hint in get_type_hints(cls).items()
        if hint in kinds or set(get_args(hint)) & set(kinds)
    ]


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, math.nan, 10**400, -(10**400)], ids=["inf", "-inf", "nan", "", "-"]
)
@pytest.mark.parametrize(("cls", "name"), every_setting(), ids=lambda case: getattr(case, "__name__", case))
def test_no_number_of_any_settings_may_be_without_end(cls: type[Settings], name: str, value: float) -> None:
    with pytest.raises(ConfigError) as caught:
        cls.from_mapping({name: value}, "test")
    assert [problem for problem in caught.value.problems if problem.startswith(f"{name} is ")]


def test_thousands_of_mistakes_are_told_in_a_screenful() -> None:
    with pytest.raises(ConfigError, match=r"and 9,97[0-9] more") as caught:
        ModelConfig.from_mapping({"x" * 10_000 + str(number): 1 for number in range(10_000)}, "test")
    assert len(str(caught.value)) < 30_000


# Heads

ALL_HEADS: list[HeadConfig] = [
    NextTokenConfig(),
    MaskedConfig(),
    CausalMaskedConfig(),
    ReplacedConfig(),
    ReplacedConfig(generator=0.25),
    NextSentenceConfig(),
    MaskedNextSentenceConfig(),
    ClassifierConfig(classes=2),
    ClassifierConfig(classes=7, pool="mean", pooler="tanh", bias=False, dropout=0.0),
]


@pytest.mark.parametrize("head", ALL_HEADS, ids=repr)
def test_a_head_goes_through_plain_data_and_back(head: HeadConfig) -> None:
    assert read_head(head.to_mapping(), "test") == head
    assert read_head(tomllib.loads(to_toml(head.to_mapping())), "test") == head


def test_every_head_is_found_by_its_kind() -> None:
    assert {kind: head.kind for kind, head in HEADS.items()} == {kind: kind for kind in HEADS}
    assert set(HEADS.values()) == {type(head) for head in ALL_HEADS} == set(get_args(HeadConfig))


@pytest.mark.parametrize(
    ("mapping", "problem"),
    [
        (
            {},
            "head kind is None: known: causal+masked, classifier, masked, masked+next-sentence, next-sentence, "
            "next-token, replaced",
        ),
        ({"kind": "clasifier"}, "head kind is 'clasifier': did you mean 'classifier'?"),
        ({"kind": "classifier"}, "classes is missing"),
        ({"kind": "classifier", "classes": 1}, "classes is 1, and must be at least 2"),
        ({"kind": "classifier", "classes": 2, "pool": "lst"}, "pool is 'lst': did you mean 'last'?"),
        ({"kind": "classifier", "classes": 2, "pooler": "thanh"}, "pooler is 'thanh': did you mean 'tanh'?"),
        ({"kind": "replaced", "generator": 1.5}, "generator is 1.5, and must be at most 1"),
        ({"kind": "masked", "classes": 2}, "unknown setting 'classes': known: kind"),
    ],
)
def test_a_wrong_head_is_refused(mapping: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_head(mapping, "config.json")
    assert str(caught.value) == f"config.json: {problem}"


@pytest.mark.parametrize("pool", get_args(Pool))
def test_every_pool_is_taken(pool: Pool) -> None:
    assert ClassifierConfig(classes=2, pool=pool).pool == pool


@pytest.mark.parametrize("kind", [["masked"], {"masked": 1}], ids=repr)
def test_a_kind_of_the_wrong_type_is_refused_too(kind: Any) -> None:
    with pytest.raises(ConfigError, match="head kind is"):
        read_head({"kind": kind}, "config.json")


# TOML

SCALARS = (
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))  # a lone half of a pair is no text in any file
)
BASIC = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]))
VALUES = SCALARS | st.recursive(st.lists(SCALARS), st.lists, max_leaves=8)


def tables(keys: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.recursive(
        st.dictionaries(keys, VALUES, max_size=4),
        lambda inner: st.dictionaries(keys, VALUES | inner, max_size=4),
        max_leaves=6,
    )


@settings(deadline=None)
@given(tables(st.from_regex(r"[A-Za-z0-9_-]+", fullmatch=True) | BASIC))
def test_toml_there_and_back(mapping: dict[str, Any]) -> None:
    back = tomllib.loads(to_toml(mapping))
    assert back == mapping
    assert repr(sorted(back)) == repr(sorted(mapping))


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b"]), VALUES))
def test_toml_keeps_the_types(mapping: dict[str, Any]) -> None:
    """1, 1.0 and true are equal in Python and three things in a config; -0.0 keeps its sign."""
    back = tomllib.loads(to_toml(mapping))
    assert {name: repr(back[name]) for name in mapping} == {name: repr(value) for name, value in mapping.items()}


def test_toml_has_a_word_for_what_is_no_number() -> None:
    assert math.isnan(tomllib.loads(to_toml({"a": math.nan}))["a"])


def test_a_key_may_be_any_text() -> None:
    assert tomllib.loads(to_toml({"😀": 1})) == {"😀": 1}


def test_a_tuple_is_written_as_a_list() -> None:
    assert to_toml({"names": ("a", "b")}) == 'names = ["a", "b"]\n'


def test_what_toml_cannot_say_is_refused() -> None:
    for value in (None, object(), [None]):
        with pytest.raises(TypeError, match="no TOML for"):
            to_toml({"a": value})


def test_read_toml_reads_what_to_toml_wrote(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(to_toml({"name": "été", "model": SIZES}), encoding="utf-8")
    assert read_toml(path) == {"name": "été", "model": SIZES}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a = ", r"not readable as TOML: Invalid value \(at"),
        (b"a = 1\na = 2", r"not readable as TOML: Cannot overwrite a value \(at"),
        (b"a = '\xff'", r"not readable as TOML: 'utf-8' codec"),
    ],
)
def test_a_damaged_file_is_named_with_the_place(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        read_toml(path)
    assert caught.value.where == str(path)


def test_a_file_that_is_not_there_or_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="not readable as TOML"):
        read_toml(tmp_path)


def test_configs_know_nothing_of_torch() -> None:
    """They are read where a command only answers `--help` or checks a file."""
    code = "import sys, headstart.config; print([m for m in ('torch', 'numpy', 'transformers') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


@dataclass(frozen=True)
class Mixed(Settings):
    seeds: int | Literal["auto"] = field(default="auto", metadata={"least": 1})


@pytest.mark.parametrize(
    ("value", "problem"),
    [("many", "seeds is 'many', and must be int or auto"), (0, "seeds is 0, and must be at least 1")],
)
def test_a_number_or_a_word(value: Any, problem: str) -> None:
    assert Mixed(seeds=3).seeds == 3
    assert Mixed().seeds == "auto"
    with pytest.raises(ConfigError) as found:
        Mixed.from_mapping({"seeds": value}, "here")
    assert list(found.value.problems) == [problem]
