"""The record of how an arm's settings were chosen."""

from __future__ import annotations

from headstart.runs.tuning import ArmTuning, Tried


def tried(rows: int, **settings: float) -> Tried:
    return Tried(settings, accuracy=0.5, loss=1.0, rows=rows, seconds=1.0)


def test_the_best_is_the_entry_of_the_chosen_settings_with_the_most_texts() -> None:
    entries = (tried(100, lr=1e-3, epochs=2), tried(100, lr=1e-3, epochs=4), tried(300, lr=1e-3, epochs=4))
    assert ArmTuning({"lr": 1e-3, "epochs": 4}, entries, 1.0).best is entries[2]


def test_where_no_trial_was_as_long_as_the_runs_it_is_the_shorter_one() -> None:
    entries = (tried(100, lr=1e-3, epochs=2), tried(100, lr=1e-2, epochs=2))
    assert ArmTuning({"lr": 1e-2, "epochs": 4}, entries, 1.0).best is entries[1]
    assert ArmTuning({"lr": 1e-1, "epochs": 4}, entries, 1.0).best is None


def test_it_is_read_as_it_was_written() -> None:
    record = ArmTuning({"lr": 1e-2}, (tried(10, lr=1e-2),), 3.0, 2, ("a note",), improving=True)
    assert ArmTuning.from_json(record.to_json()) == record
    older = {name: value for name, value in record.to_json().items() if name != "improving"}
    assert not ArmTuning.from_json(older).improving
