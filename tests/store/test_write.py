"""Writing: the same bytes whatever happens on the way, and a clear error for what cannot go on."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headstart.errors import ConfigError, DataError, HeadstartError, TokenizerError
from headstart.store import plan, writer
from headstart.store.encoder import Encoder
from headstart.store.plan import id_type
from headstart.store.store import FILES, Counts, Ids, Store
from headstart.store.write import write_store
from headstart.store.writer import Progress
from headstart.tokenizers.tokenizer import Tokenizer
from tests.full_disk import full_disk
from tests.store.example_corpora import contents, made_texts, write_corpus


def interrupt_after(chunks: int) -> Callable[[Progress], None]:
    """Ctrl-C when so many chunks are on the disk."""
    left = [chunks]

    def count(progress: Progress) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    return count


def begin(corpus: Path, tokenizer: Tokenizer, out: Path, chunks: int, **options: Any) -> None:
    """Leave a store half-written."""
    with pytest.raises(KeyboardInterrupt):
        write_store([corpus], tokenizer, out, workers=1, on_progress=interrupt_after(chunks), **options)


# What a store holds


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(1, "uint8"), (256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32"), (250_002, "uint32")],
)
def test_ids_take_the_smallest_type_that_fits(size: int, dtype: str) -> None:
    assert id_type(size) == dtype
    assert np.array(size - 1).astype(dtype) == size - 1


def test_files_of_several_forms_in_the_order_given(tmp_path: Path, bpe: Tokenizer) -> None:
    second = tmp_path / "b.jsonl"
    second.write_text('{"body": "two", "text": "no"}\n{"body": "three", "text": "no"}\n')
    first = tmp_path / "c.txt"
    first.write_text("one\nstill one\n\nmore\n")
    store = write_store([first], bpe, tmp_path / "blocks", valid=0, workers=1, blank_lines=True)
    assert [bpe.decode(store.split("train")[i]) for i in range(2)] == ["one\nstill one", "more"]
    store = write_store([second, first], bpe, tmp_path / "both", valid=0, workers=1, column="body")
    assert bpe.decode(store.split("train").ids) == "twothreeonestill onemore"


# The same bytes


def test_the_number_of_workers_changes_nothing(
    tmp_path: Path, corpus: Path, tokenizer: Tokenizer, small_chunks: None
) -> None:
    for workers in (1, 2, 3):
        write_store([corpus], tokenizer, tmp_path / str(workers), valid=0.1, workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "3")


KILLED = """
import sys
from headstart.store import plan, write, writer
from headstart.tokenizers.tokenizer import Tokenizer
plan.CHUNK = 4000
corpus, folder, out, workers = sys.argv[1:]
write.write_store([corpus], Tokenizer.load(folder), out, valid=0.1, workers=int(workers), skip_bad=True)
"""


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_file_that_counts_several_times(tmp_path: Path, bpe: Tokenizer) -> None:
    for name, text in (("reviews", "a fine book"), ("speeches", "the session is open")):
        (tmp_path / f"{name}.txt").write_text(f"{text}\n", encoding="utf-8")
    files = [tmp_path / "reviews.txt", tmp_path / "speeches.txt"]
    once, store, path = (
        write_store(files, bpe, tmp_path / out, valid=0.0, workers=1, repeat=repeat)
        for out, repeat in (("once", None), ("store", {"reviews.txt": 3}), ("path", {str(files[0]): 3}))
    )
    documents = store.split("train")
    assert [bpe.decode(documents[k].tolist()) for k in range(len(documents))] == [
        *["a fine book"] * 3,
        "the session is open",
    ]
    assert len(once.split("train")) == 2
    assert path.manifest == store.manifest
    with pytest.raises(DataError, match="other input files"):
        write_store(files, bpe, tmp_path / "store", valid=0.0, workers=1)
    for wrong, words in (({"review.txt": 2}, "did you mean 'reviews.txt'"), ({"reviews.txt": 0}, "once at least")):
        with pytest.raises(ConfigError, match=words):
            write_store(files, bpe, tmp_path / "wrong", workers=1, repeat=wrong)
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_again_and_again_it_ends_with_the_same_bytes(tmp_path: Path, bpe: Tokenizer, workers: int) -> None:
    corpus = write_corpus(tmp_path / "corpus.txt", made_texts(4000, seed=2))
    with corpus.open("ab") as file:
        file.write(b"bad \xff\n")
    bpe.save(tmp_path / "tokenizer")
    out = tmp_path / "store"
    command = [sys.executable, "-c", KILLED, str(corpus), str(tmp_path / "tokenizer"), str(out), str(workers)]
    chance = random.Random(workers)
    finished = []
    for lines in [0, 0, *sorted(chance.sample(range(1, 120), 5))]:  # of some 180: twice while it starts, then midway
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        assert wait_for(lambda: process.poll() is not None or lines_in(out / "progress.log") >= lines)  # noqa: B023
        time.sleep(chance.random() * (0.02 if lines else 0.5))
        helpers = children(process.pid)
        process.kill()
        _, stderr = process.communicate()
        assert process.returncode == -signal.SIGKILL, stderr.decode()
        assert wait_for(lambda: not any(map(alive, helpers)))  # noqa: B023
        if out.exists():
            with pytest.raises(DataError, match=r"half-written|no token store"):
                Store.open(out)
        finished.append(lines_in(out / "progress.log"))
    assert finished[-1] > finished[2] > 0
    subprocess.run(command, check=True)

    write_store([corpus], bpe, tmp_path / "other", valid=0.1, workers=3 - workers, skip_bad=True)
    Store.open(out).verify()
    assert Store.open(out).manifest["left_out"]["count"] == 1
    assert contents(out) == contents(tmp_path / "other")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not true() and time.monotonic() < deadline:
        time.sleep(0.002)
    return true()


def test_no_moment_is_a_bad_one_to_stop_at(tmp_path: Path, bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop before the first step that writes, then before the second, and so on to the last."""
    monkeypatch.setattr(plan, "CHUNK", 1000)
    corpus = write_corpus(tmp_path / "corpus.txt", made_texts(20, seed=7))
    write_store([corpus], bpe, tmp_path / "whole", valid=0.3, workers=1)
    whole = contents(tmp_path / "whole")
    steps = [0]
    stop_at = [0]

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            steps[0] += 1
            if steps[0] == stop_at[0]:
                raise KeyboardInterrupt
            return step(*arguments, **options)

        return run

    for owner, name in [
        (writer._GrowingFile, "append"),
        (writer._GrowingFile, "sync"),
        (writer, "write_json"),
        (writer, "clear_unfinished"),
    ]:
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    monkeypatch.setattr(Path, "replace", counted(Path.replace))
    monkeypatch.setattr(Path, "unlink", counted(Path.unlink))
    for moment in range(1, 1000):
        out = tmp_path / str(moment)
        steps[0], stop_at[0] = 0, moment
        try:
            write_store([corpus], bpe, out, valid=0.3, workers=1)
        except KeyboardInterrupt:
            if (out / "store.json").exists():
                Store.open(out).verify()
            elif out.exists():
                with pytest.raises(DataError, match=r"half-written|no token store"):
                    Store.open(out)
            stop_at[0] = 0
            write_store([corpus], bpe, out, valid=0.3, workers=1)
            assert contents(out) == whole
        else:
            break
    assert 30 < moment < 1000
    assert contents(out) == whole


@pytest.mark.parametrize("chunks", [1, 2, 7, 14])
def test_interrupted_it_goes_on_and_encodes_nothing_twice(
    tmp_path: Path, corpus: Path, bpe: Tokenizer, small_chunks: None, monkeypatch: pytest.MonkeyPatch, chunks: int
) -> None:
    write_store([corpus], bpe, tmp_path / "whole", valid=0.2, workers=1)
    seen: list[Progress] = []
    begin(corpus, bpe, tmp_path / "store", chunks, valid=0.2)
    encoded: list[str] = []
    encode = Encoder.encode

    def noted(self: Encoder, texts: list[str]) -> tuple[Ids, Counts]:
        encoded.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(Encoder, "encode", noted)
    write_store([corpus], bpe, tmp_path / "store", valid=0.2, workers=1, on_progress=seen.append)
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")
    texts = made_texts(300, seed=1)
    assert 0 < seen[-1].kept == 300 - len(encoded)
    assert encoded == texts[seen[-1].kept :]
    assert seen[-1].documents == 300
    assert seen[-1].bytes == sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize("tear", [lambda log: log[:-1], lambda log: log[:-40], lambda log: log + b'{"text'])
def test_a_torn_line_does_not_spoil_those_written_after_it(
    tmp_path: Path, corpus: Path, bpe: Tokenizer, small_chunks: None, tear: Callable[[bytes], bytes]
) -> None:
    begin(corpus, bpe, tmp_path / "store", 4)
    log = tmp_path / "store" / "progress.log"
    log.write_bytes(tear(log.read_bytes()))
    begin(corpus, bpe, tmp_path / "store", 9)
    assert log.read_bytes().count(b"\n") == 9
    seen: list[Progress] = []
    write_store([corpus], bpe, tmp_path / "store", workers=1, on_progress=seen.append)
    assert seen[8].kept == seen[8].documents  # the ninth chunk was there, the tenth was not
    assert seen[9].kept < seen[9].documents
    write_store([corpus], bpe, tmp_path / "whole", workers=1)
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")


@given(name=st.sampled_from([*FILES, "progress.log"]), cut=st.floats(0, 1), flip=st.booleans(), tail=st.binary())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_to_a_half_written_store_is_mended(
    tmp_path_factory: pytest.TempPathFactory, bpe: Tokenizer, name: str, cut: float, flip: bool, tail: bytes
) -> None:
    """A machine that loses power can lose any part of what was written last."""
    folder = tmp_path_factory.mktemp("damage")
    corpus = write_corpus(folder / "corpus.txt", made_texts(100, seed=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "CHUNK", 1000)
        write_store([corpus], bpe, folder / "whole", valid=0.3, workers=1)
        begin(corpus, bpe, folder / "store", 8, valid=0.3)
        path = folder / "store" / name
        written = bytearray(path.read_bytes())
        place = int(cut * (len(written) - 1))
        if flip:
            written[place] ^= 1
        else:
            del written[place:]
        path.write_bytes(written + tail)
        write_store([corpus], bpe, folder / "store", valid=0.3, workers=1)
    assert contents(folder / "store") == contents(folder / "whole")


@pytest.mark.parametrize("change", ["a line in the middle", "a line at the end", "shorter", "another corpus"])
def test_a_corpus_changed_in_between_gives_its_own_store(
    tmp_path: Path, corpus: Path, bpe: Tokenizer, small_chunks: None, change: str
) -> None:
    begin(corpus, bpe, tmp_path / "store", 7)
    texts = made_texts(300, seed=1)
    texts = {
        "a line in the middle": [*texts[:60], "new", *texts[61:]],
        "a line at the end": [*texts, "new"],
        "shorter": texts[:40],
        "another corpus": made_texts(300, seed=9),
    }[change]
    write_corpus(corpus, texts)
    seen: list[Progress] = []
    write_store([corpus], bpe, tmp_path / "store", workers=1, on_progress=seen.append)
    write_store([corpus], bpe, tmp_path / "fresh", workers=1)
    assert contents(tmp_path / "store") == contents(tmp_path / "fresh")
    assert (seen[-1].kept == 0) == (change == "another corpus")


def test_a_mended_line_does_not_cost_what_came_before_it(
    tmp_path: Path, corpus: Path, bpe: Tokenizer, small_chunks: None
) -> None:
    lines = corpus.read_bytes().splitlines(keepends=True)
    corpus.write_bytes(b"".join([*lines[:250], b"bad \xff\n", *lines[250:]]))
    with pytest.raises(DataError, match="line 251"):
        write_store([corpus], bpe, tmp_path / "store", workers=1)
    seen: list[Progress] = []
    store = write_store([corpus], bpe, tmp_path / "store", workers=1, skip_bad=True, on_progress=seen.append)
    assert seen[-1].kept > 100
    assert store.manifest["left_out"]["count"] == 1


def test_what_is_left_out_is_counted_and_listed_alike(tmp_path: Path, bpe: Tokenizer, small_chunks: None) -> None:
    lines = [text.encode() for text in made_texts(300, seed=4)]
    for number in range(5, 300, 10):
        lines[number] = b"\xff"
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(b"\n".join(lines))
    for workers in (1, 2):
        write_store([corpus], bpe, tmp_path / str(workers), workers=workers, skip_bad=True)
    begin(corpus, bpe, tmp_path / "3", 5, skip_bad=True)
    write_store([corpus], bpe, tmp_path / "3", workers=1, skip_bad=True)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "3")
    store = Store.open(tmp_path / "1")
    left_out = store.manifest["left_out"]
    assert left_out["count"] == 30
    assert len(left_out["first"]) == 20
    assert [int(re.findall(r"line (\d+)", message)[0]) for message in left_out["first"]] == [*range(6, 206, 10)]
    assert sum(counts.documents for counts in store.counts.values()) == 270


# What is already there


def test_the_same_again_is_left_alone(tmp_path: Path, corpus: Path, bpe: Tokenizer) -> None:
    write_store([corpus], bpe, tmp_path / "store", workers=1)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").iterdir()}
    moved = tmp_path / "elsewhere" / "corpus.txt"
    moved.parent.mkdir()
    corpus.rename(moved)
    store = write_store([moved], bpe, tmp_path / "store", workers=1, on_progress=interrupt_after(1))
    assert store.counts == Store.open(tmp_path / "store").counts
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").iterdir()} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valid": 0.5}, "valid 0.01, here 0.5"),
        ({"blank_lines": True}, "other options for reading"),
        ({"skip_bad": True}, "other options for reading"),
    ],
)
def test_a_whole_store_of_other_options_is_refused(
    tmp_path: Path, corpus: Path, bpe: Tokenizer, options: dict[str, Any], message: str
) -> None:
    write_store([corpus], bpe, tmp_path / "store", workers=1)
    before = contents(tmp_path / "store")
    with pytest.raises(DataError, match=f"{message}.*another --out, or delete"):
        write_store([corpus], bpe, tmp_path / "store", workers=1, **options)
    assert contents(tmp_path / "store") == before


def test_a_whole_store_of_other_text_is_refused(tmp_path: Path, corpus: Path, bpe: Tokenizer) -> None:
    write_store([corpus], bpe, tmp_path / "store", workers=1)
    write_corpus(corpus, made_texts(300, seed=2))
    with pytest.raises(DataError, match="already holds a complete store made with other input files"):
        write_store([corpus], bpe, tmp_path / "store", workers=1)


def test_another_tokenizer_is_refused_by_both_names(
    tmp_path: Path, corpus: Path, bpe: Tokenizer, small_chunks: None
) -> None:
    other = Tokenizer.train(made_texts(50, seed=5), kind="bpe", size=300)
    names = f"{bpe.fingerprint}.*{other.fingerprint}"
    begin(corpus, bpe, tmp_path / "store", 3)
    with pytest.raises(DataError, match=f"half-written store made with tokenizer {names}"):
        write_store([corpus], other, tmp_path / "store", workers=1)
    write_store([corpus], bpe, tmp_path / "store", workers=1)
    with pytest.raises(DataError, match=f"complete store made with tokenizer {names}"):
        write_store([corpus], other, tmp_path / "store", workers=1)
    with pytest.raises(TokenizerError, match=names):
        Store.open(tmp_path / "store", other.fingerprint)
    assert Store.open(tmp_path / "store").tokenizer_fingerprint == bpe.fingerprint


def test_a_half_written_store_of_another_share_is_refused(
    tmp_path: Path, corpus: Path, bpe: Tokenizer, small_chunks: None
) -> None:
    begin(corpus, bpe, tmp_path / "store", 3, valid=0.1)
    with pytest.raises(DataError, match=r"half-written store made with valid 0\.1, here 0\.2"):
        write_store([corpus], bpe, tmp_path / "store", workers=1, valid=0.2)


def test_a_folder_with_something_else_is_refused(tmp_path: Path, corpus: Path, bpe: Tokenizer) -> None:
    bpe.save(tmp_path / "taken")
    with pytest.raises(DataError, match=r"something else \(tokenizer\.json\)"):
        write_store([corpus], bpe, tmp_path / "taken", workers=1)
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["tokenizer.json"]


def test_a_store_inside_the_folder_of_its_corpus(
    tmp_path: Path, corpus: Path, bpe: Tokenizer, small_chunks: None
) -> None:
    begin(tmp_path, bpe, tmp_path / "store", 3)
    seen: list[Progress] = []
    write_store([tmp_path], bpe, tmp_path / "store", workers=1, on_progress=seen.append)
    assert seen[-1].kept > 0
    assert seen[-1].documents == 300
    write_store([tmp_path], bpe, tmp_path / "store", workers=1)


def test_two_runs_on_one_folder_are_kept_apart(
    tmp_path: Path, corpus: Path, bpe: Tokenizer, small_chunks: None
) -> None:
    def again(progress: Progress) -> None:
        with pytest.raises(DataError, match="another run is writing this store"):
            write_store([corpus], bpe, tmp_path / "store", workers=1)

    write_store([corpus], bpe, tmp_path / "store", workers=1, on_progress=again)
    Store.open(tmp_path / "store").verify()


# What is refused on opening


def test_a_half_written_store_names_the_command_that_finishes_it(
    tmp_path: Path, corpus: Path, bpe: Tokenizer, small_chunks: None
) -> None:
    begin(corpus, bpe, tmp_path / "a store", 3, valid=0.1, skip_bad=True)
    with pytest.raises(DataError, match="half-written token store") as caught:
        Store.open(tmp_path / "a store")
    command = shlex.split(str(caught.value).partition("finish it with: ")[2])
    out = str(tmp_path / "a store")
    assert command == [
        *("headstart", "tokens", str(corpus), "--tokenizer", out, "--out", out, "--valid", "0.1", "--skip-bad")
    ]  # fmt: skip
    assert Tokenizer.load(out).fingerprint == bpe.fingerprint


# What goes wrong on the way


def test_no_document_at_all(tmp_path: Path, bpe: Tokenizer) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(b"\xff\n\xff\n")
    with pytest.raises(DataError, match=r"not one document(.|\n)*line 1(.|\n)*line 2"):
        write_store([corpus], bpe, tmp_path / "store", workers=1, skip_bad=True)
    corpus.write_bytes(b"")
    with pytest.raises(DataError, match="no text"):
        write_store([corpus], bpe, tmp_path / "store", workers=1)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("options", "message"), [({"valid": 1.5}, r"1\.5"), ({"valid": -1}, "-1"), ({"workers": 0}, "0")]
)
def test_settings_out_of_range(
    tmp_path: Path, corpus: Path, bpe: Tokenizer, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        write_store([corpus], bpe, tmp_path / "store", **options)


def test_a_full_disk_is_said_in_words_and_gone_on_from(
    tmp_path: Path, corpus: Path, bpe: Tokenizer, small_chunks: None
) -> None:
    write_store([corpus], bpe, tmp_path / "whole", workers=1)
    limit = (tmp_path / "whole" / "tokenizer.json").stat().st_size + 100
    assert limit < (tmp_path / "whole" / "train.ids").stat().st_size
    with (
        full_disk(limit),
        pytest.raises(HeadstartError, match=r"cannot be written: File too large.*goes on"),
    ):
        write_store([corpus], bpe, tmp_path / "store", workers=1)
    seen: list[Progress] = []
    write_store([corpus], bpe, tmp_path / "store", workers=1, on_progress=seen.append)
    assert seen[-1].kept > 0
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")


def test_a_folder_that_cannot_be_made(tmp_path: Path, corpus: Path, bpe: Tokenizer) -> None:
    with pytest.raises(HeadstartError, match=r"cannot be written: (Not a directory|File exists)"):
        write_store([corpus], bpe, corpus / "store", workers=1)
    with pytest.raises(HeadstartError, match=r"cannot be written: (Not a directory|File exists)"):
        write_store([corpus], bpe, corpus, workers=1)


def test_a_corpus_that_changes_while_it_is_read(
    tmp_path: Path, corpus: Path, bpe: Tokenizer, small_chunks: None
) -> None:
    with pytest.raises(DataError, match="changed while it was being read"):
        write_store([corpus], bpe, tmp_path / "store", workers=1, on_progress=lambda _: os.utime(corpus))
    with pytest.raises(DataError, match="half-written"):
        Store.open(tmp_path / "store")


def test_a_worker_that_dies(tmp_path: Path, bpe: Tokenizer, small_chunks: None) -> None:
    corpus = write_corpus(tmp_path / "corpus.txt", made_texts(2000, seed=6))

    def kill(progress: Progress) -> None:
        for child in multiprocessing.active_children():
            child.kill()

    with pytest.raises(HeadstartError, match="one of 2 worker processes ended unexpectedly"):
        write_store([corpus], bpe, tmp_path / "store", workers=2, on_progress=kill)


# Memory


def resident(pid: int) -> int:
    """Bytes that a process and its descendants hold now; pages they share are counted for each."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(map(resident, children(pid)))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_gigabytes_of_text_in_one_of_memory(tmp_path: Path, bpe: Tokenizer) -> None:
    chance = random.Random(0)
    blocks = ["\n".join(made_texts(40_000, seed=seed)) for seed in range(4)]
    corpus = tmp_path / "corpus.txt"
    with corpus.open("w", encoding="utf-8") as file:
        while file.tell() < 2_000_000_000:
            # New numbers and new words each time, so that there is always something to remember.
            file.write(f"{chance.random()} " + chance.choice(blocks).replace("5", f"{chance.randrange(10**6)}x") + "\n")
    bpe.save(tmp_path / "tokenizer")
    arguments = [str(corpus), str(tmp_path / "tokenizer"), str(tmp_path / "store"), "2"]
    script = KILLED.replace("plan.CHUNK = 4000", "")
    process = subprocess.Popen([sys.executable, "-c", script, *arguments])
    peak = 0
    while process.poll() is None:
        peak = max(peak, resident(process.pid))
        time.sleep(0.05)
    assert process.returncode == 0
    assert sum(counts.bytes for counts in Store.open(tmp_path / "store").counts.values()) > 1_900_000_000
    assert 0 < peak < 1_000_000_000
    shutil.rmtree(tmp_path)  # pytest keeps what the last runs made
