from __future__ import annotations

import copy
import json
import math
import random
import subprocess
import sys
from itertools import pairwise
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headstart.batches.examples import EncodedExamples
from headstart.checkpoints.folder import Checkpoint
from headstart.config import ClassifierConfig, ModelConfig
from headstart.errors import ConfigError, ModelError, NotFinite, TokenizerError
from headstart.model.attention import Attention
from headstart.model.heads import ClassifierHead as Head
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.reading.examples import Text
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.use.classifier import TextClassifier, calibrated
from headstart.use.deletion import ALONE, deletion_weights, log_odds
from headstart.use.explain import POINTS, attention_maps, explain, faithfulness
from headstart.use.words import group_words, is_boundary, tokenize
from tests.studies.example_data import BAD, GOOD, reviews
from tests.tokenizers.example_tokenizers import EMOJI, KINDS, strings, trained, write_gpt2
from tests.use.example_classifiers import PLANTED, fresh, planted, planted_text, reviewer

TEXTS = [text for _, text in reviews(12, 21)]
KINDS_OF_MODEL = ("small", "lab")  # bidirectional and causal
ODD = [
    "one",
    "don't stop.",
    "e\u0301te\u0301 👩‍💻👍🏽 🇫🇷!",
    "今日は良い天気です。",
    "ภาษาไทย",
    "हिन्दी भाषा",
    "a\tb\n\nc  ",
]


@pytest.fixture(scope="module", params=KINDS_OF_MODEL)
def classifier(request: pytest.FixtureRequest) -> TextClassifier:
    return TextClassifier(reviewer(request.param), "cpu")


@pytest.fixture(scope="module")
def both_ways() -> TextClassifier:
    return TextClassifier(reviewer("small"), "cpu")


def untrained(tokenizer: Tokenizer, name: str = "small", **changes: Any) -> TextClassifier:
    return TextClassifier(Checkpoint(fresh(name, tokenizer, **changes), ("neg", "pos"), tokenizer), "cpu")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> TextClassifier:
    """A causal model without mask, padding, or any special token around a text."""
    folder = tmp_path_factory.mktemp("gpt2")
    write_gpt2(folder, "<|endoftext|>")
    tokenizer = Tokenizer.load(folder)
    assert (tokenizer.mask, tokenizer.pad) == (None, None) and tokenizer.wrap([7])[0] == [7]
    return untrained(tokenizer, "gpt2")


# --- words ----------------------------------------------------------------------------------------------------------


def words_of(classifier: TextClassifier, text: Text) -> list[str]:
    return [word.text for word in tokenize(classifier, text).words]


def check_words(classifier: TextClassifier, text: str) -> None:
    """Words stand where they say, in order, apart, and every token that is not special is in one of them."""
    found = tokenize(classifier, text)
    end = 0
    for word in found.words:
        assert end <= word.start <= word.end and word.text == text[word.start : word.end]
        end = word.end
    specials = len(classifier.tokenizer.wrap([])[0])
    assert (found.word_of >= 0).sum() == len(found.ids) - specials or not classifier.tokenizer.encode(text)
    inside = found.word_of[found.word_of >= 0]
    assert (np.diff(inside) >= 0).all() and sorted(set(inside)) == list(range(len(found.words)))
    assert found.ids.tolist() == classifier.encode([text]).ids.tolist() and len(found.tokens) == len(found.ids)


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_those_of_the_text_whatever_the_tokenizer(kind: str) -> None:
    classifier = untrained(trained(kind), window=200)
    found = words_of(classifier, "Don't read l’art, the (naïve) œuvre of été.")
    assert found == ["Don't", "read", "l’art", ",", "the", "(", "naïve", ")", "œuvre", "of", "été", "."]
    for text in ODD:
        check_words(classifier, text)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_words_merge_back_to_the_text(kind: str) -> None:
    """These tokenizers spell what they do not know in bytes, so that nothing of a text is lost."""
    classifier = untrained(trained(kind), window=400)
    for text in ODD:
        found = "".join(words_of(classifier, text))
        assert found == "".join(text.split())


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_any_text(kind: str) -> None:
    classifier = untrained(trained(kind), window=1000)
    for text in strings(5, 150):
        check_words(classifier, text)


def test_what_is_one_character_to_a_reader_is_never_parted(gpt2: TextClassifier) -> None:
    wide = untrained(gpt2.tokenizer, "gpt2", window=200)
    for character in [*EMOJI, "e\u0301", "क्षि"]:
        assert words_of(wide, f"{character} {character}") == [character, character]
    assert words_of(wide, "今日") == ["今", "日"]  # three bytes each, and no space: a word is what can be shown
    assert not is_boundary("abc", 1) and is_boundary("a,", 1) and is_boundary("'a", 1) and not is_boundary("x'a", 1)


@given(st.text(max_size=30), st.data())
def test_tokens_of_any_spans_are_each_in_one_word(text: str, data: st.DataObject) -> None:
    edges = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=8)))
    groups = group_words(text, list(pairwise(edges)))
    assert [n for group in groups for n in group] == list(range(len(edges) - 1)) and all(groups)


def test_a_pair_keeps_its_texts_apart(both_ways: TextClassifier) -> None:
    found = tokenize(both_ways, ("the wise page", "dull line"))
    assert [(w.text, w.start, w.second) for w in found.words] == [
        *(("the", 0, False), ("wise", 4, False), ("page", 9, False)),
        *(("dull", 0, True), ("line", 5, True)),
    ]
    assert found.word_of.tolist() == [-1, 0, 1, 2, -1, 3, 4, -1]
    assert found.segments is not None and found.segments.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]


def test_a_text_that_is_longer_than_the_window_says_what_was_cut(classifier: TextClassifier) -> None:
    found = explain(classifier, "page " * 40, orders=2)
    assert (len(found.words), found.truncated) == (30, 10)  # of the window of 32, two are special
    assert explain(classifier, "page " * 30, orders=2).truncated == 0
    pair = explain(classifier, ("page " * 40, "dull word"), orders=2)
    assert (sum(not word.second for word in pair.words), len(pair.words), pair.truncated) == (27, 29, 13)


# --- weights --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> TextClassifier:
    """Two classes on the mean of the token embeddings, and nothing between: a linear model."""
    folder = tmp_path_factory.mktemp("toy")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "book", "##ish"]
    (folder / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    config = ModelConfig(len(pieces), 4, 1, 1, 4, norm="pre", embedding_norm=False, dropout=0.0, pooler=False)
    torch.manual_seed(3)
    model = Model.build(config, ClassifierConfig(2, pool="mean", dropout=0.0))
    with torch.no_grad():
        for block in (model.backbone.layers[0].attention.out, model.backbone.layers[0].feed_forward.down):  # type: ignore[union-attr]
            block.weight.zero_()  # type: ignore[union-attr, operator]
            block.bias.zero_()  # type: ignore[union-attr, operator]
        model.backbone.embeddings.tokens.weight.normal_()
        assert isinstance(model.head, Head)
        model.head.out.weight.normal_()
    model.backbone.norm = None
    return TextClassifier(Checkpoint(model.eval(), ("neg", "pos"), Tokenizer.load(folder)), "cpu")


def mean_logit(toy: TextClassifier, ids: list[int]) -> float:
    """The second class's logit by hand: the slope times the mean of embeddings and positions, and the bias."""
    embeddings = toy.model.backbone.embeddings
    assert isinstance(toy.model.head, Head) and embeddings.positions is not None
    vectors = (embeddings.tokens.weight[ids] + embeddings.positions.weight[: len(ids)]).detach().double()
    slope, offset = (p.detach().double().diff(dim=0)[0] for p in (toy.model.head.out.weight, toy.model.head.out.bias))
    return float(slope @ vectors.mean(0) + offset)


def test_a_linear_model_is_explained_exactly(toy: TextClassifier) -> None:
    """What each text without words scores is worked out by hand."""
    tokenized = tokenize(toy, "good bookish bad")  # [CLS] good book ##ish bad [SEP]
    assert tokenized.word_of.tolist() == [-1, 0, 1, 1, 2, -1]
    found = deletion_weights(toy, tokenized, 1)
    empty, whole = mean_logit(toy, [2, 3]), mean_logit(toy, [2, 5, 7, 8, 6, 3])
    alone = [mean_logit(toy, ids) - empty for ids in ([2, 5, 3], [2, 7, 8, 3], [2, 6, 3])]
    left_out = [whole - mean_logit(toy, ids) for ids in ([2, 7, 8, 6, 3], [2, 5, 6, 3], [2, 5, 7, 8, 3])]
    assert found.alone == pytest.approx(alone, abs=1e-5) and found.left_out == pytest.approx(left_out, abs=1e-5)
    assert (found.empty, found.whole) == pytest.approx((empty, whole), abs=1e-5)
    assert found.weights == pytest.approx([a / 4 + 3 * b / 4 for a, b in zip(alone, left_out, strict=True)], abs=1e-5)
    other = deletion_weights(toy, tokenized, 0)
    assert other.weights == pytest.approx(-found.weights, abs=1e-5)


def test_equal_words_have_equal_weights_and_order_changes_none(toy: TextClassifier) -> None:
    """Where a model takes the mean of the words and does not see their places."""
    toy = copy.copy(toy)
    toy.model = copy.deepcopy(toy.model)
    for name, parameter in toy.model.backbone.embeddings.named_parameters():
        if not name.startswith("tokens"):
            parameter.data.zero_()
    weights = {}
    for text in ("good book bad good", "good bad book good"):
        found = explain(toy, text, label="pos", orders=0).words
        assert found[0].weight == pytest.approx(found[3].weight, abs=1e-5) != 0
        weights[text] = sorted((word.text, word.weight) for word in found)
    one, other = weights.values()
    assert [w for w, _ in one] == [w for w, _ in other]
    assert [x for _, x in one] == pytest.approx([x for _, x in other], abs=1e-5)


@pytest.mark.parametrize("text", [*TEXTS[:3], ("the wise poem", "a dull page"), "a dull 🙂 e\u0301lan."])
def test_weights_are_of_words_alone_and_of_texts_without_one(classifier: TextClassifier, text: Text) -> None:
    found = explain(classifier, text, orders=0)
    tokenized = tokenize(classifier, text)

    def logit(kept: Any) -> float:
        segments = None if tokenized.segments is None else tokenized.segments[kept]
        return logit_of(classifier, tokenized.ids[kept], found.label, segments)

    whole, empty = logit(tokenized.word_of > -2), logit(tokenized.word_of < 0)
    for number, word in enumerate(found.words):
        own = tokenized.word_of == number
        assert word.alone == pytest.approx(logit(own | (tokenized.word_of < 0)) - empty, abs=1e-4)
        assert word.left_out == pytest.approx(whole - logit(~own), abs=1e-4)
        assert word.weight == pytest.approx(ALONE * word.alone + (1 - ALONE) * word.left_out, abs=1e-6)
    sums = found.completeness
    assert (sums.baseline, sums.logit) == pytest.approx((empty, whole), abs=1e-4)
    assert sums.total == pytest.approx(sum(word.weight for word in found.words), abs=1e-6)
    assert sums.total + sums.remainder == pytest.approx(whole - empty, abs=1e-4)


def test_one_word_is_the_whole_change(classifier: TextClassifier) -> None:
    found = explain(classifier, "witty")
    [word] = found.words
    assert word.weight == pytest.approx(found.completeness.change, abs=1e-5) and word.alone == pytest.approx(
        word.left_out
    )
    assert found.completeness.remainder == pytest.approx(0, abs=1e-5)


def logit_of(classifier: TextClassifier, ids: Any, label: str, segments: Any = None) -> float:
    """log p / (1 - p), by the model's plain forward pass on one sequence."""
    given_segments = None if segments is None else torch.as_tensor(np.array(segments))
    with torch.no_grad():
        logits = classifier.model(torch.as_tensor(np.array(ids)), Flat.from_lengths([len(ids)]), given_segments)[
            0
        ].double()
    number = classifier.class_names.index(label)
    others = [float(z) for k, z in enumerate(logits) if k != number]
    return float(logits[number]) - math.log(sum(math.exp(z) for z in others))


def test_three_classes_and_the_logit_of_one(both_ways: TextClassifier) -> None:
    three = TextClassifier(
        Checkpoint(fresh("small", both_ways.tokenizer, 3), ("a", "b", "c"), both_ways.tokenizer), "cpu"
    )
    for label in "abc":
        found = explain(three, TEXTS[0], label=label, orders=0)
        [logits] = three.logits([TEXTS[0]])
        expected = log_odds(logits[None], "abc".index(label))[0]
        assert found.label == label and found.completeness.logit == pytest.approx(expected, abs=1e-4)
    assert log_odds(np.log([[0.2, 0.3, 0.5]]), 2) == pytest.approx([0.0], abs=1e-12)


def test_without_special_tokens(gpt2: TextClassifier) -> None:
    """A text without words is then what an empty text is."""
    found = explain(gpt2, "the book of été", label="neg", orders=0)
    texts = ["the book of été", " book of été", "the of été", "the book été", "the book of"]
    logits = log_odds(gpt2.logits(texts), 0)
    assert [word.text for word in found.words] == ["the", "book", "of", "été"]
    assert [word.left_out for word in found.words] == pytest.approx((logits[0] - logits[1:]).tolist(), abs=1e-5)
    empty, *alone = log_odds(gpt2.logits(["", "the", " book", " of", " été"]), 0)
    assert [word.alone for word in found.words] == pytest.approx([logit - empty for logit in alone], abs=1e-5)
    pair = explain(gpt2, ("the book", "of été"), label="neg")
    assert pair.completeness.baseline == pytest.approx(empty, abs=1e-5) and len(pair.words) == 4


def test_a_long_text_is_read_a_bounded_number_of_times(
    both_ways: TextClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours are then left out together, and share what the text loses."""
    wide = untrained(both_ways.tokenizer, window=4000)
    tokenized = tokenize(wide, "the witty page " * 1200)
    assert len(tokenized.words) == 3600
    read: list[int] = []
    of = EncodedExamples.from_rows

    def counted(ids: Any, *rest: Any) -> EncodedExamples:
        read.append(sum(map(len, ids)))
        return of(ids, *rest)

    monkeypatch.setattr(EncodedExamples, "from_rows", counted)
    found = deletion_weights(wide, tokenized, 1, tokens=8 * 3602)
    assert sum(read) <= 9 * 3602 + 2 + 3 * 3600  # the text, eight groups, no word, and each word between two specials
    assert len(found.weights) == 3600 and len(set(found.left_out.tolist())) <= 8
    assert (found.left_out[:450] == found.left_out[0]).all()
    logits = log_odds(wide.logits(["the witty page " * 1050]), 1)
    assert found.left_out[:450].sum() == pytest.approx(found.whole - float(logits[0]), abs=1e-3)


# --- what decides ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "pool"), [("small", "first"), ("small", "mean"), ("lab", "last"), ("lab", "mean")])
def test_a_word_that_decides_has_the_greatest_weight_wherever_it_stands(name: str, pool: str) -> None:
    """`small` is bidirectional, `lab` causal. Whatever token comes first must not take the weight of the rest."""
    classifier, draw = TextClassifier(planted(name, pool), "cpu"), random.Random(1)
    for label in ("neg", "pos"):
        for at in (0, 4, 9):
            for _ in range(4):
                found = explain(classifier, planted_text(draw, label, count=9, at=at), orders=0)
                assert found.label == label and found.words[at].text == PLANTED[label]
                others = [abs(word.weight) for n, word in enumerate(found.words) if n != at]
                assert max(others) < found.words[at].weight / 2


def test_the_words_that_carry_the_opinion_rank_first(classifier: TextClassifier) -> None:
    right = [(text, label) for label, text in reviews(40, 33) if classifier.predict([text])[0].label == label]
    assert len(right) > 36
    hits = 0
    for text, _ in right:
        words = explain(classifier, text, orders=0).words
        best = max(words, key=lambda word: word.weight)
        hits += best.text in GOOD + BAD
    assert hits >= 0.9 * len(right)


def test_a_word_speaks_for_one_label_and_against_the_other(both_ways: TextClassifier) -> None:
    text = "the witty story and every page"
    found = {label: explain(both_ways, text, label=label, orders=0) for label in both_ways.class_names}
    weights = {label: {word.text: word.weight for word in each.words} for label, each in found.items()}
    assert weights["pos"]["witty"] > 0.5 and weights["neg"]["witty"] < -0.5
    for word, weight in weights["pos"].items():  # of two classes, one's logit is the other's negative
        assert weights["neg"][word] == pytest.approx(-weight, abs=1e-3)
    assert explain(both_ways, text, orders=0).label == "pos"


# --- faithfulness ---------------------------------------------------------------------------------------------------


def test_faithfulness_is_the_mean_of_the_distance_between_two_curves(both_ways: TextClassifier) -> None:
    """Three words, so one and two of them are deleted: by hand, in all six orders."""
    text = "witty page line"
    tokenized = tokenize(both_ways, text)
    found = faithfulness(both_ways, tokenized, 1, np.array([3.0, 1.0, 2.0]), orders=4000)
    assert found is not None
    left = {t: both_ways.probabilities([t])[0, 1] for t in ("page line", "witty line", "witty page", *text.split())}
    assert found.top == pytest.approx((left["page line"] + left["page"]) / 2, abs=1e-6)
    chance = (left["page line"] + left["witty line"] + left["witty page"]) / 6 + sum(map(left.get, text.split())) / 6  # type: ignore[arg-type]
    assert found.random == pytest.approx(chance, abs=0.02)
    assert found.score == found.random - found.top


def test_a_good_order_beats_chance_and_a_shuffled_one_does_not(classifier: TextClassifier) -> None:
    draw = np.random.default_rng(0)
    good: list[float] = []
    shuffled: list[float] = []
    reverse: list[float] = []
    for text in TEXTS:
        tokenized = tokenize(classifier, text)
        label = int(classifier.probabilities([text])[0].argmax())
        weights = deletion_weights(classifier, tokenized, label).weights
        for scores, tried in ((good, weights), (shuffled, draw.permutation(weights)), (reverse, -weights)):
            found = faithfulness(classifier, tokenized, label, tried)
            assert found is not None and -1 <= found.score <= 1 and found.random_std >= 0
            scores.append(found.score)
    assert np.mean(good) > 0.15 and np.mean(reverse) < 0
    assert abs(np.mean(shuffled)) < 0.1 < np.mean(good) - np.mean(shuffled)


def test_the_same_question_has_the_same_answer(both_ways: TextClassifier) -> None:
    first, second = (explain(both_ways, TEXTS[0]) for _ in range(2))
    assert first == second


def test_long_texts_are_deleted_in_few_steps(both_ways: TextClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    tokenized = tokenize(both_ways, "page " * 29)
    of = EncodedExamples.from_rows
    monkeypatch.setattr(EncodedExamples, "from_rows", lambda ids, *rest: rows.append(len(ids)) or of(ids, *rest))  # type: ignore[func-returns-value]
    faithfulness(both_ways, tokenized, 0, np.zeros(29), orders=3)
    assert rows == [4 * POINTS]


# --- attention ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["small", "lab", "bert-tiny", "mpnet-base", "gpt2"])
def test_maps_are_what_the_model_multiplies_by(name: str, both_ways: TextClassifier) -> None:
    """weights · values, projected, is what the fast attention gives: so these are the weights it used."""
    classifier = untrained(both_ways.tokenizer, name)
    seen: list[tuple[torch.Tensor, torch.Tensor, Attention]] = []
    with torch.no_grad():
        for parameter in classifier.model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # fresh ones are so small that all looks are alike
    handles = [
        module.register_forward_hook(lambda module, inputs, out: seen.append((inputs[0], out, module)))
        for module in classifier.model.backbone.modules()
        if isinstance(module, Attention)
    ]
    maps = explain(classifier, ("of the vague story", "a page"), attention=True, orders=0).attention
    assert maps is not None
    seen.clear()
    attention_maps(classifier, tokenize(classifier, ("of the vague story", "a page")))
    for handle in handles:
        handle.remove()
    causal = name in ("lab", "gpt2")
    assert maps.weights.shape == (2, 2, 9, 9) and maps.causal == causal
    assert maps.tokens == ("<start>", "of", "the", "vague", "story", "<separator>", "a", "page", "<end>")
    assert np.allclose(maps.weights.sum(-1), 1, atol=1e-6) and (maps.weights >= 0).all()
    ahead = np.triu(np.ones((9, 9), dtype=bool), 1)
    assert (maps.weights[..., ahead] == 0).all() == causal
    assert maps.weights.std() > 0.02
    for weights, (x, out, module) in zip(maps.weights, seen, strict=True):
        values = module.qkv(x).unflatten(-1, (3, 2, 16))[:, 2].transpose(0, 1)  # (H, L, K)
        mixed = torch.from_numpy(weights) @ values
        assert torch.allclose(module.out(mixed.transpose(0, 1).flatten(1)), out, atol=1e-5)


def test_maps_are_brought_only_when_asked_for_and_leave_no_hook(both_ways: TextClassifier) -> None:
    assert explain(both_ways, "a page", orders=0).attention is None
    explain(both_ways, "a page", attention=True)
    for module in both_ways.model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks


def test_a_prediction_in_another_thread_is_not_touched(both_ways: TextClassifier) -> None:
    """A server explains one text while it predicts others, with one model."""
    texts, stop = TEXTS[:3], Event()
    expected = both_ways.logits(texts)
    wrong: list[Any] = []

    def predict() -> None:
        while not stop.is_set():
            found = both_ways.logits(texts)
            if not np.allclose(found, expected, atol=1e-5):
                wrong.append(found)

    worker = Thread(target=predict)
    worker.start()
    weights = [[w.weight for w in explain(both_ways, TEXTS[4], attention=True, orders=0).words] for _ in range(5)]
    stop.set()
    worker.join()
    assert not wrong and all(each == weights[0] for each in weights)


# --- edges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "   ", ("", "")])
def test_a_text_without_words(classifier: TextClassifier, gpt2: TextClassifier, text: Text) -> None:
    found = explain(classifier, text, attention=True)
    assert found.words == () and found.faithfulness is None and found.truncated == 0
    assert found.completeness.total == 0 and found.completeness.change == pytest.approx(0, abs=1e-6)
    assert explain(gpt2, "").words == ()


def test_one_word_has_no_order(classifier: TextClassifier) -> None:
    found = explain(classifier, "witty")
    assert [word.text for word in found.words] == ["witty"] and found.faithfulness is None


def test_the_probabilities_are_those_of_a_prediction(classifier: TextClassifier) -> None:
    found = explain(classifier, TEXTS[1], orders=0)
    [predicted] = classifier.predict([TEXTS[1]])
    assert found.label == predicted.label
    assert found.probabilities == pytest.approx(dict(predicted.probabilities), abs=1e-6)
    assert calibrated(classifier.logits([TEXTS[1]]), 2.0)[0].tolist() == pytest.approx([*found.probabilities.values()])


def test_plain_data(both_ways: TextClassifier) -> None:
    found = explain(both_ways, "the witty page").to_json()
    assert list(found) == ["label", "probabilities", "words", "completeness", "faithfulness", "cut"]
    assert [list(word) for word in found["words"]] == [["text", "start", "end", "weight", "alone", "left_out"]] * 3
    assert json.loads(json.dumps(found)) == found and len(json.dumps(found)) < 700
    assert list(found["completeness"]) == ["total", "change", "baseline", "logit"]
    assert isinstance(found["faithfulness"], float)
    pair = explain(both_ways, ("witty", "dull"), orders=0).to_json()
    assert [word["second"] for word in pair["words"]] == [False, True] and pair["faithfulness"] is None


def test_questions_that_have_no_answer(both_ways: TextClassifier) -> None:
    with pytest.raises(ConfigError, match="label is 'poss': did you mean 'pos'"):
        explain(both_ways, "a", label="poss")
    with pytest.raises(ConfigError, match="orders is -1"):
        explain(both_ways, "a", orders=-1)
    with pytest.raises(TokenizerError, match="surrogate"):
        explain(both_ways, "a \ud83d")
    broken = untrained(both_ways.tokenizer)
    nn.init.constant_(broken.model.backbone.embeddings.tokens.weight, math.nan)
    with pytest.raises(ModelError, match="no finite numbers"):
        explain(broken, "a")


@pytest.mark.parametrize("module", ["headstart.use.explanation", "headstart.model.count"])
def test_what_a_report_shows_needs_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_text_without_words_whose_scores_are_no_numbers(both_ways: TextClassifier) -> None:
    """The text itself has finite scores, and a text without one of its words does not."""
    model = copy.deepcopy(both_ways.model)
    damaged = TextClassifier(Checkpoint(model, both_ways.class_names, both_ways.tokenizer), "cpu")

    def damage(_: Any, inputs: tuple[Any, ...], out: torch.Tensor) -> torch.Tensor:
        """Texts of one word and two special tokens."""
        return torch.where((inputs[1].starts.diff() <= 3)[:, None], math.nan, out)

    hook = model.register_forward_hook(damage)
    with hook:
        damaged.predict(["a witty tale"])
        with pytest.raises(NotFinite, match="no finite numbers"):
            explain(damaged, "a witty tale")
