from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from torch import Tensor, nn

from headstart.checkpoints.exchange import write_transformers
from headstart.checkpoints.folder import Checkpoint
from headstart.config import ClassifierConfig, HeadConfig, MaskedConfig, MaskedNextSentenceConfig, NextTokenConfig
from headstart.errors import ConfigError, HeadstartError, ModelError, TokenizerError
from headstart.model.heads import MaskedHead, MaskedNextSentenceHead
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.use.fill import Filled, encode_masks, fill

BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix")
SIZES: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "feed_forward": 20, "window": 12}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("words")
    (folder / "vocab.txt").write_text("\n".join([*BERT_SPECIALS, *WORDS]), encoding="utf-8")
    return Tokenizer.load(folder)


def tiny(name: str = "bert-tiny", head: HeadConfig | None = None, *, vocabulary: int = 15, **changes: Any) -> Model:
    torch.manual_seed(0)
    model = Model.build(preset(name, vocabulary=vocabulary, **(SIZES | changes)), head or MaskedConfig()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def test_probabilities_are_those_of_transformers(words: Tokenizer, tmp_path: Path) -> None:
    from transformers import BertForMaskedLM

    model = tiny(width=32)
    write_transformers(Checkpoint(model), tmp_path / "hf")
    theirs = BertForMaskedLM.from_pretrained(tmp_path / "hf").eval()
    ids = torch.tensor([[2, 5, 6, 4, 8, 4, 3]])
    with torch.no_grad():
        expected = theirs(ids).logits.softmax(-1)[0, [3, 5]]  # (2, V)
    filled = fill(model, words, "un deux [MASK] quatre [MASK]", top=99)
    assert [mask.place for mask in filled] == [2, 4]
    for mask, row in zip(filled, expected, strict=True):
        found = {candidate.id: candidate.probability for candidate in mask.candidates}
        assert found == pytest.approx({i: float(row[i]) for i in range(len(BERT_SPECIALS), 15)}, abs=1e-6)
        assert list(found.values()) == sorted(found.values(), reverse=True)


def test_every_candidate_comes_with_its_sentence(words: Tokenizer) -> None:
    first, second = fill(tiny(), words, "[MASK] deux [MASK] quatre", top=3)
    assert len(first.candidates) == len(second.candidates) == 3
    for candidate in first.candidates:
        assert candidate.text == f"{candidate.piece} deux {second.candidates[0].piece} quatre"
    for candidate in second.candidates:
        assert candidate.text == f"{first.candidates[0].piece} deux {candidate.piece} quatre"


def test_while_one_mask_is_filled_the_others_stay_masks(words: Tokenizer) -> None:
    model = tiny()
    together = fill(model, words, "un [MASK] [MASK] quatre", top=10)
    logits = model(torch.tensor([2, 5, 4, 4, 8, 3]), Flat.from_lengths([6])).detach()
    for mask, row in zip(together, logits[2:4].softmax(-1), strict=True):
        for candidate in mask.candidates:
            assert candidate.probability == pytest.approx(float(row[candidate.id]), abs=1e-6)


def test_special_tokens_are_not_offered_however_likely(words: Tokenizer) -> None:
    model = tiny(vocabulary=20)  # five more than the tokenizer has
    assert isinstance(model.head, MaskedHead) and model.head.bias is not None
    with torch.no_grad():
        model.head.bias[:5] += 20.0
        model.head.bias[15:] += 20.0
    (mask,) = fill(model, words, "un [MASK]", top=20)
    assert sorted(candidate.id for candidate in mask.candidates) == list(range(5, 15))
    assert sum(candidate.probability for candidate in mask.candidates) < 0.01  # and nothing is made up for it


def test_berts_two_heads_fill_like_the_one(words: Tokenizer) -> None:
    two = tiny(head=MaskedNextSentenceConfig())
    assert isinstance(two.head, MaskedNextSentenceHead)
    one = two.with_head(MaskedConfig())
    assert isinstance(one.head, MaskedHead)
    one.head.load_state_dict(two.head.masked.state_dict())
    assert fill(two, words, "un [MASK] trois") == fill(one, words, "un [MASK] trois")


# --- masks in a text ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
@pytest.mark.parametrize("spelling", ["[MASK]", "<mask>"])
def test_a_mask_stands_where_the_word_and_its_space_stood(kind: str, spelling: str) -> None:
    text = "Ce livre est bon. Le chat est noir, dit-il. Un chien est bon, un chat est noir. "
    tokenizer = Tokenizer.train([text * 30], kind=kind, size={"bpe": 310, "unigram": 320, "wordpiece": 90}[kind])
    whole = tokenizer.encode("Ce livre est bon, dit-il.")
    bon = [place for place, piece in enumerate(tokenizer.pieces(whole)) if piece.strip("▁Ġ") == "bon"]
    assert len(bon) == 1
    whole[bon[0]] = tokenizer.mask or -1
    assert encode_masks(tokenizer, f"Ce livre est {spelling}, dit-il.") == whole
    several = encode_masks(tokenizer, f"{spelling} [MASK]<mask>, {spelling}")
    assert several.count(tokenizer.mask or -1) == 4


def test_a_tokenizer_that_reads_a_mask_as_plain_text() -> None:
    written = io.BytesIO()
    sentences = iter(["le chat est noir , dit - il <mask> [ ]", "un chien est bon"] * 20)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences, model_writer=written, vocab_size=27, control_symbols=["<mask>"], minloglevel=2
    )
    tokenizer = _from_sentencepiece(written.getvalue())
    assert tokenizer.mask is not None
    assert tokenizer.mask not in tokenizer.encode("le chat est <mask> , dit - il")
    ids = encode_masks(tokenizer, "le chat est [MASK] , dit - il")
    assert ids == [*tokenizer.encode("le chat est"), tokenizer.mask, *tokenizer.encode(", dit - il")]


def _from_sentencepiece(data: bytes) -> Tokenizer:
    from headstart.tokenizers.sentencepiece_model import parse_sentencepiece, to_tokenizers

    return Tokenizer(to_tokenizers(parse_sentencepiece(data)))


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "head", "found"),
    [
        ("lab", NextTokenConfig(), "causal model with a next-token head: use `headstart generate`"),
        (
            "bert-tiny",
            ClassifierConfig(classes=2),
            "model with a classifier head: use `headstart predict`",
        ),
    ],
)
def test_a_model_that_cannot_fill_a_gap(name: str, head: HeadConfig, found: str, words: Tokenizer) -> None:
    with pytest.raises(ModelError, match=found):
        fill(tiny(name, head), words, "un [MASK]")


@pytest.mark.parametrize(
    ("text", "top", "error", "message"),
    [
        ("un deux", 5, ConfigError, r"no gap to fill: write \[MASK\]"),
        ("", 5, ConfigError, "no gap to fill"),
        ("un [MASK]", 0, ConfigError, "top is 0, and must be at least 1"),
        ("un " * 10 + "[MASK]", 5, ModelError, "the text is 13 tokens with its special ones, and the window 12"),
    ],
)
def test_texts_that_cannot_be_filled(
    text: str, top: int, error: type[HeadstartError], message: str, words: Tokenizer
) -> None:
    with pytest.raises(error, match=message):
        fill(tiny(), words, text, top)


def test_other_things_that_cannot_work(words: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\nun", encoding="utf-8")
    with pytest.raises(TokenizerError, match="no mask token"):
        fill(tiny(), Tokenizer.load(tmp_path), "un [MASK]")
    with pytest.raises(ModelError, match="the tokenizer has 15 tokens and the model knows 14"):
        fill(tiny(vocabulary=14), words, "un [MASK]")
    with pytest.raises(ModelError, match=r"call model\.eval\(\) first"):
        fill(tiny().train(), words, "un [MASK]")
    broken = tiny()
    with torch.no_grad():
        broken.backbone.embeddings.tokens.weight[2] = torch.nan
    with pytest.raises(ModelError, match="no finite numbers"):
        fill(broken, words, "un [MASK]")


# --- does it work? --------------------------------------------------------------------------------------------------


def test_a_model_that_has_learned_to_count_fills_the_gaps(words: Tokenizer) -> None:
    torch.manual_seed(0)
    changes = SIZES | {"width": 32, "feed_forward": 64, "dropout": 0.0, "attention_dropout": 0.0}
    model = Model.build(preset("small", vocabulary=words.size, **changes), MaskedConfig())
    counting = words.encode(" ".join(WORDS * 2))
    ids = torch.cat([torch.tensor(words.wrap(counting[first:], window=8)[0]) for first in range(10)])
    layout = Flat.from_lengths([8] * 10)
    draw = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(300):
        hidden = (torch.rand(len(ids), generator=draw) < 0.2) & (ids >= len(BERT_SPECIALS))
        logits = model(ids.masked_fill(hidden, words.mask or -1), layout)
        loss: Tensor = nn.functional.cross_entropy(logits[hidden], ids[hidden])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.eval()
    filled: list[Filled] = fill(model, words, "trois [MASK] cinq six [MASK] huit")
    assert filled[0].candidates[0].text == "trois quatre cinq six sept huit"
    assert all(mask.candidates[0].probability > 0.5 for mask in filled)
