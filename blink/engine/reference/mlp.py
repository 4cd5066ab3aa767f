"""The feed-forward half of a layer: SwiGLU, dense or routed to experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from blink.engine.reference.linear import Linear

F32 = npt.NDArray[np.float32]


class FeedForward(Protocol):
    """f32 [tokens, hidden] → f32 [tokens, hidden]."""

    def __call__(self, x: F32) -> F32: ...


class Mlp:
    """down(silu(gate(x)) · up(x)); ``gate_up`` has gate's outputs first, then up's."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self.gate_up, self.down = gate_up, down

    def __call__(self, x: F32) -> F32:
        both = self.gate_up(x)
        half = both.shape[1] // 2
        gate, up = both[:, :half], both[:, half:]
        with np.errstate(over="ignore"):
            gate /= 1 + np.exp(-gate)
        return self.down(gate * up)


class Moe:
    """Each token goes through the ``top_k`` experts that the router likes best; their outputs are added by its weights.

    A token's experts are added from its most to its least likely one, so that the sum does not depend on which other
    tokens share an expert. Equal probabilities go to the expert of lower index.
    """

    def __init__(self, router: Linear, experts: Sequence[Mlp], top_k: int, norm_topk: bool) -> None:
        self.router, self.experts, self.top_k, self.norm_topk = router, experts, top_k, norm_topk

    def route(self, x: F32) -> tuple[npt.NDArray[np.int64], F32]:
        """Expert indices and weights, [tokens, top_k] each, most likely first."""
        logits = self.router(x)
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        chosen = np.argsort(-p, axis=-1, kind="stable")[:, : self.top_k]
        weight = np.take_along_axis(p, chosen, -1)
        if self.norm_topk:
            weight /= weight.sum(-1, keepdims=True)
        return chosen, weight

    def __call__(self, x: F32) -> F32:
        chosen, weight = self.route(x)
        parts = np.empty((self.top_k, *x.shape), np.float32)
        for e in np.unique(chosen):
            token, rank = np.nonzero(chosen == e)
            parts[rank, token] = self.experts[e](x[token]) * weight[token, rank, None]
        total: F32 = parts[0]
        for part in parts[1:]:
            total += part
        return total
