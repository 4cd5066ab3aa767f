"""What a step of the scheduler costs on this GPU: `python -m tests.gpu.measure_step`. Prints microseconds.

Every figure is the mean of 200 launches in one CUDA graph, less the mean of the stand-in for an engine alone. The ring
has 4096 slots; "host" is pinned memory that the GPU maps (the profile `single`), "GPU" its own memory (`appliance`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from blink.backend.scheduler.config import SchedulerConfig
from blink.engine.seam.batch import Kind
from blink.gpu.toolchain import compile_text
from blink.ring.layout import Geometry
from tests.gpu.device_scheduler import Device, DeviceCore, PinnedBuffers, call
from tests.kernels.ring_writer import Ring

LAUNCHES = 200
ENGINE = b"""
#include "rtc.h"
#include "seam/batch_layout.h"
extern "C" __global__ void engine(blink::StepControl *c, int *out_token) {
    for (unsigned r = threadIdx.x; r < c->rows; r += blockDim.x) out_token[r] = 1;
    __syncthreads();
    if (threadIdx.x == 0) c->done = c->step;
}
"""


def microseconds(body: Callable[[Any], None]) -> float:
    """Mean time of what ``body`` puts on a stream."""
    stream = call(cu.cuStreamCreate(1))
    call(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    for _ in range(LAUNCHES):
        body(stream)
    graph = call(cu.cuGraphInstantiate(call(cu.cuStreamEndCapture(stream)), 0))
    events = [call(cu.cuEventCreate(0)) for _ in range(2)]
    call(cu.cuGraphLaunch(graph, stream))
    call(cu.cuEventRecord(events[0], stream))
    call(cu.cuGraphLaunch(graph, stream))
    call(cu.cuEventRecord(events[1], stream))
    call(cu.cuEventSynchronize(events[1]))
    return float(call(cu.cuEventElapsedTime(*events))) * 1000 / LAUNCHES


def measure(device: Device, lanes: int, *, host: bool) -> tuple[float, float]:
    """(idle step, decode step with all ``lanes`` running)."""
    config = SchedulerConfig(
        lanes=lanes, records=2 * lanes, page_tokens=64, pages=32 * lanes, max_context=2048, vocab=1000,
        batch_tokens=4096,
    )  # fmt: skip
    geometry = Geometry(4096, 1, 32 << 20, 32 << 20)

    def build(requests: int) -> tuple[Callable[[Any], None], Callable[[Any], None], DeviceCore]:
        ring, buffers = Ring(geometry, config, device.pinned), PinnedBuffers(config.dims, device)
        writer = ring.writer(0)
        for slot in range(requests):
            writer.submit(slot, [1, 2, 3], 1500)
        place = (lambda a: a.ctypes.data) if host else device.copy_in
        arrays = {name: place(a) for name, a in buffers.arrays.items()}
        pointers = np.array([*arrays.values()], np.uint64)
        core = DeviceCore(device, config, geometry, g=place(ring.g), f=place(ring.f), pointers=pointers)
        params = [np.array([arrays[n]], np.uint64) for n in ("control", "out_token")]
        arguments = core.turn().record()

        def engine(stream: Any) -> None:
            device.enqueue(stream, "engine", *params)

        def turn(stream: Any) -> None:
            device.enqueue(stream, "blink_step", arguments)
            engine(stream)

        return turn, engine, core

    turn, engine, core = build(0)
    alone = microseconds(engine)
    idle = microseconds(turn) - alone
    turn, engine, core = build(lanes)
    for _ in range(lanes // 4 + 10):  # claims of 8 a step, prefills and decodes in turn
        turn(0)
    call(cu.cuCtxSynchronize())  # the stream that is measured does not wait for this one
    decode = microseconds(turn) - alone
    last = core.decision[0]
    assert (last["kind"], last["rows"]) == (Kind.DECODE, lanes), "not all lanes were decoding"
    return idle, decode


def main() -> None:
    """Print the table."""
    device = Device()
    device.load(compile_text(ENGINE, "engine", device.arch), "engine")
    print(f"{'ring in':8}{'lanes':>6}{'idle step':>12}{'decode step':>13}")
    for host in (True, False):
        for lanes in (8, 128, 256):
            idle, decode = measure(device, lanes, host=host)
            print(f"{'host' if host else 'GPU':8}{lanes:6}{idle:12.1f}{decode:13.1f}")


if __name__ == "__main__":
    main()
