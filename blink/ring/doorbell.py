"""The doorbell: how far the scheduler may look for commits."""

from __future__ import annotations

from collections import deque

from blink.ring.stream import Stream


class Doorbell:
    """Finds the value to ring: the highest sequence number with every lower chain completed, never a lower one.

    One doorbell write is in flight at a time, since two could land in the wrong order.
    """

    def __init__(self) -> None:
        self.in_flight = False
        self._waiting: deque[Stream] = deque()  # committed, in order of seq

    def expect(self, stream: Stream) -> None:
        """Note a stream whose chain was posted."""
        self._waiting.append(stream)

    def next(self) -> int | None:
        """The value to write now, or None."""
        if self.in_flight:
            return None
        value = None
        while self._waiting and self._waiting[0].in_ring:
            value = self._waiting.popleft().seq
        return value

    def all_covered(self) -> None:
        """Note that recovery covers whatever was waiting."""
        self._waiting.clear()
