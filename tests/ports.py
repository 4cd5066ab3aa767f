"""Ports of the loopback interface for tests that run side by side: each process has a block of its own."""

from __future__ import annotations

import functools
import itertools
import socket
from collections.abc import Iterator

FIRST, LAST, BLOCK = 20000, 32000, 100
"""Below the ports that the kernel gives to connections, so that none of these takes one that is about to be served."""


def _bind(port: int) -> socket.socket | None:
    """A socket bound to ``port``, or None where another has it."""
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", port))
    except OSError:
        s.close()
        return None
    return s


@functools.cache
def _block() -> tuple[socket.socket, Iterator[int]]:
    """The block's lock, which is its first port, bound as long as this process lives; and the others, over and over."""
    for first in range(FIRST, LAST, BLOCK):
        if lock := _bind(first):
            return lock, itertools.cycle(range(first + 1, first + BLOCK))
    raise RuntimeError(f"other test processes hold all ports from {FIRST} to {LAST}")


def free_port() -> int:
    """A port of the loopback interface that nobody has now, and that no other test process will be given."""
    for port in itertools.islice(_block()[1], BLOCK):
        if s := _bind(port):
            s.close()
            return port
    raise RuntimeError("all ports of this process are taken: a test does not end what it starts")
