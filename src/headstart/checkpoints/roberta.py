"""RoBERTa's names (Liu et al. 2019), and CamemBERT's (Martin et al. 2020), which are the same."""

from __future__ import annotations

from dataclasses import replace

from headstart.checkpoints.bert import ENCODER, SETTINGS
from headstart.checkpoints.family import Family, Mapped


def shift_in(settings: Mapped) -> Mapped:
    """Their table of positions begins after the padding id: rows up to it are never used by a real token."""
    offset = settings.pop("position_offset", 1) + 1
    return {**settings, "position_offset": offset, "window": settings["window"] - offset}


def shift_out(settings: Mapped) -> Mapped:
    offset = settings["position_offset"]
    return {**settings, "position_offset": offset - 1, "window": settings["window"] + offset}


MASKED = {
    "dense": "lm_head.dense",
    "norm": "lm_head.layer_norm",
    "bias": "lm_head.bias",
}

ROBERTA = Family(
    name="roberta",
    fixed={"direction": "bidirectional", "positions": "learned", "norm": "post", "norm_epsilon": 1e-12, "segments": 2},
    settings={**SETTINGS, "position_offset": "pad_token_id"},
    required={"is_decoder": False, "position_embedding_type": "absolute"},
    prefix="roberta.",
    backbone=ENCODER,
    heads={"masked": MASKED, "classifier": {"dense": "classifier.dense", "out": "classifier.out_proj"}},
    architectures={
        "none": "RobertaModel",
        "masked": "RobertaForMaskedLM",
        "classifier": "RobertaForSequenceClassification",
    },
    dropped=("embeddings.position_ids",),
    copies={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    complete=shift_in,
    reduce=shift_out,
)

CAMEMBERT = replace(
    ROBERTA,
    name="camembert",
    architectures={
        "none": "CamembertModel",
        "masked": "CamembertForMaskedLM",
        "classifier": "CamembertForSequenceClassification",
    },
)
