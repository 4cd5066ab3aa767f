"""The packed words of the ring, and the arithmetic of its sequence numbers.

Each word is declared here and nowhere else: kernels/ring/layout.h and docs/protocol.md are made of it.
"""

from __future__ import annotations

from typing import NamedTuple

from blink.bitfields import Bits, PackedWord

MASK32 = 0xFFFFFFFF


class W0(PackedWord):
    """state and reason of a slot, and how many tokens its answer has; one store.

    Readers do not trust the scheduler to send known states and reasons.
    """

    gen = Bits(16)
    state = Bits(8)
    reason = Bits(8)
    count = Bits(32)


class W1(PackedWord):
    """a hint, the last two of count tokens inline."""

    last = Bits(20)
    prev = Bits(20)
    count = Bits(16)
    gen = Bits(8)


class W2(PackedWord):
    """times of a request that ended, in µs: until its first token, and the rest until its last."""

    gen = Bits(4)
    rest = Bits(30, saturates=True)
    first = Bits(30, saturates=True)


class Commit(PackedWord):
    """a request of generation gen is in its slot."""

    seq = Bits(32)
    gen = Bits(32)


class Bell(PackedWord):
    """every commit up to seq is complete."""

    check = Bits(32, inverse_of="seq")
    seq = Bits(32)


class Cancel(PackedWord):
    """generation gen of the slot is to end."""

    check = Bits(32, inverse_of="gen")
    gen = Bits(32)


class Activity(PackedWord):
    """what the scheduler does (see Phase), and how long that may last without a beat, in ms."""

    budget_ms = Bits(32)
    phase = Bits(32)


WORDS = (W0, W1, W2, Commit, Bell, Cancel, Activity)

HINT_TOKEN_LIMIT = W1.last.limit + 1
"""Tokens from here on fit no hint."""


class Times(NamedTuple):
    """When the scheduler had a request's first and last token, in µs from the scan that first saw the request.

    Both 0 where there was no token. A time that does not fit stands at its limit: 17.9 minutes to the first token, and
    as much again to the last.
    """

    first_us: int
    last_us: int


def times_of(w2: int, gen: int) -> Times | None:
    """The times of generation ``gen``, or None where the word is still that of the generation before."""
    word = W2(w2)
    return Times(word.first, word.first + word.rest) if word.gen == gen & W2.gen.limit else None


def rung(db: int) -> int | None:
    """The sequence number of a doorbell, or None where it was never rung or is damaged."""
    word = Bell(db)
    return word.seq if word.intact else None


def next_seq(seq: int) -> int:
    """The sequence number after ``seq``. 0 is left out, so that a commit word of 0 is a slot that never had one."""
    return seq + 1 & MASK32 or 1


def after(a: int, b: int) -> bool:
    """Whether 32-bit sequence number ``a`` is later than ``b``, wrapping: true for differences of 1 to 2**31 - 1."""
    return 0 < (a - b) & MASK32 < 1 << 31
