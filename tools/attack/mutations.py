"""Damage to files, drawn by a seed: odd values in JSON, other headers of safetensors, bytes cut and changed."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from copy import deepcopy
from typing import Any

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
    if what < 0.5:
        header = mutate_json(draw, header)
        return struct.pack("<Q", len(header)) + header + body
    if what < 0.6:
        wrong = draw.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1))
        return struct.pack("<Q", wrong) + header + body
    if what < 0.85:
        values = bytearray(body)
        at = 4 * draw.randrange(len(body) // 4)
        values[at : at + 4] = struct.pack("<f", draw.choice((float("nan"), float("inf"), 3e38, -3e38, 1e-45)))
        return content[: 8 + length] + bytes(values)
    return mutate_bytes(draw, content)
