"""Training a tokenizer, unigram, bpe or wordpiece, on the texts of a corpus.

The same texts give the same tokenizer each time, byte for byte: where a library's trainer does not, another is used.
"""

from __future__ import annotations

import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import sentencepiece

import tokenizers
from headstart.errors import ConfigError, TokenizerError, did_you_mean
from headstart.tokenizers.sentencepiece_model import SPACE, decoder, parse_sentencepiece, unigram
from headstart.tokenizers.special_tokens import SPECIALS, add_post_processor
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

MAX_SIZE = 2_000_000  # tokens: twice the largest vocabulary in use


def train_tokenizer(texts: Iterable[str], *, kind: str, size: int, lower: bool) -> tokenizers.Tokenizer:
    """A tokenizer of `size` tokens, special ones included, trained on texts; fewer if the texts give no more."""
    if kind not in TRAINERS:
        raise ConfigError("tokenizer", [f"kind {kind!r} is unknown, {did_you_mean(kind, TRAINERS)}"])
    _check_size(size, len(SPECIALS), f"{len(SPECIALS)} special tokens")  # before a long corpus is read
    if size > MAX_SIZE:  # the trainers reserve memory for all tokens at once, and end the process where there is none
        raise ConfigError("tokenizer", [f"size {size:,} is more than a vocabulary can have: take {MAX_SIZE:,} or less"])
    texts = iter(texts)
    first = next((text for text in texts if not text.isspace() and text), None)
    if first is None:
        raise TokenizerError("there is no text to train a tokenizer on: every document is empty")
    return TRAINERS[kind](itertools.chain([first], texts), size, lower)


def _check_size(size: int, smallest: int, what: str) -> None:
    if size < smallest:
        raise ConfigError("tokenizer", [f"size {size:,} is too small for {what}: take {smallest:,} or more"])


def _train_bpe(texts: Iterable[str], size: int, lower: bool) -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _check_size(size, len(SPECIALS) + len(alphabet), f"{len(SPECIALS)} special tokens and 256 bytes")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if lower:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIALS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return add_post_processor(tokenizer)


def _train_wordpiece(texts: Iterable[str], size: int, lower: bool) -> tokenizers.Tokenizer:
    """Train BPE on words marked where they begin, `▁b o o k`, and write its pieces as BERT does, `b ##o ##o ##k`.

    The library's WordPiece trainer numbers pieces in an order that changes from run to run and breaks ties by number,
    so that two runs give two vocabularies. Its BPE trainer does not.
    """
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=False)
    words = pre_tokenizers.BertPreTokenizer()
    bpe.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.Metaspace(prepend_scheme="always")])
    # Rare characters would fill the vocabulary of a large corpus: BERT's own limit, or more in a large vocabulary.
    limit = max(1000, size // 4)
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, limit_alphabet=limit, show_progress=False))
    ids: dict[str, int] = bpe.get_vocab()
    letters = sorted(piece for piece in ids if len(piece) == 1 and piece != SPACE)
    longer = (piece for piece in sorted(ids, key=ids.__getitem__) if len(piece) > 1)
    merged = (piece[1:] if piece.startswith(SPACE) else f"##{piece}" for piece in longer)
    smallest = [*SPECIALS, *letters, *(f"##{letter}" for letter in letters)]
    _check_size(size, len(smallest), f"{len(SPECIALS)} special tokens and {len(letters)} characters in two forms")
    vocabulary = list(dict.fromkeys([*smallest, *merged]))[:size]
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece({piece: number for number, piece in enumerate(vocabulary)}, unk_token=SPECIALS[1])
    )
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.normalizer = bpe.normalizer
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.WordPiece()
    return add_post_processor(tokenizer)


def _train_unigram(texts: Iterable[str], size: int, lower: bool) -> tokenizers.Tokenizer:
    """Count words here, and let SentencePiece learn pieces from the counts.

    The trainer of `tokenizers` sums in an order that changes from run to run; SentencePiece's does not.
    """
    steps = [normalizers.Nmt(), normalizers.NFKC()] + ([normalizers.Lowercase()] if lower else [])
    steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip(left=False, right=True)]
    normalizer = normalizers.Sequence(steps)
    words: Counter[str] = Counter()
    for text in texts:
        words.update(normalizer.normalize_str(text).split(" "))
    model = parse_sentencepiece(_train_sentencepiece(words, size))
    vocabulary = [piece.text for piece in model.pieces]
    tokenizer = tokenizers.Tokenizer(unigram(model, vocabulary, SPECIALS[1]))
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.normalizer = normalizer
    # "first": text after a special token is not the beginning of a text, so `<mask>.` gets no space before its stop.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoder()
    return add_post_processor(tokenizer)


def _train_sentencepiece(words: Counter[str], size: int) -> bytes:
    """A SentencePiece model of these words, normalised already; special tokens first, then the 256 bytes."""
    model = io.BytesIO()
    pad, unknown, start, end, *others = SPECIALS
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_word_counts(words),
            input_format="tsv",
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            hard_vocab_limit=False,
            byte_fallback=True,
            character_coverage=0.9999,  # one character in ten thousand may be written as bytes
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            pad_id=0,
            pad_piece=pad,
            unk_id=1,
            unk_piece=unknown,
            bos_id=2,
            bos_piece=start,
            eos_id=3,
            eos_piece=end,
            control_symbols=others,
            num_threads=4,  # fixed: the number of threads changes the last digits of sums
            minloglevel=2,
        )
    except RuntimeError as error:
        needed = re.search(r"required_chars\. \d+ vs (\d+)", str(error))
        if needed:
            characters = int(needed[1]) - len(SPECIALS) - 256
            what = f"{len(SPECIALS)} special tokens, 256 bytes and {characters} characters"
            _check_size(size, int(needed[1]), what)
        raise TokenizerError(f"SentencePiece cannot learn pieces from this text: {error}") from error
    return model.getvalue()


def _word_counts(words: Counter[str]) -> Iterator[str]:
    """`▁word<tab>count`, sorted; what is longer than 1,000 characters in parts."""
    for word in sorted(filter(None, words)):
        marked = f"{SPACE}{word}"
        for begin in range(0, len(marked), 1000):
            yield f"{marked[begin : begin + 1000]}\t{words[word]}"


TRAINERS: dict[str, Callable[[Iterable[str], int, bool], tokenizers.Tokenizer]] = {
    "unigram": _train_unigram,
    "bpe": _train_bpe,
    "wordpiece": _train_wordpiece,
}
