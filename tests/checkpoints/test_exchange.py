"""Parity with `transformers`, in float32, on random weights and without a download, for every family and head."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headstart.checkpoints import folder as ours
from headstart.checkpoints.exchange import FAMILIES, open_model, read_transformers, write_transformers
from headstart.checkpoints.folder import Checkpoint
from headstart.config import ClassifierConfig, NextSentenceConfig
from headstart.errors import CheckpointError
from headstart.model.layout import Dense, Flat
from headstart.model.model import Model
from headstart.model.presets import PRESETS, preset, usual_head

transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
WINDOW = 40
BERT_LIKE = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "initializer_range": 0.1,  # large enough that a wrong scale or a lost bias shows
}
ROBERTA_LIKE = {**BERT_LIKE, "max_position_embeddings": WINDOW + 2, "type_vocab_size": 1, "pad_token_id": 1}
DISTILBERT_LIKE = {"vocab_size": 60, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "initializer_range": 0.1}
GPT2_LIKE = {"vocab_size": 60, "n_embd": 32, "n_layer": 3, "n_head": 4, "initializer_range": 0.1, "pad_token_id": 0}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", {**BERT_LIKE, "max_position_embeddings": WINDOW}),
    "roberta": ("RobertaConfig", ROBERTA_LIKE),
    "camembert": ("CamembertConfig", ROBERTA_LIKE),
    "distilbert": ("DistilBertConfig", {**DISTILBERT_LIKE, "max_position_embeddings": WINDOW}),
    "mpnet": ("MPNetConfig", {**{k: v for k, v in ROBERTA_LIKE.items() if k != "type_vocab_size"}}),
    "gpt2": ("GPT2Config", {**GPT2_LIKE, "n_positions": WINDOW, "bos_token_id": 1, "eos_token_id": 1}),
}
CASES = [(name, kind) for name, family in FAMILIES.items() for kind in family.architectures]


def make_theirs(name: str, kind: str, **changes: Any) -> Any:
    """A model of theirs with random weights everywhere: biases and norms too, which they start at 0 and 1."""
    config_class, settings = SETTINGS[name]
    torch.manual_seed(3)
    if kind == "classifier":
        changes = {"num_labels": 3, **changes}
    config = getattr(transformers, config_class)(**{**settings, **changes})
    model = getattr(transformers, FAMILIES[name].architectures[kind])(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def their_output(model: Any, kind: str, ids: Tensor, mask: Tensor, segments: Tensor | None = None) -> Any:
    extra = {} if segments is None else {"token_type_ids": segments}
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=mask.long(), **extra)
    if kind == "none":
        return out.last_hidden_state
    if kind == "masked+next-sentence":
        return out.prediction_logits, out.seq_relationship_logits
    return out.logits


def inputs(lengths: list[int], pad: int) -> tuple[Tensor, Tensor]:
    """Random ids (none of them the padding's) padded on the right, and which are real."""
    torch.manual_seed(4)
    longest = max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return torch.where(mask, torch.randint(4, 59, mask.shape), pad), mask


def assert_close(a: Any, b: Any) -> None:
    if isinstance(a, tuple):
        for x, y in zip(a, b, strict=True):
            assert_close(x, y)
        return
    assert a.shape == b.shape
    difference = (a - b).abs().max().item()
    assert difference <= TOLERANCE, difference


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize("lengths", [[1], [7], [5, 5, 5], [9, 2, 6, 1], [WINDOW, 3]], ids=str)
def test_same_numbers_as_transformers(name: str, kind: str, lengths: list[int], tmp_path: Path) -> None:
    theirs = make_theirs(name, kind)
    theirs.save_pretrained(tmp_path / "theirs")
    model = read_transformers(tmp_path / "theirs").model
    assert (model.head_config.kind if model.head_config else "none") == kind
    ids, mask = inputs(lengths, theirs.config.pad_token_id)
    expected = their_output(theirs, kind, ids, mask)
    by_token = kind in ("none", "masked", "next-token")
    with torch.no_grad():
        flat = model(ids[mask], Flat.from_lengths(lengths))
        dense = model(ids, Dense(mask))
    if kind == "masked+next-sentence":
        assert_close(flat, (expected[0][mask], expected[1]))
        assert_close((dense[0][mask], dense[1]), (expected[0][mask], expected[1]))
    elif by_token:
        assert_close(flat, expected[mask])
        assert_close(dense[mask], expected[mask])
    else:
        assert_close(flat, expected)
        assert_close(dense, expected)


@pytest.mark.parametrize("kind", ["none", "masked+next-sentence", "classifier"])
def test_same_numbers_for_pairs_of_sentences(kind: str, tmp_path: Path) -> None:
    theirs = make_theirs("bert", kind)
    theirs.save_pretrained(tmp_path / "theirs")
    model = read_transformers(tmp_path / "theirs").model
    lengths = [8, 5]
    ids, mask = inputs(lengths, 0)
    segments = (torch.arange(8) > 3).long().expand(2, 8) * mask
    expected = their_output(theirs, kind, ids, mask, segments)
    with torch.no_grad():
        flat = model(ids[mask], Flat.from_lengths(lengths), segments[mask])
        ignored = model(ids[mask], Flat.from_lengths(lengths))
    if kind == "none":
        assert_close(flat, expected[mask])
        assert (flat - ignored).abs().max() > 0.01  # segments do matter here
    elif kind == "classifier":
        assert_close(flat, expected)
    else:
        assert_close(flat, (expected[0][mask], expected[1]))


@pytest.mark.parametrize("name", ["bert", "roberta", "mpnet"])
def test_pooler(name: str, tmp_path: Path) -> None:
    theirs = make_theirs(name, "none")
    theirs.save_pretrained(tmp_path / "theirs")
    model = read_transformers(tmp_path / "theirs").model
    ids, mask = inputs([6, 4], 1)
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=mask.long()).pooler_output
        layout = Flat.from_lengths([6, 4])
        pooled = model.backbone.pooled(layout.pool(model(ids[mask], layout), "first"))
    assert_close(pooled, expected)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_export_loads_in_transformers_and_comes_back_bit_for_bit(name: str, kind: str, tmp_path: Path) -> None:
    theirs = make_theirs(name, kind)
    theirs.save_pretrained(tmp_path / "theirs")
    imported = read_transformers(tmp_path / "theirs")
    write_transformers(imported, tmp_path / "out")

    before, after = load_file(tmp_path / "theirs/model.safetensors"), load_file(tmp_path / "out/model.safetensors")
    assert before.keys() == after.keys()
    assert all(before[key].equal(after[key]) for key in before)

    again = read_transformers(tmp_path / "out")
    assert again.model.config == imported.model.config
    assert again.model.head_config == imported.model.head_config
    state, state_again = imported.model.state_dict(), again.model.state_dict()
    assert all(state[key].equal(state_again[key]) for key in state)

    auto = {
        "none": "AutoModel",
        "masked": "AutoModelForMaskedLM",
        "next-token": "AutoModelForCausalLM",
        "next-sentence": "AutoModelForNextSentencePrediction",
        "masked+next-sentence": "AutoModelForPreTraining",
        "classifier": "AutoModelForSequenceClassification",
    }[kind]
    loaded = getattr(transformers, auto).from_pretrained(tmp_path / "out").eval()
    assert type(loaded) is type(theirs)
    found, expected = (
        their_output(model, kind, *inputs([7, 3], model.config.pad_token_id or 0)) for model in (loaded, theirs)
    )
    _, mask = inputs([7, 3], 0)
    if kind == "masked+next-sentence":
        assert_close((found[0][mask], found[1]), (expected[0][mask], expected[1]))
    elif kind in ("none", "masked", "next-token"):
        assert_close(found[mask], expected[mask])
    else:
        assert_close(found, expected)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_model_of_ours_exported_gives_the_same_logits_in_transformers(name: str, kind: str, tmp_path: Path) -> None:
    config = preset(
        {"bert": "bert-tiny", "gpt2": "gpt2"}.get(name, f"{name}-base" if name != "distilbert" else name),
        vocabulary=60,
        width=32,
        layers=2,
        heads=4,
        feed_forward=40,
        window=WINDOW,
    )
    torch.manual_seed(5)
    model = Model.build(config, None if kind == "none" else usual_head(config, kind, 3)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    write_transformers(Checkpoint(model, class_names=("a", "b", "c") if kind == "classifier" else ()), tmp_path / "out")
    loaded = getattr(transformers, FAMILIES[name].architectures[kind]).from_pretrained(tmp_path / "out").eval()
    if kind == "classifier":
        assert loaded.config.id2label == {0: "a", 1: "b", 2: "c"}
    lengths = [6, 6]  # no padding: a fresh GPT-2 config names none
    ids, mask = inputs(lengths, 1)
    expected = their_output(loaded, kind, ids, mask)
    with torch.no_grad():
        found = model(ids, Dense(mask))
    assert_close(found, expected)


def test_our_folder_and_back(tmp_path: Path) -> None:
    make_theirs("bert", "classifier").save_pretrained(tmp_path / "theirs")
    imported = read_transformers(tmp_path / "theirs")
    ours.save(imported, tmp_path / "ours")
    loaded = open_model(tmp_path / "ours")
    assert loaded.model.config == imported.model.config
    assert loaded.class_names == imported.class_names == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert isinstance(loaded.model.head_config, ClassifierConfig)
    state, state_again = imported.model.state_dict(), loaded.model.state_dict()
    assert all(state[key].equal(state_again[key]) for key in state)


# --- what real files look like ----------------------------------------------------------------------------------


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    save_file(change(tensors), path)


def test_names_of_the_first_bert_files(tmp_path: Path) -> None:
    """gamma and beta, a table of position ids, a repeated decoder, and a next-sentence layer nobody announced."""
    theirs = make_theirs("bert", "masked+next-sentence")
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))

    def age(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        old = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in tensors.items()
        }
        old["bert.embeddings.position_ids"] = torch.arange(WINDOW)[None]
        old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
        return old

    rewrite(tmp_path, age)
    model = read_transformers(tmp_path).model
    assert model.head_config is not None
    assert model.head_config.kind == "masked+next-sentence"
    ids, mask = inputs([5], 0)
    assert_close(
        model(ids[mask], Flat.from_lengths([5]))[1], their_output(theirs, "masked+next-sentence", ids, mask)[1]
    )


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_a_head_that_was_left_behind(family: str, tmp_path: Path) -> None:
    """A sentence encoder still says that it is a masked model, as it was once, and holds a backbone alone."""
    theirs = make_theirs(family, "none")
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    masked = [FAMILIES[family].architectures["masked"]]
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": masked}))
    model = read_transformers(tmp_path).model
    assert model.head_config is None
    ids, mask = inputs([5], 0)
    assert_close(model(ids[mask], Flat.from_lengths([5])), their_output(theirs, "none", ids, mask)[0])


def test_gpt2_files_without_prefix_and_with_mask_buffers(tmp_path: Path) -> None:
    theirs = make_theirs("gpt2", "next-token")
    theirs.save_pretrained(tmp_path)

    def age(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        return {**old, "h.0.attn.bias": torch.ones(1, 1, WINDOW, WINDOW), "h.0.attn.masked_bias": torch.tensor(-1e4)}

    rewrite(tmp_path, age)
    ids, mask = inputs([5], 0)
    found = read_transformers(tmp_path).model(ids[mask], Flat.from_lengths([5]))
    assert_close(found, their_output(theirs, "next-token", ids, mask)[0])


def test_a_base_model_saved_under_its_prefix(tmp_path: Path) -> None:
    make_theirs("roberta", "none").save_pretrained(tmp_path)
    plain = read_transformers(tmp_path).model.state_dict()
    rewrite(tmp_path, lambda tensors: {f"roberta.{name}": tensor for name, tensor in tensors.items()})
    prefixed = read_transformers(tmp_path).model.state_dict()
    assert all(plain[name].equal(prefixed[name]) for name in plain)


def test_weights_in_several_files_and_in_a_torch_file(tmp_path: Path) -> None:
    theirs = make_theirs("distilbert", "masked")
    theirs.save_pretrained(tmp_path)
    expected = read_transformers(tmp_path).model.state_dict()
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()

    names = sorted(tensors)
    parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    sharded = read_transformers(tmp_path).model.state_dict()
    assert all(expected[name].equal(sharded[name]) for name in expected)

    (tmp_path / "model.safetensors.index.json").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    pickled = read_transformers(tmp_path).model.state_dict()
    assert all(expected[name].equal(pickled[name]) for name in expected)


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    make_theirs("bert", "masked").save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def test_missing_and_unexpected_tensors_are_named(bert: Path) -> None:
    def swap(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        del tensors["bert.encoder.layer.1.output.dense.bias"]
        return {**tensors, "bert.encoder.layer.7.extra": torch.zeros(1)}

    rewrite(bert, swap)
    with pytest.raises(CheckpointError) as caught:
        read_transformers(bert)
    assert "missing tensors 1: bert.encoder.layer.1.output.dense.bias" in str(caught.value)
    assert "unexpected tensors 1: bert.encoder.layer.7.extra" in str(caught.value)


def test_a_tensor_of_another_shape(bert: Path) -> None:
    rewrite(bert, lambda t: {**t, "bert.embeddings.LayerNorm.bias": torch.zeros(31)})
    with pytest.raises(CheckpointError, match=r"'backbone.embeddings.norm.bias' has shape \(31,\), expected \(32,\)"):
        read_transformers(bert)


def test_a_tied_decoder_that_differs(bert: Path) -> None:
    rewrite(bert, lambda t: {**t, "cls.predictions.decoder.weight": torch.zeros(60, 32)})
    with pytest.raises(CheckpointError, match=r"decoder.weight should repeat .*word_embeddings"):
        read_transformers(bert)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "brat"}, "did you mean 'bert'"),
        ({"architectures": ["BertForQuestionAnswering"]}, "BertForQuestionAnswering' is not known"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is false"),
        ({"hidden_act": "mish"}, "activation 'mish'"),
        ({"hidden_size": 33}, "width 33 does not divide by heads 4"),
        ({"num_hidden_layers": -1}, "layers is -1"),
    ],
)
def test_a_config_we_would_get_wrong(bert: Path, change: dict[str, Any], words: str) -> None:
    from headstart.errors import HeadstartError

    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(HeadstartError, match=words):
        read_transformers(bert)


def test_a_config_without_its_sizes(bert: Path) -> None:
    (bert / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(CheckpointError, match="no setting vocab_size, hidden_size"):
        read_transformers(bert)


def test_a_folder_without_weights(bert: Path) -> None:
    (bert / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds no weights"):
        read_transformers(bert)


@pytest.mark.parametrize("name", ["small", "base", "lab"])
def test_what_transformers_has_no_form_for(name: str, tmp_path: Path) -> None:
    model = Model.empty(PRESETS[name])
    with pytest.raises(CheckpointError, match="has no form in `transformers`"):
        write_transformers(Checkpoint(model), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_bert_that_is_none(tmp_path: Path) -> None:
    model = Model.build(preset("bert-tiny", vocabulary=60, positions="rotary"))
    with pytest.raises(CheckpointError, match="cannot have positions = 'rotary'"):
        write_transformers(Checkpoint(model), tmp_path / "out")


def test_a_head_that_the_family_does_not_have(tmp_path: Path) -> None:
    model = Model.build(preset("roberta-base", vocabulary=60, width=32, heads=2, layers=1), NextSentenceConfig())
    with pytest.raises(CheckpointError, match="a roberta model with a next-sentence head has no published form"):
        write_transformers(Checkpoint(model), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_classifier_that_reads_otherwise(tmp_path: Path) -> None:
    model = Model.build(preset("bert-tiny", vocabulary=60), ClassifierConfig(classes=2, pool="mean"))
    with pytest.raises(CheckpointError, match="pool = 'mean'"):
        write_transformers(Checkpoint(model), tmp_path / "out")


def test_a_hub_name_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="no folder nobody/nothing here, and the hub did not give it"):
        open_model("nobody/nothing")


def test_a_path_that_is_not_there() -> None:
    with pytest.raises(CheckpointError, match="there is no file or folder"):
        open_model("/no/such/folder")
