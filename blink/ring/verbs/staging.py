"""Registered memory that work requests read from and write to, given out and taken back in order."""

from __future__ import annotations

import mmap
from collections import deque

import numpy as np

from blink.ring.transport import Bytes
from blink.ring.verbs.fabric import Domain, Rights

ALIGN = 64


class Staging:
    """A ring buffer of ``size`` bytes, registered in ``domain``; each piece is contiguous."""

    def __init__(self, domain: Domain, size: int) -> None:
        self.size = size
        self.bytes: Bytes = np.frombuffer(mmap.mmap(-1, size), np.uint8)
        self._memory = domain.register(self.bytes.ctypes.data, size, Rights.NONE)
        self.address, self.lkey = self._memory.address, self._memory.lkey
        self._pieces: deque[int] = deque()  # where each piece given out ends, oldest first
        self._head = 0  # where the next one begins
        self._tail = 0  # where the oldest one begins

    def take(self, length: int) -> int | None:
        """Offset of ``length`` bytes, or None until enough is given back. Raises ValueError where there never is."""
        length = -(-max(length, 1) // ALIGN) * ALIGN
        if length >= self.size:
            raise ValueError(f"an operation of {length} bytes, and staging holds {self.size}")
        if not self._pieces:
            self._head = self._tail = 0
        at = self._head
        if at >= self._tail:
            if at + length > self.size:  # the end is too short: begin again in front, if that is free
                if length >= self._tail:
                    return None
                at = 0
        elif at + length >= self._tail:
            return None
        self._head = at + length
        self._pieces.append(self._head)
        return at

    def give_back(self) -> None:
        """The oldest piece is free again."""
        self._tail = self._pieces.popleft()

    def view(self, at: int, length: int) -> Bytes:
        """The bytes of a piece."""
        return self.bytes[at : at + length]

    def close(self) -> None:
        """Deregister. Idempotent."""
        self._memory.close()
