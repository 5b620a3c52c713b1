"""How the settings of an arm were chosen: what was tried, how it scored on held-out texts, what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Tried:
    """One combination of settings and how it did."""

    settings: Mapping[str, Any]
    accuracy: float | None  # on the held-out texts; None where every fold failed
    loss: float | None
    rows: int  # held-out texts that it was scored on
    seconds: float
    error: str | None = None


@dataclass(frozen=True)
class ArmTuning:
    """The search for the settings of one arm."""

    chosen: Mapping[str, Any]
    tried: tuple[Tried, ...]  # in the order in which they were tried
    seconds: float  # that the search took
    as_good: int | None = None  # of those tried besides, how many are not significantly worse than the chosen one
    notes: tuple[str, ...] = ()  # what a reader should know: a range that grew, trials that diverged, time that was up
    improving: bool = False  # more epochs than were tried would probably raise its accuracy

    @property
    def best(self) -> Tried | None:
        """The entry of the chosen settings; of several, the one that was scored on the most texts.

        Where all trials were shorter than the runs, it is the one that differs in its epochs alone.
        """
        entries = [each for each in self.tried if each.settings == self.chosen]
        if not entries and "epochs" in self.chosen:
            entries = [each for each in self.tried if {**each.settings, "epochs": self.chosen["epochs"]} == self.chosen]
        return max(entries, key=lambda each: each.rows, default=None)

    @property
    def failed(self) -> bool:
        """Whether every trial ended in an error, so that nothing could be chosen."""
        return bool(self.tried) and all(each.error for each in self.tried)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "tried": [asdict(each) for each in self.tried], "notes": list(self.notes)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ArmTuning:
        tried = tuple(Tried(**each) for each in values["tried"])
        return cls(**{**values, "tried": tried, "notes": tuple(values.get("notes", ()))})
