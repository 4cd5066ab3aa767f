"""The client against the real scheduler core, with a trivial engine, over the adversarial transport."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blink.backend.scheduler.config import SchedulerConfig
from blink.backend.scheduler.host import Decision
from blink.engine.seam.batch import Kind
from blink.engine.seam.buffers import BatchBuffers
from blink.ring import words
from blink.ring.layout import COMMAND, Geometry, State
from blink.ring.transport import Region
from tests.depth import examples
from tests.kernels.cpu_core import CpuCore
from tests.ring.adversarial import RingMemory
from tests.ring.test_faults import ACTIONS, FAULTS, play, preset, scripts
from tests.ring.toy import run_model
from tests.ring.world import SMALL, World

MAX_CONTEXT, PAGE_TOKENS, PAGES, VOCAB = 20, 4, 6, 997


class Core:
    """The scheduler core and the test model, one half of a step at a time. ``PAGES`` is small, so it preempts."""

    def __init__(self, world: World, rng: random.Random, gens: list[int] | None) -> None:
        self._world, self._rng, self._time = world, rng, 1_000_000_000
        config = SchedulerConfig(
            lanes=3, records=6, page_tokens=PAGE_TOKENS, pages=PAGES, max_context=MAX_CONTEXT, vocab=VOCAB,
            batch_tokens=12, ext_words=600, claims_per_step=2, alive_ms=0,
        )  # fmt: skip
        self._buffers = BatchBuffers(config.dims)
        memory = world.memory
        self.scheduler = CpuCore(config, memory.geometry, memory.g, memory.f, self._buffers)
        for slot, gen in enumerate(gens or ()):
            self.scheduler.set_generation(slot, gen)
        self._decision: Decision | None = None
        self._attended = False
        self._started = 0
        self._newest: int | None = None

    def step(self) -> None:
        self._time += 100_000
        if self._decision is None:
            self._decision = self.scheduler.begin(self._time)
            self._attended = False
        elif not self._attended:
            self.scheduler.attend(self._time)
            self._attended = True
        else:
            if self._decision.kind in (Kind.PREFILL, Kind.DECODE):
                run_model(self._buffers, VOCAB)
            self._decision = None
            self.scheduler.check_integrity()
        self._check()

    def _check(self) -> None:
        counters = self.scheduler.counters()
        assert counters["TORN"] == 0, "3: a request was visible before its chain had completed"
        assert counters["DOORBELL_BAD"] == 0, "10: a doorbell without its complement"
        self._world.monitor.check()
        started = self._world.monitor.started
        seqs = [seq for seq in map(self._claimed_seq, started[self._started :]) if seq is not None]
        self._started = len(started)
        for seq in seqs:
            assert self._newest is None or words.after(seq, self._newest), "14: claimed out of order"
        for seq in seqs:
            self._newest = seq if self._newest is None or words.after(seq, self._newest) else self._newest

    def _claimed_seq(self, first_sight: tuple[int, int]) -> int | None:
        """Sequence number of a request that was claimed to run; None for one that ended at once."""
        slot, _ = first_sight
        if words.W0(self._world.monitor.status()[slot]).state == State.DECODE_COMPLETED:
            return None
        offset = self._world.memory.geometry.cmd_off + COMMAND.size * slot
        return int(self._world.memory.region(Region.F, 0)[offset : offset + 8].view(np.uint64)[0]) >> 32

    def check_balance(self) -> None:
        c = self.scheduler.counters()
        for name in ("PAGES", "LANES", "RECORDS"):
            assert c[f"{name}_TAKEN"] == c[f"{name}_RETURNED"], f"13: {name.lower()} leaked"


def make_core_world(
    seed: int, *, geometry: Geometry = SMALL, gens: list[int] | None = None, db: int | None = None
) -> tuple[World, Core]:
    rng = random.Random(seed)
    memory = RingMemory(geometry, vocab=VOCAB, max_context=MAX_CONTEXT, pages=PAGES, lanes=3)
    preset(memory, gens, db)
    world = World(memory, rng)
    core = Core(world, rng, gens)
    world.scheduler = core
    return world, core


@examples(40)
@given(st.integers(0, 2**32), scripts(ACTIONS * 2 + FAULTS, 120))
def test_requests_survive_cuts_and_crashes(seed: int, actions: list[str]) -> None:
    world, core = make_core_world(seed)
    play(world, actions)
    core.check_balance()


@examples(25)
@given(st.integers(0, 2**32), scripts(ACTIONS * 2 + FAULTS, 80), st.sampled_from((0xFFFE, 0xFFFFFFFE, 0x7FFFFFFF)))
def test_generation_and_sequence_wrap_around(seed: int, actions: list[str], gen: int) -> None:
    db = random.Random(seed).choice((gen, 0xFFFFFFFD))
    world, core = make_core_world(seed, gens=[gen, gen, gen + 1, gen - 1], db=db)
    play(world, actions)
    core.check_balance()
