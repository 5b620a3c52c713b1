"""Two processes train what one does. They are really started, by torchrun, over gloo."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.estimates import moved, padded
from torch.distributed import DistStoreError, HashStore  # type: ignore[attr-defined]

from headstart.errors import ConfigError, TrainingError
from headstart.parallel import SINGLE
from headstart.training import parallel
from headstart.training.run_checkpoint import read_newest
from tests.training.processes import CASES, PROFILED, run
from tests.training.test_loop import classifier, make_loop

ROOT = Path(__file__).parents[2]
EXACT = ("copied", "averaged", "unfrozen", "few")  # the others sum in another order


class Held:
    """Refers to itself, as DDP and the loop do."""

    def __init__(self) -> None:
        self.itself = self


def fail_with(held: Held) -> None:
    raise TrainingError("out of memory")


def test_nothing_refers_to_the_process_group_any_more() -> None:
    """Its threads would be left when the interpreter exits, and abort it."""
    gone: list[bool] = []
    try:
        held = Held()
        weakref.finalize(held, gone.append, True)
        fail_with(held)
    except TrainingError as error:
        caught = error
    del held
    assert not gone
    parallel._let_go(caught)
    assert gone


def torchrun(*arguments: str, processes: int = 2, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every case in two processes, in one start."""
    out = tmp_path_factory.mktemp("processes") / "results.pt"
    run("copied", out.parent / "single", accumulate=2)  # a checkpoint of one process, for two to resume
    done = torchrun("-m", "tests.training.processes", str(out), *CASES)
    assert done.returncode == 0, done.stderr[-3000:]
    read: dict[str, Any] = torch.load(out, weights_only=False)
    return {**read, "folder": out.parent}


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """As each of the two has: more threads add up in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_learn_what_one_learns_in_twice_the_micro_batches(results: dict[str, Any], name: str) -> None:
    """The same stream of losses from the same seed, dropout and all; the weights, and how good they were."""
    micro_batches = CASES[name].get("accumulate", 1)
    single = run(name, shard=False, accumulate=2 * micro_batches)
    both = results[name]
    within = {"rel": 0, "abs": 0} if name in EXACT else {"rel": 1e-4, "abs": 1e-5}
    assert both["losses"] == pytest.approx(single["losses"], **within)
    assert both["gradients"] == pytest.approx(single["gradients"], rel=1e-4)
    assert both["best"] == pytest.approx(single["best"], rel=1e-4)
    for key, value in both["weights"].items():
        torch.testing.assert_close(value, single["weights"][key], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_a_run_goes_on_bit_for_bit(results: dict[str, Any], name: str) -> None:
    whole, resumed = results[name], results[f"{name}, resumed"]
    assert resumed["losses"] == whole["losses"][3:]
    assert all(torch.equal(value, whole["weights"][key]) for key, value in resumed["weights"].items())


def test_a_process_that_is_asked_to_stop_stops_all_after_the_same_step(results: dict[str, Any]) -> None:
    """They sync when they read their losses, every fourth step here, and never between."""
    assert results["stop"] == {"steps": [8, 8], "syncs": 2, "last": "Saved", "stopped": True}


def test_they_save_after_the_same_step_whatever_their_clocks_say(results: dict[str, Any]) -> None:
    one, other = results["save steps"]
    assert one == other
    assert len(one) == 2  # the last two of four epochs


@pytest.mark.parametrize("sharded", [False, True])
def test_bytes_moved_are_those_of_the_formula(results: dict[str, Any], sharded: bool) -> None:
    """docs/performance.md has it; nothing else is moved."""
    model = classifier(**PROFILED["all used"])
    assert results[f"all used, {sharded}"] == moved(model, 2, sharded=sharded)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_pooler_that_the_head_passes_by(results: dict[str, Any], sharded: bool) -> None:
    """Copied, who took part is agreed on, 4 bytes a tensor; sharded, its gradients are not there to be moved."""
    model = classifier(**PROFILED["pooler"])
    assert model.backbone.pooler is not None
    expected = moved(model, 2, sharded=sharded)
    if sharded:
        expected["reduce_scatter"] -= 4 * padded(model.backbone.pooler.parameters(), 2)
    else:
        expected["all_reduce"] += 4 * len(list(model.parameters()))
    assert results[f"pooler, {sharded}"] == expected


def test_each_process_writes_its_part_of_a_checkpoint(results: dict[str, Any]) -> None:
    [folder] = (results["folder"] / "sharded").iterdir()
    parts = {f"state-0000{rank}-of-00002.safetensors" for rank in (0, 1)}
    assert {path.name for path in folder.iterdir()} == {*parts, "state.json"}
    [folder] = (results["folder"] / "copied").iterdir()
    assert {path.name for path in folder.iterdir()} == {"state.safetensors", "state.json"}


def test_a_damaged_part_of_a_checkpoint_is_noticed(results: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(results["folder"] / "sharded", tmp_path / "sharded")
    [part] = (tmp_path / "sharded").glob("*/state-00001-of-00002.safetensors")
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(TrainingError, match=r"state-00001-of-00002\.safetensors is not the one it was written with"):
        read_newest(tmp_path / "sharded")


@pytest.mark.parametrize("name", ["copied", "sharded", "sharded, averaged"])
def test_what_two_processes_began_one_ends(results: dict[str, Any], name: str) -> None:
    """Whoever reads a checkpoint need not be as many as wrote it, nor hold the weights as they did."""
    single = run(name, results["folder"] / name, resume=True, shard=False)
    assert single["losses"] == pytest.approx(results[name]["losses"][3:], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("begun", ["single", "copied", "sharded"])
def test_two_processes_go_on_with_what_was_begun_otherwise(results: dict[str, Any], begun: str, shard: bool) -> None:
    resumed = results[f"{begun}, resumed with shard={shard}"]
    assert resumed["losses"] == pytest.approx(results["copied"]["losses"][3:], rel=1e-4, abs=1e-5)
    for key, value in resumed["weights"].items():
        torch.testing.assert_close(value, results["copied"]["weights"][key], rtol=0, atol=1e-4)


def test_processes_of_another_version_are_told_before_anything_is_written(results: dict[str, Any]) -> None:
    assert len(results["other version"]) == 2
    assert all("rank 1 has other code than rank 0" in said for said in results["other version"])
    assert not (results["folder"] / "other").exists()


def test_a_single_process_is_a_parallel_context_too() -> None:
    assert SINGLE.is_main and SINGLE.world_size == 1
    SINGLE.barrier()
    SINGLE.require_same("code", "1")
    assert (SINGLE.broadcast("a"), SINGLE.gather("a"), SINGLE.all_reduce(2)) == ("a", ["a"], 2)


def test_one_process_has_nobody_to_share_its_weights_with() -> None:
    with pytest.raises(ConfigError, match="this is one: start it by torchrun"):
        make_loop(shard=True)


# --- rendezvous ---


def prefixes_of(store: Any, size: int) -> list[str]:
    """The prefix that each process gets; the last rank comes first, and each a little later than the one before."""

    def join(rank: int) -> str:
        time.sleep(0.03 * (size - rank))
        return parallel._fresh_prefix(store, rank, size, 20.0)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(join, range(size)))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_processes_of_a_start_share_a_prefix_that_no_earlier_start_had(size: int) -> None:
    """In one store, as where torchrun restarts processes: what the earlier ones wrote is still there."""
    store = HashStore()
    starts = [prefixes_of(store, size) for _ in range(3)]
    assert all(len(set(prefixes)) == 1 for prefixes in starts)
    assert len({prefixes[0] for prefixes in starts}) == 3


def test_what_a_dead_process_wrote_is_no_answer() -> None:
    store = HashStore()
    for key, value in (("token 1", "dead"), ("answer 1", "dead gone"), ("confirmed 1", "gone")):
        store.set(key, value)
    first, second = prefixes_of(store, 2)
    assert first == second != "gone"


@pytest.mark.parametrize(("rank", "missing"), [(0, "rank 1, 2"), (1, "rank 0")])
def test_ranks_that_did_not_come_are_named(rank: int, missing: str) -> None:
    with pytest.raises(DistStoreError, match=f"^{missing} did not come$"):
        parallel._fresh_prefix(HashStore(), rank, 3, 0.05)
