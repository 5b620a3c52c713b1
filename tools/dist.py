"""The files of a release, in dist/: wheel, sdist, a bill of materials (CycloneDX), and SHA256SUMS of the three.

    python tools/dist.py --out dist

What is built is the last commit, whatever else lies in the folder; its time is the time of everything in the archives,
so that the same commit gives the same bytes wherever and whenever it is built, by the same Python and setuptools.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from headstart.files import new_folder
from sbom import Release, bill

ROOT = Path(__file__).parents[1]
BACKEND = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def main() -> None:
    """Build into a folder that is new or empty."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    out = parser.parse_args().out
    if _git("status", "--porcelain"):
        print("dist: there are changes that are not committed; what is built is the last commit", file=sys.stderr)
    build(out)
    print((out / "SHA256SUMS").read_text(encoding="utf-8"), end="")


def build(out: Path) -> None:
    """Wheel, sdist, bill of materials and SHA256SUMS of the last commit."""
    time = int(_git("log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory() as scratch, new_folder(out) as folder:
        source = Path(scratch) / "source"
        _extract(_git("archive", "--format=tar", "HEAD"), source)
        _run_backend("build_sdist", source, folder, time)
        (sdist,) = folder.glob("*.tar.gz")
        sdist.write_bytes(without_traces(sdist.read_bytes(), time))
        _extract(gzip.decompress(sdist.read_bytes()), Path(scratch))  # the wheel is made of what the sdist has
        _run_backend("build_wheel", Path(scratch) / sdist.name.removesuffix(".tar.gz"), folder, time)
        project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        materials = bill(source, _release(project, time, folder))
        text = json.dumps(materials, indent=2, ensure_ascii=False) + "\n"
        (folder / f"{project['name']}-{project['version']}.cdx.json").write_text(text, encoding="utf-8")
        sums = "".join(f"{_digest(file)}  {file.name}\n" for file in sorted(folder.iterdir()))
        (folder / "SHA256SUMS").write_text(sums, encoding="utf-8")


def _release(project: dict[str, Any], time: int, folder: Path) -> Release:
    files = {file.name: _digest(file) for file in folder.iterdir()}
    name, version, description = project["name"], project["version"], project["description"]
    return Release(name, version, description, project["license"], time, files)


def _run_backend(hook: str, source: Path, out: Path, time: int) -> None:
    """Run one hook of setuptools, the one that is installed and locked, in a source tree."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time)}
    command = [sys.executable, "-I", "-c", BACKEND, hook, str(out.absolute())]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, umask=0o022)
    if done.returncode:
        raise SystemExit(f"dist: {hook} failed:\n{done.stdout}{done.stderr}")


def without_traces(archive: bytes, time: int) -> bytes:
    """An archive (.tar.gz) without what the machine put in: order, owners, times, permissions of the umask."""
    result = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as before,
        gzip.GzipFile("", "wb", fileobj=result, mtime=time) as packed,
        tarfile.open(fileobj=packed, mode="w") as after,
    ):
        for member in sorted(before.getmembers(), key=lambda member: member.name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, time
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            after.addfile(plain, before.extractfile(member) if member.isfile() else None)
    return result.getvalue()


def _extract(archive: bytes, folder: Path) -> None:
    """Unpack a tar; the filter gives files the same permissions whatever the umask of the archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        file.extractall(folder, filter="data")


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True).stdout


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
