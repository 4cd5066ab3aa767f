"""The shapes that graphs are captured for where the configuration names none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blink.backend.scheduler.buckets import decode_buckets, prefill_buckets
from blink.engine.seam.batch import MAX_BUCKETS


@pytest.mark.parametrize(
    ("buckets", "largest", "smallest"),
    [(decode_buckets, n, 1) for n in (1, 8, 128, 4096)] + [(prefill_buckets, n, 16) for n in (16, 100, 2048, 1 << 20)],
)
def test_the_default_shapes_begin_small_and_end_with_the_largest(
    buckets: Callable[[int], tuple[int, ...]], largest: int, smallest: int
) -> None:
    sizes = buckets(largest)
    assert (sizes[0], sizes[-1]) == (smallest, largest)
    assert list(sizes) == sorted(set(sizes))
    assert len(sizes) <= MAX_BUCKETS
