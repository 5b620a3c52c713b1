"""docs/questions.md: five questions of a course on transfer learning, answered by code that runs.

    python tools/questions.py           trains small models (minutes), writes docs/experiments.json, page and pictures
    python tools/questions.py --check   trains them again, and fails where docs/experiments.json says otherwise

Question 1 is answered by experiments.py, which trains; its findings are kept in docs/experiments.json. Questions 2
and 3 are computed here on the lab's model, 4 and 5 told from the files in docs/results. So the page is made of its
template (questions.jinja), these findings, those files and the package, in seconds: `make docs` does it, and
`make check` fails where it is stale.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import torch
from torch import Tensor

import experiments
import pictures
import results
from headstart.checkpoints.folder import read_json
from headstart.config import ClassifierConfig, HeadConfig, NextTokenConfig
from headstart.errors import ModelError
from headstart.model.count import Count, count, count_tensors
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.model.presets import preset

DOCS = Path(__file__).parents[1] / "docs"
FOUND = DOCS / "experiments.json"
NEXT_TOKEN, TWO_CLASSES = NextTokenConfig(), ClassifierConfig(classes=2, pool="last")


# --- 2: the head ------------------------------------------------------------------------------------------------------


@cache
def swap() -> dict[str, Any]:
    """Swap the head of the lab's language model, train the classifier one step, and see what stayed."""
    torch.manual_seed(0)
    before = Model.build(preset("lab"), NEXT_TOKEN).eval()
    after = before.with_head(TWO_CLASSES)
    ids, layout = (
        torch.tensor([11, 12, 13, 14, 15, 16, 17]),
        Flat.from_lengths([4, 3]),
    )  # two texts, of four pieces and of three
    kept = {name: tensor.clone() for name, tensor in before.state_dict().items()}
    with torch.no_grad():
        vectors = [model.backbone(ids, layout) for model in (before, after)]
        answers = [model(ids, layout) for model in (before, after)]
    found = {
        "vectors": shape(vectors[0]),
        "same_vectors": torch.equal(*vectors),
        "answers": [shape(answer) for answer in answers],
        "heads": [shapes(model) for model in (before, after)],
        "tensors": len(list(after.backbone.parameters())),
        "numbers": sum(p.numel() for p in after.backbone.parameters()),
        "same": unchanged(after, kept),
        "head_numbers": [sum(p.numel() for p in model.head.parameters()) for model in (before, after) if model.head],
    }
    frozen = before.with_head(TWO_CLASSES).freeze()
    one_step(frozen, ids, layout)
    found["same_frozen"] = unchanged(frozen, kept)
    frozen.backbone.requires_grad_(True)
    one_step(after, ids, layout)
    found["same_full"] = unchanged(after, kept)
    return found


def one_step(model: Model, ids: Tensor, layout: Flat) -> None:
    """A step of training on two texts of two classes."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    (-model.train().log_probabilities(ids, layout)[[0, 1], [0, 1]].mean()).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def unchanged(model: Model, kept: Mapping[str, Tensor]) -> int:
    """How many tensors of the backbone are still what they were, bit for bit."""
    now = model.backbone.named_parameters()
    return sum(torch.equal(tensor.detach(), kept[f"backbone.{name}"]) for name, tensor in now)


def shape(tensor: Tensor) -> str:
    return " × ".join(f"{size:,}" for size in tensor.shape)


def shapes(model: Model) -> str:
    assert model.head is not None
    return ", ".join(f"{name.split('.')[-1]} {shape(tensor)}" for name, tensor in model.head.named_parameters())


# --- 3: the count -----------------------------------------------------------------------------------------------------


@cache
def counts() -> dict[str, Any]:
    """Every block by its formula, and whether the real tensors agree."""
    return {"language_model": counted(NEXT_TOKEN), "classifier": counted(TWO_CLASSES)}


def counted(head: HeadConfig) -> Count:
    found = count(preset("lab"), head)
    if not count_tensors(Model.empty(preset("lab"), head)).agrees(found):
        sys.exit(f"the formula and the tensors of the lab's model with a {head.kind} head disagree")
    return found


def slips() -> set[int]:
    """By how much a total is off where one tensor is forgotten or counted twice, in one layer or in every one.

    Queries, keys and values lie in one tensor here; by hand they are three.
    """
    found: set[int] = set()
    config = preset("lab")
    for name, tensor in Model.empty(config, TWO_CLASSES).named_parameters():
        sizes = {tensor.numel(), tensor.numel() // 3} if ".qkv." in name else {tensor.numel()}
        found |= sizes | ({size * config.layers for size in sizes} if ".layers." in name else set())
    return found


BY_HAND = 10_969_602  # what is told of the classifier's total


def slip() -> dict[str, Any]:
    """How the total by hand is off: no one tensor is worth the difference, and a carry is."""
    found = counted(TWO_CLASSES)
    blocks = {block.name: block for block in found.blocks}
    terms = [
        blocks["token embedding"].number,
        sum(block.number for block in found.blocks if block.copies > 1),
        blocks["head: classifier"].number,
    ]
    off, end = BY_HAND - found.total, sum(term % 1000 for term in terms)
    if sum(terms) != found.total or off in slips() or off != 1000 or end >= 1000:
        sys.exit(f"question 3 says that a carry makes {BY_HAND:,} of the classifier's total, and it does not")
    return {
        "off": off,
        "below": max(size for size in slips() if size < off),
        "above": min(size for size in slips() if size > off),
        "sum": " + ".join(f"{term:,}" for term in terms),
        "end": " + ".join(str(term % 1000) for term in terms if term % 1000) + f" = {end}",
    }


# --- 4 and 5: the results ---------------------------------------------------------------------------------------------

BOOKS = {"cls-books-lab-last": "the lab's model", "cls-books-small": "`small`"}
BUDGETS, OBJECTIVES = "cls-books-budgets", "objectives"
ARMS = {"full": "pretrained", "scratch": "from scratch", "tfidf": "TF-IDF"}
OBJECTIVE_ARMS = {
    "full:causal": "causal",
    "full:masked": "masked",
    "full:both": "with next sentence",
    "scratch": "from scratch",
    "tfidf": "TF-IDF",
}
ALPHA = 0.05  # as in a verdict


@dataclass(frozen=True)
class Study:
    """A comparison, as docs/results has it."""

    name: str
    found: Mapping[str, Any]

    def score(self, arm: str) -> Any:
        """On test with all labels, as a number or with its interval; None where there is no such arm."""
        return next((row["test"] for row in self.found["rows"] if row["arm"] == arm), None)

    def accuracy(self, arm: str) -> str:
        score = self.score(arm)
        if score is None:
            known = ", ".join(row["arm"] for row in self.found["rows"])
            sys.exit(f"docs/results/{self.name}.json: docs/questions.md tells of the arm {arm!r}, and it has {known}")
        return f"{number(score):.3f}"

    def difference(self, one: str, other: str) -> Mapping[str, Any] | None:
        """The first minus the other, whichever way round it is there; None where it is not."""
        for each in self.found["differences"]:
            if (each["arm"], each["reference"]) == (one, other):
                return dict(each)
            if (each["arm"], each["reference"]) == (other, one):
                return {**each, "value": -each["value"], "low": -each["high"], "high": -each["low"]}
        return None

    def points(self, one: str, other: str) -> str:
        apart = self.difference(one, other)
        return "" if apart is None else results.points(apart)

    def tell(self, one: str, other: str, *, better: str, worse: str, unknown: str, not_significant: str) -> str:
        """The one of four sentences that the difference between two arms allows, with its numbers."""
        apart = self.difference(one, other)
        if apart is None:
            return f"{unknown} (of the difference no interval is known)."
        value, low, high = (results.signed(apart[name]) for name in ("value", "low", "high"))
        numbers = f"{value} points, 95 % interval {low} to {high}"
        if apart["low"] <= 0 <= apart["high"]:
            return f"{unknown} ({numbers})."
        if apart.get("holm", 0.0) >= ALPHA:
            return f"{not_significant}: the difference is not significant after Holm's correction ({numbers})."
        return f"{better if apart['value'] > 0 else worse} ({numbers})."

    @property
    def seeds(self) -> int:
        return max(len(row.get("seeds", [])) for row in self.found["rows"])

    @property
    def budgets(self) -> list[int]:
        """Numbers of labels, few first; empty where all were given and nothing else was tried."""
        return list(self.found["budgets"])

    def curve(self, arm: str) -> list[Any]:
        """Its scores by the number of labels."""
        return [self.found["curves"][arm][str(labels)] for labels in self.budgets]

    def picture(self, arms: Mapping[str, str]) -> str:
        return pictures.labels(self.budgets, {name: [*map(number, self.curve(arm))] for arm, name in arms.items()})

    def by_labels(self, arms: Mapping[str, str]) -> dict[str, list[str]]:
        """The columns of a table: the names of the arms, and their scores with so many labels."""
        scores = [self.curve(arm) for arm in arms] if self.budgets else [[self.score(arm)] for arm in arms]
        titles = [f"{labels:,}" for labels in self.budgets] or ["all"]
        cells = ([results.score(score) for score in column] for column in zip(*scores, strict=True))
        return {"labels": list(arms.values()), **dict(zip(titles, cells, strict=True))}


def number(score: Any) -> float:
    """
    >>> number(0.75), number({"value": 0.75, "low": 0.7, "high": 0.8})
    (0.75, 0.75)
    """
    return float(score["value"] if isinstance(score, Mapping) else score)


def studies() -> dict[str, Study]:
    """Those of docs/results that are told of here and are there."""
    paths = {name: results.RESULTS / f"{name}.json" for name in (*BOOKS, BUDGETS, OBJECTIVES)}
    return {name: Study(name, read_json(path)) for name, path in paths.items() if path.is_file()}


def pretraining(study: Study, model: str) -> tuple[str, str]:
    """Question 4 of one model: what pretraining did, and what a linear model does."""
    before, after, linear = map(study.accuracy, ("scratch", "full", "tfidf"))
    helped = study.tell(
        "full",
        "scratch",
        better=f"Pretraining helped {model}: test accuracy rose from {before} to {after}",
        worse=f"Pretraining hurt {model}: test accuracy fell from {before} to {after}",
        unknown=f"Whether pretraining helped {model} cannot be told: test accuracy is {before} without it, "
        f"{after} with it",
        not_significant=f"Test accuracy of {model} is {before} without pretraining and {after} with it",
    )
    beside = f"a linear model on word counts, which reaches {linear}"
    against = study.tell(
        "full",
        "tfidf",
        better=f"The pretrained model is better than {beside}",
        worse=f"The pretrained model is worse than {beside}",
        unknown=f"Whether the pretrained model is better than {beside}, cannot be told",
        not_significant=f"The pretrained model reaches {after}, a linear model on word counts {linear}",
    )
    return helped, against


def books_table(books: Mapping[str, Study]) -> str:
    """A column for each model: its arms, and how far they are apart."""
    arms = {
        "scratch": "from scratch",
        "frozen": "pretrained, the head alone trained",
        "full": "pretrained, all trained",
        "full+tfidf": "the same together with TF-IDF",
        "tfidf": "TF-IDF and logistic regression",
        "majority": "commonest class",
    }
    apart = {
        ("full", "scratch"): "all trained − scratch, points",
        ("frozen", "scratch"): "head alone − scratch, points",
        ("full", "tfidf"): "all trained − TF-IDF, points",
    }
    arms = {arm: name for arm, name in arms.items() if any(study.score(arm) for study in books.values())}
    columns = {"": [*arms.values(), *apart.values(), "seeds"]}
    for model, study in books.items():
        scores = (results.score(study.score(arm)) for arm in arms)
        columns[model] = [*scores, *(study.points(*pair) for pair in apart), str(study.seeds)]
    return results.markdown(columns)


def budgets_table(study: Study) -> str:
    columns = study.by_labels(ARMS)
    columns["labels"].append("pretrained − from scratch, points")
    for labels, full, scratch in zip(study.budgets, study.curve("full"), study.curve("scratch"), strict=True):
        columns[f"{labels:,}"].append(results.signed(number(full) - number(scratch)))
    return results.markdown(columns)


def objectives_table(study: Study) -> str:
    columns = study.by_labels(OBJECTIVE_ARMS)
    columns[f"with {list(columns)[-1]}, minus scratch, points"] = [
        study.points(arm, "scratch") for arm in OBJECTIVE_ARMS
    ]
    return results.markdown(columns)


def objectives(study: Study) -> tuple[str, str]:
    """Question 5: masked against causal, and masked with next sentence against masked alone."""
    causal, masked, both = map(study.accuracy, ("full:causal", "full:masked", "full:both"))
    better = study.tell(
        "full:masked",
        "full:causal",
        better=f"Masked is the better objective: test accuracy is {masked}, and {causal} after causal pretraining",
        worse=f"Masked is the worse objective: test accuracy is {masked}, and {causal} after causal pretraining",
        unknown=f"Whether masked or causal is better cannot be told: test accuracy is {masked} after masked "
        f"pretraining, {causal} after causal",
        not_significant=f"Test accuracy is {masked} after masked pretraining and {causal} after causal",
    )
    further = study.tell(
        "full:both",
        "full:masked",
        better=f"Next sentence adds to masked: {both} with it, {masked} without",
        worse=f"Next sentence takes away from masked: {both} with it, {masked} without",
        unknown=f"Whether next sentence adds anything to masked cannot be told: {both} with it, {masked} without",
        not_significant=f"With next sentence masked reaches {both}, without it {masked}",
    )
    return better, further


# --- the page ---------------------------------------------------------------------------------------------------------


def files() -> dict[str, str]:
    """The page and its pictures, by their paths below docs/."""
    found, measured = json.loads(FOUND.read_text(encoding="utf-8")), studies()
    models = found["language_models"]
    looks = [(title, models[name]["look"]) for title, name in LOOKS.items()]
    drawn = {
        "mask": pictures.mask(found["sentence"], looks),
        "positions": pictures.positions(),
        "losses": pictures.losses(found["points"], {SHORT[name]: models[name]["curve"] for name in models}),
        **curves(measured),
    }
    return {"questions.md": page(found, measured), **{f"images/{name}.svg": text for name, text in drawn.items()}}


def curves(measured: Mapping[str, Study]) -> dict[str, str]:
    """The pictures of accuracy by the number of labels."""
    asked = {BUDGETS: ("labels", ARMS), OBJECTIVES: ("objectives-by-labels", OBJECTIVE_ARMS)}
    return {
        picture: measured[name].picture(arms)
        for name, (picture, arms) in asked.items()
        if name in measured and measured[name].budgets
    }


SHORT = {
    "mask, positions": "mask, positions",
    "mask, no positions": "no positions",
    "no mask, positions": "no mask",
    "no mask, no positions": "neither",
}
LOOKS = {"trained with it": "mask, positions", "trained without it": "no mask, positions"}


def page(found: Mapping[str, Any], measured: Mapping[str, Study]) -> str:
    untrue = [claim for claim, true in claims(found).items() if not true]
    if untrue:
        sys.exit("tools/questions.jinja says what docs/experiments.json does not show: " + "; ".join(untrue))
    place = jinja2.FileSystemLoader(Path(__file__).parent)
    made = jinja2.Environment(loader=place, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"n": lambda number: f"{number:,}"}
    counted = counts()
    books = {model: measured[name] for name, model in BOOKS.items() if name in measured}
    text = made.get_template("questions.jinja").render(
        **found,
        arms=experiments.ARMS,
        prompt=experiments.PROMPT,
        temperature=experiments.DRAWN.temperature,
        training=len(experiments.examples("train", None).rows),
        nothing=math.log(found["size"]["pieces"]),
        worst=math.ceil(100 * max(by_shuffling(found))),
        turned=max(each["turned"] for each in found["classifiers"].values()),
        refusal=refusal(),
        swap=swap(),
        vocabulary=preset("lab").vocabulary,
        count=counted,
        attention=next(block for block in counted["classifier"].blocks if block.name == "attention"),
        slip=slip(),
        books=books,
        pretraining=[pretraining(study, model) for model, study in books.items()],
        books_table=books_table(books),
        budgets=measured.get(BUDGETS),
        budgets_table=budgets_table,
        objectives=measured.get(OBJECTIVES),
        told=objectives,
        objectives_table=objectives_table,
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def claims(found: Mapping[str, Any]) -> dict[str, bool]:
    """What the template says in words about the findings, and whether they show it."""
    models, judges = found["language_models"], found["classifiers"]
    good, blind = models["mask, positions"], models["no mask, positions"]
    order, bag = models["mask, no positions"], models["no mask, no positions"]
    nothing = math.log(found["size"]["pieces"])
    same = judges["no mask, no positions"]
    return {
        "without the mask the loss falls to almost nothing": max(blind["loss"], blind["unseen"]) < 0.05,
        "and where the answer is hidden it is worse than knowing nothing": blind["hidden"] > nothing,
        "with the mask it is the same whether the answer is there or not": abs(good["hidden"] - good["unseen"]) < 0.15,
        "without the mask a head looks at the next piece": blind["share"] > 0.5 and good["share"] == 0.0,
        "without it the text is of few words": len(set(blind["text"].split())) <= 3 < len(set(good["text"].split())),
        "neither mask nor positions: nothing moves": (same["most"], same["turned"]) == (0.0, 0),
        "all others move": all(each["most"] > 0.05 for each in judges.values() if each is not same),
        "no accuracy moves by much": max(by_shuffling(found)) < 0.05,
        "the mask without positions does worse than with them": order["unseen"] > good["unseen"],
        "a bag of words cheats, and does not copy": blind["unseen"] + 0.5 < bag["unseen"] < order["unseen"],
    }


def by_shuffling(found: Mapping[str, Any]) -> list[float]:
    """By how much the accuracy of each classifier moves when words are shuffled."""
    return [abs(each["accuracy"] - each["shuffled"]) for each in found["classifiers"].values()]


def refusal() -> str:
    """What headstart says to a next-token head without a mask."""
    try:
        Model.empty(preset("lab", direction="bidirectional"), NEXT_TOKEN)
    except ModelError as error:
        return str(error)
    sys.exit("question 1 says that a next-token head on a bidirectional backbone is refused, and it is not")


# --- the command ------------------------------------------------------------------------------------------------------


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Where two findings say different things; a number may be off by what the page does not show."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            yield from differences(old[key], new[key], f"{where}/{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for k, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{where}/{k}")
    elif isinstance(old, float) and isinstance(new, float):
        if abs(old - new) > 0.005:
            yield f"{where}: {old} and {new}"
    elif old != new:
        yield f"{where}: {old!r} and {new!r}"


def main() -> None:
    found = experiments.measure(experiments.Size())
    if "--check" in sys.argv:
        other = list(differences(json.loads(FOUND.read_text(encoding="utf-8")), json.loads(json.dumps(found))))
        sys.exit("\n".join(["docs/experiments.json says otherwise:", *other]) if other else 0)
    FOUND.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    for name, text in files().items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
