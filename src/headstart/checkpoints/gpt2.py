"""GPT-2's names (Radford et al. 2019). Its matrices are stored the other way round."""

from __future__ import annotations

from headstart.checkpoints.family import Family, Mapped
from headstart.checkpoints.keymap import Transposed


def widen(settings: Mapped) -> Mapped:
    """The feed-forward is four times the width unless said otherwise."""
    return {"feed_forward": 4 * settings["width"], **settings}


GPT2 = Family(
    name="gpt2",
    fixed={
        "direction": "causal",
        "positions": "learned",
        "norm": "pre",
        "segments": 0,
        "embedding_norm": False,
    },
    settings={
        "vocabulary": "vocab_size",
        "width": "n_embd",
        "layers": "n_layer",
        "heads": "n_head",
        "feed_forward": "n_inner",
        "window": "n_positions",
        "norm_epsilon": "layer_norm_epsilon",
        "activation": "activation_function",
        "dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
    },
    required={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
    },
    prefix="transformer.",
    backbone={
        "embeddings.tokens": "wte",
        "embeddings.positions": "wpe",
        "layers.{i}.attention.qkv": Transposed("h.{i}.attn.c_attn"),
        "layers.{i}.attention.out": Transposed("h.{i}.attn.c_proj"),
        "layers.{i}.attention_norm": "h.{i}.ln_1",
        "layers.{i}.feed_forward.up": Transposed("h.{i}.mlp.c_fc"),
        "layers.{i}.feed_forward.down": Transposed("h.{i}.mlp.c_proj"),
        "layers.{i}.feed_forward_norm": "h.{i}.ln_2",
        "norm": "ln_f",
    },
    heads={"next-token": {}, "classifier": {"out": "score"}},
    architectures={
        "none": "GPT2Model",
        "next-token": "GPT2LMHeadModel",
        "classifier": "GPT2ForSequenceClassification",
    },
    mirrored={"embd_pdrop": "resid_pdrop"},
    dropped=(".attn.bias", ".attn.masked_bias"),
    copies={"lm_head.weight": "transformer.wte.weight"},
    complete=widen,
)
