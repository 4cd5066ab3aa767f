"""The core's C functions, and what needs no more than a scheduler's memory: its size, its counters, its books."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from blink import core
from blink.ring.layout import COUNTERS, Counter, Geometry, Reason


@cache
def library() -> ctypes.CDLL:
    """libblink_core, with the types of the scheduler's functions."""
    lib = core.library()
    p, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    for name, result, args in (
        ("blink_sched_check_config", ctypes.c_char_p, [p, u32, u32]),
        ("blink_sched_size", u64, [p, u32, u32]),
        ("blink_sched_init", None, [p, p, p, p, p, p]),
        ("blink_sched_step", None, [p, u64, u32, p]),
        ("blink_sched_begin", ctypes.c_bool, [p, u64, u32, p]),
        ("blink_sched_attend", None, [p, u64, u32]),
        ("blink_sched_counters", None, [p, p]),
        ("blink_sched_check", None, [p, p, u64]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, args
    return lib


def state_size(packed: npt.NDArray[Any], geometry: Geometry) -> int:
    """Bytes of the scheduler's memory for a packed configuration. Raises ValueError naming its wrong field."""
    wrong = library().blink_sched_check_config(packed.ctypes.data, geometry.slots, geometry.parts)
    if wrong:
        raise ValueError(wrong.decode())
    return int(library().blink_sched_size(packed.ctypes.data, geometry.slots, geometry.parts))


def counters_of(state: int) -> dict[str, int]:
    """Every counter of the scheduler whose memory, or a copy of it, is at ``state``, 64-byte aligned."""
    raw = np.zeros(COUNTERS, np.uint64)
    library().blink_sched_counters(state, raw.ctypes.data)
    named = {c.name: int(raw[c]) for c in Counter if c is not Counter.FINISHED_BASE}
    finished = {f"FINISHED_{r.name}": int(raw[Counter.FINISHED_BASE + r]) for r in Reason if r is not Reason.NONE}
    return named | finished


def check_state(state: int) -> None:
    """Raise AssertionError unless every page, lane and record of that scheduler is in exactly one place."""
    text = ctypes.create_string_buffer(256)
    library().blink_sched_check(state, text, len(text))
    if text.value:
        raise AssertionError(text.value.decode())
