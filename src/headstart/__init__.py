"""headstart pretrains a transformer on your text, swaps its head, fine-tunes it, and tells you what that bought you."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headstart.version import __version__ as __version__

if TYPE_CHECKING:
    from headstart.use.classifier import TextClassifier as TextClassifier
    from headstart.use.estimator import HeadstartClassifier as HeadstartClassifier


def __getattr__(name: str) -> Any:
    """What users ask for by name; torch and scikit-learn come in with it, and not before."""
    if name in ("TextClassifier", "Classifier"):  # the second is its name in version 0.1.0
        from headstart.use.classifier import TextClassifier

        return TextClassifier
    if name == "HeadstartClassifier":
        from headstart.use.estimator import HeadstartClassifier

        return HeadstartClassifier
    raise AttributeError(f"module 'headstart' has no attribute {name!r}")
