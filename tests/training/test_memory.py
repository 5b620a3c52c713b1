"""Memory that training frees on a CPU: kept while it runs, and given back."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
import torch

from headstart.training import memory
from headstart.training.memory import keep_freed_memory

CPU = torch.device("cpu")
SIZE = 100  # MB of a tensor, more than malloc keeps by itself

PROGRAM = r"""
import re, torch
from pathlib import Path
from headstart.training.memory import keep_freed_memory

def resident():
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1000

def after_freeing():
    tensor = torch.ones(25_000_000)  # 100 MB
    del tensor
    return resident()

start = resident()
without = after_freeing() - start
with keep_freed_memory(torch.device("cpu")):
    within = after_freeing() - start
ended = resident() - start
again = after_freeing() - start
print(without, within, ended, again)
"""


@pytest.mark.skipif(memory._glibc() is None, reason="this system's C library is not glibc")
def test_what_is_freed_stays_with_the_process_until_the_block_ends() -> None:
    printed = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    without, within, ended, again = map(float, printed.split())
    assert without < 0.5 * SIZE
    assert within > 0.9 * SIZE
    assert ended < 0.5 * SIZE
    assert again < 0.5 * SIZE


def test_it_does_nothing_on_a_gpu_and_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    with keep_freed_memory(torch.device("meta")):
        pass
    memory._glibc.cache_clear()

    def none(name: None) -> ctypes.CDLL:
        raise OSError("there is no C library")

    with monkeypatch.context() as patched:
        patched.setattr(ctypes, "CDLL", none)
        with keep_freed_memory(CPU):
            assert memory._glibc() is None
    memory._glibc.cache_clear()
