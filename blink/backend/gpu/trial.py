"""Running captured steps by hand: a greedy answer that shows that they compute, and how long the largest takes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from blink.backend.scheduler.config import SchedulerConfig
from blink.engine.device.hosted import HostedEngine
from blink.engine.seam.batch import Kind
from blink.engine.seam.handmade_step import describe_step
from blink.errors import BlinkError

PROMPT_TOKENS = 24
ANSWER_TOKENS = 16


def answer(engine: HostedEngine, scheduling: SchedulerConfig, rows: int | None = None) -> tuple[int, ...]:
    """The greedy answer to a fixed prompt, decoded in the graph for ``rows`` rows, one row of which is used.

    Raises BlinkError where the engine fails or has no answer.
    """
    room = min(scheduling.batch_tokens, scheduling.max_context - ANSWER_TOKENS, _lane_entries(scheduling, 1))
    prompt = [position % min(64, scheduling.vocab) for position in range(max(1, min(PROMPT_TOKENS, room)))]
    tokens: list[int] = []
    _describe(engine, scheduling, [0], 0, [prompt])
    engine.run_shape(Kind.PREFILL)
    for position in range(len(prompt), len(prompt) + ANSWER_TOKENS):
        tokens.append(int(engine.buffers.out_token[0]))
        if not 0 <= tokens[-1] < scheduling.vocab:
            raise BlinkError(
                "the engine could not run its first steps: it has no answer",
                "check the checkpoint with `blink model check`, or prepare it again",
            )
        if len(tokens) < ANSWER_TOKENS:
            _describe(engine, scheduling, [0], position, [tokens[-1:]])
            engine.run_shape(Kind.DECODE, rows)
    return tuple(tokens)


def longest_step_s(engine: HostedEngine, scheduling: SchedulerConfig) -> float:
    """Seconds that the largest step takes: all tokens of a prefill at once, or all lanes at their longest context."""
    entries = _lane_entries(scheduling, 1)
    prompt = min(scheduling.batch_tokens, scheduling.max_context, entries)
    context = min(scheduling.max_context, _lane_entries(scheduling, scheduling.lanes)) - 1
    longest = 0.0
    for kind, lanes, start, count in ((Kind.PREFILL, 1, 0, prompt), (Kind.DECODE, scheduling.lanes, context, 1)):
        if start < 0:
            continue
        for _ in range(2):  # the first pays for what is loaded lazily
            _describe(engine, scheduling, range(lanes), start, [[1] * count] * lanes)
            started = time.monotonic()
            engine.run_shape(kind)
            took = time.monotonic() - started
        longest = max(longest, took)
    return longest


def _lane_entries(scheduling: SchedulerConfig, lanes: int) -> int:
    return min(scheduling.lane_pages, scheduling.pages // lanes) * scheduling.page_tokens


def _describe(
    engine: HostedEngine, scheduling: SchedulerConfig, lanes: Sequence[int], start: int, tokens: Sequence[Sequence[int]]
) -> None:
    pages = min(scheduling.lane_pages, scheduling.pages // len(lanes))
    describe_step(
        engine.buffers, lanes, start, len(tokens[0]), lane_pages=pages, page_tokens=scheduling.page_tokens,
        tokens=tokens,
    )  # fmt: skip
