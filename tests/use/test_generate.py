from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from headstart.checkpoints.exchange import write_transformers
from headstart.checkpoints.folder import Checkpoint
from headstart.config import ClassifierConfig, HeadConfig, MaskedConfig, NextTokenConfig
from headstart.errors import ConfigError, ModelError
from headstart.model.heads import NextTokenHead
from headstart.model.layout import Cached, Dense, Flat
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.tokenizers.special_tokens import SPECIALS
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.use.generate import (
    Context,
    Generated,
    IncrementalDecoder,
    Sampling,
    distribution,
    generate,
    sample,
    stream,
)
from tokenizers import pre_tokenizers

WORDS = ("un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix")
WINDOW = 12
TINY = {"layers": 2, "heads": 2, "feed_forward": 20, "window": WINDOW}
CAUSAL: dict[str, dict[str, Any]] = {
    "lab": {"width": 16, **TINY},
    "gpt2": {"width": 16, **TINY},
    "small": {"width": 16, "direction": "causal", **TINY},  # rotary
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """These models are so small that handing work round costs more than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def from_words(folder: Path, *vocabulary: str) -> Tokenizer:
    """A tokenizer of whole words, their ids in this order."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return from_words(tmp_path_factory.mktemp("words"), *SPECIALS, *WORDS)


def tiny(name: str, vocabulary: int = len(SPECIALS) + len(WORDS), *, seed: int = 0, **changes: Any) -> Model:
    """A causal model with weights large enough that it has opinions."""
    torch.manual_seed(seed)
    model = Model.build(preset(name, vocabulary=vocabulary, **(CAUSAL[name] | changes)), NextTokenConfig()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def biased(model: Model, bias: dict[int, float]) -> Model:
    """The model with a liking for some tokens, or a dislike."""
    assert isinstance(model.head, NextTokenHead)
    model.head.bias = nn.Parameter(torch.zeros(model.config.vocabulary))
    with torch.no_grad():
        for token, value in bias.items():
            model.head.bias[token] = value
    return model


def endless(model: Model) -> Model:
    """The model without a wish to end: the end token is the fourth of ours."""
    return biased(model, {3: -99.0})


def last_logits(model: Model, ids: list[int]) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(torch.tensor(ids), Flat.from_lengths([len(ids)]))[-1]
    return logits


def seen_by_hand(ids: list[int], prompt: int, window: int) -> list[int]:
    """What the model sees of a text whose first `prompt` tokens came at once: the rule, told once more."""
    begin = max(0, prompt - window)
    for length in range(prompt + 1, len(ids) + 1):
        if length - begin > window:
            begin = length - math.ceil(window / 2)
    return ids[begin:]


# --- the cache ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("window", [WINDOW, WINDOW + 1, 1])
def test_cached_logits_are_those_of_the_whole_text(name: str, window: int) -> None:
    model = tiny(name, window=window)
    ids = torch.randint(16, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    prompt = min(5, window)
    cached, whole = Context(model), Context(model, cache=False)
    logits = [(cached.read(ids[:prompt]), whole.read(ids[:prompt]))]
    logits += [(cached.read([token]), whole.read([token])) for token in ids[prompt:]]
    for length, (fast, plain) in enumerate(logits, start=prompt):
        by_hand = last_logits(model, seen_by_hand(ids[:length], prompt, window))
        torch.testing.assert_close(plain, by_hand, rtol=0, atol=1e-5)
        torch.testing.assert_close(fast, by_hand, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("steps", [(9,), (1,) * 9, (4, 5), (3, 1, 4, 1)])
def test_a_text_read_in_steps_gives_the_vectors_of_the_whole(name: str, steps: tuple[int, ...]) -> None:
    """Two texts side by side, steps of any length; a step read twice changes nothing."""
    model = tiny(name)
    ids = torch.randint(16, (2, 9), generator=torch.Generator().manual_seed(2))
    parts, vectors = torch.split(ids, list(steps), dim=1), []
    layout = None
    with torch.no_grad():
        whole = model.backbone(ids, Dense(torch.ones(2, 9, dtype=torch.bool)))
        for part in parts:
            layout = Cached(torch.ones_like(part).bool()) if layout is None else layout.next(part.shape[1])
            model.backbone(part, layout)
            vectors.append(model.backbone(part, layout))
    torch.testing.assert_close(torch.cat(vectors, 1), whole, rtol=0, atol=1e-5)


def test_each_token_is_read_twice_at_most() -> None:
    model, read = tiny("lab"), list[int]()
    model.backbone.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].numel()))
    context = Context(model)
    context.read(list(range(5)))
    for _ in range(100):
        context.read([7])
    assert sum(read) <= 2 * 105
    assert max(read) <= WINDOW // 2  # but for the prompt, which is shorter here
    assert read.count(1) > 80


def test_a_cache_keeps_within_the_window_and_to_causal_models() -> None:
    model = tiny("lab")
    layout = Cached(torch.ones(1, WINDOW, dtype=torch.bool))
    with torch.no_grad():
        model.backbone(torch.zeros(1, WINDOW, dtype=torch.long), layout)
        with pytest.raises(ModelError, match=f"a sequence of {WINDOW + 1} tokens is longer"):
            model.backbone(torch.zeros(1, 1, dtype=torch.long), layout.next(1))
    both_ways = Model.build(preset("small", vocabulary=10, width=16, **TINY)).eval()
    with pytest.raises(ModelError, match="bidirectional model looks ahead"):
        both_ways.backbone(torch.zeros(1, 2, dtype=torch.long), Cached(torch.ones(1, 2, dtype=torch.bool)))


SETTINGS = [
    Sampling(max_tokens=40),
    Sampling(max_tokens=40, temperature=1.0, seed=1),
    Sampling(max_tokens=40, temperature=1.3, top_k=7, top_p=0.9, seed=2),
]


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("chosen", SETTINGS)
@pytest.mark.parametrize("prompt", ["", "un deux", " ".join(WORDS * 2)], ids=["empty", "short", "long"])
def test_cached_text_is_the_uncached_one(name: str, chosen: Sampling, prompt: str, words: Tokenizer) -> None:
    model = endless(tiny(name))
    fast = generate(model, words, prompt, chosen)
    assert fast == generate(model, words, prompt, chosen, cache=False)
    assert len(fast.ids) == 40  # three windows and more


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("prompt", ["", "un deux", " ".join(WORDS * 2)], ids=["empty", "short", "long"])
def test_greedy_text_by_hand(name: str, prompt: str, words: Tokenizer) -> None:
    model = tiny(name, seed=1)
    ids, _ = words.wrap(words.encode(prompt))
    assert ids.pop() == words.end
    begin = len(ids)
    while len(ids) < begin + 40:
        logits = last_logits(model, seen_by_hand(ids, begin, WINDOW))
        likeliest = max((i for i in range(16) if i == words.end or i >= len(SPECIALS)), key=logits.tolist().__getitem__)
        if likeliest == words.end:
            break
        ids.append(likeliest)
    written = generate(model, words, prompt, Sampling(max_tokens=40))
    assert list(written.ids) == ids[begin:]
    assert written.stopped == ("length" if len(ids) == begin + 40 else "end")


def test_greedy_text_is_that_of_transformers(tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    tokenizer = byte_level(tmp_path / "tokenizer", "<|endoftext|>")
    model = tiny("gpt2", tokenizer.size, window=64)
    write_transformers(Checkpoint(model), tmp_path / "hf")
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path / "hf")
    ids = torch.tensor([[tokenizer.start, *tokenizer.encode("Bonjour les")]])
    found = theirs.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=50, do_sample=False, eos_token_id=256, pad_token_id=256
    )
    expected = [token for token in found[0, ids.shape[1] :].tolist() if token != 256]
    assert len(set(expected)) > 3
    assert list(generate(model, tokenizer, "Bonjour les").ids) == expected


def byte_level(folder: Path, *more: str) -> Tokenizer:
    """A tokenizer of the 256 bytes, and of `more` tokens."""
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {piece: number for number, piece in enumerate([*alphabet, *more])}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    return Tokenizer.load(folder)


# --- choosing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, [1 / 8, 1 / 2, 1 / 8, 1 / 4]),
        ({"temperature": 0.5}, [1 / 22, 16 / 22, 1 / 22, 4 / 22]),  # squares: 1, 16, 1, 4
        ({"temperature": 2.0, "top_k": 2}, [0, 2 / (2 + math.sqrt(2)), 0, math.sqrt(2) / (2 + math.sqrt(2))]),
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_k": 2}, [0, 2 / 3, 0, 1 / 3]),
        ({"top_k": 3}, [1 / 7, 4 / 7, 0, 2 / 7]),  # of equals, the first
        ({"top_k": 99}, [1 / 8, 1 / 2, 1 / 8, 1 / 4]),
        ({"top_p": 0.01}, [0, 1, 0, 0]),  # the likeliest always stays
        ({"top_p": 0.49}, [0, 1, 0, 0]),
        ({"top_p": 0.51}, [0, 2 / 3, 0, 1 / 3]),
        ({"top_p": 0.74}, [0, 2 / 3, 0, 1 / 3]),
        ({"top_p": 0.76}, [1 / 7, 4 / 7, 0, 2 / 7]),
        ({"top_p": 0.9}, [1 / 8, 1 / 2, 1 / 8, 1 / 4]),
        ({"top_k": 3, "top_p": 0.8}, [0, 2 / 3, 0, 1 / 3]),  # 4 / 7 + 2 / 7 is enough, once top_k has cut
        ({"temperature": 0.5, "top_p": 0.8}, [0, 16 / 20, 0, 4 / 20]),  # 16 / 22 is not enough
    ],
)
def test_distributions_by_hand(chosen: dict[str, Any], expected: list[float]) -> None:
    logits = torch.tensor([0.125, 0.5, 0.125, 0.25]).log() + 3
    found = distribution(logits, Sampling(**({"temperature": 1.0} | chosen)))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


@settings(deadline=None)
@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=30),
    temperature=st.floats(0.05, 5),
    top_k=st.none() | st.integers(1, 35),
    top_p=st.floats(0.01, 1),
)
def test_what_every_distribution_is(logits: list[float], temperature: float, top_k: int | None, top_p: float) -> None:
    chosen = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    found = distribution(torch.tensor(logits), chosen)
    assert float(found.sum()) == pytest.approx(1)
    kept = [i for i, p in enumerate(found.tolist()) if p > 0]
    assert len(kept) <= (top_k or len(logits))
    assert min(logits[i] for i in kept) >= max((x for i, x in enumerate(logits) if i not in kept), default=-math.inf)
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    among = math.fsum(sorted(weights, reverse=True)[:top_k])
    mass = math.fsum(weights[i] for i in kept) / among
    assert mass >= top_p - 1e-9 or len(kept) == top_k
    assert mass - min(weights[i] for i in kept) / among < top_p + 1e-9  # without the last it would fall short
    for i in kept:
        assert float(found[i]) == pytest.approx(weights[i] / among / mass, rel=1e-6)


def test_the_same_distributions_as_transformers() -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(0)) * 3
    for temperature, top_k, top_p in [(0.7, 50, 0.9), (1.5, 400, 0.5), (1.0, 7, 0.99)]:
        theirs = logits
        for warp in (TemperatureLogitsWarper(temperature), TopKLogitsWarper(top_k), TopPLogitsWarper(top_p)):
            theirs = warp(None, theirs)
        for row, expected in zip(logits, theirs.softmax(-1), strict=True):
            found = distribution(row, Sampling(temperature=temperature, top_k=top_k, top_p=top_p))
            torch.testing.assert_close(found.float(), expected, rtol=0, atol=1e-6)


def test_tokens_are_drawn_as_often_as_the_distribution_says() -> None:
    logits, chosen = torch.tensor([0.1, 0.4, 0.2, 0.3]).log(), Sampling(temperature=1.0, top_k=3)
    chance = torch.Generator().manual_seed(0)
    drawn = torch.tensor([sample(logits, chosen, chance) for _ in range(9000)]).bincount(minlength=4) / 9000
    torch.testing.assert_close(drawn, torch.tensor([0.0, 4 / 9, 2 / 9, 3 / 9]), rtol=0, atol=0.02)


@pytest.mark.parametrize("temperature", [1e-4, 1e-40, 5e-324])
def test_as_the_temperature_falls_the_text_becomes_the_greedy_one(temperature: float, words: Tokenizer) -> None:
    model = tiny("lab")
    greedy = generate(model, words, "un deux", Sampling(top_p=0.9, seed=7))
    assert greedy.text
    assert generate(model, words, "un deux", Sampling(temperature=temperature, seed=3)) == greedy


def test_the_same_seed_gives_the_same_text_and_another_another(words: Tokenizer) -> None:
    model = tiny("lab")
    state = torch.random.get_rng_state()
    texts = [generate(model, words, "un", Sampling(temperature=2.0, seed=seed)).text for seed in (0, 0, 1, 2)]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3
    assert torch.random.get_rng_state().equal(state)  # nobody else's dice are touched


# --- what may be written --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_special_token_is_written_and_none_that_the_tokenizer_lacks(words: Tokenizer, temperature: float) -> None:
    specials = {words.pad, words.unknown, words.start, words.separator, words.mask}
    assert specials == set(range(len(SPECIALS))) - {words.end}
    wider = words.size + 4
    liked = dict.fromkeys([*range(len(SPECIALS)), *range(words.size, wider)], 50.0)
    model = biased(tiny("lab", wider), liked | {3: -50.0})
    written = generate(model, words, "un", Sampling(max_tokens=100, temperature=temperature))
    assert written.ids
    assert all(len(SPECIALS) <= token < words.size for token in written.ids)


def test_the_end_token_ends_the_text(words: Tokenizer) -> None:
    assert words.end is not None
    assert generate(biased(tiny("lab"), {words.end: 50.0}), words, "un deux") == Generated("", (), "end")
    never = generate(biased(tiny("lab"), {words.end: -50.0}), words, "un deux", Sampling(max_tokens=5))
    assert (never.stopped, len(never.ids)) == ("length", 5)


def test_one_token_may_both_begin_and_end_a_text(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path / "gpt2", "<|endoftext|>")
    assert tokenizer.start == tokenizer.end == 256
    model = biased(tiny("lab", tokenizer.size), {256: 50.0})
    assert generate(model, tokenizer, "").stopped == "end"


def test_a_hole_in_the_vocabulary_is_never_written(tmp_path: Path) -> None:
    tokenizer = from_words(tmp_path, "[UNK]", "un", "", "deux")
    assert tokenizer.size == 4
    model = biased(tiny("lab", 4), {2: 50.0})
    assert 2 not in generate(model, tokenizer, "un").ids


# --- text -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["bpe", "unigram", "wordpiece"])
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    text = "Le petit élève a lu l'œuvre : « c'est déjà fini ! », dit-il. " * 20
    return Tokenizer.train(
        [text], kind=request.param, size={"bpe": 290, "unigram": 320, "wordpiece": 90}[request.param]
    )


@settings(deadline=None, max_examples=60)
@given(
    prompt=st.sampled_from(["", "Le petit", "l'élève", "日本"]), text=st.text(max_size=12) | st.just(" déjà €😀 fini.")
)
def test_pieces_of_text_are_said_once_and_whole(trained: Tokenizer, prompt: str, text: str) -> None:
    before, after = trained.encode(prompt), trained.encode(text)
    decoder = IncrementalDecoder(trained, before)
    pieces = [decoder.add(token) for token in after]
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)
    pieces.append(decoder.finish())
    assert "".join(pieces) == decoder.text == trained.decode(before + after)[len(trained.decode(before)) :]


def test_half_a_character_is_said_at_the_end_alone() -> None:
    tokenizer = Tokenizer.train(["abc"], kind="bpe", size=262)
    decoder = IncrementalDecoder(tokenizer, tokenizer.encode("a"))
    euro = tokenizer.encode("€")
    assert len(euro) == 3
    assert [decoder.add(token) for token in euro] == ["", "", "€"]
    assert decoder.add(euro[0]) == ""
    assert decoder.finish() == "\ufffd"


def test_the_continuation_keeps_its_space(words: Tokenizer) -> None:
    deux = words.encode("deux")[0]
    model = biased(tiny("lab"), {deux: 99.0})
    assert generate(model, words, "un", Sampling(max_tokens=2)).text == " deux deux"
    assert generate(model, words, "", Sampling(max_tokens=2)).text == "deux deux"


def test_the_stream_is_the_text_as_it_comes(words: Tokenizer) -> None:
    model = endless(tiny("lab"))
    *pieces, whole = stream(model, words, "un", Sampling(max_tokens=30))
    assert whole == generate(model, words, "un", Sampling(max_tokens=30))
    assert isinstance(whole, Generated)
    assert len(pieces) == 30
    assert "".join(map(str, pieces)) == whole.text


def test_notes_say_when_the_window_was_too_short(words: Tokenizer) -> None:
    model = endless(tiny("lab"))
    short = "un deux"  # 3 tokens with the start
    assert generate(model, words, short, Sampling(max_tokens=10)).notes == ()  # the 13th is chosen by 12
    assert generate(model, words, short, Sampling(max_tokens=11)).notes == (
        "the text outgrew the window of 12 tokens: from there on each token was chosen by the last 6 to 12 before it",
    )
    long = generate(model, words, " ".join(WORDS * 2), Sampling(max_tokens=1))
    assert long.notes == ("the prompt has 21 tokens and the window 12: only its last 12 are read",)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "head", "found"),
    [
        ("bert-tiny", MaskedConfig(), "bidirectional model with a masked head: use `headstart fill`"),
        (
            "lab",
            ClassifierConfig(classes=2, pool="last"),
            "model with a classifier head: use `headstart predict`",
        ),
        ("gpt2", None, "causal model with no head: it was exported without one"),
    ],
)
def test_a_model_that_cannot_continue_a_text(name: str, head: HeadConfig | None, found: str, words: Tokenizer) -> None:
    model = Model.build(preset(name, vocabulary=16, **TINY, width=16), head).eval()
    with pytest.raises(ModelError, match=found):
        stream(model, words, "un")


def test_other_things_that_cannot_work(words: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the tokenizer has 16 tokens and the model knows 15"):
        stream(tiny("lab", 15), words, "un")
    with pytest.raises(ModelError, match=r"call model\.eval\(\) first"):
        stream(tiny("lab").train(), words, "un")
    bare = from_words(tmp_path, "[UNK]", "un")
    with pytest.raises(ConfigError, match="the prompt is empty, and this tokenizer has no start token"):
        stream(tiny("lab", 2), bare, "")
    assert generate(tiny("lab", 2), bare, "un", Sampling(max_tokens=3)).text == " un un un"
    broken = tiny("lab")
    with torch.no_grad():
        broken.backbone.embeddings.tokens.weight[2] = math.nan  # the start token
    with pytest.raises(ModelError, match="no finite numbers"):
        generate(broken, words, "un")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"temperature": -1.0}, "temperature is -1.0, and must be at least 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf, and must be a finite number"),
        ({"top_p": 0.0}, "top_p is 0.0, and must be above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p is 1.1, and must be above 0 and at most 1"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"top_k": 0}, "top_k is 0, and must be at least 1"),
        ({"max_tokens": 0}, "max_tokens is 0, and must be at least 1"),
        ({"seed": -1}, "seed is -1, and must be at least 0"),
    ],
)
def test_settings_out_of_range(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Sampling(**wrong)


# --- does it work? --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CAUSAL)
def test_a_model_that_has_learned_to_count_goes_on_counting(name: str, words: Tokenizer) -> None:
    """From any number, past the tenth and past the window; none of it is in the settings, all of it in the weights."""
    torch.manual_seed(0)
    changes = CAUSAL[name] | {"width": 32, "feed_forward": 64, "dropout": 0.0, "attention_dropout": 0.0}
    model = Model.build(preset(name, vocabulary=words.size, **changes), NextTokenConfig())
    counting = words.encode(" ".join(WORDS * 3))
    begun = [words.wrap(counting[first:])[0][:WINDOW] for first in range(10)]
    middle = [counting[first:][:WINDOW] for first in range(10)]  # of a longer text
    ids = torch.tensor(begun + middle)
    layout = Dense(torch.ones(20, WINDOW - 1, dtype=torch.bool))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(80):
        logits = model(ids[:, :-1], layout)
        loss: Tensor = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.eval()
    for chosen in (Sampling(max_tokens=30), Sampling(max_tokens=30, temperature=0.5, top_k=3, seed=5)):
        expected = " " + " ".join((WORDS * 5)[4:34])
        assert generate(model, words, "trois quatre", chosen).text == expected
        assert generate(model, words, "trois quatre", chosen, cache=False).text == expected
