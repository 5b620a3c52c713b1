"""One class for every tokenizer: BERT's, GPT-2's, SentencePiece's, the lab's pair and our own.

    tokenizer = Tokenizer.load("bert-base-uncased")
    ids = tokenizer.encode("A fine book")          # [1037, 2986, 2338]
    tokenizer.wrap(ids)                            # ([101, 1037, 2986, 2338, 102], [0, 0, 0, 0, 0])
    tokenizer.pieces(ids)                          # ['a', 'fine', 'book']

Whatever it was read from, it is one `tokenizer.json` from then on: `save` writes it, `load` reads it back to equal ids.

Six special tokens have one meaning in every kind, whatever they are called: start, end, pad, unknown, mask, separator.
A text that spells one out ("[MASK]") is read as that token, as in `transformers`; where a tokenizer comes from a
SentencePiece model, it is ordinary text, as it is there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from headstart.bases import find
from headstart.errors import ConfigError, TokenizerError
from headstart.files import new_file
from headstart.tokenizers.load import FILE, is_panic, of_library, read_tokenizer, reading
from headstart.tokenizers.sentencepiece_model import SPACE
from headstart.tokenizers.special_tokens import NAMES, find_layouts
from headstart.tokenizers.train import train_tokenizer

LARGEST = 10_000_000  # tokens, as many as a model can know

PART = 1 << 22  # characters that are encoded at once


class Tokenizer:
    """Text to ids and back. Make one with `Tokenizer.load` or `Tokenizer.train`."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        self.size = 1 + max(self._ids.values(), default=-1)
        if self.size > LARGEST:
            raise TokenizerError(f"found the id {self.size - 1:,} in the vocabulary; expected ids below {LARGEST:,}")
        self._description: dict[str, Any] = json.loads(tokenizer.to_str())  # goes through all ids up to the largest
        self.start = self._special("start")
        self.end = self._special("end")
        self.pad = self._special("pad")
        self.unknown = self._special("unknown")
        self.mask = self._special("mask")
        self.separator = self._special("separator")
        self._layouts = find_layouts(tokenizer, self._ids.values())

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a tokenizer from a folder or a file, or that of a base that ships, by its name.

        A folder may hold `tokenizer.json`; `vocab.json` and `merges.txt` (GPT-2, RoBERTa); `vocab.txt` (BERT, MPNet);
        a SentencePiece `*.model`; or one beside the lab's `dict.txt`. The first of these is taken.
        """
        path = find(path)
        with reading(path, "a complete tokenizer"):
            return cls(read_tokenizer(path))

    @classmethod
    def train(cls, texts: Iterable[str], *, kind: str = "unigram", size: int, lower: bool = False) -> Tokenizer:
        """Learn a vocabulary of `size` tokens, special ones included, from texts; fewer if the texts give no more.

        - unigram: SentencePiece's conventions; a character outside the vocabulary becomes its bytes. The default: it
          suits any language, and masked models learn more from it than from bpe (Bostrom and Durrett 2020).
        - bpe: byte-level as GPT-2's; decoding gives every text back exactly.
        - wordpiece: BERT's; a word with a character outside the vocabulary is unknown.

        `lower` lower-cases, and leaves accents alone. The same texts give the same bytes of tokenizer.json, each time.
        """
        try:
            return cls(train_tokenizer(texts, kind=kind, size=size, lower=lower))
        except BaseException as error:
            if not is_panic(error):
                raise
            raise TokenizerError(f"the tokenizers library gave up: {error}. Is there too little memory?") from None

    def save(self, folder: str | Path) -> None:
        """Write `folder`/tokenizer.json, whole or not at all."""
        with new_file(Path(folder) / FILE) as path:
            path.write_text(self._json, encoding="utf-8", newline="\n")

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the file that `save` writes: equal for equal tokenizers."""
        return hashlib.sha256(self._json.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with nothing added before or after."""
        with _encoding():
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all cores."""
        ids: list[list[int]] = []
        with _encoding():
            for part in _parts(texts):
                ids += [encoding.ids for encoding in self._tokenizer.encode_batch_fast(part, add_special_tokens=False)]
        return ids

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Where in the text each of its tokens begins and ends."""
        with _encoding():
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return [(int(low), int(high)) for low, high in encoding.offsets]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special tokens are spelled out."""
        numbers = list(map(int, ids))
        self.pieces(numbers)  # the library would pass over an id that it does not know
        return str(self._tokenizer.decode(numbers, skip_special_tokens=False))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The vocabulary's entry for each id."""
        pieces = []
        for number in ids:
            piece = self._pieces[number] if 0 <= number < self.size else None
            if piece is None:
                raise TokenizerError(
                    f"id {number} is not in this vocabulary of {self.size:,}. Were the ids made by another tokenizer?"
                )
            pieces.append(piece)
        return pieces

    def wrap(
        self, ids: Sequence[int], second: Sequence[int] | None = None, *, window: int | None = None
    ) -> tuple[list[int], list[int]]:
        """One text, or a pair, as the model expects it: ids with special tokens among them, and segments.

            BERT      [CLS] a [SEP] b [SEP]                  GPT-2     a <|endoftext|> b
            RoBERTa   <s> a </s> </s> b </s>                 the lab   <sos> a <eos> b
            ours      <start> a <separator> b <end>

        Where that is longer than `window`, texts are truncated and special tokens stay; of a pair, the longer first.
        """
        layout = self._layouts[0 if second is None else 1]
        if layout is None:
            raise TokenizerError(
                "this tokenizer has no token to put between two texts. Join them into one text, or use a tokenizer "
                f"with one of {', '.join(NAMES['separator'])}"
            )
        texts = {"A": ids, "B": second if second is not None else ()}
        if window is not None:
            specials = sum(isinstance(part, int) for part, _ in layout)
            if window <= specials:
                problem = f"{window} tokens leave no room for text beside {specials} special ones: take a larger one"
                raise ConfigError("window", [problem])
            lengths = _truncated_lengths(len(texts["A"]), len(texts["B"]), window - specials)
            texts = {name: text[:length] for (name, text), length in zip(texts.items(), lengths, strict=True)}
        wrapped: list[int] = []
        segments: list[int] = []
        for part, segment in layout:
            tokens = [part] if isinstance(part, int) else texts[part]
            wrapped.extend(tokens)
            segments.extend([segment] * len(tokens))
        return wrapped, segments

    @property
    def segments(self) -> int:
        """How many segments `wrap` tells apart."""
        return 1 + max(segment for layout in self._layouts for _, segment in layout or ())

    @property
    def wrapping_tokens(self) -> list[int]:
        """The special tokens that `wrap` adds, around a text and between two."""
        return sorted({part for layout in self._layouts for part, _ in layout or () if isinstance(part, int)})

    @cached_property
    def _json(self) -> str:
        """The content of tokenizer.json, with sorted keys, so that equal tokenizers have equal files."""
        return json.dumps(self._description, ensure_ascii=False, separators=(",", ":"), sort_keys=True)

    @cached_property
    def _pieces(self) -> list[str | None]:
        pieces: list[str | None] = [None] * self.size  # some vocabularies have holes
        for piece, number in self._ids.items():
            pieces[number] = piece
        return pieces

    def _special(self, role: str) -> int | None:
        """The id of a special token, known by its name; the model itself may say which token is the unknown one."""
        model = self._description["model"]
        if role == "unknown" and model.get("unk_id") is not None:
            return int(model["unk_id"])
        own = [model["unk_token"]] if role == "unknown" and model.get("unk_token") else []
        return next((self._ids[name] for name in [*own, *NAMES[role]] if name in self._ids), None)

    @cached_property
    def word_edges(self) -> tuple[list[bool], list[bool]]:
        """For each id: whether its piece begins a word (`▁cap` does, `tiv` does not), and whether the next one must."""
        model = self._description["model"]
        pieces = [piece or "" for piece in self._pieces]
        ends = [False] * self.size
        if prefix := model.get("continuing_subword_prefix"):
            begins = [not piece.startswith(prefix) for piece in pieces]
        elif suffix := model.get("end_of_word_suffix"):
            begins, ends = ends[:], [piece.endswith(suffix) for piece in pieces]
        elif '"ByteLevel"' in json.dumps([self._description["pre_tokenizer"], self._description["normalizer"]]):
            begins = [piece[:1] in BYTES_OF_SPACES for piece in pieces]  # "" is in it too: a hole is its own word
            ends = [piece[-1:] in BYTES_OF_SPACES[1:] for piece in pieces]  # a line's first word has no space
        elif any(piece.startswith(SPACE) for piece in pieces):
            begins = [piece.startswith(SPACE) for piece in pieces]
        else:
            begins = [True] * self.size
        special = {token["id"] for token in self._description["added_tokens"] if token["special"]} - {self.unknown}
        for number in special | {self.start, self.end, self.pad, self.mask, self.separator}:
            if number is not None:
                begins[number] = ends[number] = True
        return begins, ends


BYTES_OF_SPACES = "ĠĊĉč"  # space, line feed, tab and carriage return in the alphabet of byte-level pieces


def _parts(texts: Sequence[str]) -> Iterator[list[str]]:
    """Texts in parts of about `PART` characters: the library holds more than a hundred bytes for each of them."""
    part: list[str] = []
    length = 0
    for text in texts:
        part.append(text)
        length += len(text)
        if length >= PART:
            yield part
            part, length = [], 0
    if part:
        yield part


@contextmanager
def _encoding() -> Iterator[None]:
    """Errors of the library while it encodes, as a `TokenizerError`."""
    try:
        yield
    except TypeError as error:
        raise TokenizerError(
            "found text that UTF-8 cannot write (half of a surrogate pair), or no text at all; expected str. "
            "Read the file again as UTF-8"
        ) from error
    except BaseException as error:  # `tokenizers` raises nothing narrower
        if not of_library(error):
            raise
        raise TokenizerError(f"the tokenizer has no token for a part of the text: {error}") from error


def _truncated_lengths(first: int, second: int, total: int) -> tuple[int, int]:
    """How much of two texts to keep: the longer is cut until both fit, or it is as short as the other, then both.

    >>> _truncated_lengths(10, 3, 8), _truncated_lengths(10, 9, 8), _truncated_lengths(2, 3, 8)
    ((5, 3), (4, 4), (2, 3))
    """
    if first + second <= total:
        return first, second
    shorter = min(first, second, total // 2)
    return (shorter, total - shorter) if first <= second else (total - shorter, shorter)
