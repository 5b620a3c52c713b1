"""N-grams in whole arrays: the same as those of scikit-learn, whatever the texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer

from headstart.studies import ngrams
from headstart.studies.ngrams import LENGTHS, NgramVocabulary

SOME = st.text(st.sampled_from("aAbİß,. \t\n\u00a0漢\ud800"), max_size=12)  # few symbols, so that n-grams repeat
ANY = st.text(max_size=12)
TEXTS = st.lists(SOME | ANY, max_size=6)


def count_vectorizer(kind: str) -> Any:
    """Words, 1 and 2 in a row, a punctuation mark being a word; and 2 to 5 characters."""
    options: dict[str, Any] = {"words": {"token_pattern": r"\w+|[^\w\s]"}, "characters": {"analyzer": "char"}}[kind]
    return CountVectorizer(ngram_range=LENGTHS[kind], **options)


@pytest.mark.parametrize("chunk", [3, ngrams.CHUNK])
@pytest.mark.parametrize("kind", LENGTHS)
@given(texts=TEXTS, others=TEXTS)
def test_names_and_counts_are_those_of_scikit_learn(kind: str, chunk: int, texts: list[str], others: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngrams, "CHUNK", chunk)
        vocabulary = NgramVocabulary.of(kind, texts)
        own, other = (vocabulary.count(each).toarray() for each in (texts, others))
    reference = count_vectorizer(kind)
    if not any(map(reference.build_analyzer(), texts)):  # which scikit-learn refuses
        assert len(vocabulary) == 0 and own.shape == (len(texts), 0) and other.shape == (len(others), 0)
        return
    expected = reference.fit_transform(texts).toarray()
    names = list(vocabulary.names)
    assert sorted(names) == sorted(reference.vocabulary_) and len(vocabulary) == len(names)
    columns = [reference.vocabulary_[name] for name in names]
    np.testing.assert_array_equal(own, expected[:, columns])
    if others:
        np.testing.assert_array_equal(other, reference.transform(others).toarray()[:, columns])


@pytest.mark.parametrize("kind", LENGTHS)
@given(texts=TEXTS, data=st.data())
def test_ngrams_that_were_picked_are_found_again(kind: str, texts: list[str], data: st.DataObject) -> None:
    whole = NgramVocabulary.of(kind, texts)
    picked = [name for name in whole.names if data.draw(st.booleans())]
    part = NgramVocabulary.containing(kind, picked)
    assert list(part.names[part.find(picked)]) == picked
    own, columns = part.count(texts)[:, part.find(picked)], whole.find(picked)
    np.testing.assert_array_equal(own.toarray(), whole.count(texts)[:, columns].toarray())


def test_an_ngram_that_is_not_there_has_no_column() -> None:
    vocabulary = NgramVocabulary.of("words", ["a dull tale"])
    assert vocabulary.find(["dull", "a tale", "", "dull tale", "a dull tale", "漢字"]).tolist() == [
        1,
        -1,
        -1,
        4,
        -1,
        -1,
    ]
    assert vocabulary.names.tolist() == ["a", "dull", "tale", "a dull", "dull tale"]
