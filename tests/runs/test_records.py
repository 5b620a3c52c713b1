from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headstart.errors import DataError
from headstart.runs.run import RunFolder
from headstart.runs.study import StudyFolder

FIXTURES = Path(__file__).parents[1] / "fixtures" / "version-0.1.0"
READERS: dict[str, Callable[[Path], Any]] = {
    "finetuned/result.json": lambda path: RunFolder(path).result(),
    "finetuned/manifest.json": lambda path: RunFolder(path).manifest(),
    "compared/comparison.json": lambda path: StudyFolder(path).comparison(),
    "compared/data.json": lambda path: StudyFolder(path).data(),
    "swept/sweep.json": lambda path: StudyFolder(path).sweep(),
}


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("finetuned/result.json", {"labels": ["a", None]}, r"class_names\[1\] is None, expected str"),
        ("finetuned/result.json", {"valid": {"accuracy": "high"}}, r"valid\['accuracy'\] is 'high', expected float"),
        ("finetuned/result.json", {"rows": {"train": 1.5}}, r"rows\['train'\] is 1.5, expected int"),
        ("finetuned/result.json", {"steps": True}, "steps is True, expected int"),
        ("finetuned/manifest.json", {"seconds": "long"}, "seconds is 'long', expected float"),
        ("finetuned/manifest.json", {"peak_memory": None}, r"peak_memory is None, expected Mapping\[str, int\]"),
        ("compared/comparison.json", {"arms": [1]}, "it is no comparison of this headstart"),
        ("compared/comparison.json", {"rows": None}, "rows is None, expected int"),
        ("compared/comparison.json", {"verdict": ["x" * 10**6, 1]}, r"verdict\[1\] is 1, expected str"),
        ("compared/data.json", {"rows": "x" * 10**6}, "rows is 'xxx"),
        ("compared/data.json", {"labels": None}, "it is no data of this headstart"),
        ("swept/sweep.json", {"kind": "walk"}, "kind is 'walk', expected Literal"),
        ("swept/sweep.json", {"trials": [{"run": "a", "settings": []}]}, r"settings is \[\], expected Mapping"),
    ],
)
def test_values_of_another_type_are_an_error_in_words(
    tmp_path: Path, name: str, changes: dict[str, Any], said: str
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree((FIXTURES / name).parent, folder)
    read = READERS[name]
    assert read(folder) is not None  # as it was written
    path = folder / Path(name).name
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")
    with pytest.raises(DataError, match=said) as caught:
        read(folder)
    assert len(str(caught.value)) < 400
