"""The paged cache of keys and values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


class PagedCache:
    """Keys and values of every layer, f32 [layers, entries, kv_heads, head_dim] each.

    Entry = page * page_tokens + offset.
    """

    def __init__(self, layers: int, pages: int, page_tokens: int, kv_heads: int, head_dim: int) -> None:
        self.page_tokens = page_tokens
        shape = (layers, pages * page_tokens, kv_heads, head_dim)
        self.keys: F32 = np.zeros(shape, np.float32)
        self.values: F32 = np.zeros(shape, np.float32)
