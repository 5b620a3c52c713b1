"""One face for every tokenizer: BERT's, GPT-2's, SentencePiece's, the lab's pair and our own.

    tokenizer = Tokenizer.load("bert-base-uncased")
    ids = tokenizer.encode("A fine book")          # [1037, 2986, 2338]
    tokenizer.wrap(ids)                            # ([101, 1037, 2986, 2338, 102], [0, 0, 0, 0, 0])
    tokenizer.pieces(ids)                          # ['a', 'fine', 'book']

Whatever it was read from, it is one `tokenizer.json` from then on: `save` writes it, `load` reads it back to equal ids.

Six special tokens mean the same in every kind, whatever they are called: start, end, pad, unknown, mask, separator.
A text that spells one out ("[MASK]") is read as that token where `transformers` does so, and in our own tokenizers;
where a tokenizer comes from a SentencePiece model, it is ordinary text, as it is there.
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
from headstart.errors import ConfigError, TokenizerError
from headstart.files import new_file
from headstart.tokenizers import load, train
from headstart.tokenizers.sentencepiece_model import SPACE
from headstart.tokenizers.special_tokens import NAMES, find_layouts


class Tokenizer:
    """Text to ids and back. Make one with `Tokenizer.load` or `Tokenizer.train`."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._description: dict[str, Any] = json.loads(tokenizer.to_str())
        self._ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        self.size = 1 + max(self._ids.values(), default=-1)
        self.start = self._special("start")
        self.end = self._special("end")
        self.pad = self._special("pad")
        self.unknown = self._special("unknown")
        self.mask = self._special("mask")
        self.separator = self._special("separator")
        self._layouts = find_layouts(self._description["post_processor"], self._ids)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a tokenizer from a folder or a file.

        A folder may hold `tokenizer.json`; `vocab.json` and `merges.txt` (GPT-2, RoBERTa); `vocab.txt` (BERT, MPNet);
        a SentencePiece `*.model`; or one beside the lab's `dict.txt`. The first of these is taken.
        """
        path = Path(path)
        with load.explained(path, "a whole tokenizer"):
            return cls(load.read(path))

    @classmethod
    def train(cls, texts: Iterable[str], *, kind: str, size: int, lower: bool = False) -> Tokenizer:
        """Learn a vocabulary of `size` tokens, specials included, from texts; fewer only where the texts give no more.

        - unigram: SentencePiece's conventions; a character outside the vocabulary becomes its bytes.
        - bpe: byte-level as GPT-2's; decoding gives every text back exactly.
        - wordpiece: BERT's; a word with a character outside the vocabulary is unknown.

        `lower` lower-cases, and leaves accents alone. The same texts give the same bytes of tokenizer.json, each time.
        """
        return cls(train.learn(texts, kind=kind, size=size, lower=lower))

    def save(self, folder: str | Path) -> None:
        """Write `folder`/tokenizer.json: under another name first, so that no half of it is ever found there."""
        with new_file(Path(folder) / load.FILE) as path:
            path.write_text(self._text, encoding="utf-8", newline="\n")

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the file that `save` writes: equal for equal tokenizers."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with nothing added before or after."""
        with _only_text():
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all cores."""
        with _only_text():
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special tokens are spelled out."""
        numbers = list(map(int, ids))
        self.pieces(numbers)  # the library would pass over an id that it does not know
        return str(self._tokenizer.decode(numbers, skip_special_tokens=False))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The vocabulary's entry for each id."""
        found = []
        for number in ids:
            piece = self._pieces[number] if 0 <= number < self.size else None
            if piece is None:
                raise TokenizerError(
                    f"id {number} is not in this vocabulary of {self.size:,}. Were the ids made by another tokenizer?"
                )
            found.append(piece)
        return found

    def wrap(
        self, ids: Sequence[int], second: Sequence[int] | None = None, *, window: int | None = None
    ) -> tuple[list[int], list[int]]:
        """One text, or a pair, as the model wants it: ids with special tokens among them, and segments.

            BERT      [CLS] a [SEP] b [SEP]                  GPT-2     a <|endoftext|> b
            RoBERTa   <s> a </s> </s> b </s>                 the lab   <sos> a <eos> b
            ours      <start> a <separator> b <end>

        Where that is longer than `window`, texts are cut at their end and special tokens stay; of a pair, the longer
        is cut first.
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
            lengths = _lengths(len(texts["A"]), len(texts["B"]), window - specials)
            texts = {name: text[:length] for (name, text), length in zip(texts.items(), lengths, strict=True)}
        wrapped: list[int] = []
        segments: list[int] = []
        for part, segment in layout:
            filling = [part] if isinstance(part, int) else texts[part]
            wrapped.extend(filling)
            segments.extend([segment] * len(filling))
        return wrapped, segments

    @property
    def around(self) -> list[int]:
        """The special tokens that `wrap` puts around a text and between two."""
        return sorted({part for layout in self._layouts for part, _ in layout or () if isinstance(part, int)})

    def word_starts(self, ids: Iterable[int]) -> list[bool]:
        """True where a piece begins a word: `▁un ▁cap tiv ant` gives True, True, False, False."""
        begins, ends = self.word_edges
        starts: list[bool] = []
        after_end = True
        for number in ids:
            starts.append(after_end or begins[number])
            after_end = ends[number]
        return starts

    @cached_property
    def _text(self) -> str:
        """The one text of this tokenizer's tokenizer.json: keys in order, so that equal tokenizers have equal texts."""
        return json.dumps(self._description, ensure_ascii=False, separators=(",", ":"), sort_keys=True)

    @cached_property
    def _pieces(self) -> list[str | None]:
        pieces: list[str | None] = [None] * self.size  # some vocabularies have holes
        for piece, number in self._ids.items():
            pieces[number] = piece
        return pieces

    def _special(self, meaning: str) -> int | None:
        """The id of a special token. What is unknown the model may say itself; all else is known by name."""
        model = self._description["model"]
        if meaning == "unknown" and model.get("unk_id") is not None:
            return int(model["unk_id"])
        own = [model["unk_token"]] if meaning == "unknown" and model.get("unk_token") else []
        return next((self._ids[name] for name in [*own, *NAMES[meaning]] if name in self._ids), None)

    @cached_property
    def word_edges(self) -> tuple[list[bool], list[bool]]:
        """For each id: whether its piece begins a word, and whether the next piece must begin one."""
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


BYTES_OF_SPACES = "ĠĊĉč"  # how a byte-level piece shows a space, and the line feed, tab and carriage return


@contextmanager
def _only_text() -> Iterator[None]:
    try:
        yield
    except TypeError as error:
        raise TokenizerError(
            "found text that UTF-8 cannot write (half of a surrogate pair), or no text at all; expected str. "
            "Read the file again as UTF-8"
        ) from error
    except Exception as error:  # `tokenizers` raises nothing narrower
        raise TokenizerError(f"the tokenizer has no token for a part of the text: {error}") from error


def _lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of two texts to keep so that they fit: the longer is cut until it is as short as the other.

    >>> _lengths(10, 3, 8), _lengths(10, 9, 8), _lengths(2, 3, 8)
    ((5, 3), (4, 4), (2, 3))
    """
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (shorter, room - shorter) if first <= second else (room - shorter, shorter)
