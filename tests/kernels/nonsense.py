"""What a worker does that does not follow the protocol."""

from __future__ import annotations

from typing import Any

import numpy as np

from blink.ring.layout import REQUEST
from blink.ring.words import Bell
from tests.kernels.ring_writer import MASK, Writer

EDGES = [0, 1, 3, 63, 64, 65, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFC0, 1 << 63, 2**64 - 64, 2**64 - 1]
FIELDS = [f.name for f in REQUEST.fields if f.name != "crc"]


def misbehave(writer: Writer, action: dict[str, Any], gens: dict[int, int]) -> None:
    """One piece of nonsense, in F of ``writer`` only. ``gens``: the generations it has tried, per slot."""
    match action["do"]:
        case "words":
            words = np.array(action["words"], np.uint64).view(np.uint8)
            at = int(action["at"] * (len(writer.f) - len(words))) // 8 * 8
            writer.f[at : at + len(words)] = words
        case "bell":
            writer.f_head["db"][0] = Bell.pack(seq=action["seq"])
        case "commit":
            writer.commit(action["slot"], action["gen"] & MASK, action["seq"] & MASK)
        case "cancel":
            writer.cancel(action["slot"], action["gen"] & MASK)
        case "request":
            slot, ext = action["slot"], [w & MASK for w in action["ext"]]
            gens[slot] = gens.get(slot, 0) + 1
            writer.cmd["commit"][slot] = (gens[slot] - 1) & MASK  # so that submit() continues there
            fields = {}
            for name, value in action["fields"].items():
                dtype = REQUEST.dtype()[name]
                bits = np.array([value] * 4, np.uint64).view(dtype.base)
                fields[name] = bits[: max(1, int(np.prod(dtype.shape)))].reshape(dtype.shape)
            writer.submit(slot, [1, 2, 3], 4, ext=ext, **fields)


def number(rng: np.random.Generator) -> int:
    return int(rng.choice(np.array(EDGES, np.uint64))) if rng.random() < 0.5 else int(rng.integers(0, 1 << 63))


def nonsense(rng: np.random.Generator) -> dict:
    """An action for :func:`misbehave`."""
    slot = int(rng.integers(0, 8))
    match rng.integers(0, 10):
        case 0:
            return {"do": "words", "at": rng.random(), "words": [number(rng) for _ in range(rng.integers(0, 6))]}
        case 1:
            return {"do": "cancel", "slot": slot, "gen": number(rng)}
        case 2:
            return {"do": "commit", "slot": slot, "gen": number(rng), "seq": number(rng)}
        case _:
            names = rng.choice(FIELDS, rng.integers(0, 3))
            ext = [int(w) & MASK for w in rng.integers(0, 4, rng.integers(0, 4))]
            return {"do": "request", "slot": slot, "fields": {str(n): number(rng) for n in names}, "ext": ext}
