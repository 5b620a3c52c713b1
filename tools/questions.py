"""docs/questions.md: five questions of a course on transfer learning, answered by code that runs.

    python tools/questions.py           trains small models (minutes), writes docs/experiments.json, page and pictures
    python tools/questions.py --check   trains them again, and fails where docs/experiments.json says otherwise

Question 1 is answered by experiments.py, which trains; its measurements are kept in docs/experiments.json. Questions 2
and 3 are computed here on the lab's model, 4 and 5 come from the files in docs/results. The page is made of its
template (questions.jinja), these measurements, those files and the package, in seconds: `make docs` does it, and
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
from headstart.config import ClassifierConfig, HeadConfig, NextTokenConfig
from headstart.errors import ModelError
from headstart.files import read_json
from headstart.model.count import Count, count, count_tensors
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.model.presets import preset
from results import DOCS, Json

EXPERIMENTS = DOCS / "experiments.json"
NEXT_TOKEN, TWO_CLASSES = NextTokenConfig(), ClassifierConfig(classes=2, pool="last")


# --- 2: the head ------------------------------------------------------------------------------------------------------


@cache
def head_swap() -> dict[str, Any]:
    """Swap the head of the lab's language model, train the classifier for a step, and count what stayed the same."""
    torch.manual_seed(0)
    before = Model.build(preset("lab"), NEXT_TOKEN).eval()
    after = before.with_head(TWO_CLASSES)
    ids, layout = (
        torch.tensor([11, 12, 13, 14, 15, 16, 17]),
        Flat.from_lengths([4, 3]),
    )  # two texts
    original = {name: tensor.clone() for name, tensor in before.state_dict().items()}
    with torch.no_grad():
        hidden = [model.backbone(ids, layout) for model in (before, after)]
        logits = [model(ids, layout) for model in (before, after)]
    swap = {
        "hidden": shape(hidden[0]),
        "same_hidden": torch.equal(*hidden),
        "logits": [shape(tensor) for tensor in logits],
        "heads": [shapes(model) for model in (before, after)],
        "tensors": len(list(after.backbone.parameters())),
        "parameters": sum(p.numel() for p in after.backbone.parameters()),
        "unchanged": unchanged(after, original),
        "head_parameters": [sum(p.numel() for p in model.head.parameters()) for model in (before, after) if model.head],
    }
    frozen = before.with_head(TWO_CLASSES).freeze()
    train_step(frozen, ids, layout)
    swap["unchanged_frozen"] = unchanged(frozen, original)
    frozen.backbone.requires_grad_(True)
    train_step(after, ids, layout)
    swap["unchanged_full"] = unchanged(after, original)
    return swap


def train_step(model: Model, ids: Tensor, layout: Flat) -> None:
    """A step of training on two texts of two classes."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    (-model.train().log_probabilities(ids, layout)[[0, 1], [0, 1]].mean()).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def unchanged(model: Model, original: Mapping[str, Tensor]) -> int:
    """How many tensors of the backbone are bit for bit what they were."""
    parameters = model.backbone.named_parameters()
    return sum(torch.equal(tensor.detach(), original[f"backbone.{name}"]) for name, tensor in parameters)


def shape(tensor: Tensor) -> str:
    return " × ".join(f"{size:,}" for size in tensor.shape)


def shapes(model: Model) -> str:
    assert model.head is not None
    return ", ".join(f"{name.split('.')[-1]} {shape(tensor)}" for name, tensor in model.head.named_parameters())


# --- 3: the count -----------------------------------------------------------------------------------------------------


@cache
def parameters(head: HeadConfig) -> Count:
    """The lab's model by formula, block by block; the real tensors have to agree."""
    formula = count(preset("lab"), head)
    if not count_tensors(Model.empty(preset("lab"), head)).agrees(formula):
        sys.exit(f"the formula and the tensors of the lab's model with a {head.kind} head disagree")
    return formula


def single_mistakes() -> set[int]:
    """By how much a total is off where one tensor is forgotten or counted twice, in one layer or in every one.

    Queries, keys and values are one tensor here; by hand they are three.
    """
    sizes: set[int] = set()
    config = preset("lab")
    for name, tensor in Model.empty(config, TWO_CLASSES).named_parameters():
        ways = {tensor.numel(), tensor.numel() // 3} if ".qkv." in name else {tensor.numel()}
        sizes |= ways | ({size * config.layers for size in ways} if ".layers." in name else set())
    return sizes


BY_HAND = 10_969_602  # a total that is often given for the classifier


def mistake() -> dict[str, Any]:
    """How the total by hand is off: no single tensor is worth the difference, and a carry is."""
    formula = parameters(TWO_CLASSES)
    blocks = {block.name: block for block in formula.blocks}
    terms = [
        blocks["token embedding"].number,
        sum(block.number for block in formula.blocks if block.copies > 1),
        blocks["head: classifier"].number,
    ]
    off, end = BY_HAND - formula.total, sum(term % 1000 for term in terms)
    sizes = single_mistakes()
    if sum(terms) != formula.total or off in sizes or off != 1000 or end >= 1000:
        sys.exit(f"question 3 says that a carry makes {BY_HAND:,} of the classifier's total, and it does not")
    return {
        "off": off,
        "below": max(size for size in sizes if size < off),
        "above": min(size for size in sizes if size > off),
        "sum": " + ".join(f"{term:,}" for term in terms),
        "end": " + ".join(str(term % 1000) for term in terms if term % 1000) + f" = {end}",
    }


# --- 4 and 5: the results ---------------------------------------------------------------------------------------------

BOOKS = {"cls-books-lab-last": "the lab's model", "cls-books-small": "`small`"}
BUDGETS, OBJECTIVES = "cls-books-budgets", "objectives"
BUDGET_ARMS = {"full": "pretrained", "scratch": "from scratch", "tfidf": "TF-IDF"}
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
    content: Json

    def score(self, arm: str) -> Any:
        """On test with all labels, with its interval; None where there is no such arm."""
        return next((row["test"] for row in self.content["rows"] if row["arm"] == arm), None)

    def accuracy(self, arm: str) -> str:
        score = self.score(arm)
        if score is None:
            arms = ", ".join(row["arm"] for row in self.content["rows"])
            sys.exit(f"docs/results/{self.name}.json: docs/questions.md needs the arm {arm!r}, and it has {arms}")
        return f"{results.value(score):.3f}"

    def conclusion(self, one: str, other: str, *, better: str, worse: str, unclear: str, not_significant: str) -> str:
        """The one of four sentences that the difference between two arms allows, with its numbers."""
        difference = results.difference(self.content, one, other)
        if difference is None:
            return f"{unclear} (the study has no interval for the difference)."
        value, low, high = (results.signed(difference[name]) for name in ("value", "low", "high"))
        numbers = f"{value} points, 95 % interval {low} to {high}"
        if difference["low"] <= 0 <= difference["high"]:
            return f"{unclear} ({numbers})."
        if difference.get("holm", 0.0) >= ALPHA:
            return f"{not_significant}: the difference is not significant after Holm's correction ({numbers})."
        return f"{better if difference['value'] > 0 else worse} ({numbers})."

    @property
    def seeds(self) -> int:
        return max(len(row.get("seeds", [])) for row in self.content["rows"])

    @property
    def budgets(self) -> list[int]:
        """Numbers of labels, few first; empty where nothing but all of them was tried."""
        return list(self.content["budgets"])

    def curve(self, arm: str) -> list[float]:
        """Its accuracy by the number of labels."""
        return [results.value(score) for score in self.content["curves"][arm].values()]


def read_studies() -> dict[str, Study]:
    """Those files of docs/results that are there of the ones that the page is about."""
    paths = {name: results.RESULTS / f"{name}.json" for name in (*BOOKS, BUDGETS, OBJECTIVES)}
    return {name: Study(name, read_json(path)) for name, path in paths.items() if path.is_file()}


# --- the page ---------------------------------------------------------------------------------------------------------

SHORT_NAMES = dict(
    zip((arm.name for arm in experiments.ARMS), ("mask, positions", "no positions", "no mask", "neither"), strict=True)
)
ATTENTION_PANELS = {"trained with it": "mask, positions", "trained without it": "no mask, positions"}


def files() -> dict[str, str]:
    """The page and its pictures, by their paths from docs/."""
    measured, studies = json.loads(EXPERIMENTS.read_text(encoding="utf-8")), read_studies()
    models = measured["language_models"]
    panels = [(title, models[name]["attention"]) for title, name in ATTENTION_PANELS.items()]
    drawn = {
        "mask": pictures.mask(measured["sentence"], panels),
        "positions": pictures.positions(),
        "losses": pictures.losses(
            measured["curve_steps"], {short: models[name]["curve"] for name, short in SHORT_NAMES.items()}
        ),
    }
    by_budget = {BUDGETS: ("labels", BUDGET_ARMS), OBJECTIVES: ("objectives-by-labels", OBJECTIVE_ARMS)}
    for name, (file, arms) in by_budget.items():
        if name in studies:
            curves = {title: studies[name].curve(arm) for arm, title in arms.items()}
            drawn[file] = pictures.by_budget(studies[name].budgets, curves)
    return {"questions.md": page(measured, studies), **{f"images/{name}.svg": text for name, text in drawn.items()}}


def page(measured: Json, studies: Mapping[str, Study]) -> str:
    untrue = [claim for claim, true in claims(measured).items() if not true]
    if untrue:
        sys.exit("tools/questions.jinja says what docs/experiments.json does not show: " + "; ".join(untrue))
    options: dict[str, Any] = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), **options)
    environment.filters |= {"n": lambda number: f"{number:,}"}
    text = environment.get_template("questions.jinja").render(
        **measured,
        experiments=experiments,
        training_rows=len(experiments.examples("train", None).rows),
        uniform_loss=math.log(measured["settings"]["vocabulary"]),
        largest_change=math.ceil(100 * max(accuracy_changes(measured))),
        refusal=refusal(),
        swap=head_swap(),
        vocabulary=preset("lab").vocabulary,
        language_model=parameters(NEXT_TOKEN),
        classifier=parameters(TWO_CLASSES),
        mistake=mistake(),
        books={model: studies[name] for name, model in BOOKS.items() if name in studies},
        budgets=studies.get(BUDGETS),
        objectives=studies.get(OBJECTIVES),
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def claims(measured: Json) -> dict[str, bool]:
    """What the template says in words about the measurements, and whether they show it."""
    models, classifiers = measured["language_models"], measured["classifiers"]
    masked, unmasked = models["mask, positions"], models["no mask, positions"]
    no_positions, neither = models["mask, no positions"], models["no mask, no positions"]
    uniform_loss = math.log(measured["settings"]["vocabulary"])
    bag_of_words = classifiers["no mask, no positions"]
    return {
        "without the mask the loss falls to almost nothing": max(unmasked["train_loss"], unmasked["test_loss"]) < 0.05,
        "and on prefixes it is worse than a uniform guess": unmasked["prefix_loss"] > uniform_loss,
        "with the mask it is the same on prefixes": abs(masked["prefix_loss"] - masked["test_loss"]) < 0.15,
        "without the mask a head looks at the next token": unmasked["next_token_attention"] > 0.5,
        "with the mask no head does": masked["next_token_attention"] == 0.0,
        "without it the text is of few words": len(set(unmasked["text"].split()))
        <= 3
        < len(set(masked["text"].split())),
        "neither mask nor positions: no probability changes": bag_of_words["largest_shift"] == 0.0,
        "all others change": all(m["largest_shift"] > 0.05 for m in classifiers.values() if m is not bag_of_words),
        "no accuracy changes by much": max(accuracy_changes(measured)) < 0.05,
        "the mask without positions does worse than with them": no_positions["test_loss"] > masked["test_loss"],
        "without both it cheats": neither["test_loss"] < no_positions["test_loss"],
        "and does not copy": neither["test_loss"] > unmasked["test_loss"] + 0.5,
    }


def accuracy_changes(measured: Json) -> list[float]:
    """By how much the accuracy of each classifier changes when words are shuffled."""
    return [abs(model["accuracy"] - model["shuffled_accuracy"]) for model in measured["classifiers"].values()]


def refusal() -> str:
    """What headstart says to a next-token head without a mask."""
    try:
        Model.empty(preset("lab", direction="bidirectional"), NEXT_TOKEN)
    except ModelError as error:
        return str(error)
    sys.exit("question 1 says that a next-token head on a bidirectional backbone is refused, and it is not")


# --- the command ------------------------------------------------------------------------------------------------------


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Where two measurements differ; a number may be off by what the page does not show."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            yield from differences(old[key], new[key], f"{path}/{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for k, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{path}/{k}")
    elif isinstance(old, float) and isinstance(new, float):
        if abs(old - new) > 0.005:
            yield f"{path}: {old} and {new}"
    elif old != new:
        yield f"{path}: {old!r} and {new!r}"


def main() -> None:
    measured = experiments.measure(experiments.Settings())
    if "--check" in sys.argv:
        changed = list(differences(read_json(EXPERIMENTS), json.loads(json.dumps(measured))))
        sys.exit("\n".join(["docs/experiments.json says otherwise:", *changed]) if changed else 0)
    results.write(EXPERIMENTS, measured)
    for name, text in files().items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
