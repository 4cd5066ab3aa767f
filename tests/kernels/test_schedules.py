"""Random schedules of arrivals, cancels, deadlines, faults and nonsense, judged by an independent model."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from blink.backend.scheduler.config import SchedulerConfig
from blink.engine.seam.batch import Control, Kind
from blink.ring.layout import Geometry
from tests.depth import examples
from tests.kernels.world import PAUSED_MOST, World

VOCAB = 64
EOS = (5, 9)
PREFILL, DECODE = Kind.PREFILL, Kind.DECODE


@dataclass(frozen=True)
class Setting:
    """The sizes of an appliance."""

    config: SchedulerConfig
    geometry: Geometry
    threads: int
    resident: bool


@st.composite
def appliances(draw: st.DrawFn) -> Setting:
    lanes = draw(st.integers(1, 4))
    page_tokens = draw(st.integers(1, 5))
    max_context = draw(st.integers(6, 40))
    config = SchedulerConfig(
        lanes=lanes,
        records=lanes + draw(st.integers(0, 4)),
        page_tokens=page_tokens,
        pages=-(-max_context // page_tokens) + draw(st.integers(0, 6)),
        max_context=max_context,
        vocab=VOCAB,
        batch_tokens=lanes + draw(st.integers(0, 12)),
        eos=EOS,
        launch_window=draw(st.sampled_from([0, 0, 2, 3, 7])),
        mixed=draw(st.booleans()),
        claims_per_step=draw(st.integers(1, 3)),
        torn_ms=5,
        alive_ms=1000,
    )
    parts = draw(st.integers(1, 3))
    geometry = Geometry(parts * draw(st.integers(1, 5)), parts, 8192, 32768)
    return Setting(config, geometry, draw(st.sampled_from([1, 1, 1, 2, 3])), draw(st.booleans()))


TOKEN = st.integers(0, VOCAB - 1)
SUBMIT = st.fixed_dictionaries(
    {
        "do": st.just("submit"),
        "part": st.integers(0, 2),
        "length": st.integers(1, 38),
        "max_tokens": st.integers(1, 30),
    },
    optional={
        "ignore_eos": st.booleans(),
        "min_tokens": st.integers(0, 8),
        "stop": st.lists(TOKEN, max_size=4),
        "ext_stop": st.lists(TOKEN, max_size=3),
        "bias": st.lists(st.tuples(TOKEN, st.sampled_from([-100.0, 0.5, 100.0])), max_size=3),
        "logprobs": st.integers(0, 20),
        "deadline_ms": st.integers(1, 60),
        "fails_at": st.integers(1, 40),
    },
)
OTHER = st.one_of(
    st.fixed_dictionaries({"do": st.just("step"), "times": st.integers(1, 12)}),
    st.fixed_dictionaries({"do": st.just("cancel"), "which": st.integers(0, 20)}),
    st.fixed_dictionaries({"do": st.just("wait"), "ms": st.integers(1, 40)}),
    st.fixed_dictionaries({"do": st.just("engine error")}),
)


def play(world: World, action: dict[str, Any], rng: np.random.Generator) -> None:
    """Carry out one action of a schedule."""
    action = dict(action)
    match action.pop("do"):
        case "submit":
            part = action.pop("part") % len(world.workers)
            length, max_tokens = action.pop("length"), action.pop("max_tokens")
            length = min(length, world.config.max_context - 1)
            max_tokens = min(max_tokens, world.config.max_context - length)
            if part not in world.hostile:
                world.submit(part, rng.integers(0, VOCAB, length).tolist(), max_tokens, **action)
        case "step":
            for _ in range(action["times"]):
                world.step()
        case "cancel":
            if world.by_seed:
                world.cancel(list(world.by_seed.values())[-1 - action["which"] % len(world.by_seed)])
        case "wait":
            world.advance(action["ms"])
        case "engine error":
            world.engine.error_next = 1


@examples(150, suppress_health_check=[HealthCheck.too_slow])
@given(appliances(), st.lists(SUBMIT | OTHER, min_size=1, max_size=40), st.booleans())
def test_every_request_gets_the_answer_of_an_unbatched_run(setting: Setting, schedule: list[dict], drain: bool) -> None:
    world = World(setting.config, setting.geometry, threads=setting.threads, resident=setting.resident)
    rng = np.random.default_rng(0)
    for action in schedule:
        play(world, action, rng)
    if drain:
        world.request(Control.DRAIN)
        world.stop()
    else:
        world.settle()
        world.stop()


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(appliances(), st.lists(SUBMIT | OTHER, min_size=1, max_size=20), st.integers(1, 30))
def test_a_stop_ends_everything_at_any_moment(setting: Setting, schedule: list[dict], steps: int) -> None:
    world = World(setting.config, setting.geometry, threads=setting.threads, resident=setting.resident)
    rng = np.random.default_rng(1)
    for action in schedule:
        play(world, action, rng)
    for _ in range(steps):
        world.step()
    world.stop(limit=10)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("window", [0, 2])
def test_pressure_on_pages_preempts_and_resumes(window: int, mixed: bool) -> None:
    """The property tests may or may not preempt; this one must."""
    config = SchedulerConfig(
        lanes=4, records=8, page_tokens=2, pages=18, max_context=32, vocab=VOCAB, batch_tokens=8, launch_window=window,
        mixed=mixed,
    )  # fmt: skip
    world = World(config, Geometry(8, 2, 8192, 8192))
    rng = np.random.default_rng(2)
    for i in range(8):
        world.submit(i % 2, rng.integers(0, VOCAB, 4).tolist(), 28)
    world.settle()
    counters = world.core.counters()
    assert counters["PREEMPTIONS"] == counters["RESUMES"] > 0
    assert counters["FINISHED_LENGTH"] == 8
    assert (counters["RELAUNCHES"] > 0) == (window > 0)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("batch_tokens", [5, 32])
def test_lanes_that_start_a_page_together_find_one_each(batch_tokens: int, mixed: bool) -> None:
    """Whatever the pool has left, and whenever a newcomer wants the last of it, whole or in part."""
    for pages, page_tokens in [*product(range(18, 48, 2), [1]), *product(range(9, 24), [2])]:
        config = SchedulerConfig(
            lanes=4, records=4, page_tokens=page_tokens, pages=pages, max_context=18, vocab=VOCAB,
            batch_tokens=batch_tokens, mixed=mixed,
        )  # fmt: skip
        world = World(config, Geometry(4, 1, 8192, 8192), threads=1 + pages % 3)
        for i in range(3):
            world.submit(0, [i], 12)
        for _ in range(1 + pages % 4):
            world.step()
        world.submit(0, [3] * 14, 4)
        world.settle()


def steps_of_a_newcomer(mixed: bool, batch_tokens: int) -> list[tuple[Kind, int, int]]:
    """Kind, rows and tokens of the steps in which a prompt of 30 tokens is prefilled while three lanes decode."""
    config = SchedulerConfig(
        lanes=4, records=5, page_tokens=4, pages=64, max_context=64, vocab=VOCAB, batch_tokens=batch_tokens, mixed=mixed
    )
    world = World(config, Geometry(5, 1, 8192, 8192))
    running = [world.submit(0, [i], 50) for i in range(3)]
    while not all(s and s.seen and s.seen.count > 2 for s in running):
        world.step()
    newcomer = world.submit(0, [7] * 30, 2)
    assert newcomer is not None
    steps = []
    while newcomer.seen is None or newcomer.seen.count == 0:
        d = world.step()
        steps.append((d.kind, d.rows, d.tokens))
    assert world.core.counters()["PREFILL_TOKENS"] == 3 + 30, "a token of a lane that decodes is not prefilled"
    world.settle()
    kinds = [kind for kind, _, _ in steps]
    first = kinds.index(PREFILL)
    return steps[first : len(kinds) - kinds[::-1].index(PREFILL)]


def test_lanes_that_decode_ride_along_where_prompts_leave_room() -> None:
    assert steps_of_a_newcomer(True, 33) == [(PREFILL, 4, 33)]
    assert steps_of_a_newcomer(True, 32) == steps_of_a_newcomer(True, 30) == [(PREFILL, 1, 30)]
    assert steps_of_a_newcomer(True, 17) == [(PREFILL, 1, 17), (PREFILL, 4, 16)]


def test_lanes_that_decode_ride_in_the_fifth_step_at_the_latest() -> None:
    alone, together = (PREFILL, 1, 6), (PREFILL, 4, 6)
    assert steps_of_a_newcomer(True, 6) == [*[alone] * PAUSED_MOST, together, together]


def test_a_prompt_goes_on_where_those_who_decode_leave_it_one_token() -> None:
    alone, together = (PREFILL, 1, 4), (PREFILL, 4, 4)
    assert steps_of_a_newcomer(True, 4) == [*[alone] * PAUSED_MOST, together, *[alone] * 3, together]


def test_without_mixed_batches_prefill_and_decode_take_turns() -> None:
    assert steps_of_a_newcomer(False, 33) == [(PREFILL, 1, 30)]
    assert steps_of_a_newcomer(False, 16) == [(PREFILL, 1, 16), (DECODE, 3, 3), (PREFILL, 1, 14)]
