"""``blink bench kernels``: attention of one layer, of Llama-3-8B's shape, and sampling, on this GPU.

Every figure is the mean over launches in a CUDA graph. Caches are rotated among copies that do not fit the GPU's L2.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.native.attention import Attention
from blink.engine.native.sampler import Sampler
from blink.engine.native.shape import AttentionShape
from blink.engine.seam.batch import Kind
from blink.gpu.cuda import Device
from blink.gpu.memory import DeviceMemory
from blink.gpu.timing import milliseconds
from blink.instruments import machine
from blink.instruments.gpu import gpu
from blink.output import write_json
from blink.ring.layout import Flag

HEADS, KV_HEADS, HEAD_DIM, PAGE_TOKENS = 32, 8, 128, 64
CONTEXT = 1024
ROWS = (1, 32, 128)
CHUNKS = ((1, 512, 512), (1, 2048, 2048), (4, 512, 2048))
"""Prefill steps: rows, new tokens of each, context of each."""
VOCAB = 128_256
SAMPLING: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 1},
    "top-p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "top-k 50, top-p 0.9": {"temperature": 0.7, "top_k": 50, "top_p": 0.9},
    "greedy, penalties": {"temperature": 0, "repetition": 1.1, "prompt_len": 500},
    "greedy, 5 logprobs": {"temperature": 0, "flags": Flag.LOGPROBS, "lp_n": 5},
}
_ROTATE_BYTES = 300 << 20
_REPEATS = 20
_REAL = 2


@dataclass(frozen=True)
class _Step:
    kind: Kind
    rows: int
    tokens: int  # new ones of each row
    context: int


def run(*, json_path: Path | None) -> int:
    """Measure and print; returns the exit code. Raises BlinkError where there is no GPU."""
    device = Device()
    document: dict[str, Any] = {
        "command": shlex.join(["blink", *sys.argv[1:]]), "gpu": gpu(), "hardware": machine.hardware(),
    }  # fmt: skip
    for name, value in document.items():
        print(f"{name}: {value}")
    results: list[dict[str, Any]] = []
    document["results"] = results
    for part in (attention, sampling):
        for row in part(device):
            results.append(row)
            print("  ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    document["gpu after"] = gpu()
    if json_path is not None:
        write_json(json_path, document)
    return 0


def microseconds(device: Device, launches: int, enqueue: Callable[[int, Any], None]) -> float:
    """Mean time of ``enqueue(i, stream)``, i below ``launches``, from a graph of them all."""

    def all_of_them(stream: Any) -> None:
        for i in range(launches):
            enqueue(i, stream)

    return milliseconds(device, all_of_them, launches=_REPEATS, rounds=1) * 1000 / launches


def random_memory(device: Device, size: int, block: npt.NDArray[np.uint8], what: str) -> DeviceMemory:
    """Device memory of ``size`` bytes filled with repetitions of ``block``."""
    memory = DeviceMemory(device, size, what)
    for offset in range(0, size, len(block)):
        memory.write(offset, block[: min(len(block), size - offset)])
    return memory


def attention(device: Device) -> Iterator[dict[str, Any]]:
    """Rows of the table: time of one layer of Llama-3-8B's shape, and what it reads of the cache by that time."""
    for rows in ROWS:
        yield _attention(device, _Step(Kind.DECODE, rows, 1, CONTEXT))
    for rows, tokens, context in CHUNKS:
        yield _attention(device, _Step(Kind.PREFILL, rows, tokens, context))


def _attention(device: Device, step: _Step) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    block = rng.normal(size=4 << 20).astype(np.float16).view(np.uint8)
    lane_pages = -(-step.context // PAGE_TOKENS)
    pages, packed = step.rows * lane_pages, step.rows * step.tokens
    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    pool = pages * PAGE_TOKENS * KV_HEADS * HEAD_DIM * _REAL
    layers = max(2, -(-_ROTATE_BYTES // (2 * pool)))
    buffers = _buffers(device, step, lane_pages, rng.permutation(pages))
    caches = [random_memory(device, 2 * pool, block, "keys and values") for _ in range(layers)]
    q = random_memory(device, packed * width * _REAL, block, "queries")
    out = DeviceMemory(device, packed * HEADS * HEAD_DIM * _REAL, "outputs")
    shape = AttentionShape(
        HEADS, KV_HEADS, HEAD_DIM, pages, PAGE_TOKENS, step.context, HEAD_DIM**-0.5, "float16"
    )  # fmt: skip
    kernels = Attention(device, buffers, shape)

    def layer(i: int, stream: Any) -> None:
        cache = caches[i % layers].address
        kernels.enqueue(
            step.kind, packed, q=q.address, q_stride=width, k=cache, v=cache + pool, out=out.address,
            out_stride=HEADS * HEAD_DIM, window=0, stream=stream,
        )  # fmt: skip

    time = microseconds(device, layers * max(1, 32 // layers), layer)
    kernels.close()
    buffers.close()
    for memory in (q, out, *caches):
        memory.free()
    # A new token sees the context before the chunk and half of the chunk; two products of 2 operations each.
    seen = step.context - (step.tokens - 1) / 2
    operations = 4 * packed * seen * HEADS * HEAD_DIM
    return {
        "measure": f"attention, {step.kind.name.lower()}",
        "rows": step.rows,
        "new tokens": step.tokens,
        "context": step.context,
        "us per layer": time,
        "TB/s of the cache": 2 * pool / time / 1e6,
        "TFLOP/s": operations / time / 1e6,
    }


def _buffers(device: Device, step: _Step, lane_pages: int, order: npt.NDArray[np.int64]) -> DeviceBuffers:
    """Step buffers in which every row has the step's new tokens and context, on pages in ``order``."""
    packed = step.rows * step.tokens
    buffers = DeviceBuffers(device, {"lanes": step.rows, "tokens": packed, "lane_pages": lane_pages})
    control = _control(buffers, step.kind, step.rows, packed)
    first = step.context - step.tokens
    values: dict[str, Any] = {
        "control": control,
        "row_lane": np.arange(step.rows),
        "row_start": np.arange(step.rows + 1) * step.tokens,
        "row_kv_len": np.full(step.rows, step.context),
        "positions": np.tile(np.arange(first, step.context), step.rows),
        "block_table": order,
    }
    _store(buffers, values)
    return buffers


def sampling(device: Device) -> Iterator[dict[str, Any]]:
    """Rows of the table: time of one step's sampling, with a context of 1024 tokens."""
    rng = np.random.default_rng(2)
    for rows in ROWS:
        buffers = DeviceBuffers(device, {"lanes": rows, "tokens": rows, "lane_pages": 1})
        logits = DeviceMemory(device, 4 * rows * VOCAB, "logits")
        sampler = Sampler(device, buffers, vocab=VOCAB, max_context=CONTEXT)
        row = rng.normal(0, 3, VOCAB).astype(np.float32)
        for r in range(rows):
            logits.write(4 * r * VOCAB, np.roll(row, r).view(np.uint8))
        for name, params in SAMPLING.items():
            lanes = np.zeros(rows, buffers.read("lane_params").dtype)
            for field, value in {"top_p": 1, "repetition": 1, **params}.items():
                lanes[field] = value
            lanes["seed"] = np.arange(rows)
            each = np.arange(rows)
            values = {
                "control": _control(buffers, Kind.DECODE, rows, rows), "row_lane": each, "lane_params": lanes,
                "row_start": np.arange(rows + 1), "row_kv_len": each * 0 + CONTEXT, "row_sample": each * 0 + 1,
            }  # fmt: skip
            _store(buffers, values)

            def step(_: int, stream: Any, rows: int = rows) -> None:
                sampler.enqueue(Kind.DECODE, rows, logits.address, stream)  # noqa: B023

            yield {"measure": f"sampling, {name}", "rows": rows, "us": microseconds(device, 32, step)}
        sampler.close()
        buffers.close()
        logits.free()


def _control(buffers: DeviceBuffers, kind: Kind, rows: int, tokens: int) -> npt.NDArray[Any]:
    control = buffers.read("control")
    control["kind"], control["rows"], control["tokens"] = kind, rows, tokens
    return control


def _store(buffers: DeviceBuffers, values: dict[str, Any]) -> None:
    for name, value in values.items():
        data = np.ascontiguousarray(value, buffers.read(name).dtype).reshape(-1).view(np.uint8)
        buffers.memory.write(buffers.address(name) - buffers.memory.address, data)
