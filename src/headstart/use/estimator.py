"""The classifier as scikit-learn knows one: it can be cloned, searched over, cross-validated, put in a pipeline.

from headstart import HeadstartClassifier

reviews = HeadstartClassifier(base="runs/base", lr=1e-4).fit(texts, stars)
reviews.predict(["A tender, witty book."])
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from headstart.errors import ConfigError
from headstart.model.presets import PRESETS
from headstart.reading.examples import Example, Examples, Text
from headstart.studies.finetune import finetune
from headstart.studies.settings import FinetuneSettings
from headstart.studies.splits import VALID_SHARE, train_tokenizer_on
from headstart.use.classifier import TextClassifier, to_example
from headstart.use.progress import show_progress

Texts = Sequence[Text] | NDArray[Any]
FEWEST = 10  # texts from which some are kept aside to choose on


class HeadstartClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A text classifier: `fit(texts, labels)`, then `predict`, `predict_proba`, `score`.

    base         a model folder, or a preset such as "small", which starts with fresh weights
    mode         "full", "frozen", "contrastive" or "scratch"; by default full from a folder, scratch from a preset
    tokenizer    a tokenizer folder; a preset without one has a tokenizer trained on the texts it is fitted to
    valid_share  share of the texts that is kept aside to choose the epoch and the temperature on
    settings     any other setting of `headstart finetune`, as {"schedule": "constant"}
    progress     a bar while it trains; by default on a terminal and in a notebook
    valid        the name of valid_share in version 0.1.0

    Texts are strings, or pairs of strings. Labels are whatever they are; `classes_` has them in order.
    """

    def __init__(
        self,
        base: str = "small",
        *,
        mode: Literal["full", "frozen", "contrastive", "scratch"] | None = None,
        tokenizer: str | None = None,
        epochs: int = 10,
        batch_size: int = 8,
        lr: float = 1e-4,
        seed: int = 0,
        valid_share: float = VALID_SHARE,
        device: str = "auto",
        settings: Mapping[str, Any] | None = None,
        progress: bool | None = None,
        valid: float | None = None,
    ) -> None:
        self.base = base
        self.mode = mode
        self.tokenizer = tokenizer
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.seed = seed
        self.valid_share = valid_share
        self.device = device
        self.settings = settings
        self.progress = progress
        self.valid = valid

    def fit(self, X: Texts, y: Sequence[Any]) -> Self:  # noqa: N803 (scikit-learn's name)
        """Train on texts and their labels."""
        texts, labels = _texts(X), _labels(y)
        check_consistent_length(texts, labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ConfigError(
                "fit", [f"all {len(texts)} labels are {self.classes_[0]!r}: there is nothing to tell apart"]
            )
        rows = [to_example(text, i, str(k)) for i, (text, k) in enumerate(zip(texts, numbers, strict=True), 1)]
        with tempfile.TemporaryDirectory(prefix="headstart-") as folder:
            settings = self._settings(Path(folder), rows)
            with show_progress(self.progress) as (on_event, _):
                finetune(settings, Path(folder) / "run", splits=self._splits(rows, numbers), on_event=on_event)
            self.classifier_ = TextClassifier.load(Path(folder) / "run", self.device)
        return self

    def predict(self, X: Texts) -> Any:  # noqa: N803
        """A label for each text."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def predict_proba(self, X: Texts) -> Any:  # noqa: N803
        """(n, C): the calibrated probability of each class, in the order of `classes_`."""
        check_is_fitted(self)
        return self.classifier_.probabilities(_texts(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags

    def _settings(self, folder: Path, rows: Sequence[Example]) -> FinetuneSettings:
        fresh = self.base in PRESETS and not Path(self.base).is_dir()
        tokenizer = self.tokenizer
        if fresh and tokenizer is None:
            tokenizer = str(folder / "tokenizer")
            train_tokenizer_on(rows, folder / "tokenizer")
        mode = self.mode or ("scratch" if fresh else "full")
        given = {"data": "X", "init": self.base, "mode": mode, "tokenizer": tokenizer}
        given |= {name: getattr(self, name) for name in ("epochs", "batch_size", "lr", "seed", "device")}
        return FinetuneSettings.from_mapping({**given, **(self.settings or {})}, type(self).__name__)

    def _splits(self, rows: list[Example], numbers: Any) -> dict[str, Examples]:
        """Train and valid, each class in both where it can be; a handful of texts is both."""
        from sklearn.model_selection import train_test_split

        share = self.valid_share if self.valid is None else self.valid
        if not 0 < share < 1:
            raise ConfigError("fit", [f"valid_share is {share}, and must be a share between 0 and 1"])
        aside = max(len(self.classes_), round(share * len(rows)))
        if len(rows) < FEWEST or np.bincount(numbers).min() < 2 or len(rows) - aside < len(self.classes_):
            return {"train": Examples(tuple(rows)), "valid": Examples(tuple(rows))}
        train, valid = train_test_split(rows, test_size=aside, stratify=numbers, random_state=self.seed)
        return {"train": Examples(tuple(train)), "valid": Examples(tuple(valid))}


def _texts(given: Texts) -> list[Text]:
    """A list, an array or a column of texts as a list; an array of two columns as pairs."""
    if isinstance(given, str):
        raise ConfigError("texts", ["a single string was given, expected a list of texts"])
    texts = [tuple(text) if isinstance(text, list | np.ndarray) else text for text in given]
    if not texts:
        raise ConfigError("texts", ["there are none"])
    return texts


def _labels(given: Sequence[Any]) -> Any:
    if given is None:
        raise ValueError("requires y to be passed, but the target y is None")  # in the words scikit-learn looks for
    labels = np.asarray(given)
    if labels.ndim != 1:
        raise ConfigError("labels", [f"they have {labels.ndim} dimensions, expected one label for each text"])
    return labels
