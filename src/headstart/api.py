"""headstart from Python: the verbs of the command line, with its settings as keyword arguments.

    import headstart as hs

    base = hs.pretrain("corpus.txt", objective="masked", out="runs/base")
    reviews = hs.finetune("reviews.csv", init="runs/base", epochs=4)
    reviews.predict(["A tender, witty book."])
    hs.compare("reviews.csv", init="runs/base")  # shows its tables and verdict in a notebook

Settings are checked as on the command line: all mistakes are reported at once, each with the nearest right name. The
default folder is `runs/VERB-DATA`; the same call again resumes there, and one that is done returns at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from headstart.bases import find, no_such_model
from headstart.checkpoints.exchange import open_model
from headstart.config import ClassifierConfig, Settings
from headstart.report.page import write_report
from headstart.runs.comparison import Comparison
from headstart.studies.compare import compare as run_comparison
from headstart.studies.corpus import write_texts
from headstart.studies.finetune import finetune as run_finetuning
from headstart.studies.pretrain import pretrain as run_pretraining
from headstart.studies.recipes import RUNS, default_folder, read_settings
from headstart.studies.settings import CompareSettings, FinetuneSettings, PretrainSettings
from headstart.use.classifier import TextClassifier
from headstart.use.language_model import LanguageModel
from headstart.use.progress import show_progress

Kind = TypeVar("Kind", bound=Settings)
File = str | Path


def pretrain(
    data: File | Iterable[File] | None = None,
    *,
    out: File | None = None,
    recipe: File | None = None,
    workers: int | None = 1,
    progress: bool | None = None,
    **settings: Any,
) -> LanguageModel:
    """Train a language model on text, or on the token store that `headstart tokens` wrote.

    data       a file, a folder or a pattern of text, or a token store; a list of strings is texts, of Paths files
    out        the run folder [runs/pretrain-DATA]
    recipe     a TOML file of settings; keyword arguments override it
    workers    processes that turn text into tokens; above 1 (None: one a core) in a script under `__main__` alone
    progress   a bar and lines; by default on a terminal and in a notebook
    settings   as of `headstart pretrain --help-all`: objective="masked", model="small", steps=10_000 …
    """
    files = [data] if isinstance(data, str | Path) else list(data or ())
    if not isinstance(data, str) and files and all(isinstance(text, str) for text in files):
        files = [write_texts(map(str, files), RUNS)]
    chosen, folder = _choose(PretrainSettings, files, out, recipe, settings)
    with show_progress(progress) as (on_event, log):
        run_pretraining(chosen, folder, resume=True, workers=workers, on_event=on_event, log=log)
    return LanguageModel.load(folder)


def finetune(
    data: File | None = None,
    *,
    out: File | None = None,
    recipe: File | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> TextClassifier:
    """Train a classifier on labelled texts; its scores are `result`.

    data       csv, tsv, jsonl, parquet, `label ||| text`, or a folder of labels
    settings   as of `headstart finetune --help-all`: init="runs/base", mode="frozen", epochs=4 …
    """
    chosen, folder = _choose(FinetuneSettings, [] if data is None else [data], out, recipe, settings)
    with show_progress(progress) as (on_event, log):
        run_finetuning(chosen, folder, resume=True, on_event=on_event, log=log)
    return TextClassifier.load(folder, chosen.device)


def compare(
    data: File | None = None,
    *,
    out: File | None = None,
    recipe: File | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Comparison:
    """Compare scratch, frozen and full over several seeds, beside baselines: scores, intervals, a verdict in words.

    data       csv, tsv, jsonl, parquet, `label ||| text`, or a folder of labels
    settings   as of `headstart compare --help-all`: init=["runs/a", "runs/b"], seeds=3, full={"lr": 1e-5} …

    `report.html` in the study folder has the rest. `jobs` above 1 needs `if __name__ == "__main__":` in a script.
    """
    chosen, folder = _choose(CompareSettings, [] if data is None else [data], out, recipe, settings)
    with show_progress(progress) as (_, log):
        comparison = run_comparison(chosen, folder, log=log)
    write_report([folder], folder / "report.html")
    return comparison


def load(folder: File, device: str = "auto") -> TextClassifier | LanguageModel:
    """The model in a run folder or a model folder, or a base that ships: a classifier, or a language model."""
    if not find(folder).exists():
        raise no_such_model(folder)
    if isinstance(open_model(folder).model.head_config, ClassifierConfig):
        return TextClassifier.load(folder, device)
    return LanguageModel.load(folder)


def _choose(
    kind: type[Kind], data: list[File], out: File | None, recipe: File | None, settings: Mapping[str, Any]
) -> tuple[Kind, Path]:
    """The settings, checked, and the folder to write."""
    given = {name: _as_text(value) for name, value in settings.items() if value is not None}
    chosen = read_settings(kind, None if recipe is None else Path(recipe), given, [str(path) for path in data])
    return chosen, default_folder(chosen) if out is None else Path(out)


def _as_text(value: Any) -> Any:
    """Paths as strings, alone or in a list."""
    if isinstance(value, list | tuple):
        return [_as_text(item) for item in value]
    return str(value) if isinstance(value, Path) else value
