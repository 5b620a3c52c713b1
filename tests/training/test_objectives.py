from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.batches.batch import IGNORE_INDEX, Batch, micro_batch
from headstart.config import (
    ClassifierConfig,
    HeadConfig,
    MaskedConfig,
    MaskedNextSentenceConfig,
    NextTokenConfig,
    ReplacedConfig,
)
from headstart.errors import ModelError
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.training.objectives import (
    Causal,
    Classification,
    Contrastive,
    FrozenClassification,
    MaskedAndNextSentence,
    MaskedTokens,
    Objective,
    layout_of,
    supervised_contrastive,
)
from headstart.training.replaced import Replaced

SIZES = {"vocabulary": 30, "width": 16, "layers": 2, "heads": 2, "feed_forward": 24, "window": 32}
LENGTHS = [5, 9, 2, 7]
N = sum(LENGTHS)


def model_with(head: HeadConfig, **changes: object) -> Model:
    torch.manual_seed(0)
    causal = isinstance(head, NextTokenConfig) or (isinstance(head, ClassifierConfig) and head.pool == "last")
    config = preset("lab" if causal else "bert-tiny", **{**SIZES, **changes})
    return Model.build(config, head).double().eval()


def make_batch() -> Batch:
    torch.manual_seed(1)
    starts = torch.tensor(np.concatenate([[0], np.cumsum(LENGTHS)]), dtype=torch.int32)
    return Batch(
        ids=torch.randint(30, (N,)),
        starts=starts,
        longest=max(LENGTHS),
        segments=torch.randint(2, (N,)),
        labels=torch.tensor([0, 1, 1, 0]),
        rows=torch.arange(4),
    )


def with_targets(batch: Batch) -> Batch:
    from dataclasses import replace

    targets = torch.randint(30, (N,))
    targets[::3] = IGNORE_INDEX
    return replace(batch, targets=targets)


def with_masks(batch: Batch) -> Batch:
    from dataclasses import replace

    masked = torch.tensor([0, 3, 6, 7, 13, 20])
    return replace(batch, masked=masked, targets=torch.randint(30, (6,)))


def with_draws(batch: Batch) -> Batch:
    from dataclasses import replace

    return replace(batch, draws=torch.rand(6, dtype=torch.float64), text=torch.arange(N) % 5 > 0)


def total(objective: Objective, model: Model, batch: Batch) -> Tensor:
    counts, sums = objective.counts(batch), objective.sums(model, batch)
    assert objective.parts == tuple(counts) == tuple(sums)
    return torch.stack([sums[name] / counts[name] for name in sums]).sum()


def test_causal_is_cross_entropy_at_every_target() -> None:
    model, batch = model_with(NextTokenConfig()), with_targets(make_batch())
    assert batch.targets is not None
    logits = model(batch.ids, layout_of(batch))
    expected = F.cross_entropy(logits, batch.targets, ignore_index=IGNORE_INDEX)
    torch.testing.assert_close(total(Causal(), model, batch), expected)


def test_masked_is_cross_entropy_behind_the_masks() -> None:
    model, batch = model_with(MaskedConfig()), with_masks(make_batch())
    assert batch.masked is not None
    assert batch.targets is not None
    logits = model(batch.ids, layout_of(batch), batch.segments)
    expected = F.cross_entropy(logits[batch.masked], batch.targets)
    torch.testing.assert_close(total(MaskedTokens(), model, batch), expected)


def test_masked_and_next_sentence_are_added() -> None:
    model, batch = model_with(MaskedNextSentenceConfig()), with_masks(make_batch())
    assert batch.masked is not None
    assert batch.targets is not None
    assert batch.labels is not None
    tokens, follows = model(batch.ids, layout_of(batch), batch.segments)
    expected = F.cross_entropy(tokens[batch.masked], batch.targets) + F.cross_entropy(follows.float(), batch.labels)
    torch.testing.assert_close(total(MaskedAndNextSentence(), model, batch), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("weights", [None, [0.5, 3.0]])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_classification_is_torchs_mean(weights: list[float] | None, smoothing: float) -> None:
    model, batch = model_with(ClassifierConfig(classes=2, pool="mean")), make_batch()
    assert batch.labels is not None
    logits = model(batch.ids, layout_of(batch), batch.segments).float()
    expected = F.cross_entropy(
        logits, batch.labels, weight=None if weights is None else torch.tensor(weights), label_smoothing=smoothing
    )
    torch.testing.assert_close(total(Classification(weights, smoothing), model, batch), expected)


def test_frozen_features_give_the_same_loss_and_head_gradients() -> None:
    model, batch = model_with(ClassifierConfig(classes=2, pool="mean", pooler="tanh")).freeze(), make_batch()
    plain = total(Classification(), model, batch)
    plain.backward()  # type: ignore[no-untyped-call]
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    assert model.head is not None
    features = layout_of(batch).pool(model.backbone(batch.ids, layout_of(batch), batch.segments), "mean")
    kept = total(FrozenClassification(features=features.detach()), model, batch)
    kept.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(kept, plain)
    assert expected.keys() == {name for name, _ in model.named_parameters() if name.startswith("head.")}
    for name, p in model.named_parameters():
        if name in expected:
            torch.testing.assert_close(p.grad, expected[name])


CASES: list[tuple[Objective, HeadConfig, Batch]] = [
    (Causal(), NextTokenConfig(), with_targets(make_batch())),
    (MaskedTokens(), MaskedConfig(), with_masks(make_batch())),
    (MaskedAndNextSentence(), MaskedNextSentenceConfig(), with_masks(make_batch())),
    (Replaced(), ReplacedConfig(generator=0.5), with_draws(with_masks(make_batch()))),
    (Classification([0.5, 3.0], 0.1), ClassifierConfig(classes=2, pool="mean"), make_batch()),
]


@pytest.mark.parametrize(("objective", "head", "batch"), CASES, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("shares", [2, 3, 7])
def test_the_shares_of_a_step_add_up_to_the_step(
    objective: Objective, head: HeadConfig, batch: Batch, shares: int
) -> None:
    model = model_with(head)
    whole = {name: value.item() for name, value in objective.sums(model, batch).items()}
    parts = [part for k in range(shares) if (part := micro_batch(batch, k, shares)) is not None]
    for name, value in whole.items():
        found = sum(objective.sums(model, part)[name].item() for part in parts)
        assert found == pytest.approx(value, rel=1e-6)
        counted = sum(objective.counts(part)[name] for part in parts)
        assert counted == pytest.approx(objective.counts(batch)[name])


def test_no_target_at_all_is_a_loss_of_zero() -> None:
    from dataclasses import replace

    batch = replace(make_batch(), masked=torch.zeros(0, dtype=torch.long), targets=torch.zeros(0, dtype=torch.long))
    assert MaskedTokens().sums(model_with(MaskedConfig()), batch)["loss"].item() == 0.0


def test_an_objective_refuses_a_model_without_its_head() -> None:
    classifier = model_with(ClassifierConfig(classes=2, pool="mean"))
    for objective in (Causal(), MaskedTokens(), MaskedAndNextSentence()):
        with pytest.raises(ModelError, match="this model's head is classifier"):
            objective.check(classifier)
    with pytest.raises(ModelError, match="this model's head is none"):
        Classification().check(classifier.with_head(None))


# --- contrastive ----------------------------------------------------------------------------------------------------


def plain_contrastive(vectors: Tensor, labels: list[int], temperature: float) -> float:
    """As in the paper: one text after the other."""
    total, rows = 0.0, range(len(labels))
    for i in rows:
        others = [k for k in rows if k != i]
        cosine = {k: F.cosine_similarity(vectors[i], vectors[k], dim=0).item() / temperature for k in others}
        positives = [k for k in others if labels[k] == labels[i]]
        if positives:
            log_sum = float(np.log(sum(np.exp(cosine[k]) for k in others)))
            total -= sum(cosine[k] - log_sum for k in positives) / len(positives)
    return total


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2], [0, 0, 0, 0], [0, 1, 2, 3], [3, 3], [1]])
def test_the_contrastive_loss_is_that_of_the_paper(labels: list[int]) -> None:
    torch.manual_seed(2)
    vectors = torch.randn(len(labels), 6, dtype=torch.float64, requires_grad=True)
    found = supervised_contrastive(vectors, torch.tensor(labels), temperature=0.2)
    assert found.item() == pytest.approx(plain_contrastive(vectors.detach(), labels, 0.2), abs=1e-9)
    found.backward()  # type: ignore[no-untyped-call]
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()


def test_texts_that_pad_a_batch_have_no_part_in_the_contrastive_loss() -> None:
    torch.manual_seed(3)
    vectors, labels = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 1, 0, 1])
    padded = torch.cat([labels, torch.tensor([IGNORE_INDEX, IGNORE_INDEX])])
    alone = supervised_contrastive(vectors[:4], labels)
    torch.testing.assert_close(supervised_contrastive(vectors, padded), alone)
    batch = make_batch()
    assert Contrastive().counts(batch) == {"loss": 4.0}
    from dataclasses import replace

    assert Contrastive().counts(replace(batch, labels=padded[2:])) == {"loss": 0.0}


def test_contrastive_training_moves_the_backbone_and_not_the_head() -> None:
    model = model_with(ClassifierConfig(classes=2, pool="mean")).train()
    sums = Contrastive().sums(model, make_batch())
    sums["loss"].backward()  # type: ignore[no-untyped-call]
    assert model.head is not None
    assert all(p.grad is None for p in model.head.parameters())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.backbone.layers[0].parameters())
