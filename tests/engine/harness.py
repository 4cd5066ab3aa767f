"""Hand-made steps: what the scheduler does for the engine, as plainly as possible, over pages scattered at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blink.engine.reference.engine import ReferenceEngine
from blink.engine.seam.buffers import BatchBuffers
from blink.model.spec import ModelSpec


class Harness:
    """An engine with ``lanes`` lanes of ``context`` tokens; pages are given out in a shuffled order."""

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, Any],
        *,
        lanes: int = 4,
        context: int = 256,
        page_tokens: int = 8,
        batch_tokens: int = 256,
        seed: int = 0,
        **engine: Any,
    ) -> None:
        lane_pages = -(-context // page_tokens)
        self.buffers = BatchBuffers({"lanes": lanes, "tokens": max(batch_tokens, lanes), "lane_pages": lane_pages})
        pages = lanes * lane_pages
        self.engine = ReferenceEngine(spec, tensors, self.buffers, pages=pages, page_tokens=page_tokens, **engine)
        self.page_tokens = page_tokens
        self.free = list(np.random.default_rng(seed).permutation(pages))
        self.pages: dict[int, list[int]] = {}
        self.length = [0] * lanes
        for lane in range(lanes):
            self.params(lane)

    def params(self, lane: int, **values: Any) -> None:
        """Sampling parameters of ``lane``; greedy unless said otherwise."""
        self.buffers.lane_params[lane : lane + 1] = np.zeros(1, self.buffers.lane_params.dtype)
        row = self.buffers.lane_params[lane]
        for name, value in {"top_p": 1.0, "repetition": 1.0, **values}.items():
            row[name] = value

    def reset(self, lane: int) -> None:
        """Give the lane's pages back, in an order of their own, as when a request ends or is paused."""
        self.free = self.pages.pop(lane, [])[::-1] + self.free
        self.length[lane] = 0

    def feed(self, rows: Mapping[int, Sequence[int]], sample: bool = True) -> list[int]:
        """One step: append the tokens of each lane to its context. Returns out_token by row."""
        b, t = self.buffers, 0
        for r, (lane, tokens) in enumerate(rows.items()):
            start, end = self.length[lane], self.length[lane] + len(tokens)
            pages = self.pages.setdefault(lane, [])
            while len(pages) * self.page_tokens < end:
                pages.append(self.free.pop())
            b.block_table[lane, : len(pages)] = pages
            b.row_lane[r], b.row_start[r], b.row_kv_len[r], b.row_sample[r] = lane, t, end, sample
            for i, token in enumerate(tokens):
                at = start + i
                b.token_ids[t], b.positions[t] = token, at
                b.kv_index[t] = pages[at // self.page_tokens] * self.page_tokens + at % self.page_tokens
                t += 1
            self.length[lane] = end
        b.row_start[len(rows)] = t
        control = b.control[0]
        control["rows"], control["tokens"], control["step"] = len(rows), t, control["step"] + 1
        self.engine.run()
        assert control["done"] == control["step"]
        assert control["error"] == 0
        return [int(x) for x in b.out_token[: len(rows)]]

    def prefill(self, lane: int, prompt: Sequence[int], chunk: int | None = None) -> int:
        """Feed a prompt in chunks; returns the first token of the answer."""
        self.buffers.lane_params[lane]["prompt_len"] = len(prompt)
        size = chunk or len(prompt)
        for i in range(0, len(prompt), size):
            token = self.feed({lane: prompt[i : i + size]}, sample=i + size >= len(prompt))[0]
        return token

    def generate(self, lane: int, prompt: Sequence[int], count: int, chunk: int | None = None) -> list[int]:
        """``count`` tokens after ``prompt``, alone in the batch."""
        answer = [self.prefill(lane, prompt, chunk)]
        while len(answer) < count:
            answer += self.feed({lane: answer[-1:]})
        return answer
