"""The scores of a trained classifier on labelled texts."""

from __future__ import annotations

from collections.abc import Callable

from headstart.metrics import Scores, score
from headstart.parallel import SINGLE, Parallel
from headstart.reading.examples import read_examples
from headstart.reading.skipped import SkippedRows
from headstart.training.inference import classify
from headstart.use.classifier import TextClassifier


def evaluate(
    folder: str,
    path: str,
    *,
    text: str | None = None,
    second: str | None = None,
    label: str | None = None,
    skipped: SkippedRows | None = None,
    log: Callable[[str], None] = lambda text: None,
    parallel: Parallel = SINGLE,
) -> tuple[Scores, int]:
    """Accuracy, macro-F1 and loss on a labelled set, and its number of rows."""
    classifier = TextClassifier.load(folder, parallel=parallel)
    examples = read_examples(path, text=text, second=second, label=label, skipped=skipped)
    for line in examples.notes:
        log(line)
    data = classifier.encode_examples(examples)
    return score(classify(classifier.model, data, classifier.precision, parallel=parallel), data.labels), len(data)
