"""Other people's work: busy processes on chosen cores, as a colocated batch job would run."""

from __future__ import annotations

import bz2
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

BLOCK = 4 << 20
SETTLE_S = 1.0


def _compress(cores: Sequence[int]) -> None:
    os.sched_setaffinity(0, cores)
    data = os.urandom(BLOCK) + b"abcdefgh" * (BLOCK // 8)
    while True:
        bz2.compress(data, 9)


@contextmanager
def busy(count: int, cores: Sequence[int]) -> Iterator[None]:
    """Within the block ``count`` processes compress with bzip2 on ``cores`` without a pause."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_compress, args=(list(cores),), daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        if processes:
            time.sleep(SETTLE_S)
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join(10)
