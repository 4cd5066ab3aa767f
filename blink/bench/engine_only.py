"""The engine without scheduler, ring and HTTP: what the rest of the appliance can at most deliver."""

from __future__ import annotations

import time

from blink.backend.server import load_engine
from blink.config import ApplianceConfig
from blink.engine.buffers import BatchBuffers
from blink.model.prepared import PreparedModel
from blink.model.spec import ModelSpec


def decode_rate(config: ApplianceConfig, model: PreparedModel, *, rows: int, context: int, steps: int) -> float:
    """Tokens per second of ``steps`` decode steps of ``rows`` rows, each after ``context`` tokens of prompt.

    The prompt is fed in steps of the engine's own size, as the scheduler feeds it.
    """
    spec = ModelSpec.from_config(model.config)
    engine, buffers = load_engine(config, spec, model)
    try:
        for row in range(rows):
            for start in range(0, context, config.engine.batch_tokens):
                _fill(buffers, config, [row], start, min(context - start, config.engine.batch_tokens))
                engine.run()
        started = time.monotonic()
        for i in range(steps):
            _fill(buffers, config, list(range(rows)), context + i, 1)
            engine.run()
        return rows * steps / (time.monotonic() - started)
    finally:
        engine.close()


def _fill(buffers: BatchBuffers, config: ApplianceConfig, lanes: list[int], start: int, count: int) -> None:
    """Describe a step in which every lane of ``lanes`` feeds ``count`` tokens from position ``start`` on."""
    pages, page_tokens = config.engine.pages // config.engine.lanes, config.engine.page_tokens
    control = buffers.control[0]
    control["rows"], control["tokens"], control["step"] = len(lanes), len(lanes) * count, control["step"] + 1
    buffers.row_start[0] = 0
    for row, lane in enumerate(lanes):
        span = slice(row * count, (row + 1) * count)
        buffers.row_lane[row], buffers.row_start[row + 1] = lane, (row + 1) * count
        buffers.row_kv_len[row], buffers.row_sample[row] = start + count, 1
        buffers.block_table[lane, :pages] = range(lane * pages, (lane + 1) * pages)
        buffers.token_ids[span] = [1 + (start + i) % 97 for i in range(count)]
        buffers.positions[span] = range(start, start + count)
        buffers.kv_index[span] = [lane * pages * page_tokens + start + i for i in range(count)]
        buffers.lane_params[lane]["repetition"] = 1.0
        buffers.lane_params[lane]["top_p"] = 1.0
        buffers.lane_params[lane]["prompt_len"] = start + count
