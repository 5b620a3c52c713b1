"""Tokens: what a store holds, and what is refused when one is opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tokenizers
from headstart.errors import DataError
from headstart.reading.examples import Example, Examples
from headstart.reading.split import split
from headstart.store.plan import id_type
from headstart.store.store import FILES, Store
from headstart.store.write import write_store
from headstart.tokenizers.tokenizer import Tokenizer
from tests.store.example_corpora import contents, made_texts, write_corpus
from tokenizers import models, pre_tokenizers

# What a store holds


def test_every_document_is_there_in_order_on_the_side_of_a_labelled_set(
    tmp_path: Path, tokenizer: Tokenizer, small_chunks: None
) -> None:
    texts = made_texts(300, seed=1)
    corpus = write_corpus(tmp_path / "corpus.txt", texts)
    rows = tuple(Example(text, None, None, "corpus.txt", number) for number, text in enumerate(texts))
    expected = split(Examples(rows), valid=0.2, test=0)
    write_store([corpus], tokenizer, tmp_path / "store", valid=0.2, workers=1)

    store = Store.open(tmp_path / "store", tokenizer.fingerprint)
    assert 30 < len(expected["valid"].rows) < 100
    for name in ("train", "valid"):
        documents = store.split(name)
        wanted = [row.text for row in expected[name].rows]
        assert [list(documents[i]) for i in range(len(documents))] == [tokenizer.encode(text) for text in wanted]
        assert documents.bytes.tolist() == [len(text.encode()) for text in wanted]
        assert documents.starts.shape == (len(wanted) + 1,)
        assert (documents.starts[0], documents.starts[-1]) == (0, len(documents.ids))
        assert [str(part.dtype) for part in (documents.ids, documents.starts)] == ["uint16", "int64"]
        assert isinstance(documents.ids, np.memmap)
        assert list(documents[-1]) == tokenizer.encode(wanted[-1])
        with pytest.raises(IndexError):
            documents[len(wanted)]
        counts = store.counts[name]
        assert (counts.documents, counts.tokens) == (len(wanted), len(documents.ids))
        assert counts.bytes == documents.bytes.sum()
    assert Tokenizer.load(tmp_path / "store").fingerprint == store.tokenizer_fingerprint == tokenizer.fingerprint
    assert store.size == sum(map(len, contents(tmp_path / "store").values()))
    store.verify()


@pytest.mark.parametrize("size", [200, 70_000])
def test_ids_of_one_and_of_four_bytes_come_back(tmp_path: Path, size: int) -> None:
    vocabulary = {f"w{number}": number for number in range(size)}
    raw = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    numbers = [0, 1, size // 2, size - 1]
    corpus = write_corpus(tmp_path / "corpus.txt", [" ".join(f"w{number}" for number in numbers)])
    store = write_store([corpus], Tokenizer(raw), tmp_path / "store", valid=0, workers=1)
    assert store.split("train").ids.tolist() == numbers
    assert store.dtype == id_type(size)
    assert (tmp_path / "store" / "train.ids").stat().st_size == 4 * np.dtype(store.dtype).itemsize


def test_numbers_lie_little_end_first(tmp_path: Path, corpus: Path, bpe: Tokenizer) -> None:
    write_store([corpus], bpe, tmp_path / "store", valid=0, workers=1)
    first = made_texts(1, seed=1)[0]
    raw = (tmp_path / "store" / "train.ids").read_bytes()
    assert [low + 256 * high for low, high in zip(raw[::2], raw[1::2], strict=True)][:5] == bpe.encode(first)[:5]
    assert (tmp_path / "store" / "train.bytes").read_bytes()[:8] == len(first.encode()).to_bytes(8, "little")


@pytest.mark.parametrize(("valid", "full", "empty"), [(0, "train", "valid"), (1, "valid", "train")])
def test_everything_may_lie_in_one_split(
    tmp_path: Path, corpus: Path, bpe: Tokenizer, valid: float, full: str, empty: str
) -> None:
    store = write_store([corpus], bpe, tmp_path / "store", valid=valid, workers=1)
    assert len(store.split(full)) == 300
    none = store.split(empty)
    assert (len(none), none.ids.tolist(), none.starts.tolist(), none.bytes.tolist()) == (0, [], [0], [])
    assert none.ids.dtype == np.uint16
    store.verify()


def test_a_document_may_become_no_token_at_all(tmp_path: Path) -> None:
    wordpiece = Tokenizer.train(made_texts(100), kind="wordpiece", size=400)
    corpus = write_corpus(tmp_path / "corpus.txt", ["\u200b", "1 2", "\u200b\u200b"])
    assert wordpiece.encode("\u200b") == []
    train = write_store([corpus], wordpiece, tmp_path / "store", valid=0, workers=1).split("train")
    assert [len(train[i]) for i in range(3)] == [0, len(wordpiece.encode("1 2")), 0]
    assert train.bytes.tolist() == [3, 3, 6]


def test_only_documents_without_tokens(tmp_path: Path) -> None:
    wordpiece = Tokenizer.train(made_texts(100), kind="wordpiece", size=400)
    corpus = write_corpus(tmp_path / "corpus.txt", ["\u200b", "\u200b"])
    train = write_store([corpus], wordpiece, tmp_path / "store", valid=0, workers=1).split("train")
    assert (train.ids.tolist(), train.starts.tolist()) == ([], [0, 0, 0])


# What is refused on opening


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        Store.open(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no token store in this folder"):
        Store.open(tmp_path)
    (tmp_path / "store.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read as JSON"):
        Store.open(tmp_path)
    (tmp_path / "store.json").write_text('{"format": 9}')
    with pytest.raises(DataError, match="format 9, expected 1"):
        Store.open(tmp_path)
    (tmp_path / "store.json").write_text('{"format": 1, "tokenizer": "x"}')
    with pytest.raises(DataError, match="not as it was written"):
        Store.open(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_store_is_refused(tmp_path: Path, corpus: Path, bpe: Tokenizer, name: str) -> None:
    store = write_store([corpus], bpe, tmp_path / "store", valid=0.3, workers=1)
    path = tmp_path / "store" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    Store.open(tmp_path / "store")
    with pytest.raises(DataError, match=f"{name}: its checksum"):
        store.verify()
    with pytest.raises(DataError, match=f"{name}: its checksum"):
        write_store([corpus], bpe, tmp_path / "store", valid=0.3, workers=1)
    path.write_bytes(whole[:-1])
    with pytest.raises(DataError, match=f"{name}: holds {len(whole) - 1} bytes, expected {len(whole)}"):
        Store.open(tmp_path / "store")
    path.unlink()
    with pytest.raises(DataError, match=f"{name}: is missing"):
        Store.open(tmp_path / "store")


def test_no_such_split(tmp_path: Path, corpus: Path, bpe: Tokenizer) -> None:
    store = write_store([corpus], bpe, tmp_path / "store", workers=1)
    with pytest.raises(DataError, match=r"'test'.*train, valid"):
        store.split("test")
