"""Backend, driver and frontend are cut after every step of a scenario; afterwards everything is accounted for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from blink.backend.scheduler.config import SchedulerConfig
from blink.backend.scheduler.host import Decision, Scheduler
from blink.engine.seam.batch import Kind
from blink.engine.seam.buffers import BatchBuffers
from blink.ring.layout import Geometry, State
from tests.kernels.hash_engine import answer
from tests.kernels.ring_writer import CHAIN, Ring, Writer
from tests.kernels.world import World

VOCAB = 64
CONFIG = SchedulerConfig(
    lanes=2, records=3, page_tokens=2, pages=13, max_context=24, vocab=VOCAB, batch_tokens=5, torn_ms=4, launch_window=3
)
GEOMETRY = Geometry(5, 1, 8192, 8192)
LIMIT = 400


def appliance() -> tuple[World, list[list[int]]]:
    """An appliance and five prompts, under enough pressure to have every transition: see the first test."""
    rng = np.random.default_rng(3)
    return World(CONFIG, GEOMETRY), [rng.integers(0, VOCAB, 3 + i).tolist() for i in range(5)]


def scenario(w: World, prompts: list[list[int]]) -> Iterator[None]:
    """Submits, runs and cancels; yields after every step."""
    sent = []
    for i, prompt in enumerate(prompts):
        sent.append(w.submit(0, prompt, 14 - i))
        w.step()
        yield
    for turn in itertools.count():
        if turn == 6 and sent[4]:
            w.cancel(sent[4])
        if w.step().kind is Kind.IDLE and not w.sent:
            return
        yield


def length() -> int:
    return sum(1 for _ in scenario(*appliance()))


def test_the_scenario_has_every_transition() -> None:
    w, prompts = appliance()
    states = set()
    for _ in scenario(w, prompts):
        states |= {w.workers[0].status(s).state for s in range(5)}
    counters = w.core.counters()
    assert states == {*State} - {State.PREFILL_PENDING}
    assert (
        min(counters[c] for c in ("PREEMPTIONS", "RESUMES", "RELAUNCHES", "FINISHED_CANCELLED", "FINISHED_LENGTH")) > 0
    )


def test_a_new_backend_serves_what_the_old_one_dropped() -> None:
    """The new epoch starts from zeroed memory, so nothing of the old one can reach it; clients send again."""
    for cut in range(length()):
        w, prompts = appliance()
        for _ in itertools.islice(scenario(w, prompts), cut):
            pass
        dropped = [s.prompt for s in w.sent.values()]
        new, _ = appliance()
        assert not new.workers[0].outstanding()
        for prompt in dropped:
            new.submit(0, prompt, 5)
        new.settle()
        assert sorted(s.published for s in new.finished) == sorted(
            answer(p, i + 1, 5, VOCAB) for i, p in enumerate(dropped)
        )


def test_a_new_backend_may_use_the_buffers_of_the_old_one() -> None:
    w, prompts = appliance()
    w.submit(0, prompts[0], 4)
    w.step()  # the engine has finished step 1, which is also what the next scheduler's first step is called

    def same_buffers(config: SchedulerConfig, geometry: Geometry) -> tuple[Ring, BatchBuffers, Scheduler]:
        ring = Ring(geometry, config)
        return ring, w.buffers, Scheduler(config, geometry, ring.g, ring.f, w.buffers)

    new = World(CONFIG, GEOMETRY, make=same_buffers)
    new.submit(0, prompts[1], 4)
    assert new.decide() == new.decide()
    assert new.core.counters()["OUTPUT_TOKENS"] == 0, "it harvested what no engine produced"
    new.engine.run()
    new.settle()


def test_another_driver_goes_on_where_one_stopped() -> None:
    """The state is in memory, not in the driver: threads and kind of driver change after every step."""
    w, prompts = appliance()
    for i, _ in enumerate(scenario(w, prompts)):
        w.resident = i % 2 == 1
        w.core.threads = 1 + i % 3
    w.settle()
    assert len(w.finished) == 5


def test_a_driver_that_dies_beside_a_batch_leaves_the_decision_to_the_next() -> None:
    w, prompts = appliance()

    def another(decision: Decision) -> None:
        assert w.core.begin(w.now) is None
        assert w.core.step(w.now) == decision
        w.core.check_integrity()

    w.beside = another
    for _ in scenario(w, prompts):
        pass
    assert len(w.finished) == 5
    assert w.core.counters()["LAUNCHES"] < w.core.counters()["STEPS"]


def run_on(w: World, writer: Writer, steps: Iterator[None]) -> None:
    """Let ``steps`` of a worker go on while the scheduler runs, until they end."""
    for _ in range(LIMIT):
        if next(steps, steps) is steps:
            return
        w.drive()
    raise AssertionError(f"never ended: {[writer.status(s) for s in writer.outstanding()]}")


def renewed(w: World) -> None:
    """Every slot works again, for the worker that took over."""
    writer = w.ring.writer(0)
    w.sent = {}  # the dead worker's expectations
    run_on(w, writer, writer.recover())
    assert not writer.outstanding()
    w.workers[0] = writer
    before = len(w.finished)
    for i in range(5):
        w.submit(0, [i, i + 1], 6)
    w.settle_known()
    assert len(w.finished) == before + 5
    for what in ("PAGES", "LANES", "RECORDS"):
        assert w.core.counters()[f"{what}_TAKEN"] == w.core.counters()[f"{what}_RETURNED"]


def test_a_new_frontend_gets_every_slot_back_at_every_step() -> None:
    for cut in range(length()):
        w, prompts = appliance()
        for _ in itertools.islice(scenario(w, prompts), cut):
            pass
        renewed(w)


PARTS = [order for n in range(len(CHAIN) + 1) for order in itertools.permutations(CHAIN, n)]


@pytest.mark.parametrize("landed", PARTS, ids="-".join)
def test_a_submit_that_landed_in_part_is_undone(landed: tuple[str, ...]) -> None:
    """Also where the worker that recovers dies again, after each word that it writes."""
    for crash in range(12):
        w, prompts = appliance()
        writer = w.ring.writer(0)
        run_on(w, writer, writer.submit_in_pieces(0, prompts[0], 6, CHAIN))
        submit = writer.submit_in_pieces(1, prompts[1], 6, landed)
        for _ in submit:
            w.drive()
        recovery = w.ring.writer(0).recover()
        for _ in itertools.islice(recovery, crash):
            w.drive()
        renewed(w)
