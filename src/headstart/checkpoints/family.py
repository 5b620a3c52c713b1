"""How one family of published models names its settings, tensors and heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headstart.checkpoints.keymap import Source, Table, sources
from headstart.config import Family as FamilyName
from headstart.config import HeadConfig, ModelConfig
from headstart.errors import CheckpointError, shown
from headstart.model.model import Model

Mapped = dict[str, Any]

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def _same(settings: Mapped) -> Mapped:
    return settings


@dataclass(frozen=True)
class Family:
    """A table for each thing that differs. `complete` and `reduce` do what a table of names cannot say."""

    name: FamilyName  # their model_type
    fixed: Mapped  # settings of ours that every model of the family has
    settings: Mapping[str, str]  # our name → their name
    required: Mapped  # settings of theirs that must have this value where they are given
    prefix: str  # before the backbone's names where there is a head
    backbone: Table
    heads: Mapping[str, Table]  # by the kind of our head
    architectures: Mapping[str, str]  # by the kind of our head; "none" for the backbone alone
    classifier_dropout: str = "classifier_dropout"
    mirrored: Mapping[str, str] = field(default_factory=dict)  # a setting of theirs that repeats another
    dropped: tuple[str, ...] = ()  # endings of tensors that are no parameters: tables, buffers
    copies: Mapping[str, str] = field(default_factory=dict)  # a tensor that repeats another: name → original
    complete: Callable[[Mapped], Mapped] = _same  # our settings, as read, made whole
    reduce: Callable[[Mapped], Mapped] = _same  # the way back

    def read_settings(self, theirs: Mapping[str, Any], *, pooler: bool, where: str) -> ModelConfig:
        """Our config for their `config.json`; a setting that we would get wrong is refused."""
        for name, value in self.required.items():
            if name in theirs and theirs[name] != value:
                raise CheckpointError(f"{where}: {name} is {shown(theirs[name])}, and headstart knows {value!r} only")
        missing = [
            name
            for ours, name in self.settings.items()
            if (theirs.get(name) is None and ours in _SIZES) or (name not in theirs and ours not in _OPTIONAL)
        ]
        if missing:
            raise CheckpointError(f"{where}: no setting {', '.join(missing)}, which a {self.name} model has")
        found = {ours: theirs[name] for ours, name in self.settings.items() if theirs.get(name) is not None}
        for ours in (_SIZES | {"position_offset"}) & found.keys():
            if type(found[ours]) is not int:
                name, value = self.settings[ours], shown(found[ours])
                raise CheckpointError(f"{where}: {name} is {value}, expected a whole number")
        activation = found.get("activation", "gelu")
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            raise CheckpointError(f"{where}: activation {shown(activation)} is not one of {', '.join(ACTIVATIONS)}")
        found["activation"] = ACTIVATIONS[activation]
        settings = self.complete({**self.fixed, **found, "pooler": pooler, "family": self.name})
        return ModelConfig.from_mapping(settings, where)

    def write_settings(self, config: ModelConfig, *, pad: int | None) -> Mapped:
        """Their settings for our config, or an error where the family cannot express the config."""
        reduced = self.reduce(config.to_mapping())
        their_activation = next(t for t, ours in ACTIVATIONS.items() if ours == config.activation)
        theirs = {name: reduced[ours] for ours, name in self.settings.items() if ours in reduced}
        theirs[self.settings["activation"]] = their_activation
        if pad is not None:
            theirs.setdefault("pad_token_id", pad)
        theirs |= {name: theirs[original] for name, original in self.mirrored.items()}
        theirs = {"model_type": self.name, **self.required, **theirs}
        back = self.read_settings(theirs, pooler=config.pooler, where=self.name)
        if back != config:
            different = [
                f"{name} = {value!r}" for name, value in config.to_mapping().items() if back.to_mapping()[name] != value
            ]
            raise CheckpointError(f"a {self.name} model cannot have {', '.join(different)}: export it another way")
        return theirs

    def architecture(self, head: HeadConfig | None) -> str:
        """Their class for a model with this head."""
        kind = "none" if head is None else head.kind
        if kind not in self.architectures:
            raise CheckpointError(f"a {self.name} model with a {kind} head has no published form")
        return self.architectures[kind]

    def tensor_sources(self, model: Model) -> dict[str, Source]:
        """Where each tensor of `model` comes from in a file of this family."""
        table = {f"backbone.{ours}": theirs for ours, theirs in self.backbone.items()}
        if model.head_config is None:
            return sources(model.state_dict(), table)
        table |= {f"head.{ours}": theirs for ours, theirs in self.heads[model.head_config.kind].items()}
        return sources(model.state_dict(), table, self.prefix)


# Settings that every model of every family has, and that others are worked out from.
_SIZES = {"vocabulary", "width", "layers", "heads", "window"}
# Settings that older configs leave out, since they had a default then.
_OPTIONAL = {"dropout", "attention_dropout", "norm_epsilon", "activation", "segments", "feed_forward"}
