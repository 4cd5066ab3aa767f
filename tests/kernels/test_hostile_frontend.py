"""A worker that writes anything into its own partition, beside one that behaves: only the first may suffer."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from blink.backend.scheduler.config import SchedulerConfig
from blink.engine.seam.batch import Control
from blink.ring.layout import Geometry
from tests.depth import examples
from tests.kernels.nonsense import EDGES, FIELDS, misbehave
from tests.kernels.world import World

VOCAB = 64
HONEST, HOSTILE = 0, 1
NUMBER = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**64 - 1))

NONSENSE = st.one_of(
    st.fixed_dictionaries({"do": st.just("words"), "at": st.floats(0, 1), "words": st.lists(NUMBER, max_size=6)}),
    st.fixed_dictionaries({"do": st.just("bell"), "seq": NUMBER}),
    st.fixed_dictionaries({"do": st.just("commit"), "slot": st.integers(0, 3), "gen": NUMBER, "seq": NUMBER}),
    st.fixed_dictionaries({"do": st.just("cancel"), "slot": st.integers(0, 3), "gen": NUMBER}),
    st.fixed_dictionaries(
        {
            "do": st.just("request"),
            "slot": st.integers(0, 3),
            "fields": st.dictionaries(st.sampled_from(FIELDS), NUMBER, max_size=3),
            "ext": st.lists(NUMBER, max_size=5),
        }
    ),
)
STEP = st.fixed_dictionaries({"do": st.just("step"), "times": st.integers(1, 5)})
SUBMIT = st.fixed_dictionaries({"do": st.just("submit"), "length": st.integers(1, 12), "max_tokens": st.integers(1, 8)})


@examples(120, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(NONSENSE | STEP | SUBMIT, min_size=5, max_size=40), st.booleans(), st.sampled_from([1, 1, 2]))
def test_nonsense_stays_in_its_partition(schedule: list[dict[str, Any]], resident: bool, threads: int) -> None:
    config = SchedulerConfig(
        lanes=2, records=5, page_tokens=3, pages=9, max_context=24, vocab=VOCAB, batch_tokens=6, torn_ms=5,
        ext_words=16, alive_ms=200,
    )  # fmt: skip
    w = World(config, Geometry(8, 2, 8192, 8192), hostile=(HOSTILE,), resident=resident, threads=threads)
    rng, gens = np.random.default_rng(0), {}
    for action in schedule:
        match action["do"]:
            case "step":
                for _ in range(action["times"]):
                    before = w.ring.f.copy()
                    w.step()
                    unchanged = w.ring.f == before
                    assert unchanged[16:].all(), "the scheduler wrote to F"  # 8 to 16: the honest worker's beat
            case "submit":
                w.submit(HONEST, rng.integers(0, VOCAB, action["length"]).tolist(), action["max_tokens"])
            case _:
                misbehave(w.workers[HOSTILE], action, gens)
    w.settle_known()
    w.check_balance_of(HONEST)
    w.request(Control.STOP)
    w.stop(limit=20)
