"""Driving the scheduler core (kernels/scheduler/scheduler.cuh) on a CPU thread.

Every decision is the core's; this module lays out its memory, calls it and reads its counters.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from blink import core
from blink.engine.seam.batch import DECISION, MAX_BIAS, MAX_BUCKETS, MAX_EOS, MAX_STOP, SCHED_CONFIG, Control, Kind
from blink.engine.seam.buffers import BatchBuffers
from blink.ring.layout import Counter, Geometry, Reason

if TYPE_CHECKING:
    from blink.config import EngineConfig

EXT_WORDS = 2 + (MAX_STOP - MAX_EOS) + 2 * MAX_BIAS
"""The longest extension that can be valid."""


def decode_buckets(lanes: int) -> tuple[int, ...]:
    """Row counts to capture decode graphs for: powers of two to 8, then steps of 8 to 64, 16 to 128, 32 beyond."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, lanes, 32)]
    return (*(n for n in sizes if n < lanes), lanes)[-MAX_BUCKETS:]


def prefill_buckets(batch_tokens: int) -> tuple[int, ...]:
    """Packed token counts to capture prefill graphs for: powers of two from 16 to 64, then steps of 128 to 4096, the
    tile of large matrix products, of 512 to 65536, and powers of two beyond."""
    sizes = [16, 32, 64, *range(128, 4096, 128), *range(4096, 1 << 16, 512), *(1 << power for power in range(16, 21))]
    return (*(n for n in sizes if n < batch_tokens), batch_tokens)


@dataclass(frozen=True)
class SchedulerConfig:
    """Configuration of the scheduler; the fields of :data:`blink.engine.seam.batch.SCHED_CONFIG`.

    ``decode_bucket`` and ``prefill_bucket`` ascend and end with ``lanes`` and ``batch_tokens``; empty means the
    defaults of :func:`decode_buckets` and :func:`prefill_buckets`. ``eos``: token ids, at most 8. ``mixed``: lanes that
    decode may have rows in prefill steps (docs/gpu.md).
    """

    lanes: int
    records: int
    page_tokens: int
    pages: int
    max_context: int
    vocab: int
    batch_tokens: int
    eos: tuple[int, ...] = ()
    ext_words: int = EXT_WORDS
    launch_window: int = 0
    claims_per_step: int = 8
    torn_ms: int = 100
    alive_ms: int = 60_000
    step_budget_ms: int = 10_000
    decode_bucket: tuple[int, ...] = ()
    prefill_bucket: tuple[int, ...] = ()
    mixed: bool = True

    @classmethod
    def for_engine(cls, engine: EngineConfig, vocab: int, eos: Sequence[int], **changes: Any) -> SchedulerConfig:
        """The configuration for ``[engine]``, a vocabulary of ``vocab`` tokens and the end-of-sequence ids ``eos``.

        ``changes`` replaces fields.
        """
        fields: dict[str, Any] = {
            "lanes": engine.lanes,
            "records": engine.lanes + engine.queue,
            "page_tokens": engine.page_tokens,
            "pages": engine.pages,
            "max_context": engine.max_context,
            "vocab": vocab,
            "batch_tokens": engine.batch_tokens,
            "eos": tuple(eos),
            "decode_bucket": engine.decode_buckets,
            "prefill_bucket": engine.prefill_buckets,
            # The last bits of a token depend on the kind of its step, and `exact` keeps batch-mates from choosing it.
            "mixed": not engine.exact,
        }
        return cls(**{**fields, **changes})

    @property
    def lane_pages(self) -> int:
        """Columns of the block table: pages of the longest context."""
        return -(-self.max_context // self.page_tokens)

    @property
    def buckets(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows of each decode graph and packed tokens of each prefill graph, ascending."""
        decode, prefill = self.decode_bucket, self.prefill_bucket
        return decode or decode_buckets(self.lanes), prefill or prefill_buckets(self.batch_tokens)

    @property
    def dims(self) -> dict[str, int]:
        """Dimensions of the step buffers, for :class:`blink.engine.seam.buffers.BatchBuffers`."""
        return {"lanes": self.lanes, "tokens": self.batch_tokens, "lane_pages": self.lane_pages}

    def pack(self) -> npt.NDArray[Any]:
        """The C ``SchedConfig``: a structured array of shape [1]. Raises ValueError for a list that is too long."""
        packed = np.zeros(1, SCHED_CONFIG.dtype())
        decode, prefill = self.buckets
        lists = {"decode_bucket": decode, "prefill_bucket": prefill, "eos": self.eos}
        counts = {"decode_bucket": "n_decode", "prefill_bucket": "n_prefill", "eos": "n_eos"}
        for name in SCHED_CONFIG.dtype().names or ():
            if name in lists:
                room = packed[name].shape[1]
                if len(lists[name]) > room:
                    raise ValueError(f"{name}: {len(lists[name])} entries, but at most {room} fit")
                packed[name][0, : len(lists[name])] = lists[name]
                packed[counts[name]] = len(lists[name])
            elif name not in counts.values():
                packed[name] = getattr(self, name)
        return packed


@dataclass(frozen=True)
class Decision:
    """What the driver does next; for PREFILL and DECODE, the batch in the step buffers."""

    kind: Kind
    graph: int
    rows: int
    tokens: int


@cache
def _library() -> ctypes.CDLL:
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
        ("blink_sched_set_gen", None, [p, u32, u32]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, args
    return lib


def state_size(packed: npt.NDArray[Any], geometry: Geometry) -> int:
    """Bytes of the scheduler's memory for a packed configuration. Raises ValueError naming its wrong field."""
    wrong = _library().blink_sched_check_config(packed.ctypes.data, geometry.slots, geometry.parts)
    if wrong:
        raise ValueError(wrong.decode())
    return int(_library().blink_sched_size(packed.ctypes.data, geometry.slots, geometry.parts))


def counters_of(state: int) -> dict[str, int]:
    """Every counter of the scheduler whose memory, or a copy of it, is at ``state``, 64-byte aligned."""
    raw = np.zeros(128, np.uint64)
    _library().blink_sched_counters(state, raw.ctypes.data)
    named = {c.name: int(raw[c]) for c in Counter if c is not Counter.FINISHED_BASE}
    finished = {f"FINISHED_{r.name}": int(raw[Counter.FINISHED_BASE + r]) for r in Reason if r is not Reason.NONE}
    return named | finished


def check_state(state: int) -> None:
    """Raise AssertionError unless every page, lane and record of that scheduler is in exactly one place."""
    text = ctypes.create_string_buffer(256)
    _library().blink_sched_check(state, text, len(text))
    if text.value:
        raise AssertionError(text.value.decode())


class Scheduler:
    """The scheduler core over a ring in host memory.

    ``g`` and ``f`` are the ring's objects, u8, header written; ``buffers`` has the dimensions ``config.dims``. All of
    them are kept and must not move. ``threads`` above 1 runs the core on that many threads, as a GPU block does (for
    tests: they are started anew for every call). Raises ValueError naming the wrong field of ``config``.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        geometry: Geometry,
        g: npt.NDArray[np.uint8],
        f: npt.NDArray[np.uint8],
        buffers: BatchBuffers,
        *,
        threads: int = 1,
    ) -> None:
        if len(g) < geometry.g_bytes or len(f) < geometry.f_bytes:
            raise ValueError(f"ring: {len(g)} and {len(f)} bytes are less than the geometry's objects")
        wrong_dims = {name: buffers.dims[name] for name, size in config.dims.items() if buffers.dims[name] != size}
        if wrong_dims:
            raise ValueError(f"buffers: {wrong_dims} do not match {config.dims}")
        self.config, self.geometry = config, geometry
        packed = config.pack()
        self._memory = np.zeros(state_size(packed, geometry) + 64, np.uint8)
        self._state = self._memory.ctypes.data + -self._memory.ctypes.data % 64
        self._control = np.zeros(1, np.uint32)
        self._decision = np.zeros(1, DECISION.dtype())
        self._out = self._decision.ctypes.data
        self._keep = (g, f, buffers)
        self.threads = threads
        _library().blink_sched_init(
            self._state,
            packed.ctypes.data,
            g.ctypes.data,
            f.ctypes.data,
            buffers.pointers.ctypes.data,
            self._control.ctypes.data,
        )

    def step(self, now_ns: int = 0) -> Decision:
        """One step: what the frontend asked, what the engine finished, what runs next.

        While the batch of the last decision has not finished (``control.done``), returns that decision again.
        ``now_ns``
        is a test's clock; 0 takes the monotonic one.
        """
        _library().blink_sched_step(self._state, now_ns, self.threads, self._out)
        return self._decided()

    def begin(self, now_ns: int = 0) -> Decision | None:
        """The first half of a step for a driver that stays beside the running batch; None while it runs."""
        began = _library().blink_sched_begin(self._state, now_ns, self.threads, self._out)
        return self._decided() if began else None

    def attend(self, now_ns: int = 0) -> None:
        """The second half, while the batch runs: publish what the last one produced, and scan the ring."""
        _library().blink_sched_attend(self._state, now_ns, self.threads)

    def request(self, control: Control) -> None:
        """Ask the scheduler to run, drain or stop; callable from any thread."""
        self._control[0] = control

    def counters(self) -> dict[str, int]:
        """Every counter by name; ``FINISHED_`` + reason for the requests that ended with it. Call between steps."""
        return counters_of(self._state)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every page, lane and record is in exactly one place. Call between steps."""
        check_state(self._state)

    def set_generation(self, slot: int, gen: int) -> None:
        """Make ``gen`` the generation that ``slot`` claimed last: for tests of wrap-around."""
        _library().blink_sched_set_gen(self._state, slot, gen)

    def _decided(self) -> Decision:
        kind, graph, rows, tokens = self._decision[0].tolist()
        return Decision(Kind(kind), graph, rows, tokens)
