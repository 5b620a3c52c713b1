"""A software bill of materials in CycloneDX's JSON: what the package needs at run time, with versions and hashes.

Versions and hashes are those of the lock files; licences and who needs whom are read from the packages that are
installed. Tools for development are not in it.
"""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCKS = ("requirements.lock", "requirements-torch.lock")
DEVELOPMENT = "dev"  # the extra that nobody needs to use the package


@dataclass(frozen=True)
class Pin:
    """One package of a lock file."""

    version: str
    hashes: tuple[str, ...]  # SHA-256 of each file that PyPI has of this version


@dataclass(frozen=True)
class Release:
    """What the bill is for: the package, and the files that are released."""

    name: str
    version: str
    description: str
    licence: str
    time: int  # seconds since 1970
    files: Mapping[str, str]  # from names to SHA-256


def read_lock(text: str) -> dict[str, Pin]:
    r"""The packages of a lock file by their normalised names.

    >>> read_lock("# pinned\nPyYAML==6.0.3 \\\n    --hash=sha256:00ff \\\n    --hash=sha256:11ee\n")
    {'pyyaml': Pin(version='6.0.3', hashes=('00ff', '11ee'))}
    """
    entries = re.findall(r"^([\w.-]+)==(\S+)((?:\s*\\\n\s+--hash=sha256:[0-9a-f]+)*)", text, re.MULTILINE)
    return {
        canonicalize_name(name): Pin(version, tuple(re.findall(r"sha256:(\w+)", hashes)))
        for name, version, hashes in entries
    }


def bill(root: Path, release: Release) -> dict[str, Any]:
    """The bill of materials of a release of the project in folder `root`."""
    pins: dict[str, Pin] = {}
    for name in LOCKS:
        pins |= read_lock((root / name).read_text(encoding="utf-8"))
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = _graph(project["dependencies"], pins)
    extras = [
        line for extra, lines in project["optional-dependencies"].items() if extra != DEVELOPMENT for line in lines
    ]
    graph = _graph(project["dependencies"] + extras, pins)
    direct = {canonicalize_name(Requirement(line).name) for line in project["dependencies"] + extras} & pins.keys()
    reference = _reference(release.name, release.version)
    needs = {_reference(name, pins[name].version): needed for name, needed in sorted(graph.items())}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, repr(sorted(release.files.items())))}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(release.time, UTC).isoformat(),
            "component": _main_component(release, reference),
        },
        "components": [_component(name, pins[name], name in required) for name in sorted(graph)],
        "dependencies": [
            {"ref": of, "dependsOn": [_reference(name, pins[name].version) for name in sorted(needed)]}
            for of, needed in ({reference: direct} | needs).items()
        ],
    }


def _main_component(release: Release, reference: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": reference,
        "name": release.name,
        "version": release.version,
        "description": release.description,
        "licenses": [{"license": {"id": release.licence}}],
        "purl": reference,
        "externalReferences": [
            {"type": "distribution", "url": name, "hashes": [{"alg": "SHA-256", "content": digest}]}
            for name, digest in sorted(release.files.items())
        ],
    }


def _component(name: str, pin: Pin, required: bool) -> dict[str, Any]:
    reference = _reference(name, pin.version)
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": pin.version,
        "scope": "required" if required else "optional",
        "purl": reference,
    }
    licences = _licences(importlib.metadata.metadata(name))
    if licences:
        component["licenses"] = licences
    if pin.hashes:  # of several files, of which an installation takes one
        hashes = [{"alg": "SHA-256", "content": digest} for digest in pin.hashes]
        url = f"https://pypi.org/simple/{name}/"
        component["externalReferences"] = [{"type": "distribution", "url": url, "hashes": hashes}]
    return component


def _licences(metadata: importlib.metadata.PackageMetadata) -> list[dict[str, Any]]:
    """A licence as an SPDX expression if the package has one, else in its own words; some paste the whole text."""
    if "License-Expression" in metadata:
        return [{"expression": metadata["License-Expression"]}]
    classifiers = metadata.get_all("Classifier") or []
    names = [line.rsplit(" :: ", 1)[1] for line in classifiers if line.startswith("License :: ")]
    if "License" in metadata and len(metadata["License"].splitlines()) == 1:
        names = [metadata["License"]]
    return [{"license": {"name": name}} for name in names]


def _graph(lines: Iterable[str], pins: Mapping[str, Pin]) -> dict[str, set[str]]:
    """Every package that requirements such as `numpy>=2` come to on this machine, and those that it needs itself.

    What is not in the lock files is left out: it came with another build of torch, or is for another system.
    """
    graph: dict[str, set[str]] = {}
    waiting = [Requirement(line) for line in lines]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        found = waiting.pop()
        name, extras = canonicalize_name(found.name), frozenset(found.extras)
        if name not in pins or (name, extras) in seen:
            continue
        seen.add((name, extras))
        installed = importlib.metadata.version(name).split("+")[0]  # without the build, such as +cpu
        if installed != pins[name].version:
            raise SystemExit(f"sbom: {name} {installed} is installed, {pins[name].version} is locked: run `make setup`")
        needed = [Requirement(line) for line in importlib.metadata.requires(name) or []]
        waiting += (needed := [one for one in needed if _applies(one, extras)])
        graph.setdefault(name, set()).update({canonicalize_name(one.name) for one in needed} & pins.keys())
    return graph


def _applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ["", *extras])


def _reference(name: str, version: str) -> str:
    """The package URL of a version on PyPI."""
    return f"pkg:pypi/{name}@{version}"
