"""Vocabularies: the ids of `transformers`, of `sentencepiece` and of the lab; and bad files."""

from __future__ import annotations

import copy
import io
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.errors import HeadstartError, TokenizerError
from headstart.tokenizers.tokenizer import Tokenizer
from tests.tokenizers.example_tokenizers import (
    GPT2_WORD,
    KINDS,
    bert_folder,
    byte_letters,
    join,
    sentences,
    strings,
    trained,
    word_starts,
    write_gpt2,
)
from tokenizers import AddedToken

os.environ["HF_HUB_OFFLINE"] = "1"


# The ids of others


@pytest.mark.parametrize("vocabulary", ["real", "small"])
def test_bert_ids_are_those_of_transformers(vocabulary: str, small_bert: Path) -> None:
    from transformers import BertTokenizer
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    path = bert_folder() / "vocab.txt" if vocabulary == "real" else small_bert
    ours, fast, slow = Tokenizer.load(path), BertTokenizer(vocab=str(path)), BertTokenizerLegacy(str(path))
    texts = strings(1, 3000, "[MASK]", "[SEP]", "你好", "한국어")
    encoded = ours.encode_batch(texts)
    assert encoded == fast(texts, add_special_tokens=False)["input_ids"]
    assert encoded == [ours.encode(text) for text in texts]
    # Written in Python, the older one knows how a Greek word ends; the others take each letter alone.
    plain = [(text, ids) for text, ids in zip(texts, encoded, strict=True) if "Σ" not in text]
    assert [ids for _, ids in plain] == [slow.encode(text, add_special_tokens=False) for text, _ in plain]


def test_a_cased_vocabulary_keeps_capitals(tmp_path: Path) -> None:
    from transformers import BertTokenizer

    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nBook\nbook\nété\n##s\n", encoding="utf-8")
    ours, theirs = Tokenizer.load(tmp_path), BertTokenizer(vocab=str(path), do_lower_case=False)
    for text in ("Book books", "été ÉTÉ", "BOOK"):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert ours.pieces(ours.encode("Books été")) == ["Book", "##s", "été"]


def test_the_settings_beside_a_vocabulary_are_followed(small_bert: Path) -> None:
    settings_file = small_bert.with_name("tokenizer_config.json")
    settings_file.write_text('{"do_lower_case": true, "strip_accents": false}')
    kept = Tokenizer.load(small_bert.parent)
    assert kept.pieces(kept.encode("É")) == ["é"]
    settings_file.unlink()
    stripped = Tokenizer.load(small_bert.parent)
    assert stripped.pieces(stripped.encode("É")) == ["e"]


def test_gpt2_ids_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import GPT2Tokenizer

    ids, merges = write_gpt2(tmp_path, "<|endoftext|>")
    ours, theirs = Tokenizer.load(tmp_path), GPT2Tokenizer(vocab=ids, merges=merges)
    texts = strings(2, 3000, "<|endoftext|>")
    encoded = ours.encode_batch(texts)
    assert encoded == theirs(texts, add_special_tokens=False)["input_ids"]
    assert [ours.decode(numbers) for numbers in encoded] == texts


def test_gpt2_ids_are_those_of_the_algorithm_written_out(tmp_path: Path) -> None:
    ids, merges = write_gpt2(tmp_path)
    ours, letters = Tokenizer.load(tmp_path), byte_letters()
    for text in strings(3, 1000):
        wanted = []
        for word in GPT2_WORD.findall(text):
            pieces = [letters[byte] for byte in word.encode()]
            for merge in merges:
                pieces = join(pieces, merge)
            wanted += [ids[piece] for piece in pieces]
        assert ours.encode(text) == wanted


def test_roberta_reads_the_same_files_with_its_own_tokens(tmp_path: Path) -> None:
    from transformers import RobertaTokenizer

    ids, merges = write_gpt2(tmp_path, "<s>", "<pad>", "</s>", "<unk>", "<mask>")
    ours = Tokenizer.load(tmp_path)
    mask = AddedToken("<mask>", lstrip=True, special=True)  # as in RoBERTa's own tokenizer.json
    theirs = RobertaTokenizer(vocab=ids, merges=merges, mask_token=mask)
    for text in strings(4, 500, " <mask>", "<mask> "):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert (ours.start, ours.end, ours.mask) == (ids["<s>"], ids["</s>"], ids["<mask>"])


def test_a_sentencepiece_model_alone_has_its_own_ids(tmp_path: Path) -> None:
    path = tmp_path / "some.model"
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences()), model_writer=written, vocab_size=300, model_type="bpe", minloglevel=2
    )
    path.write_bytes(written.getvalue())
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    for place in (path, tmp_path):
        ours = Tokenizer.load(place)
        assert ours.size == theirs.get_piece_size() == 300
        assert (ours.unknown, ours.start, ours.end) == (theirs.unk_id(), theirs.bos_id(), theirs.eos_id())
        assert ours.encode_batch(sentences()) == theirs.encode(list(sentences()))
        assert ours.wrap([7], [8]) == ([1, 7, 2, 2, 8, 2], [0] * 6)


# The lab's pair


lab = cache(Tokenizer.load)


def test_the_lab_has_its_ids(data: Path) -> None:
    pair = lab(data / "cls-books")
    assert (pair.start, pair.pad, pair.end, pair.unknown, pair.size) == (0, 1, 2, 3, 50_001)
    assert pair.pieces([0, 1, 2, 3, 1111]) == ["<sos>", "<pad>", "<eos>", "<oov>", "▁trop"]
    assert pair.wrap([1111, 5]) == ([0, 1111, 5], [0, 0, 0])
    assert pair.wrap([1111, 5], [6]) == ([0, 1111, 5, 2, 6], [0] * 5)
    assert pair.encode("<sos> <eos>").count(0) == 0  # in a text they are text, as in SentencePiece


@pytest.mark.parametrize(("split", "rows"), [("train", 1600), ("valid", 400), ("test", 2000)])
def test_the_lab_files_come_out_line_by_line(data: Path, split: str, rows: int, tmp_path: Path) -> None:
    folder = data / "cls-books"
    listed = (folder / "dict.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    ids = {line.rpartition(" ")[0]: number for number, line in enumerate(listed, start=4)}
    lines = (folder / f"{split}.review.spm").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    # A text is its pieces, run together, with spaces for the marks. Pieces that dict.txt has not are kept as they were
    # written in these files, and are all `<oov>` in ids.
    texts = ["".join(line.split(" ")).replace("▁", " ") for line in lines]
    wanted = [[ids.get(piece, 3) for piece in line.split(" ")] for line in lines]
    loaded = lab(folder)
    loaded.save(tmp_path)
    assert len(lines) == rows
    assert sum(numbers.count(3) for numbers in wanted) > 0
    assert loaded.encode_batch(texts) == wanted
    assert Tokenizer.load(tmp_path).encode_batch(texts) == wanted


# One file from then on


def test_a_file_that_cuts_and_fills_up_does_neither_here(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(bert_folder())  # its tokenizer.json cuts at 128 and fills up to 128
    assert json.loads((bert_folder() / "tokenizer.json").read_text())["truncation"]["max_length"] == 128
    assert len(tokenizer.encode("book")) == 1
    assert len(tokenizer.encode("book " * 300)) == 300


def test_dropout_is_switched_off(tmp_path: Path) -> None:
    trained("bpe").save(tmp_path)
    description = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    description["model"]["dropout"] = 0.9
    (tmp_path / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
    text = sentences()[0]
    assert {tuple(Tokenizer.load(tmp_path).encode(text)) for _ in range(5)} == {tuple(trained("bpe").encode(text))}


# Bad input


def make_missing(folder: Path) -> Path:
    return folder / "nowhere"


def make_empty(folder: Path) -> Path:
    (folder / "notes.md").write_text("hello")
    return folder


def make_no_json(folder: Path) -> Path:
    (folder / "tokenizer.json").write_text("{")
    return folder


def make_other_json(folder: Path) -> Path:
    (folder / "tokenizer.json").write_text('{"model_type": "bert"}')
    return folder


def make_damaged_json(folder: Path) -> Path:
    trained("bpe").save(folder)
    description = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    description["model"]["merges"][0] = ["nothing", "like it"]
    (folder / "tokenizer.json").write_text(json.dumps(description))
    return folder


def make_prefix_that_cuts_a_character(folder: Path) -> Path:
    return with_prefix(folder, "x", "é")


def make_prefix_that_is_too_long(folder: Path) -> Path:
    return with_prefix(folder, "##", "b")


def with_prefix(folder: Path, prefix: str, second: str) -> Path:
    """A BPE whose merge is of `a` and `second`; `tokenizers` panics at it, and may take the process along."""
    vocabulary = {token: number for number, token in enumerate(("<unknown>", "a", second, f"a{second}"))}
    model = {"type": "BPE", "continuing_subword_prefix": prefix, "vocab": vocabulary, "merges": [["a", second]]}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    return folder


def make_form_without_id(folder: Path) -> Path:
    trained("bpe").save(folder)
    description = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    del description["post_processor"]["special_tokens"]["<end>"]
    (folder / "tokenizer.json").write_text(json.dumps(description))
    return folder


def make_no_unknown(folder: Path) -> Path:
    (folder / "vocab.txt").write_text("[CLS]\n[SEP]\nbook\n")
    return folder


def make_latin1(folder: Path) -> Path:
    (folder / "vocab.txt").write_bytes("[UNK]\nété\n".encode("latin-1"))
    return folder


def make_other_merges(folder: Path) -> Path:
    write_gpt2(folder)
    with (folder / "merges.txt").open("a", encoding="utf-8") as file:
        file.write("zz zz\n")
    return folder


def make_no_pair(folder: Path) -> Path:
    write_gpt2(folder)
    (folder / "merges.txt").write_text("#version: 0.2\nabc\n")
    return folder


def make_no_merges(folder: Path) -> Path:
    write_gpt2(folder)
    (folder / "merges.txt").unlink()
    return folder


def make_cut_vocabulary(folder: Path) -> Path:
    ids, _ = write_gpt2(folder)
    (folder / "vocab.json").write_text(json.dumps({piece: ids[piece] for piece in list(ids)[:100]}))
    return folder


def make_cut_model(folder: Path) -> Path:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences()), model_writer=written, vocab_size=200, minloglevel=2
    )
    (folder / "some.model").write_bytes(written.getvalue()[:3000])
    return folder


def make_two_models(folder: Path) -> Path:
    (folder / "a.model").touch()
    (folder / "b.model").touch()
    return folder


def make_other_dictionary(folder: Path) -> Path:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences()), model_writer=written, vocab_size=200, minloglevel=2
    )
    (folder / "some.model").write_bytes(written.getvalue())
    (folder / "dict.txt").write_text("▁a 1\n", encoding="utf-8")
    return folder


def make_broken_dictionary(folder: Path) -> Path:
    make_other_dictionary(folder)
    (folder / "dict.txt").write_text("▁a 1\nb\n", encoding="utf-8")
    return folder


def make_double_dictionary(folder: Path) -> Path:
    make_other_dictionary(folder)
    (folder / "dict.txt").write_text("▁a 1\n<pad> 1\n", encoding="utf-8")
    return folder


def make_strange_file(folder: Path) -> Path:
    (folder / "tokenizer.bin").touch()
    return folder / "tokenizer.bin"


@pytest.mark.parametrize(
    ("make", "file", "message"),
    [
        (make_missing, "nowhere", "no such file or folder"),
        (make_empty, "", "notes.md"),
        (make_no_json, "tokenizer.json", "fetch it again"),
        (make_other_json, "tokenizer.json", 'without a "model"'),
        (make_damaged_json, "tokenizer.json", "nothing"),
        (make_prefix_that_cuts_a_character, "tokenizer.json", "prefix 'x' cannot be cut"),
        (make_prefix_that_is_too_long, "tokenizer.json", "prefix '##' cannot be cut"),
        (make_form_without_id, "", "found the token '<end>'"),
        (make_no_unknown, "vocab.txt", r"no \[UNK\]"),
        (make_latin1, "vocab.txt", "utf-8"),
        (make_other_merges, "merges.txt, line", "does not have: 'zz'"),
        (make_no_pair, "merges.txt, line 2", "no pair"),
        (make_no_merges, "merges.txt", "No such file"),
        (make_cut_vocabulary, "vocab.json", "of the 256 bytes"),
        (make_cut_model, "some.model", "expected a complete SentencePiece model"),
        (make_two_models, "", "a.model, b.model"),
        (make_other_dictionary, "dict.txt", "pieces of some.model"),
        (make_broken_dictionary, "dict.txt, line 2", "found 'b'"),
        (make_double_dictionary, "dict.txt", "found '<pad>' twice"),
        (make_strange_file, "tokenizer.bin", "cannot tell"),
    ],
)
def test_bad_files_are_named_and_explained(
    make: Callable[[Path], Path], file: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.load(make(tmp_path))
    assert str(tmp_path / file if file else tmp_path) in str(caught.value)


CHANGES: list[Any] = [None, -1, 0, 3, 1e9, True, "", "x", [], {}, [1], 2**40]


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    path=st.lists(st.integers(0, 1000), min_size=1, max_size=6),
    change=st.sampled_from(CHANGES),
)
def test_a_changed_file_gives_a_tokenizer_or_a_clear_error(
    kind: str, path: list[int], change: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "changed.json"
    description = copy.deepcopy(trained(kind)._description)
    place: Any = description
    for step in path:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = keys[step % len(keys)]
        if not isinstance(place[key], dict | list) or step == path[-1]:
            place[key] = change
            break
        place = place[key]
    file.write_text(json.dumps(description))
    try:
        tokenizer = Tokenizer.load(file)
        word_starts(tokenizer, tokenizer.wrap(tokenizer.encode("un été <mask> ж"))[0])
        tokenizer.wrap([1], [2])
    except HeadstartError as error:
        assert str(error)


def test_memory_that_runs_out_is_no_fault_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setattr("headstart.tokenizers.load.read_whole", full)
    with pytest.raises(MemoryError):
        Tokenizer.load(tmp_path)
