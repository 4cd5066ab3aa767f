"""The slot tracker: which slots of the partition are free, without asking the ring."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class SlotTracker:
    """Availability of ``n`` slots and the generation each one had last.

    The next free slot is searched from a hint that moves on with every hit, so a search costs O(1) amortized and a
    slot rests as long as possible before it is used again. ``gens`` is u32, shape [n]; ``busy`` is bool, shape [n].
    """

    def __init__(self, gens: npt.NDArray[np.uint32]) -> None:
        self.gens = gens
        self._busy = bytearray(len(gens))
        self.busy = np.frombuffer(self._busy, np.bool_)
        self._hint = 0
        self.free = len(gens)

    def find(self) -> int | None:
        """A free slot, still free afterwards, or None."""
        if not self.free:
            return None
        slot = self._busy.find(0, self._hint)
        if slot < 0:
            slot = self._busy.find(0)
        return slot

    def take(self, slot: int) -> None:
        """Mark a free slot as used."""
        assert not self._busy[slot]
        self._busy[slot] = 1
        self.free -= 1
        self._hint = (slot + 1) % len(self._busy)

    def release(self, slot: int) -> None:
        """Mark a used slot as free."""
        assert self._busy[slot]
        self._busy[slot] = 0
        self.free += 1
