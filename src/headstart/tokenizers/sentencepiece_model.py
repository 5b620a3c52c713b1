"""A SentencePiece `.model` file, read without protobuf, and turned into a tokenizer of the `tokenizers` library.

    model = parse_sentencepiece(Path("sentencepiece.french.model").read_bytes())
    model.algorithm                                # 'bpe'
    to_tokenizers(model).encode("trop long").tokens   # ['▁trop', '▁long']

The result gives the ids of the `sentencepiece` library. Where it does not, the reason is one of these, held by tests:

- SentencePiece rewrites characters one after another, NFKC here the text as a whole. Combining marks out of Unicode's
  order (an acute above before a dot below, some Arabic and Hebrew vowel points) are put in order, and one after a
  rewritten character (an ogonek under a ligature) may join its last letter. U+FDD0 and U+FDD1, which are no
  characters, are taken for two that are.
- Unigram scores are added in 64 bits here and in 32 bits there: two ways to cut a word that cost the same to the sixth
  digit, most often `... ....` and `.... ...`, may change places (in 50 of 10,000 French reviews).
- A model with a rule for normalising that is not SentencePiece's own goes through `Precompiled` alone, which drops a
  mark after a rewritten character.
- In a BPE model, a text that is nothing but a user-defined symbol gets no space before it. In a unigram model,
  where such symbols overlap (`ff` in `fff`) another may be found, and two unknown characters at the end of a control
  symbol that is spelled out, `<unk>`, count as two.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

SPACE = "▁"  # how SentencePiece writes a space, so that a piece shows whether it begins a word
FULLWIDTH_TILDE, DOTTED_I = "\uff5e", "\u0130"  # ～, which the nmt rules leave as it is, and İ, which does not fold
NFKC_RULES = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")  # SentencePiece's own, but for "identity"

Message = dict[int, int | bytes]  # of protobuf: the fields by their numbers
Value = TypeVar("Value", int, bytes)

NEVER = -1e6  # a unigram score so low that no text becomes this piece, though it has an id


class Kind(IntEnum):
    """What a piece is for; the numbers are those in the file."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    kind: Kind


@dataclass(frozen=True)
class SentencePieceModel:
    """The fields of a `.model` file that decide how a text is cut."""

    algorithm: str  # "unigram" or "bpe"
    pieces: tuple[Piece, ...]  # in the order of their ids
    rule: str  # the name of the normalising rule, e.g. "nmt_nfkc"
    charsmap: bytes  # that rule, compiled
    leading_space: bool  # a text is read as if a space stood before it
    squeeze_spaces: bool  # runs of spaces become one, none at the ends
    byte_fallback: bool  # an unknown character becomes its bytes

    @property
    def unknown(self) -> str:
        return self.texts(Kind.UNKNOWN)[0]

    def texts(self, *kinds: Kind) -> list[str]:
        return [piece.text for piece in self.pieces if piece.kind in kinds]


def parse_sentencepiece(data: bytes) -> SentencePieceModel:
    """The model in the bytes of a `.model` file; ValueError says what is wrong with them.

    The file is one protobuf message (sentencepiece_model.proto): 1 a piece, as often as there are pieces, 2 how it was
    trained, 3 how a text is normalised.
    """
    messages = [(number, _message(value)) for number, value in _fields(data) if number in (1, 2, 3)]
    pieces = tuple(_piece(message) for number, message in messages if number == 1)
    trainer, normalizer = (dict(messages).get(number) for number in (2, 3))
    if not pieces or trainer is None or normalizer is None:
        raise ValueError(f"found {len(pieces)} pieces and then the end of the file")
    if sum(piece.kind is Kind.UNKNOWN for piece in pieces) != 1:
        raise ValueError("found no piece, or more than one, for what is unknown")
    algorithm = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}.get(_field(trainer, 3, 1), "unnamed")
    if algorithm not in ("unigram", "bpe"):
        raise ValueError(f"found a model of the {algorithm} kind, and only unigram and bpe are known here")
    if trainer.get(24) or normalizer.get(5, 1) == 0:
        raise ValueError("found a model that writes spaces after words, or not at all")
    return SentencePieceModel(
        algorithm=algorithm,
        pieces=pieces,
        rule=_field(normalizer, 1, b"").decode(),
        charsmap=_field(normalizer, 2, b""),
        leading_space=bool(normalizer.get(3, 1)),
        squeeze_spaces=bool(normalizer.get(4, 1)),
        byte_fallback=bool(trainer.get(35, 0)),
    )


def _piece(message: Message) -> Piece:
    number = _field(message, 2, bytes(4))
    if len(number) != 4:
        raise ValueError(f"found a score of {len(number)} bytes where 4 should be")
    (score,) = struct.unpack("<f", number)
    return Piece(_field(message, 1, b"").decode(), score, Kind(_field(message, 3, 1)))


def _field(message: Message, number: int, default: Value) -> Value:
    value = message.get(number, default)
    if not isinstance(value, type(default)):
        raise ValueError(f"found {value!r} where {type(default).__name__} should be")
    return value


def _message(data: int | bytes) -> Message:
    if isinstance(data, int):
        raise ValueError(f"found the number {data} where a message should be")
    return dict(_fields(data))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The (number, value) pairs of a protobuf message: whole numbers as int, all else as bytes.

    >>> list(_fields(b"\\x08\\x96\\x01\\x12\\x02hi"))
    [(1, 150), (2, b'hi')]
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            length, at = _varint(data, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"found an unknown wire type {wire} before byte {at}")
        if at + length > len(data):
            raise ValueError(f"found {len(data) - at} bytes where a field of {length} should be")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A whole number, seven bits a byte, lowest first; and where the next field begins."""
    value = shift = 0
    while shift < 70:
        if at == len(data):
            raise ValueError("found the end of the data inside a number")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError(f"found a number of more than ten bytes before byte {at}")


def to_tokenizers(
    model: SentencePieceModel, vocabulary: Sequence[str] | None = None, unknown: str | None = None
) -> tokenizers.Tokenizer:
    """The same tokenizer as a `tokenizers.Tokenizer`.

    `vocabulary` gives the pieces other ids than their place in the file (the index is the id) and may hold tokens of
    its own, which no text becomes; `unknown` then names the one for unknown text.
    """
    vocabulary = vocabulary or [piece.text for piece in model.pieces]
    unknown = unknown or model.unknown
    if model.algorithm == "bpe":
        tokenizer = tokenizers.Tokenizer(_bpe(model, vocabulary, unknown))
        tokenizer.add_tokens([AddedToken(text, normalized=True) for text in model.texts(Kind.USER_DEFINED)])
    else:
        tokenizer = tokenizers.Tokenizer(unigram(model, vocabulary, unknown))
    tokenizer.normalizer = normalizers.Sequence(_normalizers(model))
    splits = _splits(model, vocabulary)
    if splits:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoder()
    return tokenizer


def decoder() -> decoders.Decoder:
    """Pieces back to text: spaces from marks, characters from bytes, and no space before the first word."""
    return decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


def _normalizers(model: SentencePieceModel) -> list[normalizers.Normalizer]:
    """What happens to a text before it is cut, in SentencePiece's order."""
    steps: list[normalizers.Normalizer] = []
    if model.rule in NFKC_RULES:
        # `Precompiled` looks characters up one grapheme at a time and loses a mark that follows a rewritten one.
        # After these steps there is hardly anything left for it to rewrite, so hardly anything is lost.
        nmt, folds = model.rule.startswith("nmt"), model.rule.endswith("cf")
        kept = ({FULLWIDTH_TILDE: "\ufdd0"} if nmt else {}) | ({DOTTED_I: "\ufdd1"} if folds else {})
        steps += [normalizers.Replace(Regex(rf"[{SPACE}\ufffd\r\n]"), " ")] if nmt else []
        steps += [normalizers.Replace(character, stand_in) for character, stand_in in kept.items()]
        steps += [normalizers.NFKC()]
        steps += [normalizers.Lowercase()] if folds else []
        steps += [normalizers.Replace(stand_in, character) for character, stand_in in kept.items()]
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.squeeze_spaces:
        steps += [normalizers.Replace(Regex(r"\A +"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    own = model.texts(Kind.USER_DEFINED)
    if model.leading_space and own and model.algorithm == "bpe":
        # `tokenizers` normalises the symbols too before it looks for them, and they must not get the space.
        alone = "|".join(re.escape(text) for text in own)
        steps.append(normalizers.Replace(Regex(rf"\A(?!(?:{alone})\z)(?=[\s\S])"), SPACE))
    elif model.leading_space:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    if model.squeeze_spaces:  # last, since SentencePiece takes a typed ▁ at the end for a space
        steps.append(normalizers.Replace(Regex(rf"{SPACE}+\z"), ""))
    return steps


def _splits(model: SentencePieceModel, vocabulary: Sequence[str]) -> list[pre_tokenizers.PreTokenizer]:
    """Where a text can be split before the model sees it, without changing its ids."""
    splits: list[pre_tokenizers.PreTokenizer] = []
    pieces = model.texts(Kind.NORMAL, Kind.USER_DEFINED)
    if SPACE in pieces and not any(SPACE in text[1:] for text in pieces):
        # No piece reaches across a space, so words can be split off: the same result, and the model's cache is used.
        splits.append(pre_tokenizers.Split(SPACE, "merged_with_next"))
    if model.algorithm == "unigram":
        # A text that spells out a control symbol is text: cut before its last character, `<s|>`, it is not found.
        spelled = {text for text in vocabulary if len(text) > 1} - set(
            model.texts(Kind.NORMAL, Kind.USER_DEFINED, Kind.UNUSED)
        )
        heads: dict[str, list[str]] = {}
        for text in sorted(spelled):
            heads.setdefault(text[-1], []).append(re.escape(text[:-1]))
        pattern = "|".join(f"(?<={'|'.join(before)}){re.escape(last)}" for last, before in heads.items())
        splits += [pre_tokenizers.Split(Regex(pattern), "merged_with_next")] if pattern else []
    return splits


def _bpe(model: SentencePieceModel, vocabulary: Sequence[str], unknown: str) -> models.BPE:
    """SentencePiece joins the two neighbours whose joint piece has the best score: as a list of merges, best first."""
    best_first = sorted((p for p in model.pieces if p.kind is Kind.NORMAL), key=lambda piece: -piece.score)
    known = {piece.text for piece in best_first}
    merges = [
        (text[:cut], text[cut:])
        for text in (piece.text for piece in best_first)
        for cut in range(1, len(text))
        if text[:cut] in known and text[cut:] in known
    ]
    ids = {text: number for number, text in enumerate(vocabulary)}
    return models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=model.byte_fallback)


def unigram(model: SentencePieceModel, vocabulary: Sequence[str], unknown: str) -> models.Unigram:
    """The pieces with their scores; `NEVER` for those that no text becomes (control symbols, bytes)."""
    scores = {p.text: p.score for p in model.pieces if p.kind in (Kind.NORMAL, Kind.USER_DEFINED)}
    # In twelve digits, more than the 32 bits of a score hold: longer numbers change when `tokenizers` reads them again.
    pieces = [(text, float(f"{scores.get(text, NEVER):.12g}")) for text in vocabulary]
    return models.Unigram(pieces, unk_id=vocabulary.index(unknown), byte_fallback=model.byte_fallback)
