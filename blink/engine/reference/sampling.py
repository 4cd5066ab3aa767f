"""Sampling: a pure function of logits, parameters, seed and position. ``docs/sampling.md`` is the definition.

Everything after the exponentials is integer arithmetic, which gives one answer in whatever order it is summed; so a
GPU kernel can reproduce each choice exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blink.engine.reference.philox import random_u64
from blink.engine.seam.sampling import WEIGHT_BITS

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

NO_TOKEN = -1


@dataclass(frozen=True)
class SampleParams:
    """How one row is sampled; the defaults change nothing and sample from the model's distribution.

    ``banned`` are ids that cannot be chosen at this position (end and stop ids while an answer is below its
    minimum). ``logprobs`` None asks for no record, n for the n most likely alternatives.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned: Sequence[int] = ()
    logprobs: int | None = None


@dataclass(frozen=True)
class LogprobRecord:
    """Natural log probabilities before any adjustment: of the chosen token, and of the most likely ones in order."""

    chosen: float
    ids: npt.NDArray[np.uint32]
    values: F32


def sample(
    logits: F32, params: SampleParams, position: int, *, prompt: I32 | None = None, output: I32 | None = None
) -> tuple[int, LogprobRecord | None]:
    """Choose the token at ``position`` of its sequence from ``logits``, f32 [vocab].

    ``prompt`` and ``output`` are the token ids before it, i32; only the penalties read them. Returns the token id and
    the record, or (-1, None) where no token can be chosen: a logit is NaN or infinite, or all are banned.
    """
    if not np.isfinite(logits).all():
        return NO_TOKEN, None
    adjusted = adjust(logits, params, prompt, output)
    best = int(np.argmax(adjusted))
    if not np.isfinite(adjusted[best]):
        return NO_TOKEN, None
    token = best if params.temperature == 0 else _draw(adjusted, params, position)
    return token, None if params.logprobs is None else logprob_record(logits, token, params.logprobs)


def adjust(logits: F32, params: SampleParams, prompt: I32 | None = None, output: I32 | None = None) -> F32:
    """Logits after bias, penalties and bans, f32 [vocab]: everything that can change which token is the most likely."""
    penal = params.repetition != 1 or params.presence != 0 or params.frequency != 0
    if not (params.logit_bias or params.banned or penal):
        return logits
    z = logits.copy()
    for token, bias in params.logit_bias.items():
        z[token] += np.float32(bias)
    if penal:
        said = np.zeros(0, np.int32) if output is None else output
        if params.repetition != 1:
            seen = np.unique(said if prompt is None else np.concatenate([prompt, said]))
            scale = np.float32(params.repetition)
            z[seen] = np.where(z[seen] > 0, z[seen] / scale, z[seen] * scale)
        ids, counts = np.unique(said, return_counts=True)
        z[ids] -= np.float32(params.frequency) * counts.astype(np.float32)
        z[ids] -= np.float32(params.presence)
    if params.banned:
        z[np.asarray(params.banned, np.int64)] = -np.inf
    return z


def weights(adjusted: F32, params: SampleParams) -> I64:
    """Integer sampling weights after temperature, top-k, top-p and min-p, i64 [vocab]; a dropped token weighs 0."""
    with np.errstate(over="ignore"):
        scaled = (adjusted.astype(np.float64) - float(adjusted.max())) / params.temperature
    w: I64 = np.rint(np.ldexp(np.exp(scaled), WEIGHT_BITS)).astype(np.int64)
    if 0 < params.top_k < len(w):
        cut = np.partition(adjusted, len(w) - params.top_k)[len(w) - params.top_k]
        w[adjusted < cut] = 0
    if params.top_p < 1:
        kept = np.sort(w[w > 0])[::-1]
        above = np.cumsum(kept)
        # A token stays where the tokens that weigh more than it hold less than top_p of the whole.
        count = int(np.searchsorted(above.astype(np.float64), np.float64(params.top_p) * np.float64(above[-1])))
        w[w < kept[min(count, len(kept) - 1)]] = 0
    if params.min_p > 0:
        w[w < np.float64(params.min_p) * np.float64(1 << WEIGHT_BITS)] = 0
    return w


def _draw(adjusted: F32, params: SampleParams, position: int) -> int:
    cumulated = np.cumsum(weights(adjusted, params))
    target = random_u64(params.seed, position) * int(cumulated[-1]) >> 64
    return int(np.searchsorted(cumulated, target, side="right"))


def logprob_record(logits: F32, token: int, n: int) -> LogprobRecord:
    """Log-softmax of ``logits`` at ``token`` and at the n largest, by value, then by lower id."""
    wide = logits.astype(np.float64)
    top = wide.max()
    norm = top + np.log(np.exp(wide - top).sum())
    n = min(n, len(logits))
    ids = np.zeros(0, np.int64)
    if n:
        candidates = np.flatnonzero(logits >= np.partition(logits, len(logits) - n)[len(logits) - n])
        ids = candidates[np.argsort(-logits[candidates], kind="stable")[:n]]
    return LogprobRecord(
        float(np.float32(wide[token] - norm)), ids.astype(np.uint32), (wide[ids] - norm).astype(np.float32)
    )
