"""How faithful the weights of words are, by method: the table of docs/explain.md.

    python tools/faithfulness.py measure runs/topics-* --texts valid.csv --train train.csv --out rows.jsonl
    python tools/faithfulness.py table rows.jsonl

Words are taken out of a text, those with the greatest weight first: 1, 5, 10, 20 and 50 % of them.

comprehensiveness   how far the label's probability falls without them, on average; more is better
sufficiency         how far it falls with them alone; less is better

(ERASER, DeYoung et al. 2020.) Each in three ways, so that no method is measured by its own means alone: words are
removed from the text, replaced by the mask (else the unknown) token, or replaced by words of other texts. `measure`
adds a line for each text and method to a file; `table` writes docs/results/faithfulness.csv and the page's table.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attributions import METHODS, SHIPPED, Mask, Question, predict_without
from headstart.metrics import Floats
from headstart.reading.examples import Examples, read_examples
from headstart.use.classifier import TextClassifier, calibrated
from headstart.use.words import TokenizedText, tokenize

DOCS = Path(__file__).parents[1] / "docs"
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
WAYS = ("removed", "token", "words")
SCORES = ("comprehensiveness", "sufficiency")
FEWEST, MOST = 8, 60  # words of a text that is measured
Row = Mapping[str, Any]


# --- measured ---


@dataclass
class Subject:
    """A text, the label that a model gives it, and words of other texts to replace its own by."""

    classifier: TextClassifier
    text: str
    tokenized: TokenizedText
    label: int
    others: Sequence[str]

    def probabilities(self, removed: Sequence[Mask], way: str) -> Floats:
        """(n,): the label's probability without the words that each (words,) mask marks."""
        if way == "token":
            tokenizer = self.classifier.tokenizer
            token = tokenizer.unknown if tokenizer.mask is None else tokenizer.mask
            masks = [np.append(mask, False)[self.tokenized.word_of] for mask in removed]
            found = predict_without(self.classifier, self.tokenized, masks, token)
        else:
            found = self.classifier.logits([self._written(mask, way) for mask in removed])
        return calibrated(found, self.classifier.temperature)[:, self.label]

    def _written(self, removed: Mask, way: str) -> str:
        parts, at = [], 0
        for word, gone, other in zip(self.tokenized.words, removed, self.others, strict=True):
            replaced = other if way == "words" else ""
            parts += [self.text[at : word.start], replaced if gone else word.text]
            at = word.end
        return " ".join("".join([*parts, self.text[at:]]).split())


def scores(subject: Subject, weights: Floats) -> dict[str, float]:
    """Comprehensiveness and sufficiency, in each way."""
    count, order = len(weights), np.argsort(-weights, kind="stable")
    tops = [np.isin(np.arange(count), order[: max(1, round(share * count))]) for share in SHARES]
    found = {}
    for way in WAYS:
        masks = [np.zeros(count, bool), *tops, *(~top for top in tops)]
        whole, *fallen = subject.probabilities(masks, way)
        found[f"comprehensiveness, {way}"] = float(whole - np.mean(fallen[: len(tops)]))
        found[f"sufficiency, {way}"] = float(whole - np.mean(fallen[len(tops) :]))
    return found


class LinearModel:
    """TF-IDF of words and logistic regression: what each word adds to a label's score is exact."""

    def __init__(self, train: Examples) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression

        self.tfidf = TfidfVectorizer(token_pattern=r"[^\W_]+(?:['’][^\W_]+)*|[^\w\s]", sublinear_tf=True)
        features = self.tfidf.fit_transform([row.text for row in train.rows])
        self.model = LogisticRegression(C=10.0, max_iter=300).fit(features, [str(row.label) for row in train.rows])

    def contributions(self, words: Sequence[str], label: str) -> Floats:
        number, slopes = list(self.model.classes_).index(label), self.model.coef_
        own = slopes[number] if len(slopes) > 1 else slopes[0] * (1 if number else -1)
        columns = [self.tfidf.vocabulary_.get(word.lower()) for word in words]
        return np.array([0.0 if c is None else own[c] * self.tfidf.idf_[c] for c in columns])


def measure_text(subject: Subject, exact: Floats) -> list[dict[str, Any]]:
    """A row for each method that this tokenizer allows."""
    rows = []
    for name, method in METHODS.items():
        question = Question(subject.classifier, subject.tokenized, subject.label)
        weights = method(question)
        if weights is None:
            continue
        row: dict[str, Any] = {"method": name, "words": len(weights), "read": question.read}
        row |= scores(subject, weights)
        row["first"] = int(np.abs(weights).argmax() == 0)
        row["linear"] = float(np.corrcoef(weights, exact)[0, 1]) if np.ptp(weights) * np.ptp(exact) > 0 else 0.0
        if question.change is not None:
            row["error"] = abs(float(weights.sum()) - question.change) / max(abs(question.change), 1e-4)
        rows.append(row)
    return rows


def measure(run: Path, texts: Sequence[str], linear: LinearModel, count: int, out: Path) -> None:
    """Add the rows of a run to a file, text by text."""
    classifier, generator = TextClassifier.load(run, "cpu"), np.random.default_rng(0)
    tokenized = [tokenize(classifier, text) for text in texts]
    words = [word.text for text in tokenized for word in text.words]
    fit = [n for n, text in enumerate(tokenized) if FEWEST <= len(text.words) <= MOST]
    for number in generator.permutation(fit)[:count]:
        text = tokenized[number]
        label = int(classifier.probabilities([texts[number]])[0].argmax())
        others = generator.choice(words, len(text.words)).tolist()
        exact = linear.contributions([word.text for word in text.words], classifier.class_names[label])
        rows = measure_text(Subject(classifier, texts[number], text, label, others), exact)
        with out.open("a", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps({"run": run.name, "text": int(number), **row}) + "\n")


# --- the table ---


def means(rows: Sequence[Row]) -> dict[str, float]:
    """The mean of each measure over the texts of a model and method, and of the three ways."""
    names = [f"{score}, {way}" for score in SCORES for way in WAYS]
    found = {name: float(np.mean([row[name] for row in rows])) for name in [*names, "first", "linear", "read"]}
    for score in SCORES:
        found[score] = float(np.mean([found[f"{score}, {way}"] for way in WAYS]))
    errors = [row["error"] for row in rows if "error" in row]
    return found | ({"error": float(np.median(errors))} if errors else {})


def by_model(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A row for each model (the seeds of one together) and method."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["run"].rpartition("-")[0], row["method"]), []).append(row)
    return [
        {"model": model, "method": method, "texts": len(found), **means(found)}
        for (model, method), found in sorted(groups.items(), key=lambda item: list(METHODS).index(item[0][1]))
    ]


def page_table(rows: Sequence[Row]) -> str:
    """Comprehensiveness less sufficiency by model; the rest as means over the models."""
    models = sorted({row["model"] for row in rows})
    lines = [f"| method | {' | '.join(models)} | first word first | agrees with linear | sum off by | texts read |"]
    lines.append("|---" * (len(models) + 5) + "|")
    for method in METHODS:
        own = {row["model"]: row for row in rows if row["method"] == method}
        if set(own) != set(models):
            continue
        cells = [f"{own[m]['comprehensiveness'] - own[m]['sufficiency']:+.2f}" for m in models]
        first, linear, read = (np.mean([row[name] for row in own.values()]) for name in ("first", "linear", "read"))
        errors = [row["error"] for row in own.values() if "error" in row]
        off = f"{100 * np.mean(errors):.0f} %" if errors else ""
        name = f"**{method}**" if method == SHIPPED else method
        lines.append(f"| {name} | {' | '.join(cells)} | {100 * first:.0f} % | {linear:+.2f} | {off} | {read:.0f} |")
    return "\n".join(lines) + "\n"


def write_table(rows: Sequence[Row]) -> None:
    found = [{k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in by_model(rows)]
    names = list(dict.fromkeys(name for row in found for name in row))
    with (DOCS / "results" / "faithfulness.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    page, start, end = DOCS / "explain.md", "<!-- faithfulness -->\n", "<!-- end -->\n"
    before, _, rest = page.read_text(encoding="utf-8").partition(start)
    page.write_text(before + start + page_table(found) + end + rest.partition(end)[2], encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    verbs = parser.add_subparsers(dest="verb", required=True)
    measuring = verbs.add_parser("measure", help="add lines to a file")
    measuring.add_argument("runs", nargs="+", type=Path, help="run folders, named MODEL-SEED")
    measuring.add_argument("--texts", required=True, help="labelled texts that the models were not trained on")
    measuring.add_argument("--train", required=True, help="labelled texts for the linear model")
    measuring.add_argument("--count", type=int, default=60, help="texts of each run")
    measuring.add_argument("--out", type=Path, required=True)
    verbs.add_parser("table", help="write the table").add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "measure":
        linear = LinearModel(read_examples(arguments.train))
        texts = [row.text for row in read_examples(arguments.texts).rows]
        for run in arguments.runs:
            measure(run, texts, linear, arguments.count, arguments.out)
    else:
        lines = [line for path in arguments.files for line in path.read_text(encoding="utf-8").splitlines()]
        write_table([json.loads(line) for line in lines])


if __name__ == "__main__":
    main()
