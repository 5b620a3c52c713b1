"""A language model, from its folder to text.

base = LanguageModel.load("runs/base")
base.generate("Bonjour les", max_tokens=3)  # ' amis de la'
base.fill("Ce livre est [MASK].")[0].candidates[0].piece  # '▁bon'
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headstart.bases import find, no_such_model
from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.folder import Checkpoint
from headstart.errors import TokenizerError
from headstart.runs.run import Result, RunFolder
from headstart.use.fill import Filled, fill
from headstart.use.generate import Generated, Sampling, generate, stream


class LanguageModel:
    """A model and its tokenizer: a causal one continues text, a masked one fills gaps, causal+masked does both."""

    def __init__(self, checkpoint: Checkpoint, *, where: str = "this model") -> None:
        if checkpoint.tokenizer is None:
            raise TokenizerError(
                f"{where} holds a model and no tokenizer: put the tokenizer.json that it was trained with beside it"
            )
        self.model = checkpoint.model.eval()
        self.tokenizer = checkpoint.tokenizer
        self.result: Result | None = None

    @classmethod
    def load(cls, folder: str | Path) -> LanguageModel:
        """From a run folder, whose scores become `result`, a model folder, or the name of a base that ships."""
        path = find(folder)
        if not path.is_dir():
            raise no_such_model(folder)
        model = cls(open_model(path), where=str(folder))
        run = RunFolder(path)
        model.result = run.result() if run.done else None
        return model

    def generate(self, prompt: str, **sampling: Any) -> str:
        """What a causal model writes after a prompt; `sampling`: max_tokens, temperature, top_k, top_p, seed."""
        return generate(self.model, self.tokenizer, prompt, Sampling.from_mapping(sampling, "generate")).text

    def stream(self, prompt: str, *, cache: bool = True, **sampling: Any) -> Iterator[str | Generated]:
        """The same in pieces, as they come, and everything at the end."""
        settings = Sampling.from_mapping(sampling, "generate")
        return stream(self.model, self.tokenizer, prompt, settings, cache=cache)

    def fill(self, text: str, top: int = 5) -> list[Filled]:
        """The `top` likeliest tokens for each [MASK] of a text, by a masked model."""
        return fill(self.model, self.tokenizer, text, top)
