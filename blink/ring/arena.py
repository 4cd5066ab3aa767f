"""Extents of an arena: first fit over a sorted free list that coalesces."""

from __future__ import annotations

from bisect import bisect_left

from blink.ring.layout import EXTENT_ALIGN


class ArenaFullError(Exception):
    """No free extent is long enough."""


class Arena:
    """Hands out 64-byte-aligned extents of ``[base, base + length)``; ``base`` and ``length`` are multiples of 64."""

    def __init__(self, base: int, length: int) -> None:
        if base % EXTENT_ALIGN or length % EXTENT_ALIGN or length <= 0:
            raise ValueError(f"arena [{base}, +{length}) is not aligned to {EXTENT_ALIGN}")
        self.base, self.length = base, length
        self._free: list[tuple[int, int]] = [(base, length)]  # (offset, bytes), sorted, never adjacent
        self._taken: dict[int, int] = {}

    @property
    def free_bytes(self) -> int:
        """Bytes not handed out, fragmented or not."""
        return self.length - sum(self._taken.values())

    def allocate(self, size: int) -> int:
        """Offset of an extent of at least ``size`` bytes. Raises ArenaFullError."""
        need = max(EXTENT_ALIGN, -(-size // EXTENT_ALIGN) * EXTENT_ALIGN)
        for i, (offset, length) in enumerate(self._free):
            if length >= need:
                if length == need:
                    del self._free[i]
                else:
                    self._free[i] = (offset + need, length - need)
                self._taken[offset] = need
                return offset
        raise ArenaFullError(f"no {need} consecutive bytes among {self.free_bytes} free ones")

    def free(self, offset: int) -> None:
        """Return the extent that :meth:`allocate` gave. Raises KeyError for any other offset."""
        length = self._taken.pop(offset)
        i = bisect_left(self._free, (offset, 0))
        if i < len(self._free) and self._free[i][0] == offset + length:
            length += self._free.pop(i)[1]
        if i and sum(self._free[i - 1]) == offset:
            offset, before = self._free.pop(i - 1)
            length += before
            i -= 1
        self._free.insert(i, (offset, length))
