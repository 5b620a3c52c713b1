"""Whether a tokenizer suits a text: one of another language cuts it into many more tokens.

So tokens a byte tell, without a model of languages, whether a base can read a text. The limit lies between what was
measured within one language, whatever the kind of text, and across languages; a larger vocabulary needs fewer tokens.

    tokens in the vocabulary   4,000          8,000          16,000         50,000
    the same language          up to 0.51     up to 0.47     up to 0.39     up to 0.29
    another                    0.57 and more  0.51 and more  0.44 and more  0.49 and more

One pair in one language lay above it: leaflets of an administration, half a megabyte of them, and single sentences
(0.60).
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.tokenizers.tokenizer import Tokenizer

SAMPLE = 1000  # texts that are looked at


def tokens_per_byte(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """Tokens for each byte of UTF-8; of many texts, every so many are looked at."""
    sample = texts[:: max(len(texts) // SAMPLE, 1)]
    tokens = sum(map(len, tokenizer.encode_batch(sample)))
    return tokens / max(sum(len(text.encode()) for text in sample), 1)


def most_tokens_per_byte(vocabulary: int) -> float:
    """The limit: above it a text is in another language than the one that the tokenizer was trained on.

    >>> [round(most_tokens_per_byte(size), 2) for size in (4_000, 8_000, 16_000, 50_000)]
    [0.54, 0.48, 0.43, 0.35]
    """
    return float(0.54 * (4_000 / vocabulary) ** 0.17)
