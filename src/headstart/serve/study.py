"""A comparison that is served: one text, and what each arm says of it.

    study = ServedStudy("debat", read_arms(Path("out/debat")), OpenModels("cpu", 4 << 30))
    # POST /compare {"text": "Baisser les taxes.", "budget": 600}
    # {"model": "debat", "budget": 600, "arms": [{"name": "full", "label": "taxes", "words": […], …}, …]}

A model is opened when it is first asked, and kept; beyond a number of bytes, the one that was asked the longest ago is
given up. Only the worker thread of the service asks.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headstart.errors import ConfigError, HeadstartError, TokenizerError, did_you_mean
from headstart.reading.examples import Text
from headstart.serve.limits import ApiError
from headstart.serve.study_arms import StudyArm, StudyArms, StudyExample, disagreements, read_arms
from headstart.training.hardware import pick_device
from headstart.use.classifier import TextClassifier
from headstart.use.explain import explain
from headstart.use.explanation import Word
from headstart.use.linear_classifier import LinearClassifier
from headstart.use.linear_words import linear_words

LOG = logging.getLogger(__name__)


class ArmModel(Protocol):
    def answer(self, text: Text, *, words: bool) -> dict[str, Any]:
        """`label` and `probabilities`; with `words`, their weights too, and how many tokens were cut off."""
        ...


@dataclass(frozen=True)
class NetworkModel:
    classifier: TextClassifier

    def answer(self, text: Text, *, words: bool) -> dict[str, Any]:
        if not words:
            return asdict(self.classifier.predict([text])[0])
        explained = explain(self.classifier, text, orders=0).to_json()
        return {name: explained[name] for name in ("label", "probabilities", "words", "cut")}


@dataclass(frozen=True)
class TfidfModel:
    classifier: LinearClassifier

    def answer(self, text: Text, *, words: bool) -> dict[str, Any]:
        [prediction] = self.classifier.predict([text])
        answer = asdict(prediction)
        if words:
            weighted = linear_words(self.classifier.model, text, prediction.best)
            answer |= {"words": [_as_json(word) for word in weighted], "cut": 0}
        return answer


def _as_json(word: Word) -> dict[str, Any]:
    """As /explain has it."""
    return {**asdict(word), "weight": round(word.weight, 5)}


class OpenModels:
    """The models that are open, by their run folders; the one that was asked last is the last."""

    def __init__(self, device: str, memory: int) -> None:
        self.device, self.memory = device, memory
        self._open: OrderedDict[Path, tuple[ArmModel, int]] = OrderedDict()

    def get(self, arm: StudyArm) -> ArmModel:
        if arm.run not in self._open:
            size = arm.bytes
            while self._open and self.size + size > self.memory:
                self._open.popitem(last=False)
            self._open[arm.run] = (self._load(arm), size)
        self._open.move_to_end(arm.run)
        return self._open[arm.run][0]

    @property
    def size(self) -> int:
        """Bytes of weights that are open."""
        return sum(size for _, size in self._open.values())

    def _load(self, arm: StudyArm) -> ArmModel:
        if arm.is_linear:
            return TfidfModel(LinearClassifier.load(arm.run))
        return NetworkModel(TextClassifier.load(arm.run, self.device))


@dataclass(frozen=True, eq=False)
class ServedStudy:
    """A comparison by its name."""

    name: str
    study: StudyArms
    models: OpenModels
    examples: Mapping[int, tuple[StudyExample, ...]] = field(default_factory=dict)  # by budget

    def select(self, budget: int | None, arm: str | None) -> list[StudyArm]:
        """The arms with a budget, by default the largest; or the one that is named."""
        budgets = self.study.budgets
        if budget is not None and budget not in budgets:
            known = ", ".join(map(str, budgets))
            raise ApiError(404, "no_budget", f"no arm learned from {budget} labels: {known} there are", field="budget")
        arms = self.study.of_budget(budgets[-1] if budget is None else budget)
        if arm is None:
            return arms
        chosen = [each for each in arms if each.name == arm]
        if not chosen:
            hint = did_you_mean(arm[:60], [each.name for each in arms])
            raise ApiError(404, "no_arm", f"no arm is called {arm[:60]!r}: {hint}", field="arm")
        return chosen

    def compare(self, arms: list[StudyArm], text: Text, *, words: bool) -> Iterator[dict[str, Any]]:
        """One arm a step; the last yields the answer of /compare."""
        answers: list[dict[str, Any]] = []
        for arm in arms:
            answers.append({**_described(arm), **self._answer(arm, text, words=words)})
            yield {"model": self.name, "budget": arm.budget, "arms": answers}

    def _answer(self, arm: StudyArm, text: Text, *, words: bool) -> dict[str, Any]:
        """An arm that cannot answer says so; the others are not held up by it."""
        try:
            return self.models.get(arm).answer(text, words=words)
        except (ConfigError, TokenizerError) as error:
            return {"error": str(error)}
        except (HeadstartError, OSError) as error:  # a model that is damaged or gone; its path is not for clients
            LOG.error("%s could not answer: %s", arm.run_title, error)
        except Exception:
            LOG.exception("%s could not answer", arm.run_title)
        return {"error": "this arm could not answer: the output of the service says why"}

    def info(self) -> dict[str, Any]:
        study = self.study
        examples = {
            str(budget): [{"text": _listed(each.text), "label": each.label} for each in own]
            for budget, own in self.examples.items()
        }
        return {
            "name": self.name,
            "kind": "study",
            "title": study.title or f"{self.name}: a comparison that is not finished",
            "labels": list(study.class_names),
            "budgets": list(study.budgets),
            "arms": [{**_described(arm), "budget": arm.budget} for arm in study.arms],
            "missing": [asdict(each) for each in study.missing],
            "examples": examples,
        }


def open_study(
    name: str, folder: Path, device: str, memory: int, given: tuple[str, ...] | None = None, *, local: bool = True
) -> ServedStudy:
    """A folder that `headstart compare` wrote, finished or not, with the examples that are given.

    Else they are texts of valid that the arms disagree on, where only this machine can see them (`local`).
    """
    study = read_arms(folder)
    examples = {}
    for budget in study.budgets:
        own = disagreements(study.of_budget(budget)) if given is None and local else ()
        examples[budget] = own or tuple(StudyExample(text, None) for text in given or ())
    return ServedStudy(name, study, OpenModels(str(pick_device(device)), memory), examples)


def _described(arm: StudyArm) -> dict[str, Any]:
    accuracy = None if arm.accuracy is None else asdict(arm.accuracy)
    return {"name": arm.name, "mode": arm.mode, "title": arm.title, "run": arm.run_title, "accuracy": accuracy}


def _listed(text: Text) -> str | list[str]:
    return text if isinstance(text, str) else list(text)
