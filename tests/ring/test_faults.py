"""The client against the scheduler oracle over the adversarial transport: cuts, crashes, reordering, wrap-around."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blink.ring import words
from blink.ring.layout import COMMAND, F_HEAD, STATUS, Geometry, Reason, State
from blink.ring.transport import Region
from tests.depth import examples
from tests.ring.adversarial import RingMemory
from tests.ring.oracle import OracleScheduler
from tests.ring.world import SMALL, World

ACTIONS = ["run"] * 6 + ["net"] * 3 + ["scheduler"] * 3 + ["poll"] * 3 + ["submit"] * 8 + ["cancel"] * 2
FAULTS = ["cut", "cut", "crash", "outage", "twice"]


class StepwiseOracle:
    """The oracle, one memory access per step; checks what it claimed against what was submitted."""

    def __init__(self, world: World, oracle: OracleScheduler) -> None:
        self._world, self._oracle, self._run, self._checked = world, oracle, oracle.run(), 0

    def step(self) -> None:
        next(self._run)
        for claim in self._oracle.claims[self._checked :]:
            submitted = self._world.submitted.get((claim.slot, claim.gen, claim.seq))
            if claim.prompt:
                assert claim.prompt == submitted, "3: the claimed prompt is not the submitted one"
            earlier = self._oracle.claims[: self._checked]
            assert all((c.slot, c.gen) != (claim.slot, claim.gen) for c in earlier), "2: claimed twice"
            assert all(words.after(claim.seq, c.seq) for c in earlier), "14: claimed out of order"
            self._checked += 1
        assert not self._oracle.torn, "3: a request was visible before its chain had completed"


def play(world: World, actions: list[str]) -> None:
    """Run ``actions``, then let everything end."""
    rng = world.rng
    while not world.client.health().link_up:
        world.step_net(20)
        world.poll()
    for action in actions:
        match action:
            case "run":
                for _ in range(rng.randint(1, 12)):
                    world.step_net(rng.randint(1, 20))
                    world.step_scheduler(rng.randint(1, 20))
                    world.poll()
            case "net":
                world.step_net(rng.randint(1, 40))
            case "scheduler":
                world.step_scheduler(rng.randint(1, 30))
            case "poll":
                world.poll()
            case "submit":
                world.submit()
            case "cancel":
                world.cancel()
            case "cut":
                world.cut()
                world.poll(0.2)
            case "outage":
                world.cut(reachable=False)
                world.poll(rng.choice((1.0, 31.0)))
                world.poll(1.0)
                world.mend()
                world.poll(0.2)
            case "crash":
                world.crash()
            case "twice":
                world.crash()
                for _ in range(rng.randint(1, 6)):
                    world.poll(0.2)
                    world.step_net(rng.randint(1, 60))
                world.crash()
    world.quiesce()


def preset(memory: RingMemory, gens: list[int] | None, db: int | None) -> None:
    """Make the ring look as if slots had been used up to ``gens`` and sequence numbers up to ``db``."""
    if gens is None or db is None:
        return
    f, g, geometry = memory.region(Region.F, 0), memory.region(Region.G, 0), memory.geometry
    commands = f[geometry.cmd_off :][: COMMAND.size * len(gens)].view(COMMAND.dtype())
    commands["commit"] = [words.Commit.pack(gen=gen, seq=db) for gen in gens]
    f[:8].view(np.uint64)[F_HEAD.offset("db") // 8] = words.Bell.pack(seq=db)
    status = g[geometry.status_off :][: STATUS.size * len(gens)].view(np.uint64)
    status[::3] = [words.W0.pack(gen=gen, state=State.DECODE_COMPLETED, reason=Reason.LENGTH, count=0) for gen in gens]
    status[2::3] = [words.W2.pack(gen=gen, first=0, rest=0) for gen in gens]


def make_world(seed: int, *, geometry: Geometry = SMALL, gens: list[int] | None = None, db: int | None = None) -> World:
    rng = random.Random(seed)
    memory = RingMemory(geometry)
    preset(memory, gens, db)
    oracle = OracleScheduler(memory, rng, gens=gens)
    world = World(memory, rng)
    world.scheduler = StepwiseOracle(world, oracle)
    return world


def scripts(kinds: list[str], size: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(kinds), min_size=size // 4, max_size=size)


@examples(40)
@given(st.integers(0, 2**32), scripts(ACTIONS, 80))
def test_requests_survive_reordering(seed: int, actions: list[str]) -> None:
    play(make_world(seed), actions)


@examples(80)
@given(st.integers(0, 2**32), scripts(ACTIONS * 2 + FAULTS, 120))
def test_requests_survive_cuts_and_crashes(seed: int, actions: list[str]) -> None:
    play(make_world(seed), actions)


@examples(40)
@given(st.integers(0, 2**32), scripts(ACTIONS * 2 + FAULTS, 80), st.sampled_from((0xFFFE, 0xFFFFFFFE, 0x7FFFFFFF)))
def test_generation_and_sequence_wrap_around(seed: int, actions: list[str], gen: int) -> None:
    """14: commits and doorbell start a few steps before each wrap-around."""
    play(make_world(seed, gens=[gen, gen, gen + 1, gen - 1], db=random.Random(seed).choice((gen, 0xFFFFFFFD))), actions)


def test_a_link_that_stops_answering_is_named_and_given_up() -> None:
    world = make_world(1)
    while not world.client.health().link_up:
        world.step_net(20)
        world.poll()
    while not world.tracks:
        world.submit()
    for _ in range(22):
        world.poll(0.5)
    why = "no answer from the link for 10 s while up"
    assert world.client.health().down == f"link: reading the ring's header, after: {why}"
    for _ in range(120):
        world.poll(0.5)
    (track,) = world.tracks
    assert track.end == "the link was down for 30 s (no answer from the link for 10 s while reading the ring's header)"
    world.quiesce()
