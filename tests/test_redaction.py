"""Nothing that is written has a password or a token in it."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import CheckpointError, ConfigError, DataError, HeadstartError, OutputError
from headstart.redaction import redacted, redacted_arguments
from headstart.runs.manifest import Manifest

SECRET = "Zx9!kQ7w"


@pytest.mark.parametrize(
    "argument",
    [
        f"postgresql://anna:{SECRET}@db.example/sweeps",
        f"--storage=postgresql+psycopg://anna:{SECRET}@db.example:5432/sweeps?sslmode=require",
        f"postgresql://:{SECRET}@db.example/sweeps",
        f"postgresql://anna:a@{SECRET}@db.example/sweeps",
        f"postgresql://anna:a/{SECRET}@db.example/sweeps",
        f"postgresql://anna:a?{SECRET}@db.example/sweeps",
        f"postgresql://anna@db.example/sweeps?password={SECRET}",
        f"postgresql://anna@db.example/sweeps?sslmode=require&PASSWORD={SECRET}&x=1",
        f"host=db.example user=anna password={SECRET}",
        f"host=db.example password='my {SECRET}' user=anna",
        f"--password={SECRET}",
        f"--api-key={SECRET}",
        f"HF_TOKEN={SECRET}",
        f"PGPASSWORD={SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        "hf_" + "Zx9kQ7w" * 5,
    ],
)
def test_forms_of_a_secret(argument: str) -> None:
    said = redacted(argument)
    assert "Zx9" not in said and "kQ7w" not in said
    assert redacted_arguments(["headstart", argument]) == ["headstart", said]
    assert redacted(said) == said


@pytest.mark.parametrize("option", ["--token", "--password", "--api-key", "-password", "--hf-token", "--db-password"])
def test_a_secret_after_its_option(option: str) -> None:
    assert redacted_arguments(["a", option, SECRET, "--port", "80"]) == ["a", option, "***", "--port", "80"]


@pytest.mark.parametrize(
    "argument",
    [
        "--token-dropout=0.2", "--tokens=4096", "max_tokens=12", "pad_token=<pad>", "--tokenizer=runs/a", "lr=1e-4",
        "postgresql://anna@db.example/sweeps", "http://127.0.0.1:8000/", "a text: me@home.example, at 12:30",
        "sqlite:////a/file.db", "reviews=runs/7", "C:\\data\\a.csv", "the token is missing", "key=value",
    ],
)  # fmt: skip
def test_what_is_no_secret(argument: str) -> None:
    assert redacted_arguments(["headstart", argument]) == ["headstart", argument]


def test_a_number_of_tokens_is_no_token() -> None:
    arguments = ["headstart", "pretrain", "a.txt", "--tokens", "1000", "--token-dropout", "0.2"]
    assert redacted_arguments(arguments) == arguments


@given(st.text(st.characters(exclude_categories=("Cs", "Z", "Cc")), min_size=1, max_size=12))
def test_any_password_of_a_url(password: str) -> None:
    if "@" in password:  # of an @ that is not escaped nobody can say whether the host begins there
        return
    assert redacted(f"postgresql://anna:{password}@db/sweeps") == "postgresql://anna@db/sweeps"


def test_the_command_line_in_a_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"postgresql://anna:{SECRET}@db.example/sweeps"
    monkeypatch.setattr(sys, "argv", ["headstart", "sweep", "a.csv", "--storage", url, "--trials", "4"])
    made = Manifest.now(torch="2", gpu=None, gpu_memory=None)
    assert SECRET not in json.dumps(made.to_json())
    expected = ["headstart", "sweep", "a.csv", "--storage", "postgresql://anna@db.example/sweeps", "--trials", "4"]
    assert made.command == expected


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("sweep", [f"storage is postgresql://anna:{SECRET}@db/x", f"unknown: --password={SECRET}"]),
        DataError(Path(f"postgresql://anna:{SECRET}@db/x"), "there is no such file"),
        CheckpointError(f"there is no folder https://anna:{SECRET}@host/model"),
        OutputError(f"the storage postgresql://anna:{SECRET}@db/x is away"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_messages_of_errors(error: HeadstartError) -> None:
    for found in (error, pickle.loads(pickle.dumps(error))):
        assert SECRET not in str(found) and "anna" in str(found)
