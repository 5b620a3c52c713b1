"""What `headstart demo` is made of: labelled answers that ship with the package, and settings.

>>> [path.name for path in labelled_files().values()]
['train.csv', 'valid.csv', 'test.csv']
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from headstart.bases import REINSTALL
from headstart.errors import DataError
from headstart.wording import reason

HERE = Path(__file__).parent
DEBAT = HERE / "debat"  # answers of the Grand Débat national, described in DATASHEET.md there
RECIPE = HERE / "demo.toml"  # the settings of `headstart demo`
BASE = "debat-fr"  # the base that it starts from, one of `headstart bases`


def labelled_files() -> dict[str, Path]:
    """The files of train, valid and test, each compared with its digest in the datasheet."""
    sheet = _content(DEBAT / "DATASHEET.md").decode(errors="replace")
    digests = dict(re.findall(r"^\| `(\w+\.csv)` .*`([0-9a-f]{64})` \|$", sheet, re.MULTILINE))
    files = {split: DEBAT / f"{split}.csv" for split in ("train", "valid", "test")}
    for path in files.values():
        if hashlib.sha256(_content(path)).hexdigest() != digests.get(path.name):
            raise DataError(path, "it is not the file that was released", fix=REINSTALL)
    return files


def recipe() -> Path:
    """The file of the settings, which is there."""
    _content(RECIPE)
    return RECIPE


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(path, f"it cannot be read ({reason(error)})", fix=REINSTALL) from None
