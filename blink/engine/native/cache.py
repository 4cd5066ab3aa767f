"""The paged cache of keys and values in device memory."""

from __future__ import annotations

from blink.engine.native.shape import REAL
from blink.gpu.cuda import Device
from blink.gpu.memory import DeviceMemory
from blink.model.spec import ModelSpec


class Cache:
    """Keys and values of each layer, [pages, kv_heads, page_tokens, head_dim] of 16 bits each, zeroed.

    KV entry e is token e % page_tokens of page e / page_tokens. What no token has written yet is finite.
    """

    def __init__(self, device: Device, spec: ModelSpec, pages: int, page_tokens: int) -> None:
        self._half = REAL * pages * page_tokens * spec.kv_width
        self._memory = DeviceMemory(device, 2 * spec.layers * self._half, "keys and values (engine.pages)")

    def keys(self, layer: int) -> int:
        """Device address of the layer's keys."""
        return self._memory.address + 2 * layer * self._half

    def values(self, layer: int) -> int:
        """Device address of the layer's values."""
        return self.keys(layer) + self._half

    def close(self) -> None:
        """Free them."""
        self._memory.free()
