"""Pretraining that is causal and masked: what it learns, that it resumes exactly, and classifiers from such a base."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from headstart.batches.causal_masked import CausalMaskedBatches
from headstart.batches.masking import Masking
from headstart.checkpoints.folder import load
from headstart.config import CausalMaskedConfig
from headstart.errors import ConfigError, ModelError
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.runs.events import Saved, Step
from headstart.store.store import Store
from headstart.store.write import write_store
from headstart.studies.finetune import finetune
from headstart.studies.pretrain import pretrain
from headstart.studies.settings import FinetuneSettings, PretrainSettings
from headstart.tokenizers.special_tokens import SPECIALS
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.loop import Loop
from headstart.training.objectives import CausalAndMasked
from headstart.training.run_checkpoint import restore_state
from headstart.training.settings import TrainingSettings
from headstart.use.fill import fill
from headstart.use.generate import Context, Sampling, distribution, generate

FIRST = [f"a{number}" for number in range(4)]
SECOND = [f"b{number}" for number in range(4)]
REST = [f"c{number}" for number in range(3)]
TINY = ("width=32", "layers=2", "heads=2", "feed_forward=48", "window=16", "dropout=0.0")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts such as "a3 b3 c0 c2 c2 c1": the first two words tell each other, and nothing tells the other four."""
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *FIRST, *SECOND, *REST]), encoding="utf-8")
    texts = [" ".join([f"a{n}", f"b{n}", *rest]) for n in range(4) for rest in product(REST, repeat=4)]
    (folder / "text.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    write_store([folder / "text.txt"], Tokenizer.load(folder), folder / "store", valid=0.2, workers=1)
    return folder


def test_it_learns_a_language_whose_answers_are_known(pairs: Path, tmp_path: Path) -> None:
    """Its causal loss is the entropy: ln 4 for the first word, nothing for the second, ln 3 for each of the others, and
    nothing for the end. With an answer in sight it would be less. Masked, the first word is known by the second.
    """
    how = PretrainSettings(
        store=str(pairs / "store"),
        objective="causal+masked",
        causal_share=0.25,
        mask_rate=0.3,
        change=(*TINY, "layers=1", "positions=learned"),
        window=8,
        batch_size=32,
        steps=300,
        lr=2e-2,
    )
    result = pretrain(how, tmp_path / "base")
    entropy = (math.log(4) + 4 * math.log(3)) / 7
    assert entropy - 0.005 < result["valid"]["causal_loss"] < entropy + 0.05
    assert result["valid"]["perplexity"] == pytest.approx(math.exp(result["valid"]["causal_loss"]), rel=1e-6)
    bits = result["valid"]["causal_loss"] / math.log(2) * 7 / 17  # seven predictions for 17 bytes
    assert result["valid"]["bits_per_byte"] == pytest.approx(bits, rel=1e-6)
    assert result["valid"]["loss"] == pytest.approx(
        0.25 * result["valid"]["causal_loss"] + 0.75 * result["valid"]["masked_loss"], rel=1e-6
    )
    base = load(tmp_path / "base" / "model")
    assert base.tokenizer is not None
    for first, second in zip(FIRST, SECOND, strict=True):
        assert generate(base.model, base.tokenizer, first, Sampling(max_tokens=1)).text.strip() == second
        text = f"{first} {second} c1 c2 c0 c1"
        for gap in (text.replace(first, "[MASK]"), text.replace(second, "[MASK]")):
            assert fill(base.model, base.tokenizer, gap, top=1)[0].candidates[0].text == text
    assert generate(base.model, base.tokenizer, "a0 b0 c1 c2 c0 c1").stopped == "end"
    logits = Context(base.model).read([base.tokenizer.start or 0])
    chances = distribution(logits, Sampling(temperature=1.0))[len(SPECIALS) :][:4]
    assert chances.sum() > 0.97
    assert 0.15 < chances.min() <= chances.max() < 0.35  # nothing tells which of the four comes first


def make_loop(pairs: Path, **changes: Any) -> Loop:
    tokenizer = Tokenizer.load(pairs)
    torch.manual_seed(5)
    sizes = {"width": 16, "layers": 2, "heads": 2, "feed_forward": 24, "window": 16, "direction": "both"}
    model = Model.build(preset("small", vocabulary=tokenizer.size, **sizes), CausalMaskedConfig())
    documents = Store.open(pairs / "store").split("train")
    data = CausalMaskedBatches(
        documents, tokenizer, window=8, batch_size=16, seed=3, masking=Masking.of(tokenizer, 0.4), causal_share=0.4
    )
    settings = TrainingSettings(**{"epochs": 2, "lr": 3e-3, "save_every": 1, **changes})
    return Loop(model, CausalAndMasked(), data, settings)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_going_on_from_any_state_is_never_having_stopped(pairs: Path, accumulate: int) -> None:
    """With dropout, over steps of both kinds: losses and weights bit for bit."""
    straight = make_loop(pairs, accumulate=accumulate)
    events = list(straight.run())
    expected = [event.loss for event in events if isinstance(event, Step)]
    states = [event.state for event in events if isinstance(event, Saved)]
    kinds = [straight.batches.batch(epoch, step).causal for epoch in range(2) for step in range(len(expected) // 2)]
    changes = [number for number in range(1, len(kinds)) if kinds[number] != kinds[number - 1]]
    assert len(changes) > 3
    for number in (changes[0], changes[1], changes[-1]):  # the next step is of the other kind
        state = states[number - 1]
        assert state.numbers["step"] == number
        again = make_loop(pairs, accumulate=accumulate)
        restore_state(again, state)
        assert [event.loss for event in again.run() if isinstance(event, Step)] == expected[number:]
        for one, other in zip(straight.model.parameters(), again.model.parameters(), strict=True):
            assert torch.equal(one, other)


def test_micro_batches_give_the_large_batch(pairs: Path) -> None:
    plain, parted = (make_loop(pairs, accumulate=count, epochs=1) for count in (1, 4))
    for loop in (plain, parted):
        for module in loop.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    one, other = ([e.loss for e in loop.run() if isinstance(e, Step)] for loop in (plain, parted))
    assert other == pytest.approx(one, rel=1e-5)


def test_classifiers_from_such_a_base_read_both_sides(world: Path, tmp_path: Path) -> None:
    base = PretrainSettings(
        store=str(world / "store"), objective="causal+masked", change=TINY, window=16, batch_size=8, steps=20
    )
    pretrain(base, tmp_path / "base")
    modes: list[tuple[Any, Any]] = [("full", "first"), ("frozen", None)]
    for mode, pool in modes:
        given = FinetuneSettings(
            data=str(world / "train.txt"),
            valid=str(world / "valid.txt"),
            test=str(world / "test.txt"),
            init=str(tmp_path / "base"),
            mode=mode,
            epochs=1,
            pool=pool,
        )
        assert 0 <= finetune(given, tmp_path / mode)["test"]["accuracy"] <= 1
    found = load(tmp_path / "full" / "model").model
    assert (found.config.direction, found.head_config.pool) == ("both", "first")  # type: ignore[union-attr]
    from headstart.model.layout import Flat

    ids = torch.tensor([1, 20, 21, 22])
    other = torch.tensor([1, 20, 21, 23])
    with torch.no_grad():
        one, two = (found.backbone(text, Flat.from_lengths([4]))[0] for text in (ids, other))
    assert not torch.equal(one, two)  # the first token sees the last


def test_what_does_not_go_with_it(world: Path, tmp_path: Path) -> None:
    common: dict[str, Any] = {"store": str(world / "store"), "window": 16, "batch_size": 8, "steps": 2}
    pretrain(PretrainSettings(objective="causal+masked", change=TINY, **common), tmp_path / "both")
    pretrain(PretrainSettings(objective="masked", change=TINY, **common), tmp_path / "masked")
    cases: list[tuple[str, Any, str]] = [
        ("both", "masked+next-sentence", "needs a backbone that has one: set pooler = true"),
        ("both", "causal", "would read its own answer"),
        ("masked", "causal+masked", "this one is bidirectional: choose direction = 'both'"),
    ]
    for start, objective, words in cases:
        with pytest.raises(ModelError, match=words):
            pretrain(PretrainSettings(init=str(tmp_path / start), objective=objective, **common), tmp_path / "run")
        assert not (tmp_path / "run").exists()
    more = PretrainSettings(init=str(tmp_path / "both"), objective="masked", **common)
    pretrain(more, tmp_path / "more")  # goes on without its causal half
    assert load(tmp_path / "more" / "model").model.head_config.kind == "masked"  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"causal_share is 1\.5, and must be below 1"):
        PretrainSettings(objective="causal+masked", causal_share=1.5, **common)
