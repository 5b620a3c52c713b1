"""What was made of a pile of text: pile.json, beside the tokens of the base that was pretrained on it.

STUDY/yours/          the base: the run folder of its pretraining, which `--init STUDY/yours` starts from elsewhere
STUDY/yours-tokens/   what it was pretrained on
  text.jsonl          the documents of the pile, without those that hold a text of valid or test
  pile.json           what was read, left out and chosen, and what it cost
  tokenizer/ store/   trained on text.jsonl; text.jsonl encoded
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headstart.files import write_json
from headstart.runs.records import read_record

YOURS = "yours"  # the name of the base, and of its folder in the study
TOKENS = f"{YOURS}-tokens"
PILE = "pile.json"


@dataclass(frozen=True)
class Pile:
    """pile.json. What is not known yet is None: a command that was killed goes on with what is."""

    files: Mapping[str, int]  # their names and sizes in bytes
    held_out: str  # a digest of the texts of valid and test, which no document may hold
    documents: int  # that were kept
    left_out: int  # documents that hold a text of valid or test
    bytes: int  # of the documents that were kept
    seconds: float  # so far: reading, tokenizer, store; in the end, pretraining too
    tokens: int | None = None
    tokens_per_byte: float | None = None  # of the pile
    labelled_tokens_per_byte: float | None = None  # of the labelled texts, by the tokenizer of the pile
    pretraining: Mapping[str, Any] = field(default_factory=dict)  # its settings, chosen once
    parameters: int | None = None
    steps: int | None = None  # None until the base is pretrained

    @property
    def done(self) -> bool:
        return self.steps is not None

    def write(self, study: Path) -> None:
        write_json(study / TOKENS / PILE, {"format": 1, **asdict(self)})


def read_pile(study: Path) -> Pile | None:
    """The pile of a study; None where it has none, or none was read to its end yet."""
    path = study / TOKENS / PILE
    if not path.is_file():
        return None
    return read_record(path, lambda values: Pile(**{name: values[name] for name in values if name != "format"}))
