"""On paper: the bytes that a step moves between processes, and what that leaves of the speed of many cards.

    python -m bench.estimates     docs/performance.md with its tables renewed, as `make docs` writes it

`moved` is checked by a test against what PyTorch's profiler counts. The rest follows from it, from the speeds that
docs/performance.md names, and from the assumptions below.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from torch import Tensor

from headstart.batches.sampler import BatchSampler
from headstart.batches.windows import Windows
from headstart.config import HeadConfig, MaskedConfig, ModelConfig, NextTokenConfig
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.store.plan import id_type
from headstart.store.store import Documents

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
FLOAT = 4  # bytes: weights and gradients are float32, whatever the products are computed in
NODE = 8  # cards
INSIDE, BETWEEN = 450e9, 50e9  # bytes a second, of one card in one direction: NVLink in a node, InfiniBand between them
LATENCY = 10e-6  # seconds a collective takes for each doubling of the cards, however little it moves
BUCKET = 25 * 2**20  # bytes of gradients that DDP sends at a time
BACKWARD = 2 / 3  # of a step
PEAK, SHARE = 769e12, 0.5  # FLOP/s of one card in bf16, and how much of it a model of a billion parameters is to reach
TOKENS = 32_768  # a step, of one card
TOGETHER = 2**21  # tokens a step of all cards, where the batch does not grow with them
CARDS = (8, 64, 1024)


# --- bytes ------------------------------------------------------------------------------------------------------------


def moved(model: Model, processes: int, *, sharded: bool, parts: int = 1) -> dict[str, int]:
    """Bytes that each process hands to the collectives of one step, by kind; the loss has so many `parts`."""
    layers, rest = weights(model)
    loss_bytes = 8 * parts  # the parts of the loss, as float64
    if not sharded:
        return {"all_reduce": loss_bytes + FLOAT * sum(p.numel() for p in model.parameters() if p.requires_grad)}
    inner, outer = (FLOAT * padded(each, processes) for each in (layers, rest))
    # A layer is gathered in the forward pass and again in the backward pass; the rest stays gathered between.
    # One number more is the norm of all gradients.
    return {"all_gather": 2 * inner + outer, "reduce_scatter": inner + outer, "all_reduce": loss_bytes + FLOAT}


def weights(model: Model) -> tuple[list[Tensor], list[Tensor]]:
    """The weights of the layers, and the others."""
    inner = {id(p) for p in model.backbone.layers.parameters()}
    parameters = list(model.parameters())
    return [p for p in parameters if id(p) in inner], [p for p in parameters if id(p) not in inner]


def padded(tensors: Iterable[Tensor], processes: int) -> int:
    """Numbers in tensors whose rows are divided over processes, as many to each: with rows of padding.

    Of (5, 3) and (4,), two processes have 6 rows of 3 and 4 of 1.
    """
    return sum(math.ceil(len(t) / processes) * processes * (t.numel() // max(len(t), 1)) for t in tensors)


# --- seconds ----------------------------------------------------------------------------------------------------------


def seconds(size: float, cards: int, collectives: int) -> float:
    """For one pass of so many bytes around all cards: an all-gather, a reduce-scatter, half of an all-reduce.

    Each node takes what it lacks from the others through all of its links at once, and hands it on inside.
    """
    nodes = max(cards // NODE, 1)
    here = min(cards, NODE)
    inside = size * (here - 1) / here / INSIDE
    between = size * (nodes - 1) / nodes / (NODE * BETWEEN)
    return inside + between + collectives * LATENCY * math.log2(cards)


def communication(model: Model, cards: int, *, sharded: bool, compute: float) -> tuple[float, float]:
    """Seconds of a step that cards communicate, and how many of them do not overlap with compute."""
    if sharded:
        layers, rest = (FLOAT * padded(each, cards) for each in weights(model))
        inner = seconds(3 * layers, cards, 3 * model.config.layers)
        outer = seconds(2 * rest, cards, 2)  # at the very beginning, and at the very end
        return inner + outer, outer + max(0.0, inner - compute)
    embeddings = FLOAT * sum(p.numel() for p in model.backbone.embeddings.parameters())
    early = FLOAT * _numel(model) - embeddings
    last = seconds(2 * embeddings, cards, math.ceil(embeddings / BUCKET))  # known when the way back is over
    hidden = seconds(2 * early, cards, math.ceil(early / BUCKET))
    return last + hidden, last + max(0.0, hidden - BACKWARD * compute)


# --- the tables -------------------------------------------------------------------------------------------------------


def models() -> dict[str, tuple[ModelConfig, HeadConfig]]:
    billion = preset("base", width=2048, layers=18, heads=32, feed_forward=5632, vocabulary=50_001)
    return {
        "lab": (preset("lab"), NextTokenConfig()),
        "bert-base": (preset("bert-base"), MaskedConfig()),
        "1 B": (billion, MaskedConfig()),
    }


def speeds(page: str) -> dict[str, float]:
    """Tokens a second of one card: those that the page names, and what a billion parameters would reach."""
    matches = re.findall(r"^\| `([\w-]+)`[^|]*\| ([\d,]+) <!-- speed -->", page, flags=re.M)
    named = {name: float(number.replace(",", "")) for name, number in matches}
    return named | {"1 B": SHARE * PEAK / (6 * _numel(Model.empty(*models()["1 B"])))}


def efficiency(page: str) -> Iterator[str]:
    """A row for each number of cards; cells are of replicated / sharded weights."""
    columns = ["model", "parameters", "cards", "MB a card and step", "communication, ms"]
    columns += ["no overlap, %", "overlap, %", "overlap, 2 M tokens in all, %"]
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    speed = speeds(page)
    for name, configs in models().items():
        model = Model.empty(*configs)
        for cards in CARDS:
            both = (_estimate(model, cards, speed[name], sharded=sharded) for sharded in (False, True))
            cells = [name, f"{_numel(model) / 1e6:,.0f} M", f"{cards:,}", *map(" / ".join, zip(*both, strict=True))]
            yield f"| {' | '.join(cells)} |"


def _estimate(model: Model, cards: int, speed: float, *, sharded: bool) -> list[str]:
    compute, small = TOKENS / speed, min(TOKENS, TOGETHER / cards) / speed
    total, exposed = communication(model, cards, sharded=sharded, compute=compute)
    _, exposed_small = communication(model, cards, sharded=sharded, compute=small)
    payload = moved(model, cards, sharded=sharded)
    wire = (cards - 1) / cards * (sum(payload.values()) + payload["all_reduce"])  # that goes around twice
    shares = _percent(compute, total), _percent(compute, exposed), _percent(small, exposed_small)
    return [f"{wire / 1e6:,.0f}", f"{1000 * total:.2f}", *shares]


def store(page: str) -> Iterator[str]:
    """A terabyte of text, from what the code itself keeps for each token, document and window."""
    text, per_token, per_document, window = 1e12, 4.0, 2000.0, 512
    documents, tokens = text / per_document, text / per_token
    # What training keeps in memory for each window, measured on a small store of documents of that length.
    lengths = np.random.default_rng(0).poisson(per_document / per_token, 20_000)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    windows = Windows.cut(Documents(np.empty(0, np.uint16), starts, starts[1:]), (1,), (2,), window, wrap_each=True)
    epoch = BatchSampler(windows.length, window, seed=0).epoch(0)
    arrays = (windows.document, windows.offset, windows.length, epoch.order, epoch.starts)
    kept = sum(array.nbytes for array in arrays) / len(windows)
    count = documents * len(windows) / len(lengths)
    width = np.dtype(id_type(50_001)).itemsize
    rows = {
        "documents (of 2,000 bytes)": f"{documents / 1e6:,.0f} M",
        "tokens (of 4 bytes of text)": f"{tokens / 1e9:,.0f} G",
        f"`train.ids`, {width} bytes a token up to a vocabulary of 65,536": f"{width * tokens / 1e9:,.0f} GB",
        "`train.starts` and `train.bytes`, 8 bytes a document each": f"{16 * documents / 1e9:,.0f} GB",
        f"windows of {window} tokens": f"{count / 1e6:,.0f} M",
        f"memory of each process for windows and the order of an epoch, {kept:.0f} bytes a window": (
            f"{kept * count / 1e9:,.0f} GB"
        ),
        f"the same for {NODE} processes of a host": f"{NODE * kept * count / 1e9:,.0f} GB",
        f"windows a second that {NODE} cards read at random positions, at the speed of bert-base": (
            f"{NODE * speeds(page)['bert-base'] / (tokens / count):,.0f}"
        ),
        "hours to encode it, at 4.2 MB/s a core, on 2 / 64 cores": " / ".join(
            f"{text / (4.2e6 * cores) / 3600:,.1f}" for cores in (2, 64)
        ),
    }
    yield "| 1 TB of text | |"
    yield "|---|---|"
    yield from (f"| {name} | {value} |" for name, value in rows.items())


def _numel(model: Model) -> int:
    return sum(p.numel() for p in model.parameters())


def _percent(compute: float, communication: float) -> str:
    return f"{100 * compute / (compute + communication):.0f}"


def filled(page: str) -> str:
    """The page with its tables renewed, each between <!-- its name … --> and <!-- end -->."""
    for name, lines in {"efficiency": efficiency(page), "store": store(page)}.items():
        begin = page.index("-->", page.index(f"<!-- {name}")) + len("-->")
        page = "\n".join([page[:begin], "", *lines, "", page[page.index("<!-- end -->", begin) :]])
    return page


def main() -> None:
    print(filled(PAGE.read_text(encoding="utf-8")), end="")


if __name__ == "__main__":
    main()
