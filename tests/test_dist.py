"""`make dist` and the lock files: pinned by hash, a bill of materials that is complete, the same bytes each time."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


@pytest.fixture
def sbom(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("sbom")


def test_all_that_is_installed_is_locked_and_all_but_torch_by_hash(sbom: ModuleType) -> None:
    pins = sbom.read_lock((ROOT / "requirements.lock").read_text())
    assert [name for name, pin in pins.items() if not pin.hashes] == []
    torch = sbom.read_lock((ROOT / "requirements-torch.lock").read_text())
    assert list(torch) == ["torch"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = {canonicalize_name(Requirement(line).name) for lines in groups for line in lines} - {project["name"]}
    assert wanted <= pins.keys() | torch.keys()


def make_bill(sbom: ModuleType) -> Any:
    return sbom.bill(ROOT, sbom.Release("headstart", "1.2.3", "About it.", "MIT", 0, {"a.whl": "00ff"}))


def test_a_bill_of_materials_has_what_the_package_needs_and_no_tools(sbom: ModuleType) -> None:
    bill = make_bill(sbom)
    components = {component["name"]: component for component in bill["components"]}
    assert {"torch", "numpy", "fastapi", "starlette", "psycopg-binary"} <= components.keys()  # starlette: by fastapi
    assert components.keys().isdisjoint({"headstart", "pytest", "mypy", "ruff", "transformers"})
    assert {components[name]["scope"] for name in ("torch", "numpy", "sympy")} == {"required"}  # sympy: by torch
    assert {components[name]["scope"] for name in ("fastapi", "starlette", "onnx")} == {"optional"}
    pins = sbom.read_lock((ROOT / "requirements.lock").read_text())
    (numpy,) = components["numpy"]["externalReferences"]
    assert [found["content"] for found in numpy["hashes"]] == list(pins["numpy"].hashes)
    assert "externalReferences" not in components["torch"]  # of which nothing is known before it is installed
    assert [name for name, component in components.items() if not component.get("licenses")] == []


def test_every_dependency_in_a_bill_of_materials_is_a_component(sbom: ModuleType) -> None:
    bill = make_bill(sbom)
    known = {component["bom-ref"] for component in bill["components"]}
    needs = {entry["ref"]: set(entry["dependsOn"]) for entry in bill["dependencies"]}
    own = bill["metadata"]["component"]["bom-ref"]
    assert needs.keys() == known | {own}
    assert set().union(*needs.values()) == known
    assert any(ref.startswith("pkg:pypi/torch@") for ref in needs[own])


def test_a_package_of_another_version_than_the_locked_one_is_told(sbom: ModuleType, tmp_path: Path) -> None:
    for name in ("pyproject.toml", "requirements-torch.lock"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "requirements.lock").write_text("numpy==0.0.1 \\\n    --hash=sha256:00ff\n")
    with pytest.raises(SystemExit, match=r"numpy .* is installed, 0\.0\.1 is locked: run `make setup`"):
        sbom.bill(tmp_path, sbom.Release("headstart", "1.2.3", "About it.", "MIT", 0, {}))


def packed(members: list[tuple[str, int]], mtime: int, owner: str) -> bytes:
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w") as archive:
        for name, mode in members:
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime, member.uname = len(name), mode, mtime, owner
            archive.addfile(member, io.BytesIO(name.encode()))
    return gzip.compress(result.getvalue(), mtime=mtime)


def test_an_archive_has_no_traces_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    dist = importlib.import_module("dist")
    one = packed([("a.py", 0o644), ("b.sh", 0o755)], mtime=5, owner="anna")
    two = packed([("b.sh", 0o700), ("a.py", 0o600)], mtime=6, owner="berta")
    assert one != two
    result = dist.without_traces(one, 7)
    assert dist.without_traces(two, 7) == result
    with tarfile.open(fileobj=io.BytesIO(result)) as archive:
        found = [(member.name, member.mode, member.mtime, member.uname) for member in archive]
        assert found == [("a.py", 0o644, 7, ""), ("b.sh", 0o755, 7, "")]


def built(folder: Path, umask: int, zone: str) -> Path:
    """A release, from a clone of this repository."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, umask=umask)
    environment = {**os.environ, "PYTHONPATH": str(clone / "src"), "TZ": zone}
    command = [sys.executable, "tools/dist.py", "--out", str(folder / "dist")]
    subprocess.run(command, cwd=clone, env=environment, check=True, umask=umask, stdout=subprocess.DEVNULL)
    return folder / "dist"


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git repository")
def test_a_release_built_twice_has_the_same_bytes(tmp_path: Path) -> None:
    one = built(tmp_path / "one", 0o022, "UTC")
    two = built(tmp_path / "a folder elsewhere", 0o077, "Asia/Tokyo")
    files = {file.name: file.read_bytes() for file in one.iterdir()}
    assert files == {file.name: file.read_bytes() for file in two.iterdir()}
    sums = set(files.pop("SHA256SUMS").decode().splitlines())
    assert sums == {f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in files.items()}
    assert {Path(name).suffix for name in files} == {".whl", ".gz", ".json"}
    (wheel,) = one.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if name.startswith("headstart/")}
    source = tmp_path / "one" / "clone" / "src"
    tracked = subprocess.run(["git", "ls-files", "headstart"], cwd=source, check=True, capture_output=True, text=True)
    assert inside == set(tracked.stdout.splitlines())
