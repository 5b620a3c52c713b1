"""What every case ends in: a row, and the same as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def report(name: str, row: dict[str, Any]) -> None:
    """Print a row and keep it."""
    print(
        "  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
