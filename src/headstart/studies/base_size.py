"""How large a model to pretrain, and how long: what fits the device, the text and the time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from headstart.store.store import Store
from headstart.studies.pretrain import measure_speed
from headstart.studies.settings import PretrainSettings

WINDOW = 256
TOKENS_A_WEIGHT = 20  # a model that sees fewer for each weight of its layers would do better if it were smaller
PASSES = 10  # over the text, at most
STEPS = 1000  # at least so many, before batches grow
SMALLEST_BATCH, LARGEST_BATCH = 8, 256  # in windows
SAVE_SECONDS = 30.0  # between checkpoints: what a kill loses at most


@dataclass(frozen=True)
class Size:
    """A `small` model of another width and depth; its heads are 64 wide."""

    width: int
    layers: int
    feed_forward: int

    @property
    def change(self) -> tuple[str, ...]:
        values = {**vars(self), "heads": self.width // 64}
        return tuple(f"{name}={value}" for name, value in values.items())

    @property
    def weights(self) -> int:
        """Of the layers, which is what a token has to pass."""
        return self.layers * self.width * (4 * self.width + 3 * self.feed_forward)


SIZES = (
    Size(128, 2, 344),
    Size(192, 3, 512),
    Size(256, 4, 688),
    Size(384, 6, 1024),
    Size(512, 8, 1368),
    Size(768, 12, 2048),
)


def choose_size(settings: PretrainSettings, store: Store, seconds: float) -> PretrainSettings:
    """The settings with the largest size that sees enough tokens in the time there is; at worst, the smallest."""
    until, least = time.monotonic() + seconds, seconds / 2  # what is measured takes time too; half is left in any case
    most = PASSES * store.counts["train"].tokens
    chosen: PretrainSettings | None = None
    for size in SIZES:
        if chosen is not None and most < TOKENS_A_WEIGHT * size.weights:
            break  # the text is too short for it, however fast it is
        candidate = replace(settings, change=size.change)
        speed = measure_speed(candidate, store)
        tokens = min(most, speed * max(until - time.monotonic(), least))
        if chosen is not None and tokens < TOKENS_A_WEIGHT * size.weights:
            break
        chosen = _with_length(candidate, tokens, speed)
    assert chosen is not None
    return chosen


def _with_length(settings: PretrainSettings, tokens: float, speed: float) -> PretrainSettings:
    """So many tokens, in small batches until there are enough steps; checkpoints by the clock."""
    windows = max(tokens / WINDOW / STEPS, 1)
    batch = min(max(2 ** int(math.log2(windows)), SMALLEST_BATCH), LARGEST_BATCH)
    return replace(
        settings,
        batch_size=batch,
        steps=max(round(tokens / (batch * WINDOW)), 1),
        save_every=max(round(SAVE_SECONDS * speed / (batch * WINDOW)), 1),
    )
