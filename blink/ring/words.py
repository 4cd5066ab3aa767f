"""Words of the ring as Python integers; ``kernels/ring/words.h`` is the same for the scheduler."""

from __future__ import annotations

from typing import NamedTuple

MASK32 = 0xFFFFFFFF
TIME_LIMIT_US = (1 << 30) - 1


class Status(NamedTuple):
    """A decoded w0. ``state`` and ``reason`` are raw numbers: the scheduler is not trusted to send known ones."""

    gen16: int
    state: int
    reason: int
    tokens: int


class Times(NamedTuple):
    """When the scheduler had a request's first and last token, in µs from the scan that first saw the request.

    Both 0 where there was no token. A time that does not fit stands at its limit: 17.9 minutes to the first token, and
    as much again to the last.
    """

    first_us: int
    last_us: int


def pack_w0(gen: int, state: int, reason: int, count: int) -> int:
    """The status word of generation ``gen``."""
    return (gen & 0xFFFF) << 48 | state << 40 | reason << 32 | count


def unpack_w0(w0: int) -> Status:
    """Fields of a status word."""
    return Status(w0 >> 48, w0 >> 40 & 0xFF, w0 >> 32 & 0xFF, w0 & MASK32)


def pack_w1(gen: int, count: int, last: int, prev: int) -> int:
    """The hint word: the last two of ``count`` tokens, each below 2**20."""
    return (last & 0xFFFFF) << 44 | (prev & 0xFFFFF) << 24 | (count & 0xFFFF) << 8 | gen & 0xFF


def pack_w2(gen: int, times: Times) -> int:
    """The word of times."""
    first = min(times.first_us, TIME_LIMIT_US)
    return (gen & 0xF) << 60 | min(times.last_us - times.first_us, TIME_LIMIT_US) << 30 | first


def unpack_w2(w2: int, gen: int) -> Times | None:
    """The times of generation ``gen``, or None where the word is still that of the generation before."""
    first = w2 & TIME_LIMIT_US
    return Times(first, first + (w2 >> 30 & TIME_LIMIT_US)) if w2 >> 60 == gen & 0xF else None


def pack_checked(value: int) -> int:
    """A 32-bit value beside its complement: doorbell and cancel."""
    return (~value & MASK32) << 32 | value


def unpack_checked(word: int) -> int | None:
    """The value of a checked word, or None where it was never written or does not match its complement."""
    value = word & MASK32
    return value if word >> 32 == ~value & MASK32 else None


def pack_commit(gen: int, seq: int) -> int:
    """The commit word of a request."""
    return seq << 32 | gen


def next_seq(seq: int) -> int:
    """The sequence number after ``seq``. 0 is left out, so that a commit word of 0 is a slot that never had one."""
    return seq + 1 & MASK32 or 1


def after(a: int, b: int) -> bool:
    """Whether 32-bit sequence number ``a`` is later than ``b``, wrapping: true for differences of 1 to 2**31 - 1."""
    return 0 < (a - b) & MASK32 < 1 << 31
