from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from headstart.checkpoints.folder import Checkpoint, save
from headstart.config import MaskedConfig, NextTokenConfig
from headstart.errors import ModelError
from headstart.model.heads import NextTokenHead
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.tokenizers.special_tokens import SPECIALS
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.use.generate import Context

from .command_line import run

WORDS = ("un", "deux", "trois", "[quatre]", "cinq")
SIZES = {"vocabulary": len(SPECIALS) + len(WORDS), "width": 8, "layers": 1, "heads": 1, "feed_forward": 8, "window": 10}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal and a masked model, one without a tokenizer, and a run folder."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *WORDS]), encoding="utf-8")
    tokenizer = Tokenizer.load(folder)
    torch.manual_seed(0)
    causal = Model.build(preset("lab", **SIZES), NextTokenConfig())
    assert isinstance(causal.head, NextTokenHead) and causal.head.bias is not None
    with torch.no_grad():
        causal.head.bias[tokenizer.end or 0] = -50.0
    masked = Model.build(preset("bert-tiny", **SIZES), MaskedConfig())
    save(Checkpoint(causal, tokenizer=tokenizer), folder / "causal")
    save(Checkpoint(masked, tokenizer=tokenizer), folder / "masked")
    save(Checkpoint(causal), folder / "bare")
    save(Checkpoint(causal, tokenizer=tokenizer), folder / "run" / "model")
    (folder / "empty").mkdir()
    return folder


def test_text_goes_on_after_the_prompt(home: Path) -> None:
    result = run("generate", str(home / "causal"), "un deux", "--max-tokens", "5")
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.fullmatch(r"un deux( \S+){5}\n", result.stdout)
    for arguments in (["--no-cache"], ["--seed", "9"], ["--temperature", "1e-30"]):
        assert run("generate", str(home / "causal"), "un deux", "--max-tokens", "5", *arguments).stdout == result.stdout
    assert run("generate", str(home / "run"), "un deux", "--max-tokens", "5").stdout == result.stdout


def test_the_cache_is_used_unless_it_is_not_wanted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(context: Context) -> None:
        raise ModelError("the cache was used")

    monkeypatch.setattr(Context, "_cached", unwanted)
    assert run("generate", str(home / "causal"), "un").stderr == "headstart: the cache was used\n"
    assert run("generate", str(home / "causal"), "un", "--no-cache", "--max-tokens", "3").exit_code == 0


def test_text_appears_as_it_comes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("typer.echo", lambda text="", nl=True, **_: said.append(f"{text}" + "\n" * nl))
    run("generate", str(home / "causal"), "un", "--max-tokens", "6")
    assert len(said) == 1 + 6 + 1  # the prompt, the words, the end of the line


def test_several_texts_each_by_its_own_seed(home: Path) -> None:
    asked = ["generate", str(home / "causal"), "un", "--temperature", "3", "--top-k", "4", "--top-p", "0.95"]
    three = run(*asked, "--max-tokens", "6", "--seed", "5", "--count", "3")
    assert (three.exit_code, three.stderr) == (0, "")
    texts = three.stdout.rstrip("\n").split("\n\n")
    assert len(set(texts)) == 3
    for number, text in enumerate(texts):
        assert run(*asked, "--max-tokens", "6", "--seed", str(5 + number)).stdout == f"{text}\n"
    found = json.loads(run(*asked, "--max-tokens", "6", "--seed", "5", "--count", "3", "--json").stdout)
    assert [f"un{text['text']}" for text in found["texts"]] == texts
    assert [text["seed"] for text in found["texts"]] == [5, 6, 7]
    assert (found["prompt"], found["top_k"], found["temperature"]) == ("un", 4, 3.0)


def test_the_json_says_ids_and_why_it_stopped(home: Path) -> None:
    result = run("generate", str(home / "causal"), "", "--max-tokens", "4", "--json")
    (text,) = json.loads(result.stdout)["texts"]
    assert len(text["ids"]) == 4
    assert text["text"] == Tokenizer.load(home / "causal").decode(text["ids"])
    assert (text["stopped"], text["remarks"], result.stderr) == ("length", [], "")


def test_notes_go_to_the_other_stream(home: Path) -> None:
    long = run("generate", str(home / "causal"), "un deux " * 20, "--count", "2", "--temperature", "1")
    assert long.stderr.count("\n") == 2  # each once
    assert "the prompt has 41 tokens and the window 10: only its last 10 are read" in long.stderr
    assert "outgrew the window of 10 tokens" in long.stderr
    assert "window" not in long.stdout
    assert "at temperature 0 the likeliest token" in run("generate", str(home / "causal"), "un", "--top-k", "3").stderr


def test_masks_are_filled(home: Path) -> None:
    result = run("fill", str(home / "masked"), "un [MASK] trois <mask>", "--top", "2", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert [len(mask["candidates"]) for mask in found["masks"]] == [2, 2]
    best = [mask["candidates"][0] for mask in found["masks"]]
    assert found["completed"] == best[0]["text"] == best[1]["text"]
    assert found["completed"] == f"un {best[0]['piece']} trois {best[1]['piece']}"

    plain = run("fill", str(home / "masked"), "un [MASK] trois <mask>", "--top", "2").stdout
    assert "mask 1" in plain and "mask 2" in plain
    for mask in found["masks"]:
        for candidate in mask["candidates"]:
            assert re.search(rf"^{re.escape(candidate['piece'])} +{candidate['probability']:.4f}$", plain, re.M)
    assert plain.rstrip("\n").split("\n")[-1] == found["completed"]


def test_a_long_text_is_one_line_in_a_pipe() -> None:
    before = "Il faut baisser les impôts. " * 8
    plain = run("fill", "debat-fr", f"{before}Il faut [MASK].").stdout
    assert plain.splitlines()[-1].startswith(f"{before}Il faut ")


def test_a_piece_in_brackets_is_shown_as_it_is(home: Path) -> None:
    plain = run("fill", str(home / "masked"), "un [MASK]", "--top", "99").stdout
    assert [line.split()[0] for line in plain.split("\n")[1:6]].count("[quatre]") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "causal", "un", "--temperature", "-1"], "generate: temperature is -1.0, and must be at least 0"),
        (["generate", "causal", "un", "--top-p", "0"], "top_p is 0.0, and must be above 0 and at most 1"),
        (["generate", "causal", "un", "--top-k", "0"], "top_k is 0, and must be at least 1"),
        (["generate", "causal", "un", "--max-tokens", "0"], "max_tokens is 0, and must be at least 1"),
        (["generate", "causal", "un", "--count", "0"], "count is 0, and must be at least 1"),
        (["generate", "causal", "un", "--seed", "-1"], "seed is -1, and must be at least 0"),
        (["generate", "masked", "un"], "bidirectional model with a masked head: use `headstart fill`"),
        (["generate", "bare", "un"], "bare holds a model and no tokenizer"),
        (["generate", "nowhere", "un"], "there is no folder nowhere"),
        (["generate", "empty", "un"], "there is no file empty/config.json"),
        (["generate", "vocab.txt", "un"], "there is no folder vocab.txt"),
        (["fill", "causal", "un [MASK]"], "causal model with a next-token head: use `headstart generate`"),
        (["fill", "masked", "un deux"], "the text has no gap to fill: write [MASK]"),
        (["fill", "masked", "un [MASK]", "--top", "0"], "top is 0, and must be at least 1"),
        (["fill", "masked", "un " * 9 + "[MASK]"], "the text is 12 tokens with its special ones, and the window 10"),
        (["fill", "bare", "un [MASK]"], "bare holds a model and no tokenizer"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    home: Path, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr, result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
