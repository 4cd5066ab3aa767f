"""``blink bench engine``: what a step of the native engine takes on this GPU, for Llama-3-8B's shape.

Weights are random, made on the GPU from a seed. Decode steps at a context of about 1024 are timed twice: as graphs that
the host launches in a row, and as the scheduler's loop runs them for requests of that length. Parts are what a step
gets shorter by when they are left out of its graph; prefill steps feed one prompt.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from blink.backend.scheduler.config import SchedulerConfig
from blink.engine.device.buffers import DeviceBuffers
from blink.engine.native.engine import NativeEngine
from blink.engine.native.shape import REAL
from blink.engine.seam.batch import Control, Kind
from blink.engine.seam.engine import DType, kv_bytes_per_token
from blink.engine.seam.handmade_step import describe_step
from blink.errors import BlinkError
from blink.gpu.cuda import Device
from blink.gpu.timing import milliseconds
from blink.instruments import machine
from blink.instruments.gpu import gpu
from blink.instruments.synthetic import SyntheticAppliance
from blink.model.spec import ModelSpec
from blink.output import write_json
from blink.ring.client import SamplingParams, SubmitRequest
from blink.ring.layout import Counter, Geometry
from blink.ring.observe import Observer

LLAMA3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
}  # fmt: skip
SEED, CONTEXT, PAGE = 1, 1024, 64
ROWS, PROMPTS = (1, 8, 32, 128), (512, 2048)
LANES, MAX_CONTEXT = 128, 2176
PARTS = ("products", "attention", "norms and rotation", "sampling")
_PROMPT = 1000
_LAUNCHES, _WINDOW_S, _WAIT_S = 20, 0.5, 60.0


def run(*, dtype: DType = "float16", exact: bool = False, json_path: Path | None) -> int:
    """Measure and print; returns the exit code. Raises BlinkError without a GPU that has the memory."""
    device, spec = Device(), ModelSpec.from_config(LLAMA3_8B)
    document: dict[str, Any] = {
        "command": shlex.join(["blink", *sys.argv[1:]]), "gpu": gpu(), "hardware": machine.hardware(),
        "model": "Llama-3-8B's shape, random weights", "dtype": dtype, "exact": exact, "context": CONTEXT,
    }  # fmt: skip
    config = SchedulerConfig(
        lanes=LANES, records=2 * LANES, page_tokens=PAGE, pages=LANES * (MAX_CONTEXT // PAGE), max_context=MAX_CONTEXT,
        vocab=spec.vocab, batch_tokens=max(PROMPTS), decode_buckets=ROWS, prefill_buckets=PROMPTS,
    )  # fmt: skip

    def make(on: Device, buffers: DeviceBuffers) -> NativeEngine:
        return NativeEngine(
            on, spec, SEED, buffers, pages=config.pages, page_tokens=PAGE, max_context=MAX_CONTEXT, dtype=dtype,
            exact=exact,
        )  # fmt: skip

    appliance = SyntheticAppliance(device, "conditional", config, Geometry(512, 2, 8 << 20, 32 << 20), None, make=make)
    document["cublasLt"] = appliance.engine.cublas.version
    for name, value in document.items():
        print(f"{name}: {value}")
    results: list[dict[str, Any]] = []
    document["results"] = results
    served = {rows: _served(appliance, rows) for rows in ROWS}
    appliance.stop(Control.STOP)
    for row in _steps(device, appliance, spec, served):
        results.append(row)
        print(_line(row), flush=True)
    document["gpu after"] = gpu()
    appliance.close()
    if json_path is not None:
        write_json(json_path, document)
    return 0


def _line(row: dict[str, Any]) -> str:
    return "  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())


def _served(appliance: SyntheticAppliance, rows: int) -> float:
    """Milliseconds per decode step while ``rows`` requests run under the scheduler's loop."""
    client, observer = appliance.client(0), Observer(appliance.transport(1))
    deadline = time.monotonic() + _WAIT_S
    while client.health().down:
        client.poll(time.monotonic())
        if time.monotonic() > deadline:
            raise BlinkError(f"waited {_WAIT_S:g} s for the scheduler: {client.health().down}", "look at docs/gpu.md")
    rng = np.random.default_rng(rows)
    handles = [
        client.submit(
            SubmitRequest(
                rng.integers(0, appliance.config.vocab, _PROMPT).astype(np.uint32), MAX_CONTEXT - _PROMPT - 1,
                SamplingParams(seed=i), ignore_eos=True,
            )
        )
        for i in range(rows)
    ]  # fmt: skip
    waiting = set(handles)
    while waiting:
        waiting -= {u.handle for u in client.poll(time.monotonic()) if u.tokens}
        if time.monotonic() > deadline:
            raise BlinkError(f"waited {_WAIT_S:g} s for {len(waiting)} first tokens", "look at docs/gpu.md")
    samples = []
    for pause in (_WINDOW_S, 0.0):
        samples.append((time.perf_counter(), observer.observe().counter(Counter.DECODE_STEPS)))
        time.sleep(pause)
    (t0, n0), (t1, n1) = samples
    for handle in handles:
        client.cancel(handle)
    live = set(handles)
    while live and time.monotonic() < deadline:
        live -= {u.handle for u in client.poll(time.monotonic()) if u.reason is not None}
    observer.close()
    client.close()
    return 1000 * (t1 - t0) / (n1 - n0)


def _steps(
    device: Device, appliance: SyntheticAppliance, spec: ModelSpec, served: dict[int, float]
) -> Iterator[dict[str, Any]]:
    hosted, pages = appliance.assembly.hosted, MAX_CONTEXT // PAGE
    weights = REAL * (spec.parameters() - spec.vocab * spec.hidden)
    for rows in ROWS:
        read = weights + rows * CONTEXT * kv_bytes_per_token(spec, REAL)
        describe_step(hosted.buffers, list(range(rows)), CONTEXT - 1, 1, lane_pages=pages, page_tokens=PAGE)
        hosted.run_shape(Kind.DECODE)
        whole = _time(device, appliance.engine, Kind.DECODE, rows)
        row = {"step": "decode", "rows": rows, "ms": whole, "served_ms": served[rows], "read_GB": read / 1e9,
               "TB_s": read / whole / 1e9}  # fmt: skip
        yield row | {part: whole - ms for part, ms in _without(device, appliance.engine, Kind.DECODE, rows)}
    for tokens in PROMPTS:
        describe_step(hosted.buffers, [0], 0, tokens, lane_pages=pages, page_tokens=PAGE)
        hosted.run_shape(Kind.PREFILL)
        whole = _time(device, appliance.engine, Kind.PREFILL, tokens)
        work = 2 * tokens * (spec.parameters() - 2 * spec.vocab * spec.hidden)
        row = {"step": "prefill", "tokens": tokens, "ms": whole, "TFLOP_s": work / whole / 1e9}
        yield row | {part: whole - ms for part, ms in _without(device, appliance.engine, Kind.PREFILL, tokens)}


def _without(device: Device, engine: Any, kind: Kind, size: int) -> Iterator[tuple[str, float]]:
    """Milliseconds of the step without each of :data:`PARTS`."""
    for part in PARTS:
        with _leaving_out(engine, part):
            yield part, _time(device, engine, kind, size)


class _Nothing:
    """Launches nothing, whatever it is asked for."""

    def takes_norm(self, *_: object) -> bool:
        return True

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


@contextmanager
def _leaving_out(engine: NativeEngine, part: str) -> Iterator[None]:
    """``engine`` with one part of its steps replaced by nothing."""
    forward: Any = engine.forward
    places = {
        "products": [(forward, "_small"), (forward, "_large")],
        "attention": [(forward, "_attention")],
        "norms and rotation": [(forward._ops, name) for name in ("norm", "rotate", "swiglu")],
        "sampling": [(engine, "sampler")],
    }[part]
    nothing = _Nothing()
    kept = [(holder, name, getattr(holder, name)) for holder, name in places]
    for holder, name, _ in kept:
        setattr(holder, name, nothing.anything if part.startswith("norms") else nothing)
    try:
        yield
    finally:
        for holder, name, value in kept:
            setattr(holder, name, value)


def _time(device: Device, engine: Any, kind: Kind, size: int) -> float:
    """Milliseconds of a graph for the step in the buffers, launched in a row: the median of three rounds."""
    return milliseconds(device, lambda stream: engine.enqueue(kind, size, stream), launches=_LAUNCHES)
