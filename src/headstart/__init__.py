"""headstart pretrains a transformer on your text, swaps its head, fine-tunes it, and tells you what that bought you."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headstart.version import __version__

if TYPE_CHECKING:
    from headstart.api import compare, finetune, load, pretrain
    from headstart.use.classifier import TextClassifier
    from headstart.use.estimator import HeadstartClassifier

__all__ = ["HeadstartClassifier", "TextClassifier", "__version__", "compare", "finetune", "load", "pretrain"]

# Each is imported when it is first used: torch and scikit-learn take seconds.
_MODULES = dict.fromkeys(("compare", "finetune", "load", "pretrain"), "headstart.api")
_MODULES |= {"TextClassifier": "headstart.use.classifier", "HeadstartClassifier": "headstart.use.estimator"}
_OLD_NAMES = {"Classifier": "TextClassifier"}  # of version 0.1.0


def __getattr__(name: str) -> Any:
    name = _OLD_NAMES.get(name, name)
    if name not in _MODULES:
        raise AttributeError(f"module 'headstart' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
