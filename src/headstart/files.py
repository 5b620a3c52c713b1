"""Files and folders that are either whole or not there: written under a temporary name, then renamed.

And locks, for what only one process may write at a time.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, BytesIO, TextIOWrapper
from pathlib import Path
from typing import IO, Any, Literal

from headstart.errors import DataError, HeadstartError, OutputError
from headstart.wording import reason, size

try:
    import fcntl
except ImportError:  # not on Windows: there, two commands on one folder are not kept apart
    fcntl = None  # type: ignore[assignment]

MAX_WHOLE = 1 << 28  # bytes of a file of settings, results or a vocabulary
UNFINISHED = ".unfinished-"  # in the name of what is still being written
LOCK = ".lock"  # in a folder that one process at a time may write


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A folder to fill, which takes the name `path` only when the block ends well; else nothing is left.

    `path` may exist only as an empty folder.
    """
    path = Path(path)
    with writing(path):
        if path.is_dir() and any(path.iterdir()):
            raise OutputError(f"{path} exists and is not empty: name another folder, or remove this one")
        if path.exists() and not path.is_dir():
            raise OutputError(f"{path} is a file, and a folder was meant: name another")
        with _unfinished(path) as unfinished:
            unfinished.mkdir()
            yield unfinished
            for file in unfinished.rglob("*"):
                if file.is_file():
                    _sync(file)
            if path.is_dir():
                path.rmdir()
            unfinished.rename(path)
        _sync(path.parent)


@contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """A file to write, which takes the name `path`, in place of what had it, only when the block ends well."""
    path = Path(path)
    with writing(path):
        if path.is_dir():
            raise OutputError(f"{path} is a folder, and a file was meant: name another")
        with _unfinished(path) as unfinished:
            yield unfinished
            _sync(unfinished)
            unfinished.replace(path)
        _sync(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """A text file, whole or not there."""
    with new_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def open_regular(path: Path) -> BufferedReader:
    """A file to read, which must be a regular one: a FIFO may never have a writer, and a device may never end."""
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 (`Path.open` takes no opener)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is a FIFO or a device, expected a regular file")
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # not on Windows, where no FIFO has a name in a folder


def read_whole(path: Path) -> bytes:
    """The bytes of a file that is held in memory as a whole; an OSError where it is no file, or too large for that."""
    with open_regular(path) as file:
        content = file.read(MAX_WHOLE + 1)
    if len(content) > MAX_WHOLE:
        raise OSError(errno.EFBIG, f"it is larger than {size(MAX_WHOLE)}, the most that is read of such a file")
    return content


def read_text(path: Path) -> str:
    """The same as text."""
    return TextIOWrapper(BytesIO(read_whole(path)), encoding="utf-8").read()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        value = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(path, f"it cannot be read as JSON: {reason(error)}") from None
    if not isinstance(value, dict):
        raise DataError(path, f"it holds a {type(value).__name__}, and an object was expected")
    return value


def write_json(path: str | Path, value: Any) -> None:
    """A JSON file that a person can read, whole or not there."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def holds_something(folder: Path) -> bool:
    """Whether a folder has anything in it, but for a lock, and what a writer that was killed left unfinished."""
    return any(path.name != LOCK and UNFINISHED not in path.name for path in folder.iterdir())


def remove_unfinished(folder: Path) -> None:
    """Remove what a writer that was killed left in a folder which nobody else writes."""
    for path in folder.glob(f".*{UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A full disk, a forbidden folder, a name that is too long: in words."""
    try:
        yield
    except HeadstartError:
        raise
    except Exception as error:
        problem = system_error(error)
        if problem is None:
            raise
        shown = Path(*(part for part in path.parts if UNFINISHED not in part))  # a file in a folder that is unfinished
        raise OutputError(f"cannot write {shown}: {problem}; nothing was left there") from None


def system_error(error: Exception) -> str | None:
    """What the operating system said went wrong; None where the error is of another kind.

    Libraries written in Rust have errors of their own for it.

    >>> system_error(Exception("Error while serializing: I/O error: No space left on device (os error 28)"))
    'No space left on device'
    """
    if isinstance(error, OSError):
        return error.strerror or str(error)
    found = re.search(r"\(os error (\d+)\)$", str(error))
    return os.strerror(int(found[1])) if found else None


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Whether the lock that a file stands for is ours, to the end of the block; the file says whose it is.

    The lock is the operating system's: it is gone the moment its process is, however that ended. Hosts that share a
    file system share its locks, if it has any; one that has none keeps nobody apart.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab", buffering=0)
    with file:
        ours = _lock(file)
        if ours:
            with suppress(OSError):  # on a full disk it is a lock all the same
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield ours


def _lock(file: IO[bytes]) -> bool:
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """A place beside `path` for something of that name, gone afterwards if it is still there.

    It is locked while its process lives: what one that was killed left of the same name can be told, and is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}{UNFINISHED}"
    for left in path.parent.glob(f"{glob.escape(prefix)}*"):
        with _locked_folder(left) as state:
            if state == "ours":
                shutil.rmtree(left, ignore_errors=True)
    while True:
        holder = (
            path.parent / f"{prefix}{secrets.token_hex(8)}"
        )  # named before it is made: a signal may come in between
        try:
            holder.mkdir(mode=0o700)
            with _locked_folder(holder) as state:
                if state == "taken" or not holder.exists():  # by another process, which took it for one that was left
                    continue
                yield holder / path.name
                return
        finally:
            shutil.rmtree(holder, ignore_errors=True)


@contextmanager
def _locked_folder(folder: Path) -> Iterator[Literal["ours", "taken", "no locks"]]:
    """Whose a folder is, to the end of the block."""
    handle = None
    state: Literal["ours", "taken", "no locks"] = "ours"
    try:
        handle = os.open(folder, os.O_RDONLY)
        if fcntl is None:
            state = "no locks"
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):
        state = "taken"
    except OSError:  # a file system without locks
        state = "no locks"
    try:
        yield state
    finally:
        if handle is not None:
            os.close(handle)


def _sync(path: Path) -> None:
    """Make sure that what was written survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
