"""A model that is causal and masked writes, fills gaps, and is exported as a base."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headstart.checkpoints.folder import Checkpoint, load, save
from headstart.config import CausalMaskedConfig, ClassifierConfig, MaskedConfig, ModelConfig, NextTokenConfig
from headstart.errors import CheckpointError, ModelError
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.serve.models import ServedLanguageModel, open_served
from headstart.tokenizers.special_tokens import SPECIALS
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.use.export import export
from headstart.use.fill import fill
from headstart.use.generate import Context, Sampling, generate

WORDS = ("un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix")
SIZES: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "feed_forward": 20, "window": 12, "direction": "both"}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("words")
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *WORDS]), encoding="utf-8")
    return Tokenizer.load(folder)


def tiny(head: Any = None, name: str = "small", **changes: Any) -> Model:
    torch.manual_seed(0)
    config = preset(name, vocabulary=len(SPECIALS) + len(WORDS), **(SIZES | changes))
    model = Model.build(config, head or CausalMaskedConfig()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("name", ["small", "lab"])
def test_the_cache_gives_the_logits_of_the_causal_model(name: str, words: Tokenizer) -> None:
    """Beyond the window too, and the same as a causal model with these weights under the causal mask at once."""
    model = tiny(name=name)
    causal = Model(type(model.backbone)(replace(model.config, direction="causal"))).eval()
    causal.load_state_dict({k: v for k, v in model.state_dict().items() if k.startswith("backbone.")})
    cached, uncached = Context(model), Context(model, cache=False)
    ids: list[int] = []
    draw = torch.Generator().manual_seed(1)
    for length in (4, 1, 1, 3, 1, 1):
        new = torch.randint(6, 16, (length,), generator=draw).tolist()
        ids += new
        logits = cached.read(new)
        torch.testing.assert_close(logits, uncached.read(new), rtol=0, atol=1e-5)
        with torch.no_grad():
            vectors = causal(torch.tensor(ids), Flat.from_lengths([len(ids)]))
            expected = model.head(vectors[-1:], Flat.from_lengths([1]), model.backbone)  # type: ignore[misc]
        torch.testing.assert_close(logits, expected[0], rtol=0, atol=1e-5)
    how = Sampling(max_tokens=20, temperature=1.0, seed=3)
    assert generate(model, words, "un deux", how) == generate(model, words, "un deux", how, cache=False)


def test_gaps_are_read_at_the_token_before_and_seen_from_both_sides(words: Tokenizer) -> None:
    model = tiny()
    ids = torch.tensor([words.start, 6, words.mask, 8, words.mask, 10, words.end])
    with torch.no_grad():
        probabilities = model(ids, Flat.from_lengths([7])).double().softmax(-1)
    filled = fill(model, words, "un [MASK] trois [MASK] cinq", top=99)
    assert [gap.place for gap in filled] == [1, 3]
    for gap, row in zip(filled, (1, 3), strict=True):
        found = {candidate.id: candidate.probability for candidate in gap.candidates}
        expected = {token: float(probabilities[row, token]) for token in range(len(SPECIALS), 16)}
        assert found == pytest.approx(expected, abs=1e-6)
    first = fill(model, words, "[MASK] deux", top=1)[0].candidates[0]
    other = fill(model, words, "[MASK] trois", top=1)[0].candidates[0]
    assert first.probability != other.probability  # what comes after the gap matters


def test_what_it_cannot_do_is_told(words: Tokenizer) -> None:
    with pytest.raises(ModelError, match=r"this is a causal\+masked model with a masked head: use `headstart fill`"):
        generate(tiny(MaskedConfig()), words, "un")
    classifier = tiny(ClassifierConfig(classes=2, pool="mean"))
    with pytest.raises(ModelError, match=r"a causal\+masked model with a classifier head: use `headstart predict`"):
        fill(classifier, words, "un [MASK]")
    with pytest.raises(ModelError, match=r"--objective causal\+masked"):
        generate(tiny().with_head(None), words, "un")
    with pytest.raises(ModelError, match="this is a causal model with a next-token head: use `headstart generate`"):
        fill(tiny(NextTokenConfig(), direction="causal"), words, "un [MASK]")
    with pytest.raises(ModelError, match=r"pooler = true"):  # next sentence needs more than this base has
        tiny().with_head(preset_head("masked+next-sentence", tiny().config))


def preset_head(kind: str, config: ModelConfig) -> Any:
    from headstart.model.presets import usual_head

    return usual_head(config, kind)


def test_a_folder_and_a_base_keep_its_head(words: Tokenizer, tmp_path: Path) -> None:
    model = tiny()
    save(Checkpoint(model, tokenizer=words), tmp_path / "model")
    again = load(tmp_path / "model").model
    assert (again.config, again.head_config) == (model.config, model.head_config)
    exported = export(tmp_path / "model", tmp_path / "base", "base")
    assert "with its causal+masked head" in exported.what
    base = load(tmp_path / "base").model
    expected, found = (fill(each, words, "un [MASK] trois", top=3)[0].candidates for each in (model, base))
    assert [c.id for c in found] == [c.id for c in expected]
    assert isinstance(open_served("base", tmp_path / "base"), ServedLanguageModel)


@pytest.mark.parametrize(
    ("name", "form", "words_of_it"),
    [
        ("small", "hf", "'headstart' has no form in `transformers`"),
        ("bert-tiny", "hf", "a bert model cannot have direction = 'both'"),
        ("lab", "lab", "only a model of the lab's kind"),
    ],
)
def test_formats_that_do_not_know_it_refuse_it(
    words: Tokenizer, tmp_path: Path, name: str, form: Any, words_of_it: str
) -> None:
    save(Checkpoint(tiny(name=name), tokenizer=words), tmp_path / "model")
    with pytest.raises(CheckpointError, match=words_of_it):
        export(tmp_path / "model", tmp_path / "out", form)
    assert not (tmp_path / "out").exists()
