"""Long random use of one appliance. BLINK_SOAK_SECONDS sets how long, BLINK_SOAK_SEED what."""

from __future__ import annotations

import os
import time

import pytest

from tests.kernels.random_use import RandomUse

SECONDS = float(os.environ.get("BLINK_SOAK_SECONDS", "20"))
SEED = int(os.environ.get("BLINK_SOAK_SEED", "1"))


@pytest.mark.slow
def test_soak() -> None:
    use = RandomUse(SEED)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        use.round(300)
    counters = use.end()
    print({name: n for name, n in counters.items() if n})
    assert min(counters[n] for n in ("PREEMPTIONS", "RELAUNCHES", "FINISHED_CANCELLED", "FINISHED_ERR_BOUNDS")) > 0
