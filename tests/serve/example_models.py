"""Small models to serve: a trained classifier, an untrained one, a causal language model; and a running service."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from headstart.checkpoints.folder import Checkpoint, save
from headstart.config import ClassifierConfig, NextTokenConfig
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.serve.limits import Limits
from headstart.serve.models import Served
from headstart.serve.server import Server, open_socket
from headstart.tokenizers.tokenizer import Tokenizer
from tests.studies.example_data import BAD, GOOD

SIZES = {"width": 32, "layers": 2, "heads": 2, "feed_forward": 48, "window": 32}


def save_classifier(folder: Path, tokenizer: Tokenizer, labels: tuple[str, ...] = ("neg", "pos")) -> Path:
    """Random weights, but for the words of opinion: they lie along the axis that the head looks at, so it is right."""
    torch.manual_seed(7)
    model = Model.build(preset("small", vocabulary=tokenizer.size, **SIZES), ClassifierConfig(len(labels), pool="mean"))
    axis = torch.zeros(SIZES["width"])
    axis[:2] = torch.tensor([1.0, -1.0])  # of mean 0, so that a norm leaves it where it is
    with torch.no_grad():
        model.state_dict()["head.out.weight"][0] = -axis
        model.state_dict()["head.out.weight"][-1] = axis
        for words, sign in ((GOOD, 1.0), (BAD, -1.0)):
            for token in (token for word in words for token in tokenizer.encode(word)):
                model.state_dict()["backbone.embeddings.tokens.weight"][token] = sign * axis
    save(Checkpoint(model, labels, tokenizer, temperature=1.5), folder)
    return folder


def save_language_model(folder: Path, tokenizer: Tokenizer) -> Path:
    torch.manual_seed(5)
    config = preset("small", vocabulary=tokenizer.size, direction="causal", **SIZES)
    save(Checkpoint(Model.build(config, NextTokenConfig()), tokenizer=tokenizer), folder)
    return folder


@contextmanager
def in_a_thread(models: Sequence[Served], limits: Limits, token: str | None = None) -> Iterator[tuple[Server, str]]:
    """The server on a free port of loopback, in a thread of this process, and its address."""
    server = Server(models, limits, token)
    with open_socket("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.handle_exit(signal.SIGTERM, None)
            thread.join()


@dataclass(frozen=True)
class Service:
    """A service in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    url: str

    def end(self, sig: int = signal.SIGTERM) -> int:
        self.process.send_signal(sig)
        return self.process.wait(60)


@contextmanager
def running(*arguments: str, descriptors: int = 1024, before: str = "") -> Iterator[Service]:
    """`headstart serve` on a free port of loopback, up to the end of the block.

    It has so many file descriptors; `before` is Python that runs first.
    """
    limit = f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors}))\n"
    script = limit + before + "from headstart.cli.serve import *\nimport typer\ntyper.run(serve_command)"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+:(\d+)/", line)
        assert found is not None, (line, process.communicate(timeout=30))
        yield Service(process, int(found[1]), f"http://127.0.0.1:{found[1]}")
    finally:
        process.kill()
        process.communicate()
