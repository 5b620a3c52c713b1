"""When to save a checkpoint, and when to stop because someone asked for it. All processes do so after the same step."""

from __future__ import annotations

import time

import torch

from headstart.parallel import Parallel
from headstart.training.settings import SavingSettings

LEAST_SECONDS = 30.0  # from one checkpoint to the next, where `save_every` says nothing: at the end of an epoch
MOST_SECONDS = 600.0  # and within an epoch, however long it is


class SaveSchedule:
    """Saves every `save_every` steps; or by the clock. `stop_requested` may be set at any time, from a signal too."""

    def __init__(self, settings: SavingSettings, parallel: Parallel, device: torch.device) -> None:
        self.every, self.parallel, self.device = settings.save_every, parallel, device
        self.stop_requested = False
        self.stopped = False  # all processes know of it
        self.saved_at = time.monotonic()
        self.seconds = 0.0  # since then, as all processes have it
        self._synced_at = -1  # the step

    def sync(self, step: int, *, may_wait: bool) -> bool:
        """Agree on whether to stop after this step, and on how long ago the last checkpoint is (the mean).

        Several processes talk only where they `may_wait`: where the GPU is waited for in any case. Once a step is
        enough.
        """
        seconds = time.monotonic() - self.saved_at
        if self.parallel.world_size == 1:
            self.stopped, self.seconds = self.stop_requested, seconds
        elif may_wait and self._synced_at != step:
            own = torch.tensor([float(self.stop_requested), seconds], device=self.device)
            requests, seconds = self.parallel.all_reduce(own).tolist()
            self.stopped, self.seconds, self._synced_at = requests > 0, seconds / self.parallel.world_size, step
        return self.stopped

    def is_due(self, *, every_due: bool, epoch_ended: bool, may_wait: bool, last: bool) -> bool:
        """Whether to save: `every_due` by the number of steps, `last` where nothing will follow."""
        if self.every is not None:
            return every_due or last
        return may_wait and self.seconds >= (LEAST_SECONDS if epoch_ended else MOST_SECONDS)

    def saved(self) -> None:
        self.saved_at = time.monotonic()
