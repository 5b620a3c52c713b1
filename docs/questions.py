"""docs/questions.md: five questions of a course on transfer learning, answered by code that runs.

    python docs/questions.py           trains small models (minutes), writes docs/experiments.json, page and pictures
    python docs/questions.py --check   trains them again, and fails where docs/experiments.json says otherwise

Question 1 is answered by experiments.py, which trains; its findings are kept in docs/experiments.json. Questions 2
and 3 are computed here on the lab's model, 4 and 5 quoted from docs/results.md. So the page is made of its template
(questions.jinja), these findings, those results and the package, in seconds: `make docs` does it, and `make check`
fails where it is stale.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import experiments
import jinja2
import pictures
import torch
from torch import Tensor

from headstart.config import Classifier, HeadConfig, NextToken
from headstart.errors import ModelError
from headstart.model.count import Count, count, count_tensors
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.model.presets import preset

DOCS = Path(__file__).parent
FOUND = DOCS / "experiments.json"
NEXT_TOKEN, TWO_CLASSES = NextToken(), Classifier(classes=2, pool="last")


# --- 2: the head ------------------------------------------------------------------------------------------------------


@cache
def swap() -> dict[str, Any]:
    """Swap the head of the lab's language model, train the classifier one step, and see what stayed."""
    torch.manual_seed(0)
    before = Model.build(preset("lab"), NEXT_TOKEN).eval()
    after = before.with_head(TWO_CLASSES)
    ids, layout = torch.tensor([11, 12, 13, 14, 15, 16, 17]), Flat.of([4, 3])  # two texts, of four pieces and of three
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
    if not count_tensors(Model.hollow(preset("lab"), head)).agrees(found):
        sys.exit(f"the formula and the tensors of the lab's model with a {head.kind} head disagree")
    return found


def slips() -> set[int]:
    """By how much a total is off where one tensor is forgotten or counted twice, in one layer or in every one.

    Queries, keys and values lie in one tensor here; by hand they are three.
    """
    found: set[int] = set()
    config = preset("lab")
    for name, tensor in Model.hollow(config, TWO_CLASSES).named_parameters():
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


@dataclass(frozen=True)
class Section:
    """A part of docs/results.md: its heading, its first table as rows of cells, and what is said below that table."""

    heading: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    said: tuple[str, ...]
    table: str  # as it stands

    def column(self, name: str) -> int:
        if name not in self.header:
            sys.exit(f"docs/results.md, {self.heading!r}: no column {name!r} among {', '.join(self.header)}")
        return self.header.index(name)

    @property
    def link(self) -> str:
        """As GitHub makes it of a heading."""
        return "results.md#" + re.sub(r"[^\w\- ]", "", self.heading.lower()).replace(" ", "-")


def section(page: str, heading: str) -> Section | None:
    """The first section whose heading matches, up to the next heading; None where there is none, or it has no table."""
    for part in re.split(r"^(?=#+ )", page, flags=re.MULTILINE):
        title, _, body = part.partition("\n")
        if not re.fullmatch(rf"#+ {heading}", title):
            continue
        table = re.search(r"(?:^\|.*\n)+", body, re.MULTILINE)
        if table is None:
            return None
        header, _, *rows = (tuple(cells(line)) for line in table[0].splitlines())
        said = (block.strip() for block in body[table.end() :].split("\n\n"))
        kept = tuple(block for block in said if block and not re.match(r"\d+\. |\||```", block))
        return Section(title.lstrip("# "), header, tuple(rows), kept, table[0].strip())
    return None


def cells(line: str) -> list[str]:
    """
    >>> cells("| lab, full (2) | 0.779 | |")
    ['lab, full (2)', '0.779', '']
    """
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@dataclass(frozen=True)
class Pair:
    """An architecture, from scratch and pretrained."""

    model: str
    base: str  # what it was pretrained to do
    scratch: float
    frozen: float | None
    full: float

    @property
    def gain(self) -> float:
        """In points."""
        return round(100 * (self.full - self.scratch), 1)


def pairs(found: Section) -> list[Pair]:
    """Rows that belong together: `lab, from scratch (2)` and `lab, causal base, full (2)`, of one note."""
    numbers = dict(figures(found))
    rows = []
    for (name, note), value in numbers.items():
        match = re.fullmatch(r"(?P<model>.*?), (?P<base>.* base), full", name)
        scratch = match and numbers.get((f"{match['model']}, from scratch", note))
        if match and scratch:
            frozen = numbers.get((f"{match['model']}, {match['base']}, frozen", note))
            rows.append(Pair(match["model"], match["base"], scratch, frozen, value))
    if not rows:
        sys.exit(f"docs/results.md, {found.heading!r}: no `NAME, from scratch` with a `NAME, … base, full` of one note")
    return rows


def figures(found: Section) -> Iterator[tuple[tuple[str, str], float]]:
    """Names, notes and figures; of rows with a figure for each seed, or with none yet, there is no mean to quote."""
    at = found.column("test accuracy")
    for row in found.rows:
        name, note = re.fullmatch(r"(.*?)(?: \((\d+)\))?", row[0]).groups("")  # type: ignore[union-attr]
        if re.fullmatch(r"[01]\.\d+", row[at]):
            yield (name, note), float(row[at])


def budgets(found: Section) -> tuple[list[float], dict[str, list[float]]]:
    """The label budgets, and the accuracy of each arm with so many."""
    numbers = [float(cell.replace(",", "")) for cell in found.header[1:]]
    curves = {row[0]: [float(cell) for cell in row[1:]] for row in found.rows}
    if not {"full", "scratch"} <= curves.keys():
        sys.exit(f"docs/results.md, {found.heading!r}: no rows `full` and `scratch` among {', '.join(curves)}")
    return numbers, curves


def results(page: str) -> dict[str, Any]:
    """What questions 4 and 5 quote; the comparison of objectives is None until it is there."""
    books, labels = section(page, "cls-books"), section(page, "By the number of labels")
    if books is None or labels is None:
        sys.exit("docs/results.md: questions 4 and 5 quote the sections `cls-books` and `By the number of labels`")
    numbers, curves = budgets(labels)
    linear = [value for (name, _), value in figures(books) if name.startswith("TF-IDF")]
    gains = [round(100 * (a - b), 1) for a, b in zip(curves["full"], curves["scratch"], strict=True)]
    return {
        "books": books,
        "pairs": pairs(books),
        "linear": linear[0] if linear else None,
        "labels": labels,
        "budgets": numbers,
        "curves": curves,
        "gains": gains,
        "objectives": section(page, "[Cc]ausal.*masked.*"),
    }


# --- the page ---------------------------------------------------------------------------------------------------------


def files() -> dict[str, str]:
    """The page and its pictures, by their paths below docs/."""
    found = json.loads(FOUND.read_text(encoding="utf-8"))
    quoted = results((DOCS / "results.md").read_text(encoding="utf-8"))
    models = found["language_models"]
    looks = [(title, models[name]["look"]) for title, name in LOOKS.items()]
    return {
        "questions.md": page(found, quoted),
        "images/mask.svg": pictures.mask(found["sentence"], looks),
        "images/positions.svg": pictures.positions(),
        "images/losses.svg": pictures.losses(found["points"], {SHORT[name]: models[name]["curve"] for name in models}),
        "images/labels.svg": pictures.labels(quoted["budgets"], quoted["curves"]),
    }


SHORT = {
    "mask, positions": "mask, positions",
    "mask, no positions": "no positions",
    "no mask, positions": "no mask",
    "no mask, no positions": "neither",
}
LOOKS = {"trained with it": "mask, positions", "trained without it": "no mask, positions"}


def page(found: Mapping[str, Any], quoted: Mapping[str, Any]) -> str:
    untrue = [claim for claim, true in claims(found).items() if not true]
    if untrue:
        sys.exit("docs/questions.jinja says what docs/experiments.json does not show: " + "; ".join(untrue))
    place = jinja2.FileSystemLoader(DOCS)
    made = jinja2.Environment(loader=place, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"n": lambda number: f"{number:,}", "points": points}
    counted = counts()
    text = made.get_template("questions.jinja").render(
        **found,
        **quoted,
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
        answer=answer(quoted["pairs"], quoted["linear"]),
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
        Model.hollow(preset("lab", direction="bidirectional"), NEXT_TOKEN)
    except ModelError as error:
        return str(error)
    sys.exit("question 1 says that a next-token head on a bidirectional backbone is refused, and it is not")


def answer(pairs: Sequence[Pair], linear: float | None) -> str:
    """Question 4 in two sentences. Which differences can be told from chance is for the results to say."""
    moves = " and ".join(f"{pair.model} from {pair.scratch:.3f} to {pair.full:.3f}" for pair in pairs)
    beside = "" if linear is None else f" A linear model on word counts has {linear:.3f} without any of it."
    return f"Pretraining took {moves}.{beside}"


def points(gain: float) -> str:
    """
    >>> points(2.7), points(-0.4)
    ('+2.7', '−0.4')
    """
    return f"{gain:+.1f}".replace("-", "−")


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
