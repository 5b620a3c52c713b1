"""Passwords and tokens, taken out of what is written: command lines in manifests, settings, messages of errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

HIDDEN = "***"
NAME = (
    r"(?:[a-z]+[-_])*[a-z]*(?:password|passwd|passphrase|pwd|secret|credentials?|(?:api|access|private)[-_]?key)"
    r"|(?:(?:api|auth|access|bearer|hf|hub|headstart|refresh|session)[-_])*token"
)
# A URL's password ends at an @: at the last one before a ?, as one that is not escaped may stand inside of it. A URL
# that was taken for a path has one slash left.
IN_URL = re.compile(r"(:/{1,2}[^\s:/@]*):[^\s@]{0,500}@(?:[^\s?]{0,500}@)?")
IN_QUERY = re.compile(rf"(?<=[?&])(?:{NAME})=[^\s&]*(?:&|$)", re.IGNORECASE)
ASSIGNED = re.compile(rf"(?<![a-z\d_-])((?:--?)?(?:{NAME})=)(?:'[^']*'|\"[^\"]*\"|[^\s&]+)", re.IGNORECASE)
# As well-known services make them: Hugging Face, GitHub, GitLab, OpenAI, Amazon, Slack, and JSON Web Tokens.
TOKEN = re.compile(
    r"\b(?:hf_\w{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|AKIA[A-Z\d]{16}"
    r"|xox[abprs]-[\w-]{10,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)"
)
OPTION = re.compile(rf"--?(?:{NAME})", re.IGNORECASE)


def redacted(text: str) -> str:
    """A text without what has the form of a secret. A URL stays one that can be used with the password from elsewhere.

    >>> redacted("postgresql://anna:secret@db.example/sweeps cannot be opened")
    'postgresql://anna@db.example/sweeps cannot be opened'
    >>> redacted("postgresql://anna:sec/ret@/sweeps?host=db.example&password=secret&sslmode=require")
    'postgresql://anna@/sweeps?host=db.example&sslmode=require'
    >>> redacted("host=db.example password=secret"), redacted("--token=abc"), redacted("--token-dropout=0.2")
    ('host=db.example password=***', '--token=***', '--token-dropout=0.2')
    """
    text = IN_QUERY.sub("", IN_URL.sub(r"\1@", text))
    return TOKEN.sub(HIDDEN, ASSIGNED.sub(rf"\1{HIDDEN}", text))


def redacted_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line without secrets; one may be an option's value, in an argument of its own.

    >>> redacted_arguments(["headstart", "serve", "runs/7", "--token", "abc", "--port", "80"])
    ['headstart', 'serve', 'runs/7', '--token', '***', '--port', '80']
    """
    return list(_redacted_arguments(arguments))


def _redacted_arguments(arguments: Sequence[str]) -> Iterator[str]:
    before = ""
    for argument in arguments:
        yield HIDDEN if OPTION.fullmatch(before) else redacted(argument)
        before = argument
