"""The model of docs/scheduling.md decides what the scheduler core decides."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from blink.backend.scheduler.config import SchedulerConfig
from blink.ring.layout import Geometry
from tests.depth import examples
from tests.kernels.world import PAUSED_MOST, World

PAGE = Path(__file__).parents[2] / "docs" / "scheduling.md"


def model() -> dict[str, Any]:
    """What the code of the page defines."""
    code = re.search(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert code
    names: dict[str, Any] = {"dataclass": dataclass, "deque": deque, "__name__": __name__}
    exec(compile(code[1], str(PAGE), "exec"), names)
    return names


@st.composite
def appliances(draw: st.DrawFn) -> SchedulerConfig:
    lanes, page_tokens = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    return SchedulerConfig(
        lanes=lanes,
        records=64,
        page_tokens=page_tokens,
        pages=-(-40 // page_tokens) + draw(st.integers(0, 90)),
        max_context=40,
        vocab=64,
        batch_tokens=lanes + draw(st.integers(0, 30)),
        mixed=draw(st.booleans()),
        claims_per_step=64,
    )


TURNS = st.lists(st.lists(st.tuples(st.integers(1, 24), st.integers(1, 16)), max_size=3), min_size=1, max_size=14)


@given(appliances(), TURNS)
@examples(300, suppress_health_check=[HealthCheck.too_slow])
def test_every_decision_is_the_models(config: SchedulerConfig, turns: list[list[tuple[int, int]]]) -> None:
    names = model()
    assert names["PAUSED_MOST"] == PAUSED_MOST
    policy = names["Policy"](config.lanes, config.pages, config.page_tokens, config.batch_tokens, config.mixed)
    world, order = World(config, Geometry(64, 1, 1 << 16, 1 << 16)), 0
    while turns or world.sent:
        for length, answer in turns.pop(0) if turns else ():
            assert world.submit(0, [1] * length, answer, ignore_eos=True)
            policy.waiting.append(names["Request"](order, length, answer))
            order += 1
        kind, batch = policy.plan()
        decision = world.step()
        assert (decision.kind.name, decision.rows, decision.tokens) == (kind, len(batch), sum(batch.values()))
        policy.harvest(batch)
