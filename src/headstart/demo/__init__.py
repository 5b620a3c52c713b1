"""What ships with the package, for a first look without a download: labelled answers in French, a base to start from.

>>> sorted(path.name for path in DEBAT.iterdir() if path.suffix == ".csv")
['test.csv', 'train.csv', 'valid.csv']
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
DEBAT = HERE / "debat"  # answers of the Grand Débat national, described in DATASHEET.md there
BASE = HERE / "lab-fr"  # a model folder, described in README.md there
RECIPE = HERE / "demo.toml"  # the settings of `headstart demo`
