"""The four operations of which a worker's traffic with the ring consists, one by one, over any transport."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from blink.errors import BlinkError
from blink.ring.layout import COMMAND, F_HEAD, REQUEST, STATUS, Geometry
from blink.ring.observe import Observer
from blink.ring.transport import Channel, LinkState, Region, Transport

PROMPT_BYTES = 256  # 64 tokens
READ_TOKENS = 4
OUTSTANDING = 16
TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Primitive:
    """``ops_per_s`` with OUTSTANDING operations posted; latencies in microseconds with one at a time."""

    ops_per_s: float
    p50_us: float
    p99_us: float


def measure(transport: Transport, geometry: Geometry, seconds: float) -> dict[str, Primitive]:
    """Each primitive for ``seconds`` one at a time, and again with several outstanding.

    The ring must not be in use: its requests, doorbell and input arena are overwritten. Raises BlinkError where the
    link does not come up or does not answer.
    """
    observer = Observer(transport)
    try:
        return {
            name: Primitive(_throughput(transport, post, seconds), *_latencies(transport, post, seconds))
            for name, post in _operations(transport, geometry).items()
        }
    finally:
        observer.close()


def _operations(transport: Transport, geometry: Geometry) -> dict[str, Callable[[], int]]:
    prompt, record = bytes(PROMPT_BYTES), bytes(REQUEST.size)
    chain = [(geometry.in_off, prompt), (geometry.request_off, record), (geometry.cmd_off, bytes(8))]
    assert COMMAND.offset("commit") == 0
    status = geometry.status_off + STATUS.size * geometry.slots_per_part
    return {
        f"chain write, {PROMPT_BYTES} + {REQUEST.size} + 8 B": lambda: transport.post_write(chain),
        "doorbell, 8 B": lambda: transport.post_write([(F_HEAD.offset("db"), bytes(8))]),
        f"status read, {status >> 10} KiB": lambda: transport.post_read(Region.G, 0, status),
        f"token read, {4 * READ_TOKENS} B": lambda: transport.post_read(
            Region.G, geometry.out_off, 4 * READ_TOKENS, Channel.TOKENS
        ),
    }


def _completed(transport: Transport, deadline: float) -> int:
    """How many operations have ended since the last call; raises BlinkError where the link fails or stands."""
    done = transport.poll()
    if transport.state is not LinkState.UP or not all(c.ok for c in done):
        raise BlinkError(f"the link failed: {transport.detail}", "see the log of blink-ringd")
    if not done and time.monotonic() > deadline:
        raise BlinkError(f"waited {TIMEOUT_S:g} s for an operation", "the link to the ring is stuck")
    return len(done)


def _latencies(transport: Transport, post: Callable[[], int], seconds: float) -> tuple[float, float]:
    took, now = [], time.perf_counter()
    end = now + seconds
    while now < end:
        deadline = time.monotonic() + TIMEOUT_S
        start = time.perf_counter()
        post()
        while not _completed(transport, deadline):
            pass
        now = time.perf_counter()
        took.append(now - start)
    p50, p99 = np.percentile(took, (50, 99)) * 1e6
    return float(p50), float(p99)


def _throughput(transport: Transport, post: Callable[[], int], seconds: float) -> float:
    outstanding = done = 0
    start = now = time.perf_counter()
    while now < start + seconds or outstanding:
        if now < start + seconds:
            for _ in range(OUTSTANDING - outstanding):
                post()
            outstanding = OUTSTANDING
        ended = _completed(transport, time.monotonic() + TIMEOUT_S)
        outstanding, done = outstanding - ended, done + ended
        now = time.perf_counter()
    return done / (now - start)
