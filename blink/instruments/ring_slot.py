"""One slot of a ring in shared memory, driven word by word, so that what is timed is the scheduler and not a client."""

from __future__ import annotations

import time

import numpy as np

from blink import core
from blink.errors import BlinkError
from blink.ring.layout import COMMAND, F_HEAD, STATUS, Geometry, State
from blink.ring.request import SubmitRequest
from blink.ring.transport import Bytes
from blink.ring.words import W0, Bell, Commit, next_seq


class RingSlot:
    """Slot 0 of ``partition``, which nobody else drives. ``g`` and ``f`` are the ring's objects, u8."""

    def __init__(self, geometry: Geometry, g: Bytes, f: Bytes, partition: int) -> None:
        self._geometry, self._f = geometry, f[partition * geometry.f_stride :]
        at = geometry.g_off + partition * geometry.g_stride + geometry.status_off
        self._status = g[at : at + STATUS.size].ctypes.data
        self._gen = self._seq = 0

    def first_token_us(self, request: SubmitRequest, timeout_s: float) -> float:
        """Microseconds from the doorbell to the first token of ``request``; returns when it has ended.

        Raises BlinkError after ``timeout_s``.
        """
        geometry = self._geometry
        self._gen, self._seq = self._gen + 1, next_seq(self._seq)
        words = request.words()
        record = request.encode(self._gen, self._seq, words, geometry.in_off, geometry.out_off)
        for at, data in ((geometry.in_off, words.tobytes()), (geometry.request_off, record)):
            self._f[at : at + len(data)] = np.frombuffer(data, np.uint8)
        self._store(F_HEAD.offset("alive"), self._gen)
        self._store(geometry.cmd_off + COMMAND.offset("commit"), Commit.pack(gen=self._gen, seq=self._seq))
        deadline, first = time.monotonic() + timeout_s, 0.0
        started = time.perf_counter()
        self._store(F_HEAD.offset("db"), Bell.pack(seq=self._seq))
        while True:
            status = W0(core.load_acquire(self._status))
            if status.gen == self._gen and status.count and not first:
                first = time.perf_counter()
            if status.gen == self._gen and status.state == State.DECODE_COMPLETED:
                return 1e6 * (first - started)
            if time.monotonic() > deadline:
                where = f"state {status.state}, {status.count} tokens"
                raise BlinkError(f"waited {timeout_s:g} s for the end of a request: {where}", "look at docs/gpu.md")

    def _store(self, offset: int, value: int) -> None:
        core.store_release(self._f.ctypes.data + offset, value)
