"""DistilBERT's names (Sanh et al. 2019): a BERT of half the layers, without segments and pooler."""

from __future__ import annotations

from headstart.checkpoints.family import Family

DISTILBERT = Family(
    name="distilbert",
    fixed={
        "direction": "bidirectional",
        "positions": "learned",
        "norm": "post",
        "norm_epsilon": 1e-12,
        "segments": 0,
    },
    settings={
        "vocabulary": "vocab_size",
        "width": "dim",
        "layers": "n_layers",
        "heads": "n_heads",
        "feed_forward": "hidden_dim",
        "window": "max_position_embeddings",
        "activation": "activation",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
    },
    required={"sinusoidal_pos_embds": False},
    prefix="distilbert.",
    backbone={
        "embeddings.tokens": "embeddings.word_embeddings",
        "embeddings.positions": "embeddings.position_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "layers.{i}.attention.qkv": (
            "transformer.layer.{i}.attention.q_lin",
            "transformer.layer.{i}.attention.k_lin",
            "transformer.layer.{i}.attention.v_lin",
        ),
        "layers.{i}.attention.out": "transformer.layer.{i}.attention.out_lin",
        "layers.{i}.attention_norm": "transformer.layer.{i}.sa_layer_norm",
        "layers.{i}.feed_forward.up": "transformer.layer.{i}.ffn.lin1",
        "layers.{i}.feed_forward.down": "transformer.layer.{i}.ffn.lin2",
        "layers.{i}.feed_forward_norm": "transformer.layer.{i}.output_layer_norm",
    },
    heads={
        "masked": {
            "dense": "vocab_transform",
            "norm": "vocab_layer_norm",
            "bias": "vocab_projector.bias",
        },
        "classifier": {"dense": "pre_classifier", "out": "classifier"},
    },
    architectures={
        "none": "DistilBertModel",
        "masked": "DistilBertForMaskedLM",
        "classifier": "DistilBertForSequenceClassification",
    },
    classifier_dropout="seq_classif_dropout",
    dropped=("embeddings.position_ids",),
    copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
)
