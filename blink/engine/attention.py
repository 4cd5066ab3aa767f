"""Attention over a paged cache of keys and values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


class PagedCache:
    """Keys and values of every layer, f32 [layers, entries, kv_heads, head_dim] each.

    Entry = page * page_tokens + offset.
    """

    def __init__(self, layers: int, pages: int, page_tokens: int, kv_heads: int, head_dim: int) -> None:
        self.page_tokens = page_tokens
        self.keys: F32 = np.zeros((layers, pages * page_tokens, kv_heads, head_dim), np.float32)
        self.values: F32 = np.zeros_like(self.keys)

    def attend(self, layer: int, q: F32, positions: I32, row_start: I32, block_tables: I32, window: int = 0) -> F32:
        """Softmax(q kᵀ / √d) v for every token over positions max(0, p - window + 1) to p of its own row.

        ``q`` f32 [tokens, heads, head_dim]; tokens row_start[r] to row_start[r + 1] - 1 belong to row r, whose pages
        are ``block_tables[r]``. Returns f32 [tokens, heads, head_dim].
        """
        out = np.empty_like(q)
        heads, dim = q.shape[1:]
        kv_heads = self.keys.shape[2]
        scale = np.float32(dim**-0.5)
        for r in range(len(block_tables)):
            a, b = int(row_start[r]), int(row_start[r + 1])
            p = positions[a:b]
            n = int(p[-1]) + 1
            pages = block_tables[r, : -(-n // self.page_tokens)]
            entries = (pages[:, None] * self.page_tokens + np.arange(self.page_tokens, dtype=np.int32)).ravel()[:n]
            k, v = self.keys[layer, entries], self.values[layer, entries]
            rows = (q[a:b] * scale).reshape(b - a, kv_heads, heads // kv_heads, dim).transpose(1, 2, 0, 3)
            scores = rows @ k.transpose(1, 2, 0)[:, None]
            age = p[:, None] - np.arange(n, dtype=np.int32)
            hidden = (age < 0) | (age >= window) if window else age < 0
            scores[:, :, hidden] = -np.inf
            scores -= scores.max(-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(-1, keepdims=True)
            out[a:b] = (scores @ v.transpose(1, 0, 2)[:, None]).transpose(2, 0, 1, 3).reshape(b - a, heads, dim)
        return out
