"""All that a run of a study imports: the fork server imports this module, and workers have it from the start.

No garbage is collected meanwhile, and workers leave alone what was imported: to visit it would copy its memory.
"""

from __future__ import annotations

import gc
from importlib import import_module

MODULES = (
    "headstart.studies.compare",
    "sklearn.feature_extraction.text",
    "sklearn.linear_model",
    "scipy.optimize",
    "pyarrow.dataset",
)

gc.disable()
for name in MODULES:
    import_module(name)
gc.freeze()
gc.enable()
