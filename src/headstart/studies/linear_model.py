"""The linear model on TF-IDF as a file: what `fit_tfidf` chose and fitted, to be asked again.

    model = LinearModel.load(Path("runs/tfidf-600-seed0-…/linear.safetensors"))
    model.log_probabilities(["A tender, witty book."])   # (1, C)

A feature is an n-gram; its value is (1 + log count) · idf, and each kind of n-gram has length 1 in every text. A class
has the score weight · features + bias. So what each n-gram adds to a score can be read off exactly.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from headstart.checkpoints.folder import (
    check_weights,
    read_class_names,
    read_safetensors,
    read_temperature,
    write_safetensors,
)
from headstart.errors import CheckpointError, shown
from headstart.files import new_file
from headstart.metrics import Floats, softmax
from headstart.studies.linear import TINY, Ints, weights
from headstart.studies.ngrams import LENGTHS, SPACES, WORD, NgramVocabulary, split_ngram
from headstart.studies.tfidf import FittedTfidf

UNSEEN = -1e4  # the bias of a class that no text of train has


class Occurrence(NamedTuple):
    """An n-gram where it stands: the places in the text of the characters, or of the words, that it is made of."""

    ngram: str
    parts: tuple[tuple[int, ...], ...]


class Feature(NamedTuple):
    """An n-gram that the model knows, all its occurrences in a text, and its value there."""

    column: int
    value: float
    occurrences: tuple[Occurrence, ...]


@dataclass(frozen=True, eq=False)
class LinearModel:
    """D n-grams, C classes."""

    class_names: tuple[str, ...]
    temperature: float
    ngrams: Mapping[str, Sequence[str]]  # of each kind, `words` or `characters`; columns in this order
    idf: Floats  # (D,)
    weight: Floats  # (C, D)
    bias: Floats  # (C,)

    @classmethod
    def of(cls, fitted: FittedTfidf, class_names: Sequence[str]) -> LinearModel:
        parts = fitted.weighting.parts
        ngrams = {kind: fitted.vocabularies[kind].names[columns] for kind, columns, _ in parts}
        weight, bias = weights(fitted.regression)
        seen = fitted.regression.classes_
        all_weights, all_biases = np.zeros((len(class_names), weight.shape[1])), np.full(len(class_names), UNSEEN)
        all_weights[seen], all_biases[seen] = weight, bias
        return cls(
            class_names=tuple(class_names),
            temperature=fitted.temperature,
            ngrams={kind: names.tolist() for kind, names in ngrams.items()},
            idf=np.concatenate([idf.idf_ for _, _, idf in parts]),
            weight=all_weights,
            bias=all_biases,
        )

    def save(self, path: Path) -> None:
        """One file; n-grams are a tensor of bytes, since what a safetensors file says of itself must be short."""
        about = {"labels": list(self.class_names), "temperature": self.temperature, "ngrams": dict(self.ngrams)}
        text = np.frombuffer(json.dumps(about).encode(), np.uint8)
        arrays = {"idf": self.idf, "weight": self.weight, "bias": self.bias}
        tensors = {name: torch.from_numpy(array).float() for name, array in arrays.items()}
        with new_file(path) as unfinished:
            write_safetensors(unfinished, {**tensors, "about": torch.from_numpy(text.copy())}, format="headstart tfidf")

    @classmethod
    def load(cls, path: Path) -> LinearModel:
        tensors, where = read_safetensors(path), str(path)
        try:
            about = json.loads(tensors.pop("about").numpy().tobytes())
            labels, temperature, ngrams = about["labels"], about["temperature"], about["ngrams"]
            idf, weight, bias = (tensors[name] for name in ("idf", "weight", "bias"))
            size = sum(_count(kind, names) for kind, names in ngrams.items())
            if (idf.shape, weight.shape, bias.shape) != ((size,), (len(labels), size), (len(labels),)):
                raise ValueError("its parts do not fit together")
            if len(labels) < 2 or {tensor.dtype for tensor in (idf, weight, bias)} != {torch.float32}:
                raise ValueError("it has fewer than two labels, or other numbers than float32")
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{path} is no linear model of this headstart ({error})") from None
        class_names = read_class_names(labels, len(labels), where)
        check_weights(tensors, where)
        arrays = (tensor.numpy().astype(np.float64) for tensor in (idf, weight, bias))
        return cls(class_names, read_temperature(temperature, where), ngrams, *arrays)

    @property
    def parameters(self) -> int:
        return self.weight.size + self.bias.size

    @cached_property
    def _columns(self) -> dict[str, dict[str, int]]:
        """By kind and n-gram."""
        columns, first = {}, 0
        for kind, names in self.ngrams.items():
            columns[kind] = {name: first + k for k, name in enumerate(names)}
            first += len(names)
        return columns

    def features(self, text: str) -> list[Feature]:
        """The n-grams of a text that the model knows, each with its value."""
        features: list[Feature] = []
        for kind, columns in self._columns.items():
            found: dict[int, list[Occurrence]] = defaultdict(list)
            for occurrence in OCCURRENCES[kind](text):
                if (column := columns.get(occurrence.ngram)) is not None:
                    found[column].append(occurrence)
            values = {column: (1 + np.log(len(each))) * self.idf[column] for column, each in found.items()}
            length = float(np.sqrt(sum(value * value for value in values.values()))) or 1.0
            features += [Feature(column, values[column] / length, tuple(each)) for column, each in found.items()]
        return features

    def scores(self, features: Sequence[Feature]) -> Floats:
        """(C,): the score of each class."""
        columns: Ints = np.array([feature.column for feature in features], np.int64)
        values = np.array([feature.value for feature in features])
        scores: Floats = self.weight[:, columns] @ values + self.bias
        return scores

    @cached_property
    def _vocabularies(self) -> list[tuple[NgramVocabulary, Ints]]:
        """For each kind of n-gram a vocabulary that has those of the model, and the column of each in it."""
        made = ((NgramVocabulary.containing(kind, names), names) for kind, names in self.ngrams.items())
        return [(vocabulary, vocabulary.find(names)) for vocabulary, names in made]

    def log_probabilities(self, texts: Sequence[str]) -> Floats:
        """(n, C), before the temperature: the same scores as by `features` of one text after the other."""
        scores, first = np.tile(self.bias, (len(texts), 1)), 0
        for vocabulary, columns in self._vocabularies:
            own = slice(first, first := first + len(columns))
            features = vocabulary.count(texts).astype(np.float64)[:, columns]
            features.data = (1 + np.log(features.data)) * self.idf[own][features.indices]
            length = np.sqrt(np.asarray(features.multiply(features).sum(1)))  # (n, 1)
            scores += features @ self.weight[:, own].T / np.where(length, length, 1)
        logs: Floats = np.log(np.maximum(softmax(scores), TINY))
        return logs


def _count(kind: str, names: Any) -> int:
    """How many n-grams of a kind there are; raises where they are none."""
    if kind in LENGTHS and isinstance(names, list) and all(isinstance(name, str) for name in names):
        shortest, longest = LENGTHS[kind]
        if all(shortest <= len(split_ngram(kind, name)) <= longest for name in names):
            return len(names)
    raise ValueError(f"{shown(kind)} are no n-grams")


def word_occurrences(text: str) -> list[Occurrence]:
    """One and two words in a row, as scikit-learn's CountVectorizer counts them; a punctuation mark is a word.

    >>> [occurrence.ngram for occurrence in word_occurrences("Dull, dull.")]
    ['dull', ',', 'dull', '.', 'dull ,', ', dull', 'dull .']
    """
    lowered, places = _lowered(text)
    tokens = [(match[0], tuple(places[match.start() : match.end()])) for match in WORD.finditer(lowered)]
    single = [Occurrence(token, (own,)) for token, own in tokens]
    return single + [Occurrence(f"{a} {b}", (own, next_)) for (a, own), (b, next_) in pairwise(tokens)]


def character_occurrences(text: str) -> list[Occurrence]:
    """Two to five characters in a row, as CountVectorizer counts them: space after space is one space.

    >>> [occurrence.ngram for occurrence in character_occurrences("A  b")]
    ['a ', ' b', 'a b']
    """
    lowered, places = _lowered(text)
    squeezed, own, last = "", list[int](), 0
    for match in SPACES.finditer(lowered):
        squeezed += lowered[last : match.start()] + " "
        own += places[last : match.start() + 1]
        last = match.end()
    squeezed, own = squeezed + lowered[last:], own + places[last:]
    shortest, longest = LENGTHS["characters"]
    return [
        Occurrence(squeezed[start : start + length], tuple((place,) for place in own[start : start + length]))
        for length in range(shortest, longest + 1)
        for start in range(len(squeezed) - length + 1)
    ]


OCCURRENCES = {"words": word_occurrences, "characters": character_occurrences}


def _lowered(text: str) -> tuple[str, list[int]]:
    """The text in small letters, and for each of them the place in the text that it comes from.

    >>> _lowered("İx")  # a capital İ becomes two characters
    ('i̇x', [0, 0, 1])
    """
    return text.lower(), [place for place, character in enumerate(text) for _ in character.lower()]
