"""Batches: each a pure function of where it is asked for, nothing lost, and what each objective promises."""

from __future__ import annotations

import math
import random as dice
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tokenizers
from headstart.batches import language
from headstart.batches.batch import IGNORE_INDEX, Batch, Batches, order, share_of, token_edges
from headstart.batches.encoding import Encoded, in_order
from headstart.batches.examples import ExampleBatches
from headstart.batches.language import CausalBatches, MaskedBatches, PairBatches, Pieces
from headstart.batches.masking import Masking
from headstart.errors import ConfigError, DataError, ModelError, TokenizerError
from headstart.reading.examples import Example, Examples
from headstart.store.store import Documents
from headstart.tokenizers.tokenizer import Tokenizer

SIZES = {"wordpiece": 150, "bpe": 340, "unigram": 360}  # small, so that most words are several pieces
FIRST = 10  # ids from here on are text in every tokenizer here

seeds = st.integers(0, 2**32 - 1)
epochs = st.integers(0, 1000)
few = settings(max_examples=25, deadline=None)


# --- what the tests are made of ---------------------------------------------------------------------------------------


def sentences(count: int, name: str) -> list[str]:
    """Made-up sentences of made-up words of one to five syllables."""
    draw = dice.Random(name)
    syllables = [consonant + vowel for consonant in "bdklmnprst" for vowel in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 5))) for _ in range(150)]
    return [" ".join(draw.choices(words, k=draw.randint(4, 12))) + draw.choice(".,;") for _ in range(count)]


@pytest.fixture(scope="session")
def trained() -> dict[str, Tokenizer]:
    return {kind: Tokenizer.train(sentences(200, "corpus"), kind=kind, size=size) for kind, size in SIZES.items()}


@pytest.fixture(scope="session", params=SIZES)
def tokenizer(request: pytest.FixtureRequest, trained: dict[str, Tokenizer]) -> Tokenizer:
    return trained[request.param]


@pytest.fixture(scope="session")
def like_gpt2() -> Tokenizer:
    """One special token that is start, end and separator, nothing around a text, and no mask."""
    names = ["<|endoftext|>", "<unk>", *(f"w{number}" for number in range(50))]
    words = tokenizers.models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return Tokenizer(tokenizer)


def store(rows: Sequence[Sequence[int]]) -> Documents:
    """Documents of these tokens."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.array([token for row in rows for token in row], dtype=np.uint16)
    return Documents(ids, np.append(0, lengths.cumsum()), lengths)


def numbered(lengths: Sequence[int]) -> list[list[int]]:
    """Documents of these lengths in which every token is another: its id says where it comes from."""
    edges = [FIRST, *accumulate(lengths, initial=FIRST)][1:]
    return [list(range(low, high)) for low, high in pairwise(edges)]


def origin(rows: Sequence[Sequence[int]]) -> dict[int, int]:
    """The document of each token of `numbered` documents."""
    return {token: number for number, row in enumerate(rows) for token in row}


def written(tokenizer: Tokenizer, count: int, name: str = "documents") -> list[list[int]]:
    """Documents of one to four sentences, an empty one and one of a single token among them."""
    draw = dice.Random(name)
    text = iter(sentences(4 * count, name))
    rows = [tokenizer.encode(" ".join(next(text) for _ in range(draw.randint(1, 4)))) for _ in range(count)]
    return [rows[0], [], [FIRST], *rows[1:], []]


def encoded(lengths: Sequence[int]) -> Encoded:
    """Rows of these lengths, every token another."""
    rows = numbered(lengths)
    ids = np.array([token for row in rows for token in row], dtype=np.int32)
    starts = np.append(0, np.cumsum(lengths)).astype(np.int64)
    return Encoded(ids, starts, None, np.arange(len(rows)) % 3, 0)


def examples(rows: Sequence[tuple[str, str | None, str | None]], path: str = "train.csv") -> Examples:
    """(text, second, label) on lines 2, 3, 4 …"""
    return Examples(
        tuple(Example(text, label, second, path, line) for line, (text, second, label) in enumerate(rows, 2))
    )


@dataclass(frozen=True)
class Plain:
    """One sequence of a batch in lists, and what belongs to it: places are counted from its own beginning."""

    ids: list[int]
    segments: list[int] | None
    targets: list[int] | None  # the next token of each
    hidden: dict[int, int] | None  # place -> the token behind the mask
    label: int | None
    row: int | None

    @property
    def text(self) -> list[int]:
        """The tokens as they were before any was hidden."""
        return [(self.hidden or {}).get(place, token) for place, token in enumerate(self.ids)]


def plain(batch: Batch) -> list[Plain]:
    """The sequences of a batch, read off in the slowest way, and its form checked on the way."""
    edges = batch.starts.tolist()
    ids = batch.ids.tolist()
    assert batch.starts.dtype == torch.int32
    assert batch.ids.dtype == torch.int64
    assert (edges[0], edges[-1]) == (0, len(ids))
    assert batch.longest == max(high - low for low, high in pairwise(edges))
    for each in (batch.labels, batch.rows):
        assert each is None or len(each) == len(edges) - 1
    assert batch.segments is None or len(batch.segments) == len(ids)
    targets = None if batch.targets is None else batch.targets.tolist()
    masks: dict[int, int] | None = None
    if batch.masked is not None:
        assert targets is not None
        masks = dict(zip(batch.masked.tolist(), targets, strict=True))
        assert len(masks) == len(targets), "one place is masked twice"
        assert set(masks) <= set(range(len(ids)))
    elif targets is not None:
        assert len(targets) == len(ids)
    return [
        Plain(
            ids=ids[low:high],
            segments=None if batch.segments is None else batch.segments[low:high].tolist(),
            targets=None if targets is None or masks is not None else targets[low:high],
            hidden=None if masks is None else {p - low: masks[p] for p in range(low, high) if p in masks},
            label=None if batch.labels is None else int(batch.labels[number]),
            row=None if batch.rows is None else int(batch.rows[number]),
        )
        for number, (low, high) in enumerate(pairwise(edges))
    ]


def epoch_of(data: Batches, epoch: int) -> list[list[Plain]]:
    """Every step of an epoch."""
    return [plain(data.batch(epoch, step)) for step in range(data.steps(epoch))]


def flat(steps: Sequence[Sequence[Plain]]) -> list[Plain]:
    return [sequence for step in steps for sequence in step]


def tokens(steps: Sequence[Sequence[Plain]]) -> list[int]:
    """Every token, un-hidden, in the order of the steps."""
    return [token for sequence in flat(steps) for token in sequence.text]


def near(count: int, trials: float, chance: float, spread: float | None = None) -> bool:
    """Is a count within five standard deviations of what a chance gives? `spread`: its variance, if not binomial."""
    variance = trials * chance * (1 - chance) if spread is None else spread
    return abs(count - trials * chance) <= 5 * math.sqrt(variance)


def forget() -> None:
    """As in a new process: nothing remembered."""
    order.cache_clear()
    language._row.cache_clear()


Make = Callable[[int], Batches]  # from a seed
SHUFFLED = [
    "rows",
    "rows by tokens",
    "pairs of texts",
    "rows with tokens left out",
    "across",
    "apart",
    "masked",
    "whole words",
    "next sentence",
]
IN_FILE_ORDER = ["across, whole", "apart, whole", "masked, whole", "next sentence, whole"]


@pytest.fixture(scope="session")
def makers(trained: dict[str, Tokenizer]) -> dict[str, Make]:
    """Every kind of batches, over a set or a corpus large enough to have several steps, the last not full."""
    words = trained["wordpiece"]
    documents = store(written(words, 20))
    labels = [str(number % 3) for number in range(31)]
    single = [(text, None, label) for text, label in zip(sentences(31, "rows"), labels, strict=True)]
    paired = [(text, text[::-1] if i % 4 else None, label) for i, (text, _, label) in enumerate(single)]
    rows, pairs = (Encoded.of(examples(some), words, ("0", "1", "2"), 24) for some in (single, paired))
    masking, whole_words = Masking.of(words, 0.3), Masking.of(words, 0.3, whole_words=True)

    def causal(across: bool, whole: bool) -> Make:
        return lambda seed: CausalBatches(
            documents, words, window=12, batch_size=4, seed=seed, across=across, whole=whole
        )

    def masked(masking: Masking, whole: bool) -> Make:
        return lambda seed: MaskedBatches(
            documents, words, window=12, batch_size=4, seed=seed, masking=masking, whole=whole
        )

    def next_sentence(whole: bool) -> Make:
        return lambda seed: PairBatches(
            documents, words, window=14, batch_size=5, seed=seed, masking=masking, whole=whole
        )

    return {
        "rows": lambda seed: ExampleBatches(rows, seed, batch_size=7),
        "rows by tokens": lambda seed: ExampleBatches(rows, seed, tokens=90),
        "pairs of texts": lambda seed: ExampleBatches(pairs, seed, batch_size=7),
        "rows with tokens left out": lambda seed: ExampleBatches(rows, seed, batch_size=7, left_out=0.3),
        "across": causal(True, False),
        "apart": causal(False, False),
        "masked": masked(masking, False),
        "whole words": masked(whole_words, False),
        "next sentence": next_sentence(False),
        "across, whole": causal(True, True),
        "apart, whole": causal(False, True),
        "masked, whole": masked(masking, True),
        "next sentence, whole": next_sentence(True),
    }


# --- pure functions of seed, epoch and step ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHUFFLED + IN_FILE_ORDER)
@settings(max_examples=6, deadline=None)
@given(seed=seeds, epoch=epochs, random=st.randoms(use_true_random=False))
def test_a_step_is_the_same_whenever_it_is_asked_for(
    makers: Mapping[str, Make], name: str, seed: int, epoch: int, random: dice.Random
) -> None:
    forget()
    expected = epoch_of(makers[name](seed), epoch)
    assert len(expected) > 2
    forget()
    again = makers[name](seed)
    steps = list(range(len(expected)))
    random.shuffle(steps)
    for step in steps:
        again.batch(epoch + random.randint(0, 3), 0)  # another question in between
        assert plain(again.batch(epoch, step)) == expected[step]


@pytest.mark.parametrize("name", SHUFFLED)
def test_another_epoch_and_another_seed_have_another_order(makers: Mapping[str, Make], name: str) -> None:
    rows = [tokens(epoch_of(makers[name](seed), epoch)) for seed in (0, 1, 77) for epoch in (0, 1, 5)]
    assert len({tuple(row) for row in rows}) == len(rows)


@pytest.mark.parametrize("name", IN_FILE_ORDER)
def test_a_whole_pass_is_the_same_for_every_seed_and_epoch(makers: Mapping[str, Make], name: str) -> None:
    """Its order, its masks and its pairs: a model is always scored on the same."""
    passes = [epoch_of(makers[name](seed), epoch) for seed in (0, 1, 77) for epoch in (0, 1, 5)]
    assert passes == passes[:1] * len(passes)


@given(keys=st.lists(st.tuples(seeds, epochs), min_size=2, max_size=6, unique=True), count=st.integers(20, 60))
def test_an_order_has_every_item_once_and_no_two_keys_share_one(keys: list[tuple[int, int]], count: int) -> None:
    orders = [order(count, seed, epoch).tolist() for seed, epoch in keys]
    assert all(sorted(each) == list(range(count)) for each in orders)
    assert len({tuple(each) for each in orders}) == len(keys)


def test_the_order_is_fair() -> None:
    """Each item is in each place equally often: 5 standard deviations for each of 36."""
    trials = 3000
    firsts = np.array([order(6, 9, epoch) for epoch in range(trials)])
    for place in range(6):
        for item in range(6):
            assert near(int((firsts[:, place] == item).sum()), trials, 1 / 6)


@pytest.mark.parametrize("name", SHUFFLED + IN_FILE_ORDER)
def test_a_batch_that_is_changed_in_place_changes_no_other(makers: Mapping[str, Make], name: str) -> None:
    forget()
    try:
        data = makers[name](3)
        expected = epoch_of(data, 0)
        for step in range(data.steps(0)):
            batch = data.batch(0, step)
            for tensor in (
                batch.ids,
                batch.starts,
                batch.segments,
                batch.targets,
                batch.masked,
                batch.labels,
                batch.rows,
            ):
                if tensor is not None:
                    tensor.zero_()
        assert epoch_of(data, 0) == expected
    finally:
        forget()


def test_every_tensor_of_a_batch_moves(makers: Mapping[str, Make]) -> None:
    for name in ("pairs of texts", "next sentence", "across"):
        batch = makers[name](0).batch(0, 0)
        moved = batch.to("meta")
        assert moved.longest == batch.longest
        for field in ("ids", "starts", "segments", "targets", "masked", "labels", "rows"):
            before, after = getattr(batch, field), getattr(moved, field)
            assert (before is None) == (after is None)
            if before is not None:
                assert (after.device.type, after.shape, after.dtype) == ("meta", before.shape, before.dtype)
                assert before.device.type == "cpu"


# --- shares -----------------------------------------------------------------------------------------------------------


def check_shares(batch: Batch, shares: int) -> None:
    """Each sequence is in the share where it begins, whole, empty ones at the end in the last; without one, None."""
    whole = plain(batch)
    size = len(batch.ids)
    of_share = [min(start * shares // size, shares - 1) for start in batch.starts[:-1].tolist()]
    for share in range(shares):
        part = share_of(batch, share, shares)
        expected = [sequence for sequence, owner in zip(whole, of_share, strict=True) if owner == share]
        assert ([] if part is None else plain(part)) == expected
        assert (part is None) == (expected == [])


@pytest.mark.parametrize("name", SHUFFLED + IN_FILE_ORDER)
@pytest.mark.parametrize("shares", [1, 2, 3, 4, 5])
def test_the_shares_of_a_step_are_the_step(makers: Mapping[str, Make], name: str, shares: int) -> None:
    data = makers[name](1)
    for step in range(data.steps(2)):
        check_shares(data.batch(2, step), shares)


@example(lengths=[3, 1, 0], shares=2, every=1)
@example(lengths=[0, 4, 0, 0, 4, 0, 0], shares=2, every=1)
@few
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any),
    shares=st.integers(1, 9),
    every=st.integers(1, 3),
)
def test_the_shares_of_any_batch_are_the_batch(lengths: list[int], shares: int, every: int) -> None:
    size = sum(lengths)
    places = torch.arange(0, size, every)  # with every token masked, those at the edges of a share are
    batch = Batch(
        ids=torch.arange(size),
        starts=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        longest=max(lengths),
        segments=torch.arange(size) % 2,
        targets=places + 1000,
        masked=places,
        labels=torch.arange(len(lengths)) % 3,
        rows=torch.arange(len(lengths)) + 7,
    )
    check_shares(batch, shares)
    check_shares(replace(batch, masked=None, targets=torch.arange(size) + 1), shares)
    check_shares(replace(batch, segments=None, masked=None, targets=None, labels=None, rows=None), shares)


def test_shares_are_about_equal() -> None:
    """No share has more than its part of the tokens and one sequence."""
    lengths = [5, 1, 9, 3, 3, 8, 2, 7, 4, 6]
    batch = Batch(torch.arange(48), torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), 9)
    for shares in (2, 3, 4):
        parts = [share_of(batch, share, shares) for share in range(shares)]
        assert all(part is not None and len(part.ids) < 48 / shares + 9 for part in parts)


# --- classification ---------------------------------------------------------------------------------------------------

some_lengths = st.lists(st.integers(1, 40), min_size=1, max_size=40)


@given(lengths=some_lengths, size=st.integers(1, 12), seed=seeds, epoch=epochs)
def test_every_example_is_once_in_an_epoch_of_batches(lengths: list[int], size: int, seed: int, epoch: int) -> None:
    steps = epoch_of(ExampleBatches(encoded(lengths), seed, batch_size=size), epoch)
    assert sorted(sequence.row for sequence in flat(steps) if sequence.row is not None) == list(range(len(lengths)))
    assert all(len(step) == size for step in steps[:-1])
    assert 0 < len(steps[-1]) <= size


@given(lengths=some_lengths, budget=st.integers(1, 120), seed=seeds, epoch=epochs)
def test_every_example_is_once_in_an_epoch_of_budgets(lengths: list[int], budget: int, seed: int, epoch: int) -> None:
    steps = epoch_of(ExampleBatches(encoded(lengths), seed, tokens=budget), epoch)
    assert sorted(sequence.row for sequence in flat(steps) if sequence.row is not None) == list(range(len(lengths)))
    assert all(sum(len(sequence.ids) for sequence in step) < budget + max(lengths) for step in steps)
    assert all(steps), "a step without a row"
    assert len(steps) <= math.ceil(sum(lengths) / budget), "steps smaller than they need be"


@given(lengths=some_lengths, size=st.integers(1, 12), budget=st.none() | st.integers(1, 120), seed=seeds, epoch=epochs)
def test_the_edges_say_where_each_step_begins_in_the_order(
    lengths: list[int], size: int, budget: int | None, seed: int, epoch: int
) -> None:
    data = ExampleBatches(encoded(lengths), seed, batch_size=size, tokens=budget)
    data.edges(epoch + 1)  # another question before
    edges = data.edges(epoch).tolist()
    visit = order(len(lengths), seed, epoch).tolist()
    found = [[sequence.row for sequence in step] for step in epoch_of(data, epoch)]
    assert found == [visit[low:high] for low, high in pairwise(edges)]
    assert (edges[0], edges[-1], len(edges)) == (0, len(lengths), data.steps(epoch) + 1)


@given(lengths=some_lengths, seed=seeds)
def test_a_row_comes_with_its_own_tokens_and_label(lengths: list[int], seed: int) -> None:
    rows = numbered(lengths)
    for sequence in flat(epoch_of(ExampleBatches(encoded(lengths), seed, batch_size=4), 0)):
        assert sequence.row is not None
        assert sequence.ids == rows[sequence.row]
        assert sequence.label == sequence.row % 3


@given(lengths=some_lengths, share=st.floats(0.01, 0.99), seed=seeds, epoch=epochs)
def test_tokens_that_are_left_out(lengths: list[int], share: float, seed: int, epoch: int) -> None:
    """What stays keeps its order, its row and its label; special tokens always stay, and no text is empty."""
    rows, keep = numbered(lengths), [numbered(lengths)[-1][-1]]
    for sequence in flat(epoch_of(ExampleBatches(encoded(lengths), seed, left_out=share, keep=keep), epoch)):
        assert sequence.row is not None
        whole = iter(rows[sequence.row])
        assert sequence.ids and all(token in whole for token in sequence.ids)  # consumes: a subsequence
        assert keep[0] in sequence.ids or keep[0] not in rows[sequence.row]
        assert sequence.label == sequence.row % 3


def test_as_many_tokens_are_left_out_as_were_asked_for_and_others_each_epoch() -> None:
    batches = ExampleBatches(encoded([400] * 20), 0, left_out=0.2)
    first, second = ({s.row: s.ids for s in flat(epoch_of(batches, epoch))} for epoch in (0, 1))
    assert 0.78 < sum(map(len, first.values())) / 8000 < 0.82
    assert all(first[row] != second[row] for row in first)


def test_segments_go_with_their_tokens() -> None:
    pairs = encoded([30] * 8)
    pairs = replace(pairs, segments=(pairs.ids % 2).astype(np.int8))
    batch = ExampleBatches(pairs, 0, left_out=0.5).batch(0, 0)
    assert len(batch.ids) < 240 and batch.segments is not None
    assert torch.equal(batch.segments, batch.ids % 2)


@given(lengths=some_lengths, budget=st.integers(1, 120))
def test_in_order_has_each_row_once_and_like_lengths_together(lengths: list[int], budget: int) -> None:
    groups = in_order(encoded(lengths), budget)
    rows = [int(row) for group in groups for row in group]
    assert sorted(rows) == list(range(len(lengths)))
    assert [lengths[row] for row in rows] == sorted(lengths)
    assert all(len(group) > 0 for group in groups)
    assert all(sum(lengths[row] for row in group) < budget + max(lengths) for group in groups)
    assert len(groups) <= math.ceil(sum(lengths) / budget)


def test_in_order_of_nothing_is_nothing() -> None:
    assert in_order(encoded([]), 100) == []


@given(lengths=some_lengths, budget=st.integers(1, 120))
def test_a_run_of_lengths_begins_in_a_span_of_its_own(lengths: list[int], budget: int) -> None:
    edges = token_edges(np.array(lengths), budget).tolist()
    before = [0, *accumulate(lengths)]
    spans = [{before[item] // budget for item in range(low, high)} for low, high in pairwise(edges)]
    assert (edges[0], edges[-1]) == (0, len(lengths))
    assert all(len(span) == 1 for span in spans)
    assert len(set.union(*spans)) == len(spans)


# --- encoding a labelled set ------------------------------------------------------------------------------------------


def rows_of(data: Encoded) -> list[list[int]]:
    return [data.ids[low:high].tolist() for low, high in pairwise(data.starts.tolist())]


def test_a_set_is_encoded_row_by_row(tokenizer: Tokenizer) -> None:
    texts = [*sentences(12, "encoded"), ""]
    window = 12
    labels = ["good", "bad", None, "fair"] * 3 + ["bad"]
    set_ = examples([(text, None, label) for text, label in zip(texts, labels, strict=True)])
    data = Encoded.of(set_, tokenizer, ("bad", "fair", "good"), window)
    bare = [tokenizer.encode(text) for text in texts]
    assert rows_of(data) == [[tokenizer.start, *ids[: window - 2], tokenizer.end] for ids in bare]
    assert data.lengths.tolist() == [min(len(ids) + 2, window) for ids in bare]
    assert data.labels.tolist() == [2, 0, -1, 1] * 3 + [0]
    assert data.segments is None
    assert 0 < data.cut < len(data)
    assert data.cut == sum(len(ids) + 2 > window for ids in bare)
    assert len(data) == len(texts)


def test_a_row_that_just_fits_is_not_cut(tokenizer: Tokenizer) -> None:
    text = sentences(1, "fits")[0]
    whole = len(tokenizer.encode(text)) + 2
    rows = examples([(text, None, "0")])
    assert [Encoded.of(rows, tokenizer, ["0"], whole + more).cut for more in (1, 0, -1)] == [0, 0, 1]


def test_a_set_of_pairs_has_segments(tokenizer: Tokenizer) -> None:
    one, two, three, four = sentences(4, "pairs")
    rows = examples([(one, two, "0"), (three, None, "1"), (four, "", "1")])
    data = Encoded.of(rows, tokenizer, "01", 1000)
    a, b, c, d = (tokenizer.encode(text) for text in (one, two, three, four))
    start, end, separator = tokenizer.start, tokenizer.end, tokenizer.separator
    expected = [[start, *a, separator, *b, end], [start, *c, end], [start, *d, separator, end]]
    assert rows_of(data) == expected
    assert data.segments is not None
    halves = [[0] * (len(a) + 2) + [1] * (len(b) + 1), [0] * (len(c) + 2), [0] * (len(d) + 2) + [1]]
    assert data.segments.tolist() == [segment for row in halves for segment in row]
    assert data.cut == 0
    batch = plain(data.batch(np.array([2, 0])))
    assert [(each.ids, each.segments, each.label, each.row) for each in batch] == [
        (expected[2], halves[2], 1, 2),
        (expected[0], halves[0], 0, 0),
    ]


@few
@given(window=st.integers(4, 60), first=st.integers(0, 6), second=st.integers(0, 6))
def test_no_pair_is_longer_than_the_window(trained: dict[str, Tokenizer], window: int, first: int, second: int) -> None:
    words = trained["unigram"]
    text = sentences(6, "window")
    rows = examples([(" ".join(text[:first]), " ".join(text[6 - second :]), "0")])
    whole = len(words.encode(rows.rows[0].text)) + len(words.encode(rows.rows[0].second or "")) + 3
    data = Encoded.of(rows, words, "0", window)
    assert data.lengths.tolist() == [min(whole, window)]
    assert data.cut == (whole > window)
    (row,) = rows_of(data)
    assert (row[0], row[-1], row.count(words.separator or -1)) == (words.start, words.end, 1)


def test_a_label_that_the_table_lacks_is_named_with_its_place(trained: dict[str, Tokenizer]) -> None:
    rows = examples([("ba", None, "good"), ("be", None, None), ("bi", None, "odd")], path="some/valid.tsv")
    with pytest.raises(DataError, match=r"'odd'.*bad, good") as caught:
        Encoded.of(rows, trained["bpe"], ("bad", "good"), 16)
    assert (caught.value.path, caught.value.line) == ("some/valid.tsv", 4)
    assert caught.value.fix


def test_a_window_without_room_for_text_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="2"):
        Encoded.of(examples([("ba", None, "0")]), tokenizer, "0", 2)


def test_an_empty_text_with_nothing_around_it_is_one_end(like_gpt2: Tokenizer) -> None:
    """GPT-2's form puts nothing around a text, and no model takes an empty sequence."""
    rows = examples([("w0", None, "0"), ("", None, "1"), ("w3 w1", None, "0")])
    assert like_gpt2.end == 0
    data = Encoded.of(rows, like_gpt2, "01", 8)
    assert rows_of(data) == [[2], [0], [5, 3]]
    assert data.cut == 0


def test_an_empty_text_without_an_end_is_one_unknown_or_the_first_token() -> None:
    rows = examples([("a", None, "0"), ("", None, "1")])
    unknown = tokenizers.models.WordLevel({"b": 0, "a": 1, "<unk>": 2}, unk_token="<unk>")
    neither = tokenizers.models.BPE(vocab={"b": 0, "a": 1}, merges=[])
    for model, expected in ((unknown, 2), (neither, 0)):
        bare = Tokenizer(tokenizers.Tokenizer(model))
        assert bare.end is None
        assert rows_of(Encoded.of(rows, bare, "01", 8)) == [[1], [expected]]


def test_no_row_is_empty(tokenizer: Tokenizer, like_gpt2: Tokenizer) -> None:
    for each in (tokenizer, like_gpt2):
        for second in (None, ""):
            assert Encoded.of(examples([("", second, "1")]), each, "01", 8).lengths.min() > 0


def test_an_empty_set_is_encoded_and_cannot_be_trained_on(trained: dict[str, Tokenizer]) -> None:
    data = Encoded.of(examples([]), trained["bpe"], "01", 16)
    assert (len(data), len(data.ids), data.cut, data.starts.tolist()) == (0, 0, 0, [0])
    with pytest.raises(DataError, match="no rows"):
        ExampleBatches(data, 0)


# --- pieces of documents ----------------------------------------------------------------------------------------------


def pieces_by_hand(
    rows: Sequence[Sequence[int]], before: tuple[int, ...], after: tuple[int, ...], longest: int | None, each: bool
) -> list[list[int]]:
    """Wrap each document and cut it, or cut it and wrap each piece."""
    made = []
    for row in filter(None, rows):
        body = list(row) if each else [*before, *row, *after]
        room = len(body) if longest is None else longest - (len(before) + len(after) if each else 0)
        cut = [body[low : low + room] for low in range(0, len(body), room)]
        made += [[*before, *piece, *after] for piece in cut] if each else cut
    return made


def row_by_hand(pieces: Sequence[list[int]], seed: int | None, epoch: int) -> list[tuple[int, bool]]:
    """The epoch's row: each token, and whether a piece begins there."""
    visit = range(len(pieces)) if seed is None else order(len(pieces), seed, epoch).tolist()
    return [(token, place == 0) for number in visit for place, token in enumerate(pieces[number])]


def steps_by_hand(pieces: Sequence[list[int]], budget: int, seed: int | None, epoch: int) -> list[list[int]]:
    """The numbers of the pieces of each step: a piece is in the step in whose span of the row it begins."""
    visit = range(len(pieces)) if seed is None else order(len(pieces), seed, epoch).tolist()
    begins = accumulate((len(pieces[number]) for number in visit), initial=0)
    spans = groupby(zip(visit, begins, strict=False), key=lambda item: item[1] // budget)
    return [[number for number, _ in step] for _, step in spans]


def check_span(
    pieces: Pieces, row: Sequence[tuple[int, bool]], seed: int | None, epoch: int, low: int, high: int
) -> None:
    ids, starts = pieces.span(seed, epoch, low, high)
    asked = row[low:high]
    assert ids.tolist() == [token for token, _ in asked]
    assert starts.tolist() == [place for place, (_, begins) in enumerate(asked) if begins or place == 0]


@pytest.mark.parametrize("longest", [None, 1, 2, 3, 4, 5, 8, 100])
@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize(("before", "after"), [((), ()), ((1,), ()), ((), (2,)), ((1,), (2,)), ((1, 3), (2, 4))])
@pytest.mark.parametrize("seed", [None, 5])
def test_a_span_is_the_same_stretch_of_the_row_made_by_hand(
    longest: int | None, each: bool, before: tuple[int, ...], after: tuple[int, ...], seed: int | None
) -> None:
    rows = numbered([0, 3, 1, 0, 0, 7, 1, 4, 0])
    if each and longest is not None and longest <= len(before) + len(after):
        with pytest.raises(ModelError, match=f"window of {longest} tokens"):
            Pieces.cut(store(rows), before, after, longest, each=each)
        return
    pieces = Pieces.cut(store(rows), before, after, longest, each=each)
    by_hand = pieces_by_hand(rows, before, after, longest, each)
    assert [pieces[number].tolist() for number in range(len(pieces))] == by_hand
    assert pieces.tokens == sum(map(len, by_hand))
    assert longest is None or max(map(len, by_hand)) <= longest
    row = row_by_hand(by_hand, seed, 3)
    for low in range(len(row)):
        for high in range(low + 1, len(row) + 1):
            check_span(pieces, row, seed, 3, low, high)


@few
@given(
    rows=st.lists(st.lists(st.integers(0, 60000), max_size=9), max_size=9).filter(any),
    before=st.lists(st.integers(0, 60000), max_size=3).map(tuple),
    after=st.lists(st.integers(0, 60000), max_size=3).map(tuple),
    longest=st.none() | st.integers(7, 12) | st.integers(1, 6),
    each=st.booleans(),
    seed=st.none() | seeds,
    epoch=epochs,
    data=st.data(),
)
def test_a_span_of_any_documents_is_that_made_by_hand(
    rows: list[list[int]],
    before: tuple[int, ...],
    after: tuple[int, ...],
    longest: int | None,
    each: bool,
    seed: int | None,
    epoch: int,
    data: st.DataObject,
) -> None:
    if each and longest is not None:
        longest += len(before) + len(after)
    pieces = Pieces.cut(store(rows), before, after, longest, each=each)
    row = row_by_hand(pieces_by_hand(rows, before, after, longest, each), seed, epoch)
    for _ in range(8):
        low = data.draw(st.integers(0, len(row) - 1))
        check_span(pieces, row, seed, epoch, low, data.draw(st.integers(low + 1, len(row))))


@pytest.mark.parametrize("rows", [[], [[]], [[], [], []]])
@pytest.mark.parametrize("each", [True, False])
def test_a_store_without_a_token_is_refused(rows: list[list[int]], each: bool) -> None:
    with pytest.raises(DataError, match="no token"):
        Pieces.cut(store(rows), (1,), (2,), 8, each=each)
    with pytest.raises(DataError, match="no token"):
        Pieces.cut(store(rows), (1,), (2,), None, each=each)


# --- causal -----------------------------------------------------------------------------------------------------------

some_documents = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any).map(numbered)


Form = tuple[Tokenizer, bool]  # a tokenizer, and whether one token is its start and its end


@pytest.fixture(scope="session")
def forms(trained: dict[str, Tokenizer], like_gpt2: Tokenizer) -> dict[str, Form]:
    return {"two tokens": (trained["unigram"], False), "one token": (like_gpt2, True)}


def around(form: Form, across: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What stands before and after a document; a token that is both is once between two that follow one another."""
    tokenizer, one_token = form
    assert tokenizer.start is not None
    assert tokenizer.end is not None
    assert (tokenizer.start == tokenizer.end) == one_token
    return (tokenizer.start,), () if one_token and across else (tokenizer.end,)


both_forms = pytest.mark.parametrize("name", ["two tokens", "one token"])


@both_forms
@few
@given(rows=some_documents, window=st.integers(1, 12), size=st.integers(1, 5), seed=seeds, whole=st.booleans())
def test_across_borders_every_window_of_the_row_is_a_sequence(
    forms: dict[str, Form], name: str, rows: list[list[int]], window: int, size: int, seed: int, whole: bool
) -> None:
    before, after = around(forms[name], across=True)
    data = CausalBatches(
        store(rows), forms[name][0], window=window, batch_size=size, seed=seed, across=True, whole=whole
    )
    row = row_by_hand(pieces_by_hand(rows, before, after, None, each=False), None if whole else seed, 4)
    # A start that follows an end is always the same, so nothing is to be learnt from it.
    following = [IGNORE_INDEX if begins and after else token for token, begins in row[1:]] + [IGNORE_INDEX]
    step_size = min(window * size, len(row))
    steps = epoch_of(data, 4)
    assert len(steps) == (math.ceil(len(row) / step_size) if whole else len(row) // step_size)
    for number, step in enumerate(steps):
        low = number * step_size
        high = min(low + step_size, len(row))
        assert [sequence.ids for sequence in step] == [
            [token for token, _ in row[begin : min(begin + window, high)]] for begin in range(low, high, window)
        ]
        assert [target for sequence in step for target in sequence.targets or ()] == following[low:high]


@both_forms
@few
@given(rows=some_documents, window=st.integers(1, 12), size=st.integers(1, 5), seed=seeds, whole=st.booleans())
def test_apart_every_sequence_is_one_whole_piece_that_predicts_itself_alone(
    forms: dict[str, Form], name: str, rows: list[list[int]], window: int, size: int, seed: int, whole: bool
) -> None:
    """Every token but the last has the next as its target: an end too, where its token is the start as well."""
    before, after = around(forms[name], across=False)
    data = CausalBatches(
        store(rows), forms[name][0], window=window, batch_size=size, seed=seed, across=False, whole=whole
    )
    pieces = pieces_by_hand(rows, before, after, window, each=False)
    visits = steps_by_hand(pieces, window * size, None if whole else seed, 2)
    steps = epoch_of(data, 2)
    assert [[sequence.ids for sequence in step] for step in steps] == [[pieces[n] for n in visit] for visit in visits]
    assert all(sequence.targets == [*sequence.ids[1:], IGNORE_INDEX] for sequence in flat(steps))


@both_forms
@few
@given(
    rows=some_documents,
    window=st.integers(1, 12),
    size=st.integers(1, 5),
    seed=seeds,
    epoch=epochs,
    whole=st.booleans(),
)
def test_apart_an_epoch_has_every_piece_once_in_steps_of_about_equal_size(
    forms: dict[str, Form], name: str, rows: list[list[int]], window: int, size: int, seed: int, epoch: int, whole: bool
) -> None:
    before, after = around(forms[name], across=False)
    data = CausalBatches(
        store(rows), forms[name][0], window=window, batch_size=size, seed=seed, across=False, whole=whole
    )
    pieces = pieces_by_hand(rows, before, after, window, each=False)
    steps = epoch_of(data, epoch)
    assert sorted(sequence.ids for sequence in flat(steps)) == sorted(pieces)
    check_sizes(steps, window, size)


def check_sizes(steps: Sequence[Sequence[Plain]], window: int, size: int) -> None:
    """A step is less than a piece away from `size` × `window` tokens; the last may have fewer, but not none."""
    lengths = [len(tokens([step])) for step in steps]
    assert all(abs(length - window * size) < window for length in lengths[:-1])
    assert 0 < lengths[-1] < window * (size + 1)
    assert len(lengths) <= math.ceil(sum(lengths) / (window * size))


@both_forms
@few
@given(rows=some_documents, window=st.integers(1, 12), size=st.integers(1, 5), seed=seeds, epoch=epochs)
def test_across_a_whole_pass_has_every_token_once_in_the_order_of_the_file(
    forms: dict[str, Form], name: str, rows: list[list[int]], window: int, size: int, seed: int, epoch: int
) -> None:
    before, after = around(forms[name], across=True)
    data = CausalBatches(
        store(rows), forms[name][0], window=window, batch_size=size, seed=seed, across=True, whole=True
    )
    steps = epoch_of(data, epoch)
    assert tokens(steps) == [token for row in rows if row for token in (*before, *row, *after)]
    assert [len(tokens([step])) for step in steps[:-1]] == [window * size] * (len(steps) - 1)
    assert 0 < len(tokens(steps[-1:])) <= window * size


@both_forms
@few
@given(rows=some_documents, window=st.integers(1, 12), size=st.integers(1, 5), seed=seeds)
def test_across_an_epoch_has_no_token_twice_and_leaves_less_than_a_step(
    forms: dict[str, Form], name: str, rows: list[list[int]], window: int, size: int, seed: int
) -> None:
    before, after = around(forms[name], across=True)
    data = CausalBatches(store(rows), forms[name][0], window=window, batch_size=size, seed=seed, across=True)
    steps = epoch_of(data, 0)
    row = [token for each in rows if each for token in (*before, *each, *after)]
    step_size = min(window * size, len(row))
    assert all(len(tokens([step])) == step_size for step in steps)
    assert 0 <= len(row) - len(tokens(steps)) < step_size
    text = [token for token in tokens(steps) if token >= FIRST]
    assert len(set(text)) == len(text)


def test_documents_are_apart_unless_it_is_said(trained: dict[str, Tokenizer]) -> None:
    rows = store(numbered([3, 9, 4, 20, 1]))
    default = CausalBatches(rows, trained["bpe"], window=8, batch_size=2, seed=3)
    apart, across = (
        CausalBatches(rows, trained["bpe"], window=8, batch_size=2, seed=3, across=across) for across in (False, True)
    )
    assert epoch_of(default, 0) == epoch_of(apart, 0) != epoch_of(across, 0)


def test_a_causal_model_of_nothing_is_refused(trained: dict[str, Tokenizer]) -> None:
    for across in (True, False):
        with pytest.raises(DataError, match="no token"):
            CausalBatches(store([[], []]), trained["bpe"], window=8, batch_size=2, seed=0, across=across)
    with pytest.raises(ModelError, match="window of 0"):
        CausalBatches(store([[10]]), trained["bpe"], window=0, batch_size=2, seed=0, across=False)


# --- masked -----------------------------------------------------------------------------------------------------------


def specials_of(tokenizer: Tokenizer) -> set[int]:
    """The tokens that are never hidden: to guess that something is unknown teaches nothing either."""
    roles = (
        tokenizer.start,
        tokenizer.end,
        tokenizer.pad,
        tokenizer.mask,
        tokenizer.separator,
        tokenizer.unknown,
    )
    return {role for role in roles if role is not None}


def masked(
    rows: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    rate: float = 0.15,
    *,
    whole_words: bool = False,
    window: int = 40,
    batch_size: int = 8,
    whole: bool = False,
    seed: int = 11,
) -> MaskedBatches:
    return MaskedBatches(
        store(rows),
        tokenizer,
        window=window,
        batch_size=batch_size,
        seed=seed,
        masking=Masking.of(tokenizer, rate, whole_words),
        whole=whole,
    )


@settings(max_examples=10, deadline=None)
@given(
    window=st.integers(3, 30),
    size=st.integers(1, 6),
    seed=seeds,
    rate=st.floats(0.05, 0.95),
    whole_words=st.booleans(),
    whole=st.booleans(),
)
def test_with_its_masks_lifted_a_step_is_whole_pieces_of_the_text(
    tokenizer: Tokenizer, window: int, size: int, seed: int, rate: float, whole_words: bool, whole: bool
) -> None:
    rows = written(tokenizer, 6)
    data = masked(
        rows, tokenizer, rate, whole_words=whole_words, window=window, batch_size=size, whole=whole, seed=seed
    )
    by_hand = pieces_by_hand(rows, (tokenizer.start or 0,), (tokenizer.end or 0,), window, each=True)
    visits = steps_by_hand(by_hand, window * size, None if whole else seed, 1)
    steps = epoch_of(data, 1)
    assert [[sequence.text for sequence in step] for step in steps] == [[by_hand[n] for n in visit] for visit in visits]
    assert sorted(sequence.text for sequence in flat(steps)) == sorted(by_hand)
    for sequence in flat(steps):  # as they are seen, too
        assert (sequence.ids[0], sequence.ids[-1]) == (tokenizer.start, tokenizer.end)
        assert 3 <= len(sequence.ids) <= window
    check_sizes(steps, window, size)


@pytest.mark.parametrize("whole_words", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_the_masks_of_a_piece_hang_on_seed_epoch_and_its_number_alone(
    tokenizer: Tokenizer, whole: bool, whole_words: bool
) -> None:
    """Not on the size of a step nor on the step; in a whole pass not on seed and epoch either."""
    rows = written(tokenizer, 6)
    masking = Masking.of(tokenizer, 0.4, whole_words)
    by_hand = pieces_by_hand(rows, (tokenizer.start or 0,), (tokenizer.end or 0,), 14, each=True)
    for seed, epoch in ((11, 0), (11, 3), (4, 3)):
        key = (0, 0) if whole else (seed, epoch)
        visit = range(len(by_hand)) if whole else order(len(by_hand), seed, epoch).tolist()
        hidden = [masking.hide(np.array(by_hand[number]), (*key, number, 1)) for number in visit]
        expected = [
            (one.ids.tolist(), dict(zip(one.places.tolist(), one.targets.tolist(), strict=True))) for one in hidden
        ]
        for size in (1, 3, 1000):
            data = masked(
                rows, tokenizer, 0.4, whole_words=whole_words, window=14, batch_size=size, whole=whole, seed=seed
            )
            assert [(each.ids, each.hidden) for each in flat(epoch_of(data, epoch))] == expected


@settings(max_examples=10, deadline=None)
@given(seed=seeds, epoch=epochs, whole_words=st.booleans(), data=st.data())
def test_no_special_token_is_ever_hidden(
    tokenizer: Tokenizer, seed: int, epoch: int, whole_words: bool, data: st.DataObject
) -> None:
    """Nor those that a text spells out."""
    anything = st.lists(st.integers(0, tokenizer.size - 1) | st.sampled_from(sorted(specials_of(tokenizer))))
    rows = data.draw(st.lists(anything, min_size=1, max_size=5).filter(any))
    batch = masked(rows, tokenizer, 0.9, whole_words=whole_words, window=9, seed=seed)
    for sequence in flat(epoch_of(batch, epoch)):
        assert sequence.hidden is not None
        assert not specials_of(tokenizer) & set(sequence.hidden.values())
        shown = [token for place, token in enumerate(sequence.ids) if place not in sequence.hidden]
        assert shown == [token for place, token in enumerate(sequence.text) if place not in sequence.hidden]


@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_a_share_is_hidden_and_its_fate_is_80_10_10(tokenizer: Tokenizer, rate: float) -> None:
    """Counts over about 50,000 tokens, each within five standard deviations.

    A random token may happen to be the mask, or the token itself, one time in V each.
    """
    data = masked(written(tokenizer, 60), tokenizer, rate, batch_size=64)
    steps = [step for epoch in range(12) for step in epoch_of(data, epoch)]
    special = specials_of(tokenizer)
    text = sum(token not in special for token in tokens(steps))
    pairs = [(s.ids[place], token) for s in flat(steps) if s.hidden for place, token in s.hidden.items()]
    assert text > 20_000
    assert near(len(pairs), text, rate)
    by_luck = 0.1 / tokenizer.size
    assert near(sum(seen == tokenizer.mask for seen, _ in pairs), len(pairs), 0.8 + by_luck)
    assert near(sum(seen == token for seen, token in pairs), len(pairs), 0.1 + by_luck)
    others = [seen for seen, token in pairs if seen not in (tokenizer.mask, token)]
    assert near(len(others), len(pairs), 0.1 - 2 * by_luck)
    below = sum(seen < tokenizer.size / 2 for seen in others)  # the vocabulary's two halves: both are as likely
    assert abs(below - len(others) / 2) <= 5 * math.sqrt(len(others) / 4) + 1
    assert {0, tokenizer.size - 1} <= set(others) or len(others) < 10 * tokenizer.size


def test_each_place_is_hidden_as_often_as_another(trained: dict[str, Tokenizer]) -> None:
    """At the beginning and at the end of a piece alike, and whatever became of the place before."""
    words = trained["wordpiece"]
    trials = 3000
    data = masked([list(range(20, 30))], words, 0.3, window=12)
    (hidden,) = zip(
        *([set(step[0].hidden or ()) for step in epoch_of(data, epoch)] for epoch in range(trials)), strict=True
    )
    for place in range(1, 11):
        assert near(sum(place in each for each in hidden), trials, 0.3)
        assert near(sum({place, place % 10 + 1} <= each for each in hidden), trials, 0.09)


def test_masks_are_fresh_in_every_epoch_step_and_seed(trained: dict[str, Tokenizer]) -> None:
    """The same text in every step, so that masks alone can differ."""
    words = trained["wordpiece"]
    rows = [list(range(20, 38))] * 4
    found = [
        tuple(sorted(step[0].hidden or ()))
        for seed in (0, 1)
        for epoch in (0, 1, 2)
        for step in epoch_of(masked(rows, words, 0.5, window=20, batch_size=1, seed=seed), epoch)
    ]
    assert len(found) == 24
    assert len(set(found)) == 24


def words_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[list[int]]:
    """The places of each word of a sequence, special tokens left out."""
    words: list[list[int]] = []
    for place, begins in enumerate(tokenizer.word_starts(ids)):
        if begins or not words:
            words.append([])
        words[-1].append(place)
    return [word for word in words if ids[word[0]] not in specials_of(tokenizer)]


def check_whole_words(tokenizer: Tokenizer, rows: Sequence[Sequence[int]], rate: float, epochs: int) -> None:
    """A word is hidden whole or not at all, as often as the rate says, whatever became of the word before."""
    data = masked(rows, tokenizer, rate, whole_words=True, window=60, batch_size=20)
    fates: list[bool] = []
    sizes: list[int] = []
    both = neighbours = 0
    for step in [step for epoch in range(epochs) for step in epoch_of(data, epoch)]:
        words = [
            [place in (sequence.hidden or ()) for place in word]
            for sequence in step
            for word in words_of(tokenizer, sequence.text)
        ]
        assert all(all(word) or not any(word) for word in words), "a word is hidden in part"
        fates += [word[0] for word in words]
        sizes += [len(word) for word in words]
        neighbours += len(words) - 1
        both += sum(one[0] and two[0] for one, two in pairwise(words))
    assert sum(size > 1 for size in sizes) > 1000
    assert near(sum(fates), len(fates), rate)
    hidden = sum(size for size, fate in zip(sizes, fates, strict=True) if fate)
    spread = rate * (1 - rate) * sum(size * size for size in sizes)
    assert near(hidden, sum(sizes), rate, spread)
    # Two pairs that share a word are not independent: their covariance is rate³ − rate⁴, twice for each pair.
    spread = neighbours * (rate**2 - rate**4 + 2 * (rate**3 - rate**4))
    assert near(both, neighbours, rate**2, spread)


@pytest.mark.parametrize("rate", [0.15, 0.5])
def test_words_are_hidden_whole(tokenizer: Tokenizer, rate: float) -> None:
    check_whole_words(tokenizer, written(tokenizer, 40), rate, epochs=4)


def test_the_words_of_two_documents_are_hidden_apart(tokenizer: Tokenizer) -> None:
    """A document that begins within a word, as a piece of a longer one may, does not belong to the one before."""
    rows = [tokenizer.encode(word)[1:] for text in sentences(60, "words") for word in text.split() if len(word) > 7]
    check_whole_words(tokenizer, rows, 0.3, epochs=12)


def test_without_the_option_words_are_hidden_in_part(tokenizer: Tokenizer) -> None:
    sequences = flat(epoch_of(masked(written(tokenizer, 20), tokenizer, 0.5), 0))
    words = [[place in (s.hidden or ()) for place in word] for s in sequences for word in words_of(tokenizer, s.text)]
    assert any(any(word) and not all(word) for word in words)


def test_a_word_and_the_mark_after_it_are_hidden_whole(trained: dict[str, Tokenizer]) -> None:
    """A byte-level '!' belongs to the word before it, as '.' does."""
    byte_level = trained["bpe"]
    rows = [byte_level.encode(text.replace(" ", "! ")) for text in sentences(40, "marks")]
    check_whole_words(byte_level, rows, 0.3, epochs=4)


def test_the_first_word_of_a_line_has_a_fate_of_its_own(trained: dict[str, Tokenizer]) -> None:
    byte_level = trained["bpe"]
    rows = [byte_level.encode(text.replace(" ", "\n")) for text in sentences(40, "lines")]
    check_whole_words(byte_level, rows, 0.3, epochs=4)


def test_the_table_of_special_tokens(tokenizer: Tokenizer) -> None:
    masking = Masking.of(tokenizer, 0.2, whole_words=True)
    assert set(np.flatnonzero(masking.special).tolist()) == specials_of(tokenizer)
    assert (masking.mask, masking.size, masking.rate, masking.whole_words) == (
        tokenizer.mask,
        tokenizer.size,
        0.2,
        True,
    )


def test_the_given_ids_are_left_as_they_are(trained: dict[str, Tokenizer]) -> None:
    ids = np.arange(20, 120)
    hidden = Masking.of(trained["wordpiece"], 0.5, whole_words=True).hide(ids, (1, 2, 3))
    assert ids.tolist() == list(range(20, 120))
    places = hidden.places.tolist()
    assert places == sorted(set(places))
    assert 0 < len(places) < len(ids)
    assert hidden.targets.tolist() == [20 + place for place in places]
    assert len(hidden.ids) == len(ids)
    assert {place for place in range(100) if hidden.ids[place] != ids[place]} < set(places)


@pytest.mark.parametrize("whole_words", [True, False])
def test_nothing_is_hidden_of_nothing(trained: dict[str, Tokenizer], whole_words: bool) -> None:
    hidden = Masking.of(trained["bpe"], 0.5, whole_words).hide(np.zeros(0, dtype=np.int64), (1,))
    assert (len(hidden.ids), len(hidden.places), len(hidden.targets)) == (0, 0, 0)


def test_masks_that_cannot_be_are_refused(like_gpt2: Tokenizer, tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelError, match="no mask token"):
        Masking.of(like_gpt2)
    for rate in (0.0, 1.0, -0.1, 1.5, math.nan):
        with pytest.raises(ModelError, match=f"rate of {rate} "):
            Masking.of(tokenizer, rate)
    with pytest.raises(ModelError, match="window of 2 tokens"):
        masked([[10]], tokenizer, window=2)
    with pytest.raises(DataError, match="no token"):
        masked([[]], tokenizer)


# --- next sentence ----------------------------------------------------------------------------------------------------


def any_ids() -> Masking:
    """Masks for ids that say where they come from, more than a small vocabulary has."""
    special = np.zeros(1 << 16, dtype=bool)
    special[:6] = True
    return Masking(mask=5, size=1 << 16, special=special, begins=~special, ends=special)


def next_sentence(
    rows: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    *,
    window: int,
    size: int = 4,
    seed: int = 0,
    whole: bool = False,
) -> PairBatches:
    return PairBatches(
        store(rows), tokenizer, window=window, batch_size=size, seed=seed, masking=any_ids(), whole=whole
    )


def halves(tokenizer: Tokenizer, pair: Plain) -> tuple[list[int], list[int]]:
    """The two texts of a pair, with the special tokens around them checked and taken off."""
    text = pair.text
    middle = text.index(tokenizer.separator or -1)
    assert (text[0], text[-1]) == (tokenizer.start, tokenizer.end)
    assert pair.segments == [0] * (middle + 1) + [1] * (len(text) - middle - 1)
    return text[1:middle], text[middle + 1 : -1]


some_long_documents = (
    st.lists(st.integers(0, 40), min_size=2, max_size=12)
    .filter(lambda lengths: sum(length > 1 for length in lengths) > 1)
    .map(numbered)
)


@few
@given(rows=some_long_documents, room=st.integers(2, 20), size=st.integers(1, 6), seed=seeds, whole=st.booleans())
def test_a_pair_is_a_stretch_or_the_beginning_of_one_and_the_middle_of_another_document(
    trained: dict[str, Tokenizer], rows: list[list[int]], room: int, size: int, seed: int, whole: bool
) -> None:
    words = trained["unigram"]
    data = next_sentence(rows, words, window=room + 3, size=size, seed=seed, whole=whole)
    of = origin(rows)
    stretches = {piece[0]: piece for piece in pieces_by_hand(rows, (), (), room, each=True) if len(piece) > 1}
    stretch_of = {token: stretch for stretch in stretches.values() for token in stretch}
    steps = epoch_of(data, 3)
    seen = []
    for pair in flat(steps):
        assert len(pair.ids) <= room + 3
        first, second = halves(words, pair)
        stretch = stretches[first[0]]
        seen.append(first[0])
        assert first == stretch[: len(first)]
        true = stretch[len(first) :]
        assert true
        if pair.label == 0:
            assert second == true
            continue
        theirs = stretch_of[second[0]]
        offset = theirs.index(second[0])
        assert offset >= 1, "a beginning gives it away"
        assert second == theirs[offset : offset + len(second)]
        assert of[second[0]] != of[first[0]]
        others = [len(other) for begin, other in stretches.items() if of[begin] != of[first[0]]]
        assert min(len(true), min(others) - 1) <= len(second) <= min(len(true), max(others) - 1)
    assert seen == list(stretches) if whole else sorted(seen) == list(stretches)
    before = np.cumsum([0, *(len(stretches[first]) + 3 for first in seen)])[:-1]
    spans = (before // (size * (room + 3))).tolist()  # a step holds the pairs that begin in its share of the tokens
    assert [len(step) for step in steps] == [spans.count(span) for span in sorted(set(spans))]


@pytest.mark.parametrize("whole", [True, False])
def test_a_pair_and_its_masks_are_the_same_for_every_batch_size(trained: dict[str, Tokenizer], whole: bool) -> None:
    """In a whole pass, for every seed and epoch too."""
    rows, words = numbered([9, 30, 0, 14, 2, 21]), trained["bpe"]
    passes = {
        (seed, epoch, size): flat(
            epoch_of(next_sentence(rows, words, window=12, size=size, seed=seed, whole=whole), epoch)
        )
        for seed, epoch in ((0, 0), (0, 5), (6, 5))
        for size in (1, 3, 4, 100)
    }
    for (seed, epoch, _), found in passes.items():
        assert found == passes[seed, epoch, 1]
        assert (found == passes[0, 0, 1]) == (whole or (seed, epoch) == (0, 0))


@pytest.mark.parametrize("whole", [True, False])
def test_fewer_pairs_than_a_batch_are_one_step(trained: dict[str, Tokenizer], whole: bool) -> None:
    steps = epoch_of(next_sentence(numbered([9, 9, 0, 9]), trained["bpe"], window=12, size=4, whole=whole), 0)
    assert [len(step) for step in steps] == [3]


def test_half_of_the_pairs_follow_and_no_length_tells_which(trained: dict[str, Tokenizer]) -> None:
    """Every stretch is 15 tokens, so that one long enough is always found."""
    words = trained["wordpiece"]
    data = next_sentence(numbered([30] * 40), words, window=18, size=20)  # two stretches a document
    pairs = flat([step for epoch in range(40) for step in epoch_of(data, epoch)])
    assert len(pairs) == 80 * 40
    assert near(sum(pair.label == 1 for pair in pairs), len(pairs), 0.5)
    assert {pair.label for pair in pairs} == {0, 1}
    texts = [(pair.label, *halves(words, pair)) for pair in pairs]
    assert all(len(first) + len(second) == 15 for _, first, second in texts)
    for label in (0, 1):  # the place of the cut is a fair draw from 1 to 14, whatever the label
        lengths = [len(second) for found, _, second in texts if found == label]
        assert set(lengths) == set(range(1, 15))
        assert all(near(lengths.count(length), len(lengths), 1 / 14) for length in range(1, 15))


def test_a_stretch_that_is_long_enough_is_looked_for_eight_times(trained: dict[str, Tokenizer]) -> None:
    """For the 20 stretches of the first document there are five others, and four of them have two tokens only."""
    words = trained["wordpiece"]
    data = next_sentence(numbered([300, 15, 2, 2, 2, 2]), words, window=18, size=25)
    texts = [halves(words, pair) for epoch in range(450) for pair in flat(epoch_of(data, epoch)) if pair.label == 1]
    wanted = [(15 - len(first), len(second)) for first, second in texts if first[0] < FIRST + 300 and len(first) < 14]
    short = [found for length, found in wanted if found != length]
    assert set(short) == {1}
    assert near(len(short), len(wanted), 0.8**8)


def test_other_documents_are_drawn_fairly(trained: dict[str, Tokenizer]) -> None:
    """Every stretch of another document is as likely, and every place in it but its beginning."""
    words = trained["wordpiece"]
    rows = numbered([12, 36, 24, 12])  # stretches 0 | 1, 2, 3 | 4, 5 | 6
    owners = [0, 1, 1, 1, 2, 2, 3]
    data = next_sentence(rows, words, window=15, size=7)
    pairs = [pair for epoch in range(600) for pair in flat(epoch_of(data, epoch)) if pair.label == 1]
    drawn = []
    for pair in pairs:
        first, second = halves(words, pair)
        drawn.append(((first[0] - FIRST) // 12, *divmod(second[0] - FIRST, 12), len(second)))
    for mine in range(7):
        theirs = [other for first, other, _, _ in drawn if first == mine]
        strangers = {number for number in range(7) if owners[number] != owners[mine]}
        assert set(theirs) == strangers
        assert all(near(theirs.count(other), len(theirs), 1 / len(strangers)) for other in strangers)
    for length in range(1, 12):
        offsets = [offset for _, _, offset, found in drawn if found == length]
        assert set(offsets) == set(range(1, 13 - length))
        assert all(near(offsets.count(offset), len(offsets), 1 / (12 - length)) for offset in set(offsets))


@pytest.mark.parametrize("lengths", [[300, 6], [6, 300], [5, 300, 4]])
def test_the_other_document_is_another_though_one_holds_nearly_all(
    trained: dict[str, Tokenizer], lengths: list[int]
) -> None:
    words = trained["wordpiece"]
    rows = numbered(lengths)
    of = origin(rows)
    data = next_sentence(rows, words, window=9, size=10)
    found = [halves(words, p) for epoch in range(10) for p in flat(epoch_of(data, epoch)) if p.label == 1]
    assert len(found) > 200
    assert all(of[first[0]] not in {of[token] for token in second} for first, second in found)


def test_pairs_and_their_masks_are_fresh_in_every_epoch_and_seed(trained: dict[str, Tokenizer]) -> None:
    words = trained["wordpiece"]
    data = [next_sentence(numbered([20] * 6), words, window=23, size=6, seed=seed) for seed in (0, 1)]
    # In the order of the file, so that the pairs and masks alone can differ.
    found = [
        sorted(flat(epoch_of(each, epoch)), key=lambda pair: pair.text[1]) for each in data for epoch in range(200)
    ]
    texts = [tuple((*map(tuple, halves(words, pair)),) for pair in epoch) for epoch in found]
    assert len(set(texts)) == len(texts)
    for number in range(6):  # the first token of each pair is text in every epoch, and hidden in some
        assert near(sum(1 in (epoch[number].hidden or ()) for epoch in found), len(found), 0.15)


def test_a_pair_is_masked_as_any_text(trained: dict[str, Tokenizer]) -> None:
    words = trained["wordpiece"]
    data = next_sentence(numbered([30] * 40), words, window=33, size=20)
    pairs = flat([step for epoch in range(10) for step in epoch_of(data, epoch)])
    text = sum(len(pair.ids) - 3 for pair in pairs)
    hidden = [(pair.ids[place], token) for pair in pairs for place, token in (pair.hidden or {}).items()]
    assert near(len(hidden), text, 0.15)
    assert all(token >= FIRST for _, token in hidden)
    assert near(sum(seen == 5 for seen, _ in hidden), len(hidden), 0.8)


def test_pairs_that_cannot_be_are_refused(trained: dict[str, Tokenizer]) -> None:
    words = trained["wordpiece"]
    with pytest.raises(ModelError, match="window of 4 tokens"):
        next_sentence(numbered([9, 9]), words, window=4)
    next_sentence(numbered([9, 9]), words, window=5)
    for lengths in ([30], [30, 0], [30, 1, 1]):
        with pytest.raises(DataError, match="two documents"):
            next_sentence(numbered(lengths), words, window=9)
    with pytest.raises(DataError, match="no token"):
        next_sentence([[], []], words, window=9)
    nothing_between = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    with pytest.raises(TokenizerError, match="between two texts"):
        next_sentence(numbered([9, 9]), Tokenizer(nothing_between), window=9)
