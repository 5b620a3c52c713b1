"""What several processes must be able to do that share the work on a text; a team of `torchrun`'s can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class Sharing(Protocol):
    """One of several processes, the first of which writes for all. All of them call a method at once."""

    @property
    def rank(self) -> int:
        """Which of them this is; the first is 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    def told(self, what: Any) -> Any:
        """What the first process says."""

    def gathered(self, mine: Any) -> list[Any]:
        """In the first process, what each has; nothing in the others."""


@dataclass(frozen=True)
class Alone:
    """A process by itself."""

    rank: int = 0
    size: int = 1

    def told(self, what: Any) -> Any:
        return what

    def gathered(self, mine: Any) -> list[Any]:
        return [mine]
