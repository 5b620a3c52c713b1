"""Damage to files, drawn by a seed: odd values in JSON, other headers of safetensors, bytes cut and changed."""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

Draw = random.Random
Mutation = Callable[[Draw, bytes], bytes]

ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    2,
    3,
    10**6,
    10**9,
    2**63,
    10**30,
    0.5,
    -0.5,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "a",
    "0",
    "\ud800",
    "\x00",
    "../config.json",
    "/dev/zero",
    "é" * 5000,
    [],
    [[]],
    ["a", "a"],
    {},
    {"a": {}},
    {"type": "Sequence"},
)
WORDS = ("bert", "gpt2", "roberta", "headstart", "classifier", "masked", "next-token", "causal", "bidirectional")
KINDS = (
    "relative",
    "rotary",
    "sinusoidal",
    "learned",
    "pre",
    "post",
    "mean",
    "last",
    "backbone",
    "relu",
    "F16",
    "BF16",
)


def mutate_json(draw: Draw, content: bytes) -> bytes:
    """One to three changes somewhere in a JSON file."""
    value = json.loads(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        _change(draw, value)
    return json.dumps(value, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")


def _change(draw: Draw, root: Any) -> None:
    """Replace, remove, repeat or add one member of a container that is reached by a random path from the root."""
    holder = root
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            break
        key = draw.choice(keys)
        if not isinstance(holder[key], dict | list) or draw.random() < 0.2:
            break
        holder = holder[key]
    what = draw.random()
    if not keys or what < 0.1:
        _add(draw, holder)
    elif what < 0.25:
        del holder[key]
    elif what < 0.4:
        holder[key] = deepcopy(holder[draw.choice(keys)])
    else:
        holder[key] = odd_value(draw, holder[key])


def _add(draw: Draw, holder: Any) -> None:
    value = odd_value(draw, None)
    if isinstance(holder, dict):
        holder[draw.choice(("", "x", "type", "layers", "window", "0", "\ud800"))] = value
    else:
        holder.insert(draw.randint(0, len(holder)), value)


def odd_value(draw: Draw, value: Any) -> Any:
    """Something near a value, or something quite different."""
    near: list[Any] = []
    if isinstance(value, int | float):
        near = [value + 1, value - 1, -value, value * 1000, float(value), str(value), [value]]
    elif isinstance(value, str):
        near = [value[:-1], value + value, value.upper(), [value], {value: value}, *WORDS, *KINDS]
    elif isinstance(value, list):
        near = [value[:-1], value + value, dict.fromkeys(map(str, value)), json.dumps(value)[:50]]
    elif isinstance(value, dict):
        near = [list(value), list(value.values()), dict(list(value.items())[:-1])]
    return draw.choice(near) if near and draw.random() < 0.5 else deepcopy(draw.choice(ODD))


def mutate_bytes(draw: Draw, content: bytes) -> bytes:
    """A file cut short, lengthened, or with other bytes in it."""
    what = draw.randrange(6)
    at = draw.randrange(len(content) + 1)
    if what == 0:
        return content[:at]
    if what == 1:
        return content + bytes(draw.randrange(256) for _ in range(draw.randint(1, 64)))
    if what == 2:
        return b"\xff\xfe" + content
    if what == 3:
        return b"[" * 200_000
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 4, 64))):
        if changed:
            changed[draw.randrange(len(changed))] = draw.choice((0, 0xFF, 0x7F, 0x22, 0x2C, draw.randrange(256)))
    return bytes(changed)


def mutate_safetensors(draw: Draw, content: bytes) -> bytes:
    """A safetensors file with another header, another length of it, or values that are no numbers."""
    (length,) = struct.unpack("<Q", content[:8])
    header, body = content[8 : 8 + length], content[8 + length :]
    what = draw.random()
    if what < 0.3:
        return safetensors.torch.save(_change_tensors(draw, safetensors.torch.load(content)))
    if what < 0.6:
        header = mutate_json(draw, header)
        return struct.pack("<Q", len(header)) + header + body
    if what < 0.65:
        wrong = draw.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1))
        return struct.pack("<Q", wrong) + header + body
    if what < 0.85:
        values = bytearray(body)
        at = 4 * draw.randrange(len(body) // 4)
        values[at : at + 4] = struct.pack("<f", draw.choice((float("nan"), float("inf"), 3e38, -3e38, 1e-45)))
        return content[: 8 + length] + bytes(values)
    return mutate_bytes(draw, content)


def mutate_linear(draw: Draw, content: bytes) -> bytes:
    """A linear model with odd values in its JSON, which is a tensor of bytes; or as `mutate_safetensors` does it."""
    if draw.random() < 0.4:
        return mutate_safetensors(draw, content)
    tensors = safetensors.torch.load(content)
    about = mutate_json(draw, tensors["about"].numpy().tobytes())
    return safetensors.torch.save({**tensors, "about": torch.frombuffer(bytearray(about), dtype=torch.uint8)})


def mutate_torch(draw: Draw, content: bytes) -> bytes:
    """A torch file with other tensors in it, or other bytes."""
    if draw.random() < 0.3:
        return mutate_bytes(draw, content)
    tensors = torch.load(io.BytesIO(content), weights_only=True)
    holder = tensors.get("model_state_dict", tensors)
    changed: dict[str, Any] = _change_tensors(draw, holder)
    if draw.random() < 0.2:
        odd = (torch.zeros(1).expand(10**6, 10**6), torch.zeros(2, 2).to_sparse(), 5, None, "a", {"a": torch.zeros(1)})
        changed[draw.choice(sorted(changed))] = draw.choice(odd)
    file = io.BytesIO()
    torch.save(draw.choice((changed, {"model_state_dict": changed})), file)
    return file.getvalue()


def _change_tensors(draw: Draw, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """One or two tensors of another shape, type or value, under another name, or gone."""
    tensors = dict(tensors)
    for _ in range(draw.choice((1, 1, 2))):
        name = draw.choice(sorted(tensors))
        tensor = tensors[name]
        tensor = tensor if tensor.dim() else tensor[None]
        others: tuple[Tensor, ...] = (
            tensor.flatten(),
            tensor[None],
            tensor[..., None],
            tensor[:0],
            tensor[:1],
            torch.cat([tensor, tensor]),
            tensor.flatten()[:1].reshape(()) if tensor.numel() else tensor,
            tensor.T if tensor.dim() == 2 else tensor,
            tensor.half(),
            tensor.bfloat16(),
            tensor.double(),
            tensor.long(),
            tensor > 0,
            tensor * 1e38,
            tensor * float("nan"),
            tensor * 0,
            tensors[draw.choice(sorted(tensors))],
        )
        del tensors[name]
        if draw.random() < 0.9:
            renamed = draw.choice((name, name, name, name, f"{name}.x", name.replace("0", "7"), f"base.{name}"))
            tensors[renamed] = draw.choice(others).clone().contiguous()
    return tensors


def mutate_lines(draw: Draw, content: bytes) -> bytes:
    """A text file with a line gone, twice, elsewhere or changed; or with other bytes."""
    if draw.random() < 0.3:
        return mutate_bytes(draw, content)
    lines = content.split(b"\n")
    at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    what = draw.randrange(4)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(other, lines[at])
    elif what == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] = draw.choice((b"", b" ", b"a b c", b"\xff", lines[at] * 1000, lines[at][:-1], b"\x00"))
    return b"\n".join(lines)
