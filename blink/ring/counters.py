"""The scheduler's counters in the ring's header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from blink.ring.layout import COUNTERS, HEADER, Counter, Reason
from blink.ring.transport import Bytes

_OFFSET = HEADER.offset("counters")


def parse_counters(data: Bytes) -> tuple[int, ...]:
    """The counters in H, u8, shape [PAGE]."""
    return tuple(np.frombuffer(data.tobytes(), "<u8", count=COUNTERS, offset=_OFFSET).tolist())


@dataclass(frozen=True)
class Counters:
    """Counters at one moment. They are read one after the other, so differences of two may be off by one step."""

    counters: tuple[int, ...]

    def counter(self, counter: Counter) -> int:
        """The value of one counter."""
        return self.counters[counter]

    @property
    def finished(self) -> Mapping[Reason, int]:
        """Requests that have ended, by reason."""
        return {r: self.counters[Counter.FINISHED_BASE + r] for r in Reason if self.counters[Counter.FINISHED_BASE + r]}

    @property
    def lanes_used(self) -> int:
        """Lanes with a running request."""
        return self.counter(Counter.LANES_TAKEN) - self.counter(Counter.LANES_RETURNED)

    @property
    def pages_used(self) -> int:
        """KV pages that belong to a request."""
        return self.counter(Counter.PAGES_TAKEN) - self.counter(Counter.PAGES_RETURNED)

    @property
    def requests_held(self) -> int:
        """Requests that were claimed and have not ended: running, paused and waiting for a lane."""
        return self.counter(Counter.RECORDS_TAKEN) - self.counter(Counter.RECORDS_RETURNED)
