"""Tokenizers, and batches of every kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tokenizers
from headstart.batches.batch import Batches
from headstart.batches.causal_masked import CausalMaskedBatches
from headstart.batches.examples import EncodedExamples, ExampleBatches
from headstart.batches.language import CausalBatches, MaskedBatches, PairBatches
from headstart.batches.masking import Masking
from headstart.tokenizers.tokenizer import Tokenizer
from tests.batches.helpers import SIZES, encoded_documents, examples, sentences, store


@pytest.fixture(scope="session")
def trained() -> dict[str, Tokenizer]:
    return {kind: Tokenizer.train(sentences(200, "corpus"), kind=kind, size=size) for kind, size in SIZES.items()}


@pytest.fixture(scope="session", params=SIZES)
def tokenizer(request: pytest.FixtureRequest, trained: dict[str, Tokenizer]) -> Tokenizer:
    return trained[request.param]


@pytest.fixture(scope="session")
def like_gpt2() -> Tokenizer:
    """One special token that is start, end and separator, no special tokens around a text, and no mask."""
    names = ["<|endoftext|>", "<unk>", *(f"w{number}" for number in range(50))]
    words = tokenizers.models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return Tokenizer(tokenizer)


Maker = Callable[[int], Batches]  # from a seed
SHUFFLED = [
    "rows",
    "rows by tokens",
    "pairs of texts",
    "rows with token dropout",
    "rows by class",
    "across",
    "within",
    "masked",
    "whole words",
    "next sentence",
    "causal+masked",
]
IN_FILE_ORDER = ["across, evaluation", "within, evaluation", "masked, evaluation", "next sentence, evaluation"]


@pytest.fixture(scope="session")
def makers(trained: dict[str, Tokenizer]) -> dict[str, Maker]:
    """Every kind of batches, over a set or a corpus large enough to have several steps, the last not full."""
    words = trained["wordpiece"]
    documents = store(encoded_documents(words, 20))
    labels = [str(number % 3) for number in range(31)]
    single = [(text, None, label) for text, label in zip(sentences(31, "rows"), labels, strict=True)]
    paired = [(text, text[::-1] if i % 4 else None, label) for i, (text, _, label) in enumerate(single)]
    rows, pairs = (EncodedExamples.of(examples(texts), words, ("0", "1", "2"), 24) for texts in (single, paired))
    masking, whole_words = Masking.of(words, 0.3), Masking.of(words, 0.3, whole_words=True)

    def causal(across: bool, evaluation: bool) -> Maker:
        return lambda seed: CausalBatches(
            documents, words, window=12, batch_size=4, seed=seed, across=across, evaluation=evaluation
        )

    def masked(masking: Masking, evaluation: bool) -> Maker:
        return lambda seed: MaskedBatches(
            documents, words, window=12, batch_size=4, seed=seed, masking=masking, evaluation=evaluation
        )

    def next_sentence(evaluation: bool) -> Maker:
        return lambda seed: PairBatches(
            documents, words, window=14, batch_size=5, seed=seed, masking=masking, evaluation=evaluation
        )

    return {
        "rows": lambda seed: ExampleBatches(rows, seed, batch_size=7),
        "rows by tokens": lambda seed: ExampleBatches(rows, seed, tokens=90),
        "pairs of texts": lambda seed: ExampleBatches(pairs, seed, batch_size=7),
        "rows with token dropout": lambda seed: ExampleBatches(rows, seed, batch_size=7, token_dropout=0.3),
        "rows by class": lambda seed: ExampleBatches(rows, seed, batch_size=8, class_pairs=True),
        "across": causal(True, False),
        "within": causal(False, False),
        "masked": masked(masking, False),
        "whole words": masked(whole_words, False),
        "next sentence": next_sentence(False),
        "causal+masked": lambda seed: CausalMaskedBatches(
            documents, words, window=12, batch_size=4, seed=seed, masking=masking, causal_share=0.5
        ),
        "across, evaluation": causal(True, True),
        "within, evaluation": causal(False, True),
        "masked, evaluation": masked(masking, True),
        "next sentence, evaluation": next_sentence(True),
    }
