"""The engine without scheduler, ring and HTTP: what the rest of the appliance can at most deliver."""

from __future__ import annotations

import time
from functools import partial

from blink.backend.cpu import load_engine
from blink.backend.setup import Setup
from blink.engine.seam.buffers import BatchBuffers
from blink.engine.seam.handmade_step import describe_step
from blink.errors import BlinkError


def decode_rate(setup: Setup, *, rows: int, context: int, steps: int) -> float:
    """Tokens per second of ``steps`` decode steps of ``rows`` rows, each after ``context`` tokens of prompt.

    The prompt is fed in steps of the engine's own size, as the scheduler feeds it. Raises BlinkError where the engine
    fails, as it does where its KV pages are too few.
    """
    e, scheduling = setup.config.engine, setup.scheduling
    buffers = BatchBuffers(scheduling.dims)
    engine = load_engine(setup, buffers)
    fill = partial(
        describe_step, buffers, lane_pages=min(scheduling.lane_pages, e.pages // rows), page_tokens=e.page_tokens
    )
    try:
        for row in range(rows):
            for start in range(0, context, e.batch_tokens):
                fill([row], start, min(context - start, e.batch_tokens))
                engine.run()
        started = time.monotonic()
        for i in range(steps):
            fill(range(rows), context + i, 1)
            engine.run()
        if buffers.control[0]["error"] or (buffers.out_token[:rows] < 0).any():
            raise BlinkError(
                "the engine failed the benchmark's last step", "raise engine.pages, or look at the log above"
            )
        return rows * steps / (time.monotonic() - started)
    finally:
        engine.close()
