"""Looking at a ring without taking part: the header, the counters and the heartbeat."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from blink.errors import BlinkError
from blink.ring.counters import Counters, parse_counters
from blink.ring.header import Header
from blink.ring.health import known_phase, stall_after_s
from blink.ring.layout import G_HEAD, HEADER, Phase
from blink.ring.transport import Bytes, LinkState, Region, Transport
from blink.ring.words import Activity

READ_TIMEOUT_S = 5.0
_G_HEAD = G_HEAD.dtype()


@dataclass(frozen=True)
class Observation(Counters):
    """A ring at one moment. ``beat`` grows with every scheduler step; ``budget_s`` is what the phase may last.

    ``phase`` is None where the scheduler publishes one that this version does not know.
    """

    header: Header
    phase: Phase | None
    beat: int
    budget_s: float


class Observer:
    """Reads a ring through ``transport``, which it owns; blocking, each read bounded by READ_TIMEOUT_S."""

    def __init__(self, transport: Transport) -> None:
        """Attach. Raises BlinkError where there is no ring."""
        self._transport = transport
        transport.reconnect()
        deadline = time.monotonic() + READ_TIMEOUT_S
        while transport.state is LinkState.CONNECTING and time.monotonic() < deadline:
            transport.poll()
            time.sleep(0.001)
        if transport.state is not LinkState.UP:
            why = transport.detail
            transport.close()
            raise BlinkError(why, "start the backend, and look at its log")

    def read(self, region: Region, offset: int, length: int) -> Bytes:
        """``length`` bytes at ``offset`` of ``region``. Raises BlinkError where the link fails or does not answer."""
        return self._wait(self._transport.post_read(region, offset, length), f"a read of {region.name}")

    def write(self, offset: int, data: bytes) -> None:
        """Write ``data`` at ``offset`` of F_p; only for the holder of the partition's lease. Raises as :meth:`read`."""
        self._wait(self._transport.post_write([(offset, data)]), "a write to F")

    def _wait(self, ticket: int, what: str) -> Bytes:
        deadline = time.monotonic() + READ_TIMEOUT_S
        while time.monotonic() < deadline:
            for done in self._transport.poll():
                if done.ticket == ticket and done.ok:
                    return np.empty(0, np.uint8) if done.data is None else done.data.copy()
            if self._transport.state is not LinkState.UP:
                raise BlinkError(f"{what} failed: {self._transport.detail}", "look at the backend's log")
            time.sleep(0)
        raise BlinkError(f"waited {READ_TIMEOUT_S:g} s for {what}", "the link to the ring is stuck; restart it")

    def observe(self) -> Observation:
        """The ring now. Raises BlinkError where the ring is broken, and as :meth:`read`."""
        raw = self.read(Region.H, 0, HEADER.size)
        head = np.frombuffer(self.read(Region.G, 0, G_HEAD.size).tobytes(), _G_HEAD)[0]
        header = Header.decode(raw, "the ring")
        if int(head["epoch"]) != header.epoch:
            raise BlinkError("the partition's epoch is not the ring's", "the backend wrote a broken ring; restart it")
        activity = Activity(head["activity"])
        return Observation(
            parse_counters(raw),
            header,
            known_phase(activity.phase),
            int(head["beat"]),
            activity.budget_ms / 1000,
        )

    def wait_for_beat(self) -> float | None:
        """Seconds until the beat moves, watched from now on; None where it stands too long.

        Then the scheduler is dead or stopped. Raises BlinkError where the ring is removed or replaced meanwhile.
        """
        last = self.observe()
        first, start = last.beat, time.monotonic()
        while (age := time.monotonic() - start) < stall_after_s(last.budget_s):
            last = self.observe()
            if last.beat != first:
                return age
            time.sleep(0.0005)
            self._transport.poll()  # without anything outstanding, it looks whether the ring is still in place
            if self._transport.state is not LinkState.UP:
                raise BlinkError(self._transport.detail, "try again: a backend may be starting")
        return None

    def close(self) -> None:
        """Detach. Idempotent."""
        self._transport.close()
