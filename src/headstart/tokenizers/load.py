"""Loading: tokenizers of every kind read from their files, each as one of the `tokenizers` library.

    tokenizer.json              as that library writes it
    vocab.json and merges.txt   GPT-2, RoBERTa
    vocab.txt                   BERT, MPNet; beside it perhaps tokenizer_config.json
    *.model                     SentencePiece, with its own ids, or beside the lab's dict.txt with those of that

Whatever is wrong with a file is a `TokenizerError` that names it and says what was expected.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
from headstart.errors import HeadstartError, TokenizerError, shown
from headstart.files import read_text, read_whole
from headstart.tokenizers.sentencepiece_model import Kind, parse_sentencepiece, to_tokenizers
from headstart.tokenizers.special_tokens import NAMES, add_post_processor
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

FILE = "tokenizer.json"
EXPECTED = "tokenizer.json; vocab.json and merges.txt; vocab.txt; a SentencePiece *.model, alone or with dict.txt"
LAB_SPECIALS = ("<sos>", "<pad>", "<eos>", "<oov>")  # ids 0 to 3, before the pieces of dict.txt


def read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """The tokenizer in a folder, or that a file belongs to, recognised by their names."""
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise TokenizerError(f"{path}: there is no such file or folder. Give a folder with one of: {EXPECTED}")
    if path.name in ("vocab.json", "merges.txt"):
        return _read_byte_level(path.with_name("vocab.json"), path.with_name("merges.txt"))
    if path.suffix == ".model":
        return _read_sentencepiece(path, None)
    if path.suffix == ".json":
        return _read_json(path)
    if path.suffix == ".txt":
        return _read_wordpiece(path)
    raise TokenizerError(f"{path}: cannot tell what tokenizer this is. Give a folder with one of: {EXPECTED}")


def _read_folder(folder: Path) -> tokenizers.Tokenizer:
    for name in (FILE, "vocab.json", "merges.txt", "vocab.txt"):
        if (folder / name).exists():
            return read_tokenizer(folder / name)
    candidates = sorted(folder.glob("*.model"))
    if len(candidates) > 1:
        names = ", ".join(path.name for path in candidates)
        raise TokenizerError(
            f"{folder}: found {len(candidates)} SentencePiece models, {names}. Give the one that is meant"
        )
    if candidates:
        dictionary = folder / "dict.txt"
        return _read_sentencepiece(candidates[0], dictionary if dictionary.exists() else None)
    if (folder / "model" / FILE).exists():  # a run folder
        return _read_json(folder / "model" / FILE)
    names = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    raise TokenizerError(f"{folder}: found no tokenizer here ({names}). Expected one of: {EXPECTED}")


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Errors of the system or a library while it reads `path`, as a `TokenizerError`."""
    try:
        yield
    except HeadstartError:
        raise
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read ({error.strerror}); expected {expected}") from error
    except BaseException as error:  # `tokenizers` raises nothing narrower
        if not of_library(error):
            raise
        raise TokenizerError(
            f"{path}: {error}; expected {expected}. If the file was copied or downloaded, fetch it again"
        ) from error


def of_library(error: BaseException) -> bool:
    """Whether it may come from `tokenizers`: a panic of its Rust code is a `BaseException` that is no `Exception`.

    Memory that runs out is nothing that the tokenizer did.
    """
    if isinstance(error, MemoryError):
        return False
    return isinstance(error, Exception) or is_panic(error)


def is_panic(error: BaseException) -> bool:
    return type(error).__name__ == "PanicException"


def _json_object(path: Path) -> dict[str, Any]:
    value = json.loads(read_whole(path))
    if not isinstance(value, dict):
        raise ValueError(f"found a JSON {type(value).__name__} and no object")
    return value


def _read_json(path: Path) -> tokenizers.Tokenizer:
    with reading(path, "a tokenizer.json as the tokenizers library writes it"):
        description = _json_object(path)
        if not isinstance(description.get("model"), dict):
            raise ValueError('found JSON without a "model"')
        # Truncation and padding are the caller's to decide, and encoding must not be random.
        description |= {"truncation": None, "padding": None}
        if "dropout" in description["model"]:
            description["model"]["dropout"] = None
        _check_prefix(description["model"])
        return tokenizers.Tokenizer.from_str(json.dumps(description))


def _check_prefix(model: Mapping[str, Any]) -> None:
    """Refuse merges that the library would cut in the middle of a character, which aborts the whole process.

    It joins the parts of a merge, and drops as many bytes of the second as the prefix has characters.
    """
    prefix, merges = model.get("continuing_subword_prefix"), model.get("merges")
    if not isinstance(prefix, str) or not prefix or not isinstance(merges, list):
        return
    for merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if isinstance(parts, list) and len(parts) == 2 and isinstance(parts[1], str):
            second, cut = parts[1].encode(errors="surrogatepass"), len(prefix)
            inside = cut < len(second) and second[cut] & 0b1100_0000 == 0b1000_0000  # UTF-8's continuation bytes
            if cut > len(second) or inside:
                raise ValueError(f"the prefix {shown(prefix)} cannot be cut from the second part of {shown(merge)}")


def _read_wordpiece(path: Path) -> tokenizers.Tokenizer:
    """BERT's vocab.txt: one piece a line, the id is the number of the line."""
    with reading(path, "one piece a line, as in BERT's vocab.txt"):
        ids = {piece: number for number, piece in enumerate(read_text(path).split("\n")) if piece}
    config = path.with_name("tokenizer_config.json")
    with reading(config, "the settings of a tokenizer, as transformers writes them"):
        settings = _json_object(config) if config.exists() else {}
    unknown = next((name for name in NAMES["unknown"] if name in ids), None)
    if unknown is None:
        raise TokenizerError(
            f"{path}: found {len(ids):,} pieces and no [UNK] among them, which unknown words need. "
            "Is this the complete vocab.txt of a BERT model?"
        )
    # The file does not say whether the model is cased; the settings beside it may, and its pieces show it.
    cased = any(piece != piece.lower() for piece in ids if not piece.startswith(("[", "<")))
    tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", not cased),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return add_post_processor(_add_specials(tokenizer))


def _read_byte_level(vocabulary: Path, merges: Path) -> tokenizers.Tokenizer:
    """GPT-2's and RoBERTa's pair of files: piece -> id, and the merges, best first."""
    with reading(vocabulary, "a table of pieces and their ids, as in GPT-2's vocab.json"):
        ids = _json_object(vocabulary)
        if not all(isinstance(number, int) for number in ids.values()):
            raise ValueError("found values that are no whole numbers")
    missing = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(ids))
    if missing:
        raise TokenizerError(
            f"{vocabulary}: found no piece for {len(missing)} of the 256 bytes ({missing[0]!r} for one); expected the "
            "complete vocab.json of a byte-level tokenizer. Fetch it again"
        )
    with reading(merges, "two pieces a line, as in GPT-2's merges.txt"):
        pairs = list(_pairs(merges, ids))
        tokenizer = tokenizers.Tokenizer(models.BPE(ids, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return add_post_processor(_add_specials(tokenizer))


def _pairs(merges: Path, ids: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_text(merges).split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, _, right = line.partition(" ")
        lacking = [piece for piece in (left, right, left + right) if piece not in ids]
        if not right or lacking:
            reason = f"which vocab.json does not have: {lacking[0]!r}" if right else "which is no pair"
            raise TokenizerError(
                f"{merges}, line {number}: found the merge {line!r}, {reason}. "
                "Take vocab.json and merges.txt from the same model"
            )
        yield left, right


def _add_specials(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Let a text spell out the special tokens that a vocabulary has, as `transformers` does."""
    ids = tokenizer.get_vocab()
    chosen = (next((name for name in names if name in ids), None) for names in NAMES.values())
    for name in sorted({name for name in chosen if name}, key=ids.__getitem__):
        # RoBERTa's and MPNet's `<mask>` stands for a word and the space before it.
        tokenizer.add_special_tokens([AddedToken(name, lstrip=name == "<mask>", normalized=False, special=True)])
    return tokenizer


def _read_sentencepiece(path: Path, dictionary: Path | None) -> tokenizers.Tokenizer:
    """A SentencePiece model with its own ids, or with those of the lab's dict.txt."""
    with reading(path, "a complete SentencePiece model"):
        model = parse_sentencepiece(read_whole(path))
        if dictionary is None:
            return add_post_processor(to_tokenizers(model))
        vocabulary = [*LAB_SPECIALS, *_read_dictionary(dictionary)]
        twice = [piece for piece, times in Counter(vocabulary).items() if times > 1]
        if twice:
            raise TokenizerError(f"{dictionary}: found {twice[0]!r} twice, with {', '.join(LAB_SPECIALS)} counted in")
        lacking = sorted(set(model.texts(Kind.NORMAL, Kind.USER_DEFINED, Kind.BYTE)) - set(vocabulary))
        if lacking:
            raise TokenizerError(
                f"{dictionary}: found no line for {len(lacking):,} pieces of {path.name}, {lacking[0]!r} for one. "
                "Take both files from the same model, or move dict.txt away to use the model's own ids"
            )
        return add_post_processor(to_tokenizers(model, vocabulary, LAB_SPECIALS[3]))


def _read_dictionary(path: Path) -> list[str]:
    """The pieces of a dict.txt, `piece count` a line."""
    with reading(path, "a piece, a space and a count on each line"):
        lines = read_text(path).removesuffix("\n").split("\n")
    pieces = []
    for number, line in enumerate(lines, start=1):
        piece, _, count = line.rpartition(" ")
        if not piece or not count.isdecimal():
            raise TokenizerError(f"{path}, line {number}: found {line!r}; expected a piece, a space and a count")
        pieces.append(piece)
    return pieces
