"""Steps described by hand, for whoever runs an engine without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from blink.engine.seam.buffers import BatchBuffers


def describe_step(
    buffers: BatchBuffers,
    lanes: Sequence[int],
    start: int,
    count: int,
    *,
    lane_pages: int,
    page_tokens: int,
    tokens: Sequence[Sequence[int]] | None = None,
) -> None:
    """Fill ``buffers`` with a step in which each lane of ``lanes`` feeds ``count`` tokens from position ``start`` on.

    Lane l has the KV pages [l * lane_pages, (l + 1) * lane_pages); every row is sampled greedily. ``tokens`` has the
    ids of each row; small ones by default. Advances ``control.step``.
    """
    control = buffers.control[0]
    control["rows"], control["tokens"], control["step"] = len(lanes), len(lanes) * count, control["step"] + 1
    buffers.row_start[0] = 0
    positions = range(start, start + count)
    for row, lane in enumerate(lanes):
        span, first_page = slice(row * count, (row + 1) * count), lane * lane_pages
        buffers.row_lane[row], buffers.row_start[row + 1] = lane, (row + 1) * count
        buffers.row_kv_len[row], buffers.row_sample[row] = start + count, 1
        buffers.block_table[lane, :lane_pages] = range(first_page, first_page + lane_pages)
        buffers.token_ids[span] = tokens[row] if tokens else [position % 64 for position in positions]
        buffers.positions[span] = positions
        buffers.kv_index[span] = [first_page * page_tokens + position for position in positions]
        params = buffers.lane_params[lane]
        params["temperature"], params["top_p"], params["repetition"] = 0, 1, 1
        params["prompt_len"] = start + count
