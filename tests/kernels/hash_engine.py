"""An engine whose tokens are a hash of everything the model would attend to, so that every wrong page changes them.

It keeps token ids where a model keeps keys and values: written at ``kv_index``, read back through ``block_table``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from blink.engine.seam.batch import Kind
from blink.engine.seam.buffers import BatchBuffers
from blink.ring.layout import LOGPROBS_MAX, Flag

MASK = (1 << 64) - 1
_EMPTY = -1


def next_token(context: np.ndarray, seed: int, vocab: int) -> int:
    """The token after ``context``: depends on each token, on its position and on ``seed``."""
    position = np.arange(1, len(context) + 1, dtype=np.uint64)
    terms = (context.astype(np.uint64) + np.uint64(0x9E3779B9)) * (
        position * np.uint64(0xC2B2AE3D27D4EB4F) | np.uint64(1)
    )
    h = (int(terms.sum(dtype=np.uint64)) ^ seed * 0xFF51AFD7ED558CCD) & MASK
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD & MASK
    return (h ^ h >> 29) % vocab


def answer(prompt: Sequence[int], seed: int, n: int, vocab: int) -> list[int]:
    """The first ``n`` tokens that follow ``prompt``, computed without batching, pages or lanes."""
    context = list(prompt)
    for _ in range(n):
        context.append(next_token(np.array(context), seed, vocab))
    return context[len(prompt) :]


class HashEngine:
    """Runs step buffers. ``fault(seed, position)``: that row has no token, which the engine says by -1 or nonsense."""

    def __init__(
        self, buffers: BatchBuffers, pages: int, page_tokens: int, vocab: int,
        fault: Callable[[int, int], bool] = lambda seed, position: False,
    ) -> None:  # fmt: skip
        self.b, self.page_tokens, self.vocab, self.fault = buffers, page_tokens, vocab, fault
        self.kv = np.full(pages * page_tokens, _EMPTY, np.int64)
        self.error_next = 0
        self.seeds: list[int] = []  # of the rows of the last batch; tests name requests by their seed

    def run(self) -> None:
        """Execute the batch in the buffers, after checking that it is one."""
        b, control = self.b, self.b.control[0]
        rows, tokens = int(control["rows"]), int(control["tokens"])
        lanes = b.row_lane[:rows]
        assert rows > 0
        assert len(set(lanes.tolist())) == rows, "a lane has two rows"
        assert b.row_start[0] == 0
        assert b.row_start[rows] == tokens
        assert not (control["kind"] == Kind.DECODE and tokens != rows)
        self.seeds = [int(b.lane_params[lane]["seed"]) for lane in lanes]
        written = b.kv_index[:tokens]
        assert len(set(written.tolist())) == tokens, "two tokens share a KV entry"
        self.kv[written] = b.token_ids[:tokens]
        for row, lane in enumerate(lanes):
            start, end, length = int(b.row_start[row]), int(b.row_start[row + 1]), int(b.row_kv_len[row])
            assert end > start, "a row without tokens"
            assert b.positions[start:end].tolist() == list(range(length - (end - start), length))
            if not b.row_sample[row]:
                continue
            at = np.arange(length)
            context = self.kv[b.block_table[lane, at // self.page_tokens] * self.page_tokens + at % self.page_tokens]
            params = b.lane_params[lane]
            token = next_token(context, int(params["seed"]), self.vocab)
            if self.fault(int(params["seed"]), length):
                token = (-1, self.vocab)[length % 2]
            b.out_token[row] = token
            if params["flags"] & Flag.LOGPROBS:
                record, n = b.out_logprob[row], LOGPROBS_MAX  # more than most lanes ask for
                record["chosen"], record["n"] = -token / 8, n
                record["ids"] = (token + 1 + np.arange(n)) % self.vocab
                record["values"] = -np.arange(n) / 4
        control["error"], self.error_next = self.error_next, 0
        control["done"] = control["step"]
