"""The lab's file, against the lab's own kind of model: `nn.Embedding`, sinusoids, `nn.TransformerEncoder`, linear."""

from __future__ import annotations

import math
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.lab import read_lab, write_lab
from headstart.config import ClassifierConfig, NextTokenConfig
from headstart.errors import CheckpointError, OutputError
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.model.presets import preset
from tests.full_disk import full_disk

VOCABULARY, WIDTH, LAYERS = 50, 20, 3


class Positions(nn.Module):
    """The sinusoids as a course would write them, independently of ours."""

    pe: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        table = torch.zeros(5000, 1, width)
        for place in range(5000):
            for pair in range(width // 2):
                angle = place / 10_000 ** (2 * pair / width)
                table[place, 0, 2 * pair] = math.sin(angle)
                table[place, 0, 2 * pair + 1] = math.cos(angle)
        self.register_buffer("pe", table)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, 0.0)
        self.transformer_encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.encoder = nn.Embedding(VOCABULARY, WIDTH)
        self.pos_encoder = Positions(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        """(L, S) → (L, S, D), under the square mask."""
        x = self.encoder(ids) * math.sqrt(WIDTH) + self.pos_encoder.pe[: len(ids)]
        mask = nn.Transformer.generate_square_subsequent_mask(len(ids))
        return self.transformer_encoder(x, mask)  # type: ignore[no-any-return]


class Head(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.decoder = nn.Linear(WIDTH, classes)


class LabModel(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.base = Base()
        self.classifier = Head(classes)

    def forward(self, ids: Tensor) -> Tensor:
        return self.classifier.decoder(self.base(ids))  # type: ignore[no-any-return]


def lab_model(classes: int) -> LabModel:
    torch.manual_seed(0)
    model = LabModel(classes).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms start at 0 and 1; make every tensor count
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(params=[1, 9, 40])
def ids(request: pytest.FixtureRequest) -> Tensor:
    torch.manual_seed(request.param)
    return torch.randint(VOCABULARY, (request.param,))


def test_language_model(tmp_path: Path, ids: Tensor) -> None:
    theirs = lab_model(VOCABULARY)
    torch.save({"model_state_dict": theirs.state_dict()}, tmp_path / "lab.pt")
    model = open_model(tmp_path / "lab.pt").model
    assert isinstance(model.head_config, NextTokenConfig)
    with torch.no_grad():
        found, expected = model(ids, Flat.from_lengths([len(ids)])), theirs(ids[:, None])[:, 0]
    assert (found - expected).abs().max() <= 1e-5


def test_classifier_reads_the_last_token(tmp_path: Path, ids: Tensor) -> None:
    theirs = lab_model(3)
    torch.save(theirs.state_dict(), tmp_path / "lab.pt")
    model = read_lab(tmp_path / "lab.pt").model
    assert model.head_config == ClassifierConfig(classes=3, pool="last")
    with torch.no_grad():
        found, expected = model(ids, Flat.from_lengths([len(ids)])), theirs(ids[:, None])[-1]
    assert (found - expected).abs().max() <= 1e-5


def test_base_alone(tmp_path: Path, ids: Tensor) -> None:
    theirs = lab_model(3).base
    torch.save(theirs.state_dict(), tmp_path / "lab.pt")
    model = read_lab(tmp_path / "lab.pt").model
    assert model.head is None
    with torch.no_grad():
        found, expected = model(ids, Flat.from_lengths([len(ids)])), theirs(ids[:, None])[:, 0]
    assert (found - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("classes", [VOCABULARY, 3])
def test_there_and_back_bit_for_bit(tmp_path: Path, classes: int) -> None:
    theirs = lab_model(classes)
    torch.save(theirs.state_dict(), tmp_path / "lab.pt")
    write_lab(read_lab(tmp_path / "lab.pt").model, tmp_path / "again.pt")
    again = torch.load(tmp_path / "again.pt", weights_only=True)["model_state_dict"]
    waves = again.pop("base.pos_encoder.pe")
    before = theirs.state_dict()
    assert (waves - before.pop("base.pos_encoder.pe")).abs().max() < 1e-4
    assert again.keys() == before.keys()
    assert all(again[name].equal(before[name]) for name in before)
    LabModel(classes).load_state_dict({**again, "base.pos_encoder.pe": waves})  # the lab's own class takes it


def test_a_full_disk_is_an_error_in_words(tmp_path: Path) -> None:
    torch.save(lab_model(2).state_dict(), tmp_path / "lab.pt")
    model = read_lab(tmp_path / "lab.pt").model
    with full_disk(room=100), pytest.raises(OutputError, match="File too large"):
        write_lab(model, tmp_path / "again.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["lab.pt"]


def test_nothing_but_the_lab_goes_into_its_file(tmp_path: Path) -> None:
    config = preset("lab", vocabulary=20, width=8, norm="pre")
    with pytest.raises(CheckpointError, match="only a model of the lab's kind"):
        write_lab(Model.build(config, NextTokenConfig()), tmp_path / "lab.pt")
    mean = Model.build(preset("lab", vocabulary=20, width=8), ClassifierConfig(classes=2, pool="mean"))
    with pytest.raises(CheckpointError, match="last token"):
        write_lab(mean, tmp_path / "lab.pt")
    assert not list(tmp_path.iterdir())


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch exploded",)


def test_a_pickle_that_tries_to_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open(tmp_path / "lab.pt", "wb") as file:  # noqa: PTH123 (pickle wants a handle)
        pickle.dump({"encoder.weight": Bomb()}, file)
    with pytest.raises(CheckpointError, match=r"lab\.pt holds more than tensors"):
        read_lab(tmp_path / "lab.pt")
    torch.save({"encoder.weight": Bomb()}, tmp_path / "zipped.pt")
    with pytest.raises(CheckpointError, match=r"zipped\.pt holds more than tensors"):
        read_lab(tmp_path / "zipped.pt")
    assert not (tmp_path / "exploded").exists()


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    torch.save(lab_model(3).state_dict(), tmp_path / "lab.pt")
    whole = (tmp_path / "lab.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.pt").write_text("this is no model")
    (tmp_path / "empty.pt").write_bytes(b"")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pt")
    for name in ("cut.pt", "text.pt", "empty.pt", "list.pt", "other.pt"):
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            read_lab(tmp_path / name)


@pytest.mark.parametrize("heads", [3, 0])
def test_heads_that_do_not_fit(tmp_path: Path, heads: int) -> None:
    torch.save(lab_model(3).state_dict(), tmp_path / "lab.pt")
    with pytest.raises(CheckpointError, match="heads"):
        read_lab(tmp_path / "lab.pt", heads=heads)


def test_positions_that_are_not_sinusoids(tmp_path: Path) -> None:
    state = lab_model(3).state_dict()
    state["base.pos_encoder.pe"] = torch.zeros(5000, 1, WIDTH)
    torch.save(state, tmp_path / "lab.pt")
    with pytest.raises(CheckpointError, match="not the table of sinusoids"):
        read_lab(tmp_path / "lab.pt")
