"""The buffers between the kernels of a step, in device memory."""

from __future__ import annotations

from collections.abc import Mapping

from blink.engine.native.arena import Arena
from blink.engine.native.memory import activation_sizes
from blink.engine.native.shape import aligned
from blink.gpu.cuda import Device
from blink.model.spec import ModelSpec


class Activations:
    """Device addresses of the buffers of :func:`blink.engine.native.sizes.activation_sizes`, zeroed."""

    def __init__(self, device: Device, spec: ModelSpec, dims: Mapping[str, int]) -> None:
        sizes = activation_sizes(spec, dims)
        arena = Arena(device, sum(aligned(n) for n in sizes.values()), "activations")
        places = {name: arena.take(size) for name, size in sizes.items()}
        self.memory = arena.memory
        self.x, self.normed, self.qkv, self.mixed = (places[n] for n in ("x", "normed", "qkv", "mixed"))
        self.gate_up, self.inner, self.logits = (places[n] for n in ("gate_up", "inner", "logits"))

    def close(self) -> None:
        """Free them."""
        self.memory.free()
