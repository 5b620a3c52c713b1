from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import save_file
from tokenizers.models import WordLevel

from headstart import files
from headstart.errors import CheckpointError, DataError, OutputError
from headstart.files import locked, new_file, new_folder, read_json, read_text, write_json
from tests.full_disk import full_disk
from tokenizers import Tokenizer


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "out") as folder:
        (folder / "inside").mkdir()
        (folder / "inside" / "a.txt").write_text("a")
        assert not (tmp_path / "deep" / "out").exists()
    assert (tmp_path / "deep" / "out" / "inside" / "a.txt").read_text() == "a"
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["out"]


def test_an_interrupt_at_once_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(folder: Path) -> None:
        assert folder.is_dir()
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "_locked_folder", interrupt)
    with pytest.raises(KeyboardInterrupt), new_file(tmp_path / "out"):
        pass
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with new_folder(tmp_path / "out") as folder:
        (folder / "a").touch()
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["a"]


def test_a_file_takes_the_place_of_another(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("old")
    with new_file(tmp_path / "out") as file:
        file.write_text("new")
        assert (tmp_path / "out").read_text() == "old"
    assert (tmp_path / "out").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("make", [new_file, new_folder])
@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_what_fails_leaves_nothing(tmp_path: Path, make: type, error: BaseException) -> None:
    with pytest.raises(type(error)), make(tmp_path / "out") as unfinished:
        if make is new_folder:
            (unfinished / "half").write_text("half")
        else:
            unfinished.write_text("half")
        raise error
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No space left"), new_file(tmp_path / "out"):
        raise OSError(28, "No space left on device")
    assert not list(tmp_path.iterdir())


def save_tensors(path: Path) -> None:
    save_file({"w": torch.zeros(1000)}, path)


def save_tokenizer(path: Path) -> None:
    vocabulary = {f"word {i}": i for i in range(1000)}
    Tokenizer(WordLevel(vocabulary, unk_token="word 0")).save(str(path))


def save_table(path: Path) -> None:
    parquet.write_table(pa.table({"text": [str(i) for i in range(1000)]}), path)


def save_text(path: Path) -> None:
    path.write_text("a" * 2000, encoding="utf-8")


@pytest.mark.parametrize("save", [save_tensors, save_tokenizer, save_table, save_text])
def test_a_full_disk_is_the_same_error_whichever_library_writes(tmp_path: Path, save: Callable[[Path], None]) -> None:
    said = r"cannot write .*out: .*File too large; nothing was left"
    with full_disk(room=1000), pytest.raises(OutputError, match=said), new_folder(tmp_path / "out") as folder:
        save(folder / "file")
    assert not list(tmp_path.iterdir())


def test_the_name_that_was_asked_for_is_in_the_error(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(OutputError) as caught, new_folder(tmp_path / "out") as folder:
        write_json(folder / "config.json", {})
    assert str(caught.value) == f"cannot write {tmp_path}/out/config.json: File too large; nothing was left there"


def test_a_lock_is_one_on_a_full_disk_too(tmp_path: Path) -> None:
    with full_disk(), locked(tmp_path / ".lock") as ours, locked(tmp_path / ".lock") as theirs:
        assert (ours, theirs) == (True, False)


def test_an_error_of_another_kind_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such model"), new_folder(tmp_path / "out"):
        raise CheckpointError("no such model (os error 2)")


def test_what_is_there_is_not_harmed(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis").touch()
    with pytest.raises(OutputError, match="not empty"), new_folder(tmp_path / "full"):
        pass
    with pytest.raises(OutputError, match="is a folder"), new_file(tmp_path / "full"):
        pass
    with pytest.raises(OutputError, match="is a file"), new_folder(tmp_path / "full" / "thesis"):
        pass
    assert (tmp_path / "full" / "thesis").exists()


@pytest.mark.parametrize("make", [new_file, new_folder])
def test_a_place_that_cannot_be(tmp_path: Path, make: type) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(OutputError, match="cannot write"), make(path):
            pass
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


# Files that are read whole


def test_a_pipe_or_a_device_is_no_file_of_settings(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("pipe.json", "zero.json"):
        with pytest.raises(DataError, match="a FIFO or a device, expected a regular file"):
            read_json(tmp_path / name)


def test_a_file_of_settings_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE", 20)
    (tmp_path / "a.json").write_text('{"width": 1234567}\n\n\n')
    with pytest.raises(DataError, match="larger than 20 B, the most that is read"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"width": 1234567}\r\n')
    assert read_json(tmp_path / "a.json") == {"width": 1234567}
    assert read_text(tmp_path / "a.json") == '{"width": 1234567}\n'


@pytest.mark.parametrize("make", [new_file, new_folder])
def test_what_a_killed_process_left_is_removed_and_what_another_writes_is_not(tmp_path: Path, make: type) -> None:
    left = tmp_path / ".out.unfinished-abc"
    left.mkdir()
    (left / "out").write_text("half of it")
    other = tmp_path / ".output.unfinished-abc"
    other.mkdir()
    with make(tmp_path / "out") as first:
        assert not left.exists() and other.exists()
        with make(tmp_path / "out") as second:
            assert first.parent.exists() and second.parent != first.parent
            if make is new_file:
                second.write_text("whole")
        if make is new_file:
            first.write_text("whole")
        else:
            (tmp_path / "out").rmdir()
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, "out"]
