"""Which base a comparison starts from where none is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headstart import demo
from headstart.studies.bases import choose_base
from headstart.studies.compare import open_study
from headstart.studies.settings import CompareSettings
from headstart.studies.study import Study
from tests.studies.example_data import write_reviews

TEXTS = {
    "French": [
        "Le train de ce matin avait encore vingt minutes de retard et personne ne savait pourquoi.",
        "L'intrigue est ennuyeuse, les personnages restent pâles, et j'étais contente que ce soit fini.",
        "Il faut plus de bus à la campagne, sinon tout le monde continuera de prendre la voiture.",
    ],
    "English": [
        "This morning's train was twenty minutes late again and nobody knew why.",
        "The plot is dull, the characters stay pale, and I was only glad that it was over.",
        "We need more buses in the countryside, or everyone will go on driving to work.",
    ],
    "German": [
        "Der Zug nach Hamburg hatte heute wieder zwanzig Minuten Verspätung und niemand wusste warum.",
        "Die Handlung ist langweilig, die Figuren bleiben blass, und ich war froh, dass es vorbei war.",
        "Wir brauchen mehr Busse auf dem Land, sonst fahren alle weiter mit dem Auto zur Arbeit.",
    ],
    "Italian": [
        "Il treno della mattina è arrivato ancora una volta con venti minuti di ritardo.",
        "La trama è noiosa, i personaggi non hanno vita e alla fine ero contento che fosse finito.",
        "Ci servono più autobus nei paesi, altrimenti tutti continueranno ad andare in macchina.",
    ],
    "Russian": ["Утренний поезд снова опоздал на двадцать минут, и никто не знал почему."],
}


@pytest.mark.parametrize("language", TEXTS)
def test_a_base_is_taken_for_its_language_alone(language: str) -> None:
    fit = choose_base(TEXTS[language])
    assert (fit.name if fit else None) == ("debat-fr" if language == "French" else None)


def study(folder: Path, lines: list[str], **changes: Any) -> Study:
    return open_study(
        CompareSettings(tune="none", **{"seeds": 1, "device": "cpu", **changes}), folder, log=lines.append
    )


def test_french_texts_are_compared_from_the_base_that_ships(tmp_path: Path) -> None:
    lines: list[str] = []
    opened = study(tmp_path / "s", lines, data=str(demo.DEBAT / "test.csv"))
    assert {run.arm.name for run in opened.runs} >= {"scratch", "frozen", "full"}
    assert all(run.settings["init"] == "debat-fr" for run in opened.runs if run.arm.base == "debat-fr")
    (line,) = (line for line in lines if "debat-fr" in line)
    assert "fits these texts (0." in line
    assert "--init FOLDER" in line
    assert "--pile FILE" in line


@pytest.mark.parametrize("changes", [{"arms": "scratch"}, {"data": "english.txt"}])
def test_else_a_model_from_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_reviews(Path("english.txt"), 200, 0)
    lines: list[str] = []
    opened = study(Path("s"), lines, **{"data": str(demo.DEBAT / "test.csv"), **changes})
    assert {run.arm.name for run in opened.runs} == {"majority", "tfidf", "scratch"}
    (line,) = (line for line in lines if line.startswith("no --init"))
    assert "--pile" in line


def test_a_base_that_ships_is_known_by_its_name_wherever_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = study(Path("s"), [], data=str(demo.DEBAT / "test.csv"), init=("debat-fr", "mine=debat-fr"), arms="full")
    assert {run.arm.name for run in opened.runs} == {"majority", "tfidf", "full:debat-fr", "full:mine"}
