"""The shapes that steps are captured for where a configuration names none."""

from __future__ import annotations

from blink.engine.seam.batch import MAX_BUCKETS


def decode_buckets(lanes: int) -> tuple[int, ...]:
    """Row counts to capture decode graphs for: powers of two to 8, then steps of 8 to 64, 16 to 128, 32 beyond."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, lanes, 32)]
    return (*(n for n in sizes if n < lanes), lanes)[-MAX_BUCKETS:]


def prefill_buckets(batch_tokens: int) -> tuple[int, ...]:
    """Packed token counts to capture prefill graphs for: powers of two from 16 to 64, then steps of 128 to 4096, the
    tile of large matrix products, of 512 to 65536, and powers of two beyond."""
    sizes = [16, 32, 64, *range(128, 4096, 128), *range(4096, 1 << 16, 512), *(1 << power for power in range(16, 21))]
    return (*(n for n in sizes if n < batch_tokens), batch_tokens)
