"""ONNX: a classifier as a file that runs without torch, and a class that runs it.

    model.onnx       input_ids, attention_mask and, for a model of pairs with segments, token_type_ids, each
                     (batch, length) int64 → logits (batch, classes) float32, before the temperature
    tokenizer.json   the tokenizer with its special tokens, cut to the model's window and padded on the right
    config.json      {"format": "headstart-onnx", "version": 1, "labels": […], "temperature": 1.3, "window": 512}

Batch and length are dynamic. The graph has only operators of the ONNX standard (opset 23).
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import log_softmax
from torch import Tensor, nn

import tokenizers
from headstart.batches.sampler import batch_boundaries
from headstart.checkpoints.folder import CONFIG, TOKENIZER, read_class_names, read_json, read_temperature
from headstart.errors import CheckpointError, MissingExtra, ModelError
from headstart.metrics import Floats
from headstart.model.attention import Attention, key_mask
from headstart.model.layout import Dense
from headstart.model.model import Model
from headstart.model.positions import rotate
from headstart.reading.examples import Text
from headstart.tokenizers.special_tokens import add_post_processor
from headstart.training.inference import check_finite
from headstart.use.classifier import TextClassifier, calibrated
from headstart.wording import reason

FORMAT, VERSION, MODEL = "headstart-onnx", 1, "model.onnx"
OPSET = 23  # the first with attention as one operator, which runs faster than its parts
TOKENS = 1024  # in a batch, where a CPU is fastest
DISABLED_OPTIMIZERS = ["SkipLayerNormFusion"]  # the fused operator is five times slower than its parts
INPUTS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}  # from an `Encoding`
MAX_BYTES = 2**31  # of one protobuf file


def require_onnx() -> None:
    """Raise `MissingExtra` where a package of the extra `onnx` is missing."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(package)
        except ImportError:
            raise MissingExtra(package, "onnx", "ONNX") from None


# --- writing --------------------------------------------------------------------------------------------------------


def write_onnx(classifier: TextClassifier, folder: Path, *, int8: bool = False) -> None:
    """Write the three files into an existing folder."""
    import onnx

    with _without_warnings(), torch.no_grad():
        proto = _trace(classifier.model)
        if int8:
            _quantise(proto, folder / MODEL)
        else:
            onnx.save(proto, folder / MODEL)
    _write_tokenizer(classifier, folder)
    description = {
        "format": FORMAT,
        "version": VERSION,
        "labels": list(classifier.class_names),
        "temperature": classifier.temperature,
        "window": classifier.window,
    }
    (folder / CONFIG).write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


class _Graph(nn.Module):
    """The model as other tools call it: padded ids and an attention mask."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = deepcopy(model, {id(tensor): tensor for tensor in model.parameters()})  # shares the tensors
        for layer in self.model.backbone.layers:
            assert isinstance(layer.attention, Attention)
            layer.attention = _Attention(layer.attention)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        # The first position is never masked: a text of no tokens is one padding token (see `_write_tokenizer`).
        first = torch.arange(attention_mask.shape[1]) == 0
        logits: Tensor = self.model(input_ids, Dense(attention_mask.bool() | first), token_type_ids)
        return logits


class _Attention(nn.Module):
    """Attention as ONNX's own operator, with three separate projections: splitting one output would copy it."""

    def __init__(self, ours: Attention) -> None:
        super().__init__()
        self.heads, self.head_width, self.causal, self.out = ours.heads, ours.head_width, ours.causal, ours.out
        self.parts = nn.ModuleList(_part_of(ours.qkv, part, 3) for part in range(3))

    def forward(
        self, x: Tensor, layout: Dense, angles: Tensor | None, bias: Tensor | None, keep: Tensor | None
    ) -> Tensor:
        # A classifier reads one token of each row, in a causal model the last: it attends to all, others need no query.
        only = keep if bias is None else None
        queried = x if only is None else layout.take(x, only)[:, None]
        q, k, v = (part(of) for part, of in zip(self.parts, (queried, x, x), strict=True))  # (S, 1 or L, D), (S, L, D)
        if angles is not None:
            shape = (self.heads, self.head_width)
            q_angles = angles if only is None else layout.take(angles, only)[:, None]
            q, k = (rotate(of.unflatten(-1, shape), by).flatten(-2) for of, by in ((q, q_angles), (k, angles)))
        causal = self.causal and only is None
        mask = None if causal and bias is None else key_mask(layout, bias)
        if mask is not None:  # onnxruntime wants it in its full size: (S, 1 or H, 1 or L, L)
            mask = mask.expand(-1, -1, q.shape[1], -1)
        mixed = torch.onnx.ops.attention(
            q, k, v, mask, q_num_heads=self.heads, kv_num_heads=self.heads, is_causal=causal
        )[0]
        if keep is not None:
            mixed = layout.take(mixed, keep) if only is None else mixed[:, 0]
        out: Tensor = self.out(mixed)
        return out


def _part_of(linear: nn.Linear, part: int, parts: int) -> nn.Linear:
    """One of the equal parts of a linear layer's outputs."""
    layer = nn.Linear(linear.in_features, linear.out_features // parts, bias=linear.bias is not None)
    layer.weight = nn.Parameter(linear.weight.detach().chunk(parts)[part])
    if linear.bias is not None:
        layer.bias = nn.Parameter(linear.bias.detach().chunk(parts)[part])
    return layer


def _trace(model: Model) -> Any:
    """The model as an ONNX graph with dynamic batch and length."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    if size >= MAX_BYTES:
        raise ModelError(f"the weights take {size:,} bytes, and an ONNX file holds {MAX_BYTES:,}: export to hf instead")
    names = ["input_ids", "attention_mask"] + ["token_type_ids"] * (model.config.segments > 1)
    window = model.config.window
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=window)}
    program: Any = torch.onnx.export(
        _Graph(model).eval(),
        tuple(torch.ones(3, min(5, window), dtype=torch.long) for _ in names),
        input_names=names,
        output_names=["logits"],
        dynamic_shapes=tuple(free for _ in names),
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
    )
    return _without_metadata(program.model_proto)


def _without_metadata(proto: Any) -> Any:
    """Remove what tracing adds: source file positions, and shapes that quantisation makes wrong."""
    graph = proto.graph
    del graph.value_info[:], proto.metadata_props[:], graph.metadata_props[:]
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    return proto


def _quantise(proto: Any, path: Path) -> None:
    """Dynamic int8 quantisation: matrices with a scale for each column, embeddings with one scale.

    Activations are scaled by the largest in the batch: predictions may change a little with the rest of the batch.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        proto,
        path,
        op_types_to_quantize=["MatMul", "Gemm", "Gather"],
        per_channel=True,
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},
    )


def _write_tokenizer(classifier: TextClassifier, folder: Path) -> None:
    """A tokenizer.json that adds special tokens, truncates to the window and pads."""
    ours = classifier.tokenizer
    ours.save(folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
    add_post_processor(tokenizer)
    # Without special tokens, the classifier encodes an empty text as a single token. Padding with that token gives
    # an empty text the same input, since the graph never masks the first position.
    around = ours.wrap([])[0]
    pad = ours.pad if around and ours.pad is not None else int(classifier.encode([""]).ids[0])
    tokenizer.enable_padding(pad_id=pad, pad_token=ours.pieces([pad])[0])
    tokenizer.enable_truncation(classifier.window)
    tokenizer.save(str(folder / TOKENIZER))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence the exporter and the quantiser, whose warnings are about their own internals."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# --- running --------------------------------------------------------------------------------------------------------


class OnnxClassifier:
    """An exported folder that predicts as `TextClassifier` does.

    reviews = OnnxClassifier.load("reviews-onnx")
    reviews.probabilities(["A tender, witty book."])      # [[0.03, 0.97]], in the order of reviews.class_names
    """

    def __init__(
        self, session: Any, tokenizer: tokenizers.Tokenizer, class_names: tuple[str, ...], temperature: float
    ) -> None:
        self.class_names, self.temperature = class_names, temperature
        self.tokenizer = tokenizer
        self._pad = int((tokenizer.padding or {}).get("pad_id", 0))
        self.tokenizer.no_padding()  # rows are sorted by length first
        self._session = session
        self._inputs = [each.name for each in session.get_inputs()]

    @classmethod
    def load(cls, folder: str | Path) -> OnnxClassifier:
        """From a folder that `export` wrote."""
        require_onnx()
        import onnxruntime

        folder = Path(folder)
        description = read_json(folder / CONFIG)
        if description.get("format") != FORMAT or description.get("version") != VERSION:
            raise CheckpointError(f"{folder / CONFIG} is not of an ONNX export, version {VERSION}: export it again")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        try:
            session = onnxruntime.InferenceSession(
                folder / MODEL, options, providers=["CPUExecutionProvider"], disabled_optimizers=DISABLED_OPTIMIZERS
            )
            tokenizer = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
        except Exception as error:  # neither library raises anything narrower
            raise CheckpointError(
                f"{folder} cannot be read as an ONNX export ({reason(error)}): export it again"
            ) from None
        class_names = read_class_names(
            description.get("labels"), session.get_outputs()[0].shape[1], str(folder / CONFIG)
        )
        temperature = read_temperature(description.get("temperature"), str(folder / CONFIG))
        return cls(session, tokenizer, class_names, temperature)

    def probabilities(self, texts: Sequence[Text]) -> Floats:
        """(n, C): the probability of each class, in the order of `class_names`."""
        return calibrated(self.logits(texts), self.temperature)

    def logits(self, texts: Sequence[Text]) -> Floats:
        """(n, C): log-probabilities before the temperature."""
        encodings = self.tokenizer.encode_batch_fast(list(texts))
        for encoding in encodings:
            encoding.pad(1, pad_id=self._pad)  # an empty text is one padding token
        lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
        order = np.argsort(lengths, kind="stable")
        out = np.zeros((len(encodings), len(self.class_names)))
        for begin, end in pairwise(batch_boundaries(lengths[order], TOKENS)) if encodings else ():
            chosen = order[begin:end]
            rows = [encodings[number] for number in chosen]
            for row in rows:
                row.pad(lengths[chosen[-1]])
            feed = {name: np.array([getattr(row, INPUTS[name]) for row in rows]) for name in self._inputs}
            [logits] = self._session.run(["logits"], feed)
            out[chosen] = log_softmax(logits.astype(np.float64), axis=1)
        check_finite(out)
        return out
