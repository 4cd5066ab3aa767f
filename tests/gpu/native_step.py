"""Steps for the native kernels' tests: step buffers filled from the host, and numbers of 16 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.seam.batch import Kind
from blink.gpu.cuda import Device
from blink.gpu.graphs import capture, destroy_exec, instantiate
from blink.gpu.memory import DeviceMemory


def to_bits(x: np.ndarray, bf16: bool) -> np.ndarray:
    """The bits of ``x`` as float16 or bfloat16, to nearest, ties to even: u16 of the same shape."""
    if not bf16:
        return x.astype(np.float16).view(np.uint16)
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bits(bits: np.ndarray, bf16: bool) -> np.ndarray:
    """What the bits mean, f64."""
    if not bf16:
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def upload(device: Device, array: np.ndarray) -> DeviceMemory:
    """Device memory with a copy of ``array``."""
    memory = DeviceMemory(device, array.nbytes, "a test's array")
    memory.write(0, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return memory


def fill(buffers: DeviceBuffers, **arrays: Any) -> None:
    """Store the first elements of the buffers named."""
    for name, values in arrays.items():
        now = buffers.read(name)
        flat = np.ascontiguousarray(values, now.dtype)
        offset = buffers.address(name) - buffers.memory.address
        buffers.memory.write(offset, flat.reshape(-1).view(np.uint8))


def describe(
    buffers: DeviceBuffers, kind: Kind, *, lanes: Sequence[int], tokens: Sequence[int], lengths: Sequence[int]
) -> None:
    """Fill what says which rows a step has: row r feeds ``tokens[r]`` tokens and then has ``lengths[r]`` positions."""
    starts = np.concatenate([[0], np.cumsum(tokens)])
    positions = [np.arange(n - t, n) for t, n in zip(tokens, lengths, strict=True)]
    control = np.zeros(1, buffers.read("control").dtype)
    control["kind"], control["rows"], control["tokens"], control["step"] = kind, len(lanes), starts[-1], 1
    fill(
        buffers, control=control, row_lane=lanes, row_start=starts, row_kv_len=lengths,
        positions=np.concatenate(positions),
    )  # fmt: skip


def run(device: Device, work: Callable[[Any], None], times: int = 1) -> None:
    """Capture ``work`` and launch the graph ``times`` times, as an engine's step."""
    graph = capture(device, work)
    made = instantiate(device, graph)
    for _ in range(times):
        assert cu.cuGraphLaunch(made, device.stream) == (0,)
    device.synchronize()
    destroy_exec(made)
    assert cu.cuGraphDestroy(graph) == (0,)
