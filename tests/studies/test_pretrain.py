from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from headstart.checkpoints.folder import load
from headstart.errors import ConfigError, HeadstartError, ModelError, OutputError, TokenizerError
from headstart.parallel import SINGLE
from headstart.runs.events import Evaluated, Step
from headstart.runs.run import RunFolder
from headstart.studies import corpus as corpus_module
from headstart.studies.corpus import sample
from headstart.studies.finetune import finetune
from headstart.studies.pretrain import pretrain
from headstart.studies.settings import FinetuneSettings, PretrainSettings
from headstart.tokenizers.tokenizer import Tokenizer
from tests.studies.example_data import corpus, make_store, write_reviews

TINY = ("width=48", "layers=2", "heads=2", "feed_forward=64", "window=64")


def settings(world: Path, **changes: Any) -> PretrainSettings:
    given = {"store": str(world / "store"), "model": "small", "change": TINY, "window": 48, "batch_size": 8, "lr": 3e-3}
    return PretrainSettings(**{**given, **changes})


@pytest.mark.parametrize(
    ("objective", "model", "scores"),
    [
        ("causal", "lab", {"loss", "perplexity", "bits_per_byte"}),
        ("causal", "small", {"loss", "perplexity", "bits_per_byte"}),
        ("masked", "small", {"loss", "perplexity"}),
        ("masked", "bert-tiny", {"loss", "perplexity"}),
        ("causal+masked", "lab", {"loss", "masked_loss", "causal_loss", "perplexity", "bits_per_byte"}),
        ("masked+next-sentence", "small", {"loss", "masked_loss", "next_sentence_loss", "perplexity"}),
    ],
)
def test_every_objective_learns(world: Path, tmp_path: Path, objective: str, model: str, scores: set[str]) -> None:
    result = pretrain(settings(world, objective=objective, model=model, epochs=3), tmp_path / "run")
    assert result["valid"].keys() == scores
    evaluated = [e.scores["loss"] for e in RunFolder(tmp_path / "run").events() if isinstance(e, Evaluated)]
    assert evaluated[-1] < evaluated[0]
    assert result["valid"]["loss"] == pytest.approx(evaluated[-1], rel=1e-5)
    found = load(tmp_path / "run" / "model")
    assert found.model.head_config is not None
    assert found.tokenizer is not None
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["tokens"] == result["tokens"] > 0


def test_bits_per_byte_are_the_losses_of_the_whole_text(world: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Against a slow count: each held-out document alone, token by token, from its start to its end."""
    import math

    from headstart.model.layout import Flat
    from headstart.store.store import Store

    result = pretrain(
        settings(world, model="lab", change=(*TINY, "window=256"), window=200, steps=20), tmp_path / "run"
    )
    model = load(tmp_path / "run" / "model").model
    documents = Store.open(world / "store").split("valid")
    nats = 0.0
    for number in range(len(documents)):
        ids = torch.tensor([tokenizer.start, *documents[number].tolist(), tokenizer.end])
        with torch.no_grad():
            logits = model(ids, Flat.from_lengths([len(ids)]))
        nats -= torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), ids[1:]].sum().item()
    assert result["valid"]["bits_per_byte"] == pytest.approx(nats / math.log(2) / int(documents.bytes.sum()), rel=1e-4)


def test_pretraining_beats_scratch_on_made_up_data(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Opinion words keep company in the corpus; 16 labels cannot show all of them, the corpus does."""
    make_store(tmp_path, tokenizer, count=1500)
    base = settings(tmp_path, objective="masked", epochs=10, mask_rate=0.3, lr=4e-3)
    pretrain(base, tmp_path / "base")
    write_reviews(tmp_path / "train.txt", 16, 11)
    write_reviews(tmp_path / "valid.txt", 200, 12)
    write_reviews(tmp_path / "test.txt", 400, 13)
    accuracy = {}
    for mode in ("full", "scratch"):
        given = FinetuneSettings(
            data=str(tmp_path / "train.txt"),
            valid=str(tmp_path / "valid.txt"),
            test=str(tmp_path / "test.txt"),
            init=str(tmp_path / "base"),
            mode=mode,
            epochs=20,
            lr=1e-3,
        )
        accuracy[mode] = finetune(given, tmp_path / mode)["test"]["accuracy"]
    assert accuracy["full"] > accuracy["scratch"] + 0.05, accuracy


def test_going_on_from_a_model(world: Path, tmp_path: Path) -> None:
    first = pretrain(settings(world, objective="masked", epochs=2), tmp_path / "first")
    more = settings(world, model=None, change=(), init=str(tmp_path / "first"), objective="masked", epochs=1, lr=1e-4)
    second = pretrain(more, tmp_path / "second")
    assert second["weights"] == f"from {tmp_path / 'first'}"
    first_step = next(e for e in RunFolder(tmp_path / "second").events() if isinstance(e, Step))
    assert first_step.loss < first["valid"]["loss"] + 0.7  # it begins where the other ended, not from nothing
    assert second["valid"]["loss"] <= first["valid"]["loss"] + 0.02


def test_a_new_objective_gets_a_new_head_on_the_old_backbone(world: Path, tmp_path: Path) -> None:
    pretrain(settings(world, objective="masked", model="bert-tiny", steps=3), tmp_path / "first")
    more = settings(
        world, model=None, change=(), init=str(tmp_path / "first"), objective="masked+next-sentence", steps=2, lr=1e-6
    )
    pretrain(more, tmp_path / "second")
    assert load(tmp_path / "second" / "model").model.head_config.kind == "masked+next-sentence"  # type: ignore[union-attr]


def test_bad_input(world: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    other = Tokenizer.train(corpus(50, 9), kind="wordpiece", size=150)
    other.save(tmp_path / "other")
    pretrain(settings(world, steps=1), tmp_path / "causal")
    cases: list[tuple[dict[str, Any], type[HeadstartError], str]] = [
        ({"tokenizer": str(tmp_path / "other")}, TokenizerError, "written with the tokenizer"),
        ({"window": 65}, ModelError, "65 tokens is longer than the 64 positions"),
        ({"model": "labb"}, ConfigError, "labb"),
        ({"change": ("widht=3",)}, ConfigError, "did you mean 'width'"),
        ({"change": ("width",)}, ConfigError, "write it as name=value"),
        ({"model": "gpt2", "objective": "masked"}, ModelError, "a causal backbone sees one"),
        ({"model": "bert-tiny", "objective": "causal"}, ModelError, "would read its own answer"),
        ({"model": None, "change": (), "init": str(tmp_path / "causal"), "objective": "masked"}, ModelError, "causal"),
        ({"model": "gpt2", "objective": "causal+masked"}, ModelError, "this one is causal: choose direction = 'both'"),
        ({"model": "bert-tiny", "objective": "causal+masked"}, ModelError, "this one is bidirectional"),
        ({"store": str(tmp_path)}, HeadstartError, str(tmp_path)),
    ]
    for changes, error, words in cases:
        with pytest.raises(error, match=words):
            pretrain(settings(world, **changes), tmp_path / "run")
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"init": "somewhere"}, "model and init are both given"),
        ({"store": ""}, "or a token store with --store"),
        ({"mask_rate": 0.0}, "mask_rate is 0.0, and must be above 0"),
        ({"causal_share": 0.1}, "causal_share is for the objective causal\\+masked"),
        ({"objective": "causal+masked", "causal_share": 0.0}, "causal_share is 0.0, and must be above 0"),
        ({"objective": "causal+masked", "causal_share": 1.0}, "causal_share is 1.0, and must be below 1"),
        ({"model": None, "init": "x"}, "--change is for a preset"),
        ({"mask_rate_end": 0.1}, "mask_rate_end is for objectives with masks"),
        ({"objective": "masked", "mask_rate_end": 1.0}, "mask_rate_end is 1.0, and must be below 1"),
    ],
)
def test_settings_that_do_not_go_together(world: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings(world, **changes)


def test_a_vocabulary_that_is_too_small_can_be_corrected(tmp_path: Path) -> None:
    """The command that was refused leaves nothing that the next one would be refused for."""
    (tmp_path / "text.txt").write_text("un bon roman\nun long roman\n" * 50)
    asked = PretrainSettings(corpus=(str(tmp_path / "text.txt"),), vocabulary=3)
    make = partial(corpus_module.make_store, out=tmp_path / "run", parallel=SINGLE, workers=1, log=lambda text: None)
    with pytest.raises(HeadstartError, match="3"):
        make(asked)
    make(replace(asked, vocabulary=280))
    with pytest.raises(OutputError, match="another text or tokenizer"):  # now there is something to lose
        make(replace(asked, vocabulary=290))


def test_a_tokenizer_is_trained_on_texts_from_all_of_a_large_corpus() -> None:
    texts = [f"text {number:05d}" for number in range(10_000)]
    few = sample(texts, most=11 * 100)
    assert 50 < len(few) <= 100
    assert few[-1] > "text 09800"
    assert few == texts[:: int(few[1][5:])]
    assert sample(iter(texts)) == texts
    assert sample(["x" * 100, "y"], most=10) == ["x" * 100]  # one text at least
