"""Random use of one appliance: two honest workers, and one that is not."""

from __future__ import annotations

import numpy as np

from blink.backend.scheduler.config import SchedulerConfig
from blink.engine.seam.batch import Control
from blink.ring.layout import Geometry
from tests.kernels.nonsense import misbehave, nonsense
from tests.kernels.world import Make, World

VOCAB = 64
CONFIG = SchedulerConfig(
    lanes=6, records=14, page_tokens=4, pages=40, max_context=64, vocab=VOCAB, batch_tokens=24, eos=(5, 9),
    launch_window=30, torn_ms=20, alive_ms=2000, ext_words=32,
)  # fmt: skip
GEOMETRY = Geometry(24, 3, 32768, 1 << 17)
HOSTILE = 2


class RandomUse:
    """A :class:`World` and the chance that moves it."""

    def __init__(self, seed: int, make: Make | None = None, *, may_reside: bool = True) -> None:
        self.world = World(CONFIG, GEOMETRY, hostile=(HOSTILE,), make=make)
        self.rng = np.random.default_rng(seed)
        self.may_reside = may_reside
        self._gens: dict[int, int] = {}

    def round(self, actions: int) -> None:
        """So many random actions, after which every honest request has ended and everything is checked."""
        for _ in range(actions):
            self._act()
        self.world.settle_known()
        for part in range(HOSTILE):
            self.world.check_balance_of(part)
        self.world.finished.clear()

    def end(self) -> dict[str, int]:
        """Stop the scheduler, see that everything was given back; the counters."""
        self.world.request(Control.STOP)
        self.world.stop(limit=50)
        return self.world.core.counters()

    def _act(self) -> None:
        w, rng = self.world, self.rng
        draw = rng.random()
        if draw < 0.3:
            length = int(rng.integers(1, 40))
            w.submit(
                int(rng.integers(0, HOSTILE)),
                rng.integers(0, VOCAB, length).tolist(),
                int(rng.integers(1, CONFIG.max_context - length + 1)),
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
            misbehave(w.workers[HOSTILE], nonsense(rng), self._gens)
        elif draw < 0.46:
            w.advance(int(rng.integers(1, 100)))
        elif draw < 0.462:
            w.engine.error_next = 1
        else:
            w.resident = self.may_reside and bool(rng.random() < 0.5)
            w.step()
