"""tools/attack: a short share of the campaign, and that it would see what it looks for."""

from __future__ import annotations

import importlib
import logging
import random
import signal
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOLS = Path(__file__).parents[1] / "tools"


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TOOLS)


def module(name: str) -> ModuleType:
    return importlib.import_module(f"attack.{name}")


@pytest.mark.parametrize(("name", "cases"), [("readers", 60), ("tokenizer", 40)])
def test_a_short_share_of_damaged_files(name: str, cases: int, tmp_path: Path) -> None:
    test = module(name)
    test.prepare(tmp_path)
    outcomes = [test.attack(tmp_path, number, random.Random(f"7/{number}")) for number in range(cases)]
    assert [outcome for outcome in outcomes if not outcome.good] == []
    assert {outcome.kind for outcome in outcomes} == {"answered", "refused"}


@pytest.mark.parametrize(("name", "cases"), [("checkpoints", 4), ("options", 12), ("studies", 12), ("bases", 12)])
def test_a_short_share_of_what_is_damaged_and_odd_options(name: str, cases: int, tmp_path: Path) -> None:
    test = module(name)
    test.prepare(tmp_path)
    outcomes = [test.attack(tmp_path, number, random.Random(f"7/{number}")) for number in range(cases)]
    assert [outcome for outcome in outcomes if not outcome.good] == []


def test_a_short_share_of_kills_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    verbs, kills, disks = module("verbs"), module("kills"), module("disks")
    monkeypatch.setattr(verbs, "VERBS", {name: verbs.VERBS[name] for name in ("finetune", "predict", "import")})

    def disturb(commands: Any, arguments: list[str], draw: random.Random, seconds: float) -> Any:
        return (kills._kill if draw.random() < 0.5 else disks._fill)(commands, arguments, draw, seconds)

    outcomes = verbs.run_verbs(6, 7, disturb)
    assert [outcome for outcome in outcomes if not outcome.good] == []
    assert "stopped, the same in the end" in {outcome.kind for outcome in outcomes}


def test_a_wrong_row_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = module("readers")
    path = tmp_path / "data.txt"
    path.write_text("pos ||| one\nneg ||| other\n")
    rows = [("pos", "one"), ("neg", "two")]
    with pytest.raises(module("cases").WrongAnswer, match="1 rows that were not written"):
        readers._read(path, rows, 0, skip=False, corpus=False)
    assert readers._read(path, rows, 1, skip=False, corpus=False) == "2 rows"


def test_an_arm_with_a_wrong_answer_and_a_traceback_in_the_log_are_seen() -> None:
    studies, wrong = module("studies"), module("cases").WrongAnswer
    arm = {"name": "full", "label": "pos", "probabilities": {"neg": 0.3, "pos": 0.7}}
    assert studies._check(arm) and not studies._check({"name": "full", "error": "damaged"})
    for odd in ({"label": "sea"}, {"probabilities": {"neg": 0.3, "pos": 0.6}}):
        with pytest.raises(wrong, match="full says"):
            studies._check({**arm, **odd})
    with pytest.raises(AssertionError, match="traceback in the log"), studies._no_tracebacks():
        try:
            raise KeyError("head")
        except KeyError:
            logging.getLogger("headstart.serve").exception("it could not answer")


def test_a_base_that_is_not_the_released_one_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attacked = module("bases")
    for package in ("released", "here"):
        (tmp_path / package / "base").mkdir(parents=True)
        (tmp_path / package / "base" / "config.json").write_text(package)
        (tmp_path / package / "SHA256SUMS").write_text("")
    monkeypatch.setattr(attacked.bases, "find", lambda name: tmp_path / "here" / name)
    with pytest.raises(module("cases").WrongAnswer, match=r"another config\.json"):
        attacked._use(tmp_path / "released")


def test_a_run_that_goes_on_otherwise_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = module("checkpoints")
    for name, content in (("run", b"a"), ("damaged", b"b")):
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "model" / "model.safetensors").write_bytes(content)
        (tmp_path / name / "predictions.parquet").write_bytes(b"the same")
    monkeypatch.setattr(checkpoints, "finetune", lambda *given, **more: None)
    with pytest.raises(module("cases").WrongAnswer, match="other bytes in model/model"):
        checkpoints._resume(tmp_path, tmp_path / "damaged")


@pytest.mark.parametrize(
    ("disturbed", "again", "found", "kind"),
    [
        ((-signal.SIGKILL, ""), (0, ""), {"a": 1}, "stopped, the same in the end"),
        ((0, ""), (0, ""), {"a": 1}, "answered"),
        ((2, "headstart: no room"), (0, ""), {"a": 1}, "stopped, the same in the end"),
        ((1, "Traceback (most recent call last)"), (0, ""), {"a": 1}, "traceback"),
        ((-signal.SIGABRT, ""), (0, ""), {"a": 1}, "crash"),
        ((-signal.SIGKILL, ""), (-signal.SIGALRM, ""), {"a": 1}, "hang"),
        ((-signal.SIGKILL, ""), (0, ""), {"a": 2}, "wrong answer"),
        ((-signal.SIGKILL, ""), (0, ""), {}, "lost"),
        ((-signal.SIGKILL, ""), (0, ""), {"a": 1, ".a.unfinished-x/a": 1}, "lost"),
    ],
)
def test_what_a_disturbed_command_left_is_judged(
    disturbed: tuple[int, str], again: tuple[int, str], found: dict[str, int], kind: str
) -> None:
    verbs = module("verbs")
    ended = [module("commands").Ended(code, said, 1.0) for code, said in (disturbed, again)]
    assert verbs.judge_disturbed("case 0", *ended, found, {"a": 1}).kind == kind


def test_of_two_processes_the_worse_is_judged() -> None:
    worst, ended = module("processes").worst, module("commands").Ended
    killed, aborted, refused, done = (ended(code, "", 1.0) for code in (-signal.SIGKILL, -signal.SIGABRT, 1, 0))
    assert worst([killed, aborted]) is worst([aborted, done]) is aborted
    assert worst([done, refused]) is refused and worst([killed, done]) is killed


def test_a_process_that_hangs_or_dies_is_an_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = module("cases")
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import json, os, signal, sys\n"
        "first = int(sys.argv[4])\n"
        "if first == 3:\n"
        "    os.abort()\n"
        "for number in range(first, 6):\n"
        "    if number == 2:\n"
        "        os.kill(os.getpid(), signal.SIGALRM)\n"
        "    print(json.dumps({'case': f'case {number}', 'kind': 'refused', 'detail': ''}), flush=True)\n"
    )
    monkeypatch.setattr(cases, "__file__", str(worker))
    kinds = [outcome.kind for outcome in cases.run_cases("readers", 6, seed=1)]
    assert kinds == ["refused", "refused", "hang", "crash", "refused", "refused"]


def test_the_campaign_fails_where_something_went_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main, cases = module("__main__"), module("cases")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- attack table -->\nold\n<!-- end attack table -->\nafter\n")
    monkeypatch.setattr(main, "PAGE", page)
    monkeypatch.setattr("sys.argv", ["attack", "readers", "--scale", "0.0002", "--write"])
    for last, code in (("refused", False), ("wrong answer", True)):
        given = [cases.Outcome("case 0", "answered"), cases.Outcome("case 1", last, "two rows")]
        monkeypatch.setattr(module("readers"), "run", lambda count, seed, given=given: given[:count])
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert ended.value.code == code
        assert ("two rows" in capsys.readouterr().out) == code
    written = page.read_text()
    assert written.startswith("before\n") and written.endswith("after\n") and "old" not in written
    assert "| damaged data files (`readers`) | 2 | 1 answered, **1 wrong answer** |" in written


def test_outcomes_of_the_service_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    main = module("__main__")
    found = Counter(
        {("ordinary request", "answered"): 5, ("silent", "held"): 2, ("ordinary request", "wrong answer"): 1}
    )
    monkeypatch.setattr(module("service"), "run", lambda *given: found)
    counts, failed = main.run("service", 8, 1)
    assert counts == {"answered": 5, "hostile, kept off": 2, "ordinary request: wrong answer": 1}
    assert failed == ["ordinary request: wrong answer"]
