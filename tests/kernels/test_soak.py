"""Long random use of one appliance. BLINK_SOAK_SECONDS sets how long, BLINK_SOAK_SEED what."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from blink.backend.scheduler import SchedulerConfig
from blink.engine.batch import Control
from blink.ring.layout import Geometry
from tests.kernels.ring_writer import MASK
from tests.kernels.test_hostile_frontend import EDGES, FIELDS, misbehave
from tests.kernels.world import World

VOCAB = 64
SECONDS = float(os.environ.get("BLINK_SOAK_SECONDS", "20"))
SEED = int(os.environ.get("BLINK_SOAK_SEED", "1"))


def number(rng: np.random.Generator) -> int:
    return int(rng.choice(np.array(EDGES, np.uint64))) if rng.random() < 0.5 else int(rng.integers(0, 1 << 63))


def nonsense(rng: np.random.Generator) -> dict:
    """An action for :func:`tests.kernels.test_hostile_frontend.misbehave`."""
    slot = int(rng.integers(0, 8))
    match rng.integers(0, 10):
        case 0:
            return {"do": "words", "at": rng.random(), "words": [number(rng) for _ in range(rng.integers(0, 6))]}
        case 1:
            return {"do": "cancel", "slot": slot, "gen": number(rng)}
        case 2:
            return {"do": "commit", "slot": slot, "gen": number(rng), "seq": number(rng)}
        case _:
            names = rng.choice(FIELDS, rng.integers(0, 3))
            ext = [int(w) & MASK for w in rng.integers(0, 4, rng.integers(0, 4))]
            return {"do": "request", "slot": slot, "fields": {str(n): number(rng) for n in names}, "ext": ext}


@pytest.mark.slow
def test_soak() -> None:
    config = SchedulerConfig(
        lanes=6, records=14, page_tokens=4, pages=40, max_context=64, vocab=VOCAB, batch_tokens=24, eos=(5, 9),
        launch_window=30, torn_ms=20, alive_ms=2000, ext_words=32,
    )  # fmt: skip
    w = World(config, Geometry(24, 3, 32768, 1 << 17), hostile=(2,))
    rng, gens, rounds = np.random.default_rng(SEED), {}, 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        rounds += 1
        for _ in range(300):
            draw = rng.random()
            if draw < 0.3:
                length = int(rng.integers(1, 40))
                w.submit(
                    int(rng.integers(0, 2)),
                    rng.integers(0, VOCAB, length).tolist(),
                    int(rng.integers(1, 64 - length + 1)),
                    ignore_eos=bool(rng.random() < 0.5),
                    min_tokens=int(rng.integers(0, 6)),
                    stop=tuple(rng.integers(0, VOCAB, rng.integers(0, 3)).tolist()),
                    **({"logprobs": int(rng.integers(0, 21))} if rng.random() < 0.2 else {}),
                    **({"deadline_ms": int(rng.integers(1, 200))} if rng.random() < 0.1 else {}),
                    **({"fails_at": int(rng.integers(1, 60))} if rng.random() < 0.02 else {}),
                )
            elif draw < 0.35 and w.sent:
                w.cancel(list(w.sent.values())[int(rng.integers(0, len(w.sent)))])
            elif draw < 0.45:
                misbehave(w.workers[2], nonsense(rng), gens)
            elif draw < 0.46:
                w.advance(int(rng.integers(1, 100)))
            elif draw < 0.462:
                w.engine.error_next = 1
            else:
                w.resident = bool(rng.random() < 0.5)
                w.step()
        w.settle_known()
        w.check_balance_of(0)
        w.check_balance_of(1)
        w.finished.clear()
    counters = w.core.counters()
    w.request(Control.STOP)
    w.stop(limit=50)
    print(f"{rounds} rounds: { ({n: c for n, c in counters.items() if c}) }")
    assert (
        min(counters[n] for n in ("PREEMPTIONS", "RELAUNCHES", "TORN", "FINISHED_CANCELLED", "FINISHED_ERR_BOUNDS")) > 0
    )
