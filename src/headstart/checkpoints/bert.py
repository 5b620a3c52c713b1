"""BERT's names (Devlin et al. 2019), as `transformers` has them. MiniLM and the miniatures are BERTs too."""

from __future__ import annotations

from headstart.checkpoints.family import Family
from headstart.checkpoints.keymap import Theirs

ENCODER: dict[str, Theirs] = {
    "embeddings.tokens": "embeddings.word_embeddings",
    "embeddings.positions": "embeddings.position_embeddings",
    "embeddings.segments": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "layers.{i}.attention.qkv": (
        "encoder.layer.{i}.attention.self.query",
        "encoder.layer.{i}.attention.self.key",
        "encoder.layer.{i}.attention.self.value",
    ),
    "layers.{i}.attention.out": "encoder.layer.{i}.attention.output.dense",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "layers.{i}.feed_forward.up": "encoder.layer.{i}.intermediate.dense",
    "layers.{i}.feed_forward.down": "encoder.layer.{i}.output.dense",
    "layers.{i}.feed_forward_norm": "encoder.layer.{i}.output.LayerNorm",
    "pooler": "pooler.dense",
}
SETTINGS = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "feed_forward": "intermediate_size",
    "window": "max_position_embeddings",
    "segments": "type_vocab_size",
    "norm_epsilon": "layer_norm_eps",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
MASKED = {
    "dense": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "bias": "cls.predictions.bias",
}

BERT = Family(
    name="bert",
    fixed={"direction": "bidirectional", "positions": "learned", "norm": "post", "norm_epsilon": 1e-12, "segments": 2},
    settings=SETTINGS,
    required={"is_decoder": False, "position_embedding_type": "absolute"},
    prefix="bert.",
    backbone=ENCODER,
    heads={
        "masked": MASKED,
        "next-sentence": {"out": "cls.seq_relationship"},
        "masked+next-sentence": {
            **{f"masked.{ours}": theirs for ours, theirs in MASKED.items()},
            "next_sentence.out": "cls.seq_relationship",
        },
        "classifier": {"out": "classifier"},
    },
    architectures={
        "none": "BertModel",
        "masked": "BertForMaskedLM",
        "next-sentence": "BertForNextSentencePrediction",
        "masked+next-sentence": "BertForPreTraining",
        "classifier": "BertForSequenceClassification",
    },
    dropped=("embeddings.position_ids",),
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
)
