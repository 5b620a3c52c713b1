"""Learning: a vocabulary of our own, unigram, bpe or wordpiece, from the texts of a corpus.

The same texts give the same tokenizer each time, to the last byte: where a library's trainer does not, another is used.
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
from headstart.tokenizers.special_tokens import SPECIALS, state_forms
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers


def learn(texts: Iterable[str], *, kind: str, size: int, lower: bool) -> tokenizers.Tokenizer:
    """A tokenizer of `size` tokens, specials included, learnt from texts; fewer only where the texts give no more."""
    if kind not in TRAINERS:
        raise ConfigError("tokenizer", [f"kind {kind!r} is unknown, {did_you_mean(kind, TRAINERS)}"])
    _check_size(size, len(SPECIALS), f"{len(SPECIALS)} special tokens")  # before a corpus is read in vain
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
    return state_forms(tokenizer)


def _train_wordpiece(texts: Iterable[str], size: int, lower: bool) -> tokenizers.Tokenizer:
    """Learn merges of words that are marked where they begin, `▁b o o k`, and write them as BERT does, `b ##o ##o ##k`.

    The library's own trainer of such pieces numbers them in an order that changes from run to run, and breaks ties by
    number: two runs then give two vocabularies. Its trainer of plain merges does not.
    """
    learner = tokenizers.Tokenizer(models.BPE())
    learner.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=False)
    words = pre_tokenizers.BertPreTokenizer()
    learner.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.Metaspace(prepend_scheme="always")])
    # Rare characters would fill the vocabulary of a large corpus: BERT's own limit, more where there is room for it.
    limit = max(1000, size // 4)
    learner.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, limit_alphabet=limit, show_progress=False))
    ids: dict[str, int] = learner.get_vocab()
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
    tokenizer.normalizer = learner.normalizer
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.WordPiece()
    return state_forms(tokenizer)


def _train_unigram(texts: Iterable[str], size: int, lower: bool) -> tokenizers.Tokenizer:
    """Count words here, and let SentencePiece learn pieces from them.

    The trainer of `tokenizers` adds up in an order that changes from run to run; SentencePiece's does not.
    """
    steps = [normalizers.Nmt(), normalizers.NFKC()] + ([normalizers.Lowercase()] if lower else [])
    steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip(left=False, right=True)]
    normalizer = normalizers.Sequence(steps)
    words: Counter[str] = Counter()
    for text in texts:
        words.update(normalizer.normalize_str(text).split(" "))
    model = parse_sentencepiece(_learn_pieces(words, size))
    vocabulary = [piece.text for piece in model.pieces]
    tokenizer = tokenizers.Tokenizer(unigram(model, vocabulary, SPECIALS[1]))
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.normalizer = normalizer
    # "first": text after a special token is not the beginning of a text. `<mask>.` keeps its full stop as it is.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoder()
    return state_forms(tokenizer)


def _learn_pieces(words: Counter[str], size: int) -> bytes:
    """A SentencePiece model of these words, normalised already; specials first, then the 256 bytes."""
    written = io.BytesIO()
    pad, unknown, start, end, *others = SPECIALS
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_marked(words),
            input_format="tsv",
            model_writer=written,
            model_type="unigram",
            vocab_size=size,
            hard_vocab_limit=False,
            byte_fallback=True,
            character_coverage=0.9999,  # one character in ten thousand may be left to its bytes
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
            num_threads=4,  # fixed, because sums are added thread by thread and it shows in the last digit
            minloglevel=2,
        )
    except RuntimeError as error:
        needed = re.search(r"required_chars\. \d+ vs (\d+)", str(error))
        if needed:
            characters = int(needed[1]) - len(SPECIALS) - 256
            what = f"{len(SPECIALS)} special tokens, 256 bytes and {characters} characters"
            _check_size(size, int(needed[1]), what)
        raise TokenizerError(f"SentencePiece cannot learn pieces from this text: {error}") from error
    return written.getvalue()


def _marked(words: Counter[str]) -> Iterator[str]:
    """`▁word<tab>count`, in the order of the alphabet; what is longer than any word in parts."""
    for word in sorted(filter(None, words)):
        marked = f"{SPACE}{word}"
        for begin in range(0, len(marked), 1000):
            yield f"{marked[begin : begin + 1000]}\t{words[word]}"


TRAINERS: dict[str, Callable[[Iterable[str], int, bool], tokenizers.Tokenizer]] = {
    "unigram": _train_unigram,
    "bpe": _train_bpe,
    "wordpiece": _train_wordpiece,
}
