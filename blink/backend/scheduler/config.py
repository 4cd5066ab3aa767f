"""What the scheduler is told once, when an epoch begins."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from blink.backend.scheduler.buckets import decode_buckets, prefill_buckets
from blink.engine.seam.batch import MAX_BIAS, MAX_REQUEST_STOP, SCHED_CONFIG
from blink.ring.header import Header
from blink.ring.layout import EXTENSION_WORDS, Geometry

if TYPE_CHECKING:
    from blink.config import EngineConfig

EXT_WORDS = EXTENSION_WORDS(n_stop=MAX_REQUEST_STOP, n_bias=MAX_BIAS)
"""The longest extension that can be valid."""
SHARED = ("lanes", "vocab", "max_context", "ext_words", "page_tokens", "pages")
"""What the ring's header tells workers of the scheduler, under the same names."""


@dataclass(frozen=True)
class SchedulerConfig:
    """Configuration of the scheduler; the fields of :data:`blink.engine.seam.batch.SCHED_CONFIG`.

    ``decode_buckets`` and ``prefill_buckets`` ascend and end with ``lanes`` and ``batch_tokens``; empty means the
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
    decode_buckets: tuple[int, ...] = ()
    prefill_buckets: tuple[int, ...] = ()
    mixed: bool = True

    @classmethod
    def for_engine(cls, engine: EngineConfig, vocab: int, eos: Sequence[int], **changes: Any) -> SchedulerConfig:
        """The configuration for ``[engine]``, a vocabulary of ``vocab`` tokens and the end-of-sequence ids ``eos``.

        Fields that ``[engine]`` has by the same name are taken as they are. ``changes`` replaces fields.
        """
        known = type(engine).model_fields
        same = {field.name: getattr(engine, field.name) for field in fields(cls) if field.name in known}
        derived = {
            "records": engine.lanes + engine.queue,
            "vocab": vocab,
            "eos": tuple(eos),
            # The last bits of a token depend on the kind of its step, and `exact` keeps batch-mates from choosing it.
            "mixed": not engine.exact,
        }
        return cls(**{**same, **derived, **changes})

    @property
    def lane_pages(self) -> int:
        """Columns of the block table: pages of the longest context."""
        return -(-self.max_context // self.page_tokens)

    @property
    def buckets(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows of each decode graph and packed tokens of each prefill graph, ascending."""
        decode, prefill = self.decode_buckets, self.prefill_buckets
        return decode or decode_buckets(self.lanes), prefill or prefill_buckets(self.batch_tokens)

    @property
    def dims(self) -> dict[str, int]:
        """Dimensions of the step buffers, for :class:`blink.engine.seam.buffers.BatchBuffers`."""
        return {"lanes": self.lanes, "tokens": self.batch_tokens, "lane_pages": self.lane_pages}

    def header(self, geometry: Geometry, *, queue_cap: int, fingerprint: bytes) -> Header:
        """The header of a ring for this scheduler, of a new epoch. ``fingerprint`` of the model has 32 bytes."""
        same = {name: getattr(self, name) for name in SHARED}
        return Header(geometry, secrets.randbits(64) or 1, queue_cap=queue_cap, fingerprint=fingerprint, **same)

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
