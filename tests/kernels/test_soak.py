"""Long random use of one appliance. BLINK_SOAK_ROUNDS sets how long, BLINK_SOAK_SEED what."""

from __future__ import annotations

import os

from tests.depth import SCALE
from tests.kernels.random_use import RandomUse

ROUNDS = int(os.environ.get("BLINK_SOAK_ROUNDS", 250 * SCALE))  # a processor of today does a dozen in a second
SEED = int(os.environ.get("BLINK_SOAK_SEED", "1"))


def test_soak() -> None:
    use = RandomUse(SEED)
    for _ in range(ROUNDS):
        use.round(300)
    counters = use.end()
    print({name: n for name, n in counters.items() if n})
    assert min(counters[n] for n in ("PREEMPTIONS", "RELAUNCHES", "FINISHED_CANCELLED", "FINISHED_ERR_BOUNDS")) > 0
