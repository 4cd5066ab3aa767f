"""Philox4x32-10, the counter-based random generator of Salmon et al. (2011): one block per (seed, position)."""

from __future__ import annotations

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """The four 32-bit words of the block; equal to Random123's ``philox4x32`` with ten rounds."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def random_u64(seed: int, position: int) -> int:
    """64 random bits that belong to ``position`` (a token's index in its sequence) of the stream ``seed`` (u64).

    Key (low, high word of the seed), counter (position, 0, 0, 0); words 0 and 1 are the low and the high half.
    """
    low, high, _, _ = philox4x32((position & _MASK, 0, 0, 0), (seed & _MASK, seed >> 32 & _MASK))
    return high << 32 | low
