"""Batches of causal+masked: which steps are causal, what their targets are, and that no token sees its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headstart.batches.batch import IGNORE_INDEX, Batch, micro_batch
from headstart.batches.causal_masked import CausalMaskedBatches
from headstart.batches.language import MaskedBatches
from headstart.batches.masking import Masking
from headstart.config import CausalMaskedConfig
from headstart.errors import ModelError
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.objectives import CausalAndMasked, layout_of
from tests.batches.helpers import encoded_documents, epochs, seeds, sequences_of, store, windows_by_hand


def make(
    rows: Sequence[Sequence[int]], tokenizer: Tokenizer, share: float, *, rate: float = 0.3, **changes: Any
) -> CausalMaskedBatches:
    how = {"window": 16, "batch_size": 2, "seed": 11, "masking": Masking.of(tokenizer, rate), **changes}
    return CausalMaskedBatches(store(rows), tokenizer, causal_share=share, **how)


def model_for(tokenizer: Tokenizer) -> Model:
    torch.manual_seed(0)
    sizes = {"width": 16, "layers": 2, "heads": 2, "feed_forward": 24, "window": 32, "direction": "both"}
    model = Model.build(preset("small", vocabulary=tokenizer.size, **sizes), CausalMaskedConfig())
    for p in model.parameters():  # fresh weights are so small that a leak would be too
        torch.nn.init.normal_(p, 0, 0.5)
    return model.double().eval()


@pytest.mark.parametrize("share", [1 / 16, 0.3, 0.75])
def test_a_share_of_the_steps_is_causal(tokenizer: Tokenizer, share: float) -> None:
    data = make(encoded_documents(tokenizer, 6), tokenizer, share)
    kinds = [[data.is_causal(epoch, step) for step in range(160)] for epoch in range(40)]
    for steps in kinds:
        for low in range(100):  # evenly: in any stretch as many as its length says, within one
            assert abs(sum(steps[low : low + 48]) - 48 * share) < 1 + 1e-9
    first = sum(steps[0] for steps in kinds)  # an epoch of a single step has its share of them as well
    assert 0 < first < 40
    assert abs(first - 40 * share) < 5 * (40 * share * (1 - share)) ** 0.5


@settings(max_examples=10, deadline=None)
@given(seed=seeds, epoch=epochs, window=st.integers(3, 30), share=st.sampled_from([0.0, 1 / 16, 0.5, 1.0]))
def test_every_window_is_read_once_an_epoch(
    tokenizer: Tokenizer, seed: int, epoch: int, window: int, share: float
) -> None:
    rows = encoded_documents(tokenizer, 6)
    data = make(rows, tokenizer, share, window=window, seed=seed)
    texts = []
    for step in range(data.steps(epoch)):
        batch = data.batch(epoch, step)
        assert batch.causal == data.is_causal(epoch, step) == (batch.masked is None)
        ids = batch.ids.clone()
        if batch.masked is not None:
            assert batch.targets is not None
            ids[batch.masked + 1] = batch.targets
        texts += [part.tolist() for part in torch.split(ids, batch.starts.diff().tolist())]
    expected = windows_by_hand(rows, (tokenizer.start or 0,), (tokenizer.end or 0,), window, wrap_each=True)
    assert sorted(texts) == sorted(expected)


def test_a_causal_step_has_the_next_token_as_its_target(tokenizer: Tokenizer) -> None:
    """Windows of five tokens of text. The end token is a target where the document ends, and nowhere else."""
    rows = [list(range(20, 32)), list(range(40, 45))]
    data = make(rows, tokenizer, 1.0, window=7, evaluation=True, batch_size=9)
    start, end, none = tokenizer.start, tokenizer.end, IGNORE_INDEX
    found = [(sequence.ids, sequence.targets) for sequence in sequences_of(data.batch(0, 0))]
    assert found == [
        ([start, 20, 21, 22, 23, 24, end], [20, 21, 22, 23, 24, none, none]),
        ([start, 25, 26, 27, 28, 29, end], [25, 26, 27, 28, 29, none, none]),
        ([start, 30, 31, end], [30, 31, end, none]),
        ([start, 40, 41, 42, 43, 44, end], [40, 41, 42, 43, 44, end, none]),
    ]


def test_a_masked_step_is_one_of_masked_read_a_token_earlier(tokenizer: Tokenizer) -> None:
    rows = encoded_documents(tokenizer, 6)
    data = make(rows, tokenizer, 0.0)
    masked = MaskedBatches(store(rows), tokenizer, window=16, batch_size=2, seed=11, masking=Masking.of(tokenizer, 0.3))
    for step in range(data.steps(3)):
        one, other = data.batch(3, step), masked.batch(3, step)
        assert one.masked is not None and other.masked is not None
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.masked + 1, other.masked)
        assert torch.equal(one.targets, other.targets)  # type: ignore[arg-type]
        inside = torch.searchsorted(one.starts, one.masked, right=True)  # a target is read in its own sequence
        assert torch.equal(inside, torch.searchsorted(one.starts, other.masked, right=True))


def read(model: Model, batch: Batch) -> Tensor:
    """(…, V): the logits that the loss of a batch is of."""
    with torch.no_grad():
        logits: Tensor = model(batch.ids, layout_of(batch))
    return logits if batch.masked is None else logits[batch.masked]


def test_no_token_of_a_causal_step_sees_its_answer(tokenizer: Tokenizer) -> None:
    """Other tokens in the place of an answer and of all after it: the logits for it stay as they were, bit for bit."""
    model, data = model_for(tokenizer), make(encoded_documents(tokenizer, 6), tokenizer, 1.0)
    batch = data.batch(0, 0)
    place = layout_of(batch).position
    before = read(model, batch)
    leaks = 0
    for position in range(1, batch.longest):
        others = torch.where(place < position, batch.ids, (batch.ids + 1) % tokenizer.size)
        seen = place < position
        assert torch.equal(read(model, replace(batch, ids=others))[seen], before[seen])
        without_mask = replace(batch, ids=others, causal=False)
        leaks += not torch.equal(
            read(model, without_mask)[seen], read(model, replace(without_mask, ids=batch.ids))[seen]
        )
    assert leaks == batch.longest - 1  # what this test looks for can be seen


def test_no_masked_token_sees_its_answer(tokenizer: Tokenizer) -> None:
    """Another text that differs in a masked token: the logits are the same. Where 10 % are left as they are, not."""
    rows = encoded_documents(tokenizer, 3)
    model, data = model_for(tokenizer), make(rows, tokenizer, 0.0, window=32, batch_size=1000, evaluation=True)
    batch = data.batch(0, 0)
    assert batch.masked is not None and batch.targets is not None
    hidden = batch.ids[batch.masked + 1].eq(tokenizer.mask or 0)
    assert 0.6 < hidden.double().mean() < 0.95
    text = batch.ids.clone()
    text[batch.masked + 1] = batch.targets
    answer = {int(k): int(t) for k, t in zip(batch.masked[hidden] + 1, batch.targets[hidden], strict=True)}
    special = Masking.of(tokenizer).special
    other_token = next(t for t in range(tokenizer.size) if not special[t] and t not in answer.values())
    changed = text.clone()
    changed[list(answer)] = other_token
    lengths = batch.starts.diff().tolist()
    bare = [part[1:-1].tolist() for part in torch.split(changed, lengths)]
    other = make(bare, tokenizer, 0.0, window=32, batch_size=1000, evaluation=True).batch(0, 0)
    assert other.masked is not None and torch.equal(other.masked, batch.masked)
    assert (other.targets[hidden] == other_token).all()  # type: ignore[index]
    assert torch.equal(read(model, other)[hidden], read(model, batch)[hidden])
    assert torch.equal(other.ids, batch.ids)  # nothing else of the text has changed
    shown = replace(batch, ids=text)
    assert not torch.isclose(read(model, shown)[hidden], read(model, batch)[hidden]).all(-1).any()


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("count", [2, 3])
def test_micro_batches_are_of_the_kind_of_the_step(tokenizer: Tokenizer, share: float, count: int) -> None:
    model, objective = model_for(tokenizer), CausalAndMasked()
    batch = make(encoded_documents(tokenizer, 6), tokenizer, share, batch_size=6).batch(0, 0)
    parts = [part for index in range(count) if (part := micro_batch(batch, index, count)) is not None]
    assert len(parts) == count
    assert {part.causal for part in parts} == {batch.causal}
    total = sum(objective.sums(model, part)["loss"].item() for part in parts)
    assert total == pytest.approx(objective.sums(model, batch)["loss"].item(), rel=1e-12)


def test_a_batch_of_neither_kind_is_refused(tokenizer: Tokenizer) -> None:
    model, objective = model_for(tokenizer), CausalAndMasked()
    for share, causal in ((1.0, False), (0.0, True)):
        batch = make(encoded_documents(tokenizer, 6), tokenizer, share).batch(0, 0)
        with pytest.raises(ModelError, match="would see its own answer"):
            objective.sums(model, replace(batch, causal=causal))


def test_a_tokenizer_without_a_start_token_is_refused(trained: dict[str, Tokenizer]) -> None:
    words = trained["wordpiece"]
    bare = Tokenizer(words._tokenizer)
    bare._layouts = (("A", 0),), None
    with pytest.raises(ModelError, match="puts no token before a text"):
        make(encoded_documents(words, 6), bare, 0.5)
