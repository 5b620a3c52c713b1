"""MPNet's names (Song et al. 2020): RoBERTa's shape, with a bias by distance on the scores and no segments."""

from __future__ import annotations

from headstart.checkpoints.bert import ENCODER, SETTINGS
from headstart.checkpoints.family import Family
from headstart.checkpoints.roberta import MASKED, shift_in, shift_out

MPNET = Family(
    name="mpnet",
    fixed={
        "direction": "bidirectional",
        "positions": "relative",
        "norm": "post",
        "norm_epsilon": 1e-12,
        "segments": 0,
    },
    settings={
        **{ours: theirs for ours, theirs in SETTINGS.items() if ours != "segments"},
        "position_offset": "pad_token_id",
        "relative_buckets": "relative_attention_num_buckets",
    },
    required={},
    prefix="mpnet.",
    backbone={
        **ENCODER,
        "layers.{i}.attention.qkv": (
            "encoder.layer.{i}.attention.attn.q",
            "encoder.layer.{i}.attention.attn.k",
            "encoder.layer.{i}.attention.attn.v",
        ),
        "layers.{i}.attention.out": "encoder.layer.{i}.attention.attn.o",
        "layers.{i}.attention_norm": "encoder.layer.{i}.attention.LayerNorm",
        "relative": "encoder.relative_attention_bias",
    },
    heads={"masked": MASKED, "classifier": {"dense": "classifier.dense", "out": "classifier.out_proj"}},
    architectures={
        "none": "MPNetModel",
        "masked": "MPNetForMaskedLM",
        "classifier": "MPNetForSequenceClassification",
    },
    dropped=("embeddings.position_ids",),
    copies={
        "lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    complete=shift_in,
    reduce=shift_out,
)
