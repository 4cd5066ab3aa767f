"""The reference engine: float32 on the CPU, the embedded default and the numerical oracle of the others."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from blink.engine.reference.cpu import Cpu
from blink.engine.reference.forward import Tokens, Transformer
from blink.engine.reference.sampling import LogprobRecord, SampleParams, sample
from blink.engine.reference.weights import WeightLoader
from blink.engine.seam.buffers import BatchBuffers
from blink.errors import BlinkError
from blink.model.spec import ModelSpec
from blink.ring.layout import Flag

log = logging.getLogger("blink.engine")

I32 = npt.NDArray[np.int32]


class StepError(Exception):
    """The step buffers describe something that cannot be run."""


class ReferenceEngine:
    """An :class:`~blink.engine.seam.engine.Engine` over ``buffers``; its cache has ``pages`` pages of ``page_tokens``.

    ``tensors`` are the checkpoint's, by HuggingFace name; they are copied one at a time. ``threads`` is the number of
    CPU threads, all of them by default. ``max_context`` (what the block tables hold, by default) selects the rotary
    frequencies of models whose frequencies depend on it. Raises BlinkError where the checkpoint does not fit ``spec``.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, npt.NDArray[Any]],
        buffers: BatchBuffers,
        *,
        pages: int,
        page_tokens: int,
        threads: int | None = None,
        max_context: int | None = None,
    ) -> None:
        self.spec, self.buffers = spec, buffers
        self.page_tokens = page_tokens
        held = buffers.dims["lane_pages"] * page_tokens
        self.context = max_context or held
        if self.context > held:
            raise BlinkError(
                f"max_context: {self.context} tokens exceed the {held} of a lane's {buffers.dims['lane_pages']} pages",
                "give lanes more pages, or lower max_context",
            )
        self._cpu = Cpu(threads)
        weights = WeightLoader(spec, tensors, self._cpu).load()
        self.model = Transformer(
            spec, weights, context=self.context, pages=pages, page_tokens=page_tokens, cpu=self._cpu
        )  # fmt: skip
        self._entries = pages * page_tokens
        # What was fed at each position of each lane. Penalties count it, so a lane that was paused and is fed again
        # has the same state as one that never stopped, and nothing needs clearing.
        self._fed = np.zeros((buffers.dims["lanes"], self.context), np.int32)

    def close(self) -> None:
        """Release weights and cache, and end the threads. Closing again does nothing."""
        vars(self).pop("model", None)
        self._cpu.close()

    def run(self) -> None:
        """Execute the step that the buffers describe; see :class:`blink.engine.seam.engine.Engine`."""
        control = self.buffers.control[0]
        error = 0
        try:
            self._run(int(control["rows"]), int(control["tokens"]))
        except Exception:
            log.exception("step %d failed", control["step"])
            error = 1
        control["error"] = error
        control["done"] = control["step"]

    def _run(self, rows: int, count: int) -> None:
        b = self.buffers
        b.out_token[:rows] = -1
        self._check(rows, count)
        lanes, starts = b.row_lane[:rows], b.row_start[: rows + 1]
        token_row = np.repeat(np.arange(rows, dtype=np.int32), np.diff(starts))
        tokens = Tokens(
            b.token_ids[:count], b.positions[:count], b.kv_index[:count], token_row, b.block_table[lanes]
        )  # fmt: skip
        self._fed[lanes[token_row], tokens.positions] = tokens.ids
        with np.errstate(all="ignore"):  # what is not finite is found where it is sampled
            hidden = self.model.hidden(tokens)
            wanted = np.flatnonzero(b.row_sample[:rows])
            if len(wanted) == 0:
                return
            logits = self.model.logits(hidden[starts[wanted + 1] - 1])
            for row, row_logits in zip(wanted, logits, strict=True):
                try:
                    self._sample(int(row), row_logits)
                except Exception:  # parameters that no scheduler lets through; they are this row's own
                    log.exception("row %d of lane %d cannot be sampled", row, lanes[row])
                    b.out_token[row] = -1

    def _sample(self, row: int, logits: npt.NDArray[np.float32]) -> None:
        b = self.buffers
        lane, length = int(b.row_lane[row]), int(b.row_kv_len[row])
        params = b.lane_params[lane]
        n_prompt = min(int(params["prompt_len"]), length)
        stop = b.lane_stop[lane, : int(params["n_stop"])]
        early = length - n_prompt < int(params["min_tokens"])
        n_bias = int(params["n_bias"])
        bias = zip(b.lane_bias_ids[lane, :n_bias].tolist(), b.lane_bias_values[lane, :n_bias].tolist(), strict=True)
        token, record = sample(
            logits,
            SampleParams(
                temperature=float(params["temperature"]),
                top_k=int(params["top_k"]),
                top_p=float(params["top_p"]),
                min_p=float(params["min_p"]),
                repetition=float(params["repetition"]),
                presence=float(params["presence"]),
                frequency=float(params["frequency"]),
                seed=int(params["seed"]),
                logit_bias=dict(bias),
                banned=tuple(stop.tolist()) if early else (),
                logprobs=int(params["lp_n"]) if params["flags"] & Flag.LOGPROBS else None,
            ),
            length,
            prompt=self._fed[lane, :n_prompt],
            output=self._fed[lane, n_prompt:length],
        )
        b.out_token[row] = token
        if record is not None:
            self._write_record(row, record)

    def _write_record(self, row: int, record: LogprobRecord) -> None:
        out, n = self.buffers.out_logprob[row], len(record.ids)
        out["chosen"], out["n"] = record.chosen, n
        out["ids"][:n], out["values"][:n] = record.ids, record.values

    def _check(self, rows: int, count: int) -> None:
        """Raise StepError where an index would reach outside an array: the kernels below do not look again."""
        b = self.buffers
        if not 1 <= rows <= b.dims["lanes"] or not 1 <= count <= b.dims["tokens"]:
            raise StepError(f"{rows} rows of {count} tokens exceed the buffers")
        starts = b.row_start[: rows + 1]
        if starts[0] != 0 or starts[-1] != count or (np.diff(starts) < 1).any():
            raise StepError("row_start is not a prefix sum of the rows' token counts")
        lanes, positions = b.row_lane[:rows], b.positions[:count]
        _within("row_lane", lanes, b.dims["lanes"])
        _within("token_ids", b.token_ids[:count], self.spec.vocab)
        _within("positions", positions, self.context)
        _within("kv_index", b.kv_index[:count], self._entries)
        if (np.diff(positions) != 1)[np.diff(np.repeat(np.arange(rows), np.diff(starts))) == 0].any():
            raise StepError("positions of a row are not consecutive")
        if (b.row_kv_len[:rows] != positions[starts[1:] - 1] + 1).any():
            raise StepError("row_kv_len does not end at the row's last position")
        for row, lane in enumerate(lanes):
            pages = b.block_table[lane, : -(-int(b.row_kv_len[row]) // self.page_tokens)]
            _within("block_table", pages, self._entries // self.page_tokens)


def _within(name: str, values: I32, end: int) -> None:
    if values.min() < 0 or values.max() >= end:
        raise StepError(f"{name} has a value outside 0 … {end - 1}")
