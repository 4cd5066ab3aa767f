"""``blink bench scheduler``: what the scheduler costs on this machine's GPU, under both drivers, side by side.

The engine is synthetic and its batches are empty, so everything that is measured beyond the graph's own kernels is the
scheduler's and the driver's.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from blink.backend.gpu.loop import IDLE_SLEEP_US, IDLE_SPIN_US
from blink.backend.scheduler.config import SchedulerConfig
from blink.engine.seam.batch import Control
from blink.errors import BlinkError
from blink.gpu.cuda import Device, call
from blink.gpu.graphs import destroy_exec, instantiate
from blink.instruments import machine
from blink.instruments.gpu import query
from blink.instruments.ring_slot import RingSlot
from blink.instruments.synthetic import SyntheticAppliance
from blink.output import write_json
from blink.registry import ON_DEVICE
from blink.ring.client import RingClient, SamplingParams, SubmitRequest
from blink.ring.layout import Counter, Geometry
from blink.ring.observe import Observer

NODES = (1, 50, 200, 500)
LANES = (1, 32, 128)
WINDOW_S = 0.4
REQUESTS = 200
PAUSE_S = 0.005
SLEEPS_US = (0, 20, 500)
POWER_S = 2.0
WAIT_S = 20
FILL_ROUNDS = 10_000
GEOMETRY = Geometry(4096, 2, 8 << 20, 128 << 20)


def run(*, json_path: Path | None) -> int:
    """Measure and print; returns the exit code. Raises BlinkError where there is no GPU."""
    before = {"measure": "idle power", "driver": "no process"} | _sample_power()
    device = Device()
    document: dict[str, Any] = {
        "command": shlex.join(["blink", *sys.argv[1:]]),
        "gpu": query("name,driver_version,clocks.sm,power.draw"),
        "hardware": machine.hardware(),
        "warning": machine.busy_warning(),
        "idle_spin_us": IDLE_SPIN_US,
        "idle_sleep_us": IDLE_SLEEP_US,
    }
    for name in ("gpu", "hardware", "warning"):
        print(f"{name}: {document[name]}")
    results: list[dict[str, Any]] = [before]
    document["results"] = results
    print(_line(before))
    for part in (_steps, _rows, _full_device, _latency, _polls, _captures, _power):
        for row in part(device):
            results.append(row)
            print(_line(row), flush=True)
    if json_path is not None:
        write_json(json_path, document)
    return 0


def _line(row: dict[str, Any]) -> str:
    return "  ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())


def _config(lanes: int, batch_tokens: int) -> SchedulerConfig:
    return SchedulerConfig(
        lanes=lanes, records=2 * lanes, page_tokens=1024, pages=128 * lanes, max_context=1 << 17, vocab=1000,
        batch_tokens=batch_tokens, claims_per_step=32,
    )  # fmt: skip


@contextmanager
def _appliance(
    device: Device,
    driver: str,
    lanes: int,
    *,
    host: bool = True,
    nodes: int = 1,
    batch_tokens: int = 128,
    fill_rounds: int = 0,
    **idle: float,
) -> Iterator[SyntheticAppliance]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        directory = Path(folder) if host else None
        appliance = SyntheticAppliance(
            device, driver, _config(lanes, max(lanes, batch_tokens)), GEOMETRY, directory, idle=idle,
            hashes=False,
            nodes=nodes,
            fill_rounds=fill_rounds,
        )  # fmt: skip
        try:
            yield appliance
        finally:
            appliance.stop(Control.STOP)
            appliance.close()


def _attach(appliance: SyntheticAppliance) -> RingClient:
    client, deadline = appliance.client(0), time.monotonic() + WAIT_S
    while client.health().down:
        client.poll(time.monotonic())
        if time.monotonic() > deadline:
            raise BlinkError(f"waited {WAIT_S} s for the scheduler: {client.health().down}", "look at docs/gpu.md")
    return client


def _request(max_tokens: int) -> SubmitRequest:
    return SubmitRequest(np.ones(4, np.uint32), max_tokens, SamplingParams(seed=1), ignore_eos=True)


def _step_us(appliance: SyntheticAppliance, lanes: int) -> float:
    """Microseconds per decode step with ``lanes`` requests running, counted by the scheduler itself."""
    client = _attach(appliance)
    waiting = {client.submit(_request(100_000)) for _ in range(lanes)}
    deadline = time.monotonic() + WAIT_S
    while waiting:
        waiting -= {u.handle for u in client.poll(time.monotonic()) if u.tokens}
        if time.monotonic() > deadline:
            raise BlinkError(f"waited {WAIT_S} s for {len(waiting)} first tokens", "look at docs/gpu.md")
    observer = Observer(appliance.transport(1))
    samples = []
    for pause in (WINDOW_S, 0):
        samples.append((time.perf_counter(), observer.observe().counter(Counter.DECODE_STEPS)))
        time.sleep(pause)
    (t0, n0), (t1, n1) = samples
    observer.close()
    client.close()
    return 1e6 * (t1 - t0) / (n1 - n0)


def _steps(device: Device) -> Iterator[dict[str, Any]]:
    """A decode step of one lane, by the number of kernels in its graph; and that graph alone."""
    for nodes in NODES:
        for driver in ON_DEVICE:
            with _appliance(device, driver, 1, nodes=nodes) as appliance:
                step = _step_us(appliance, 1)
            yield {"measure": "decode step", "nodes": nodes, "driver": driver, "step_us": step}
        with _appliance(device, "conditional", 1, nodes=nodes) as appliance:
            appliance.stop(Control.STOP)
            queued, waited = _from_host(device, appliance.graphs.graphs[0])
        yield {"measure": "decode graph", "nodes": nodes, "driver": "none: launched in a row", "step_us": queued}
        yield {"measure": "decode graph", "nodes": nodes, "driver": "none: launched and waited for", "step_us": waited}


def _from_host(device: Device, graph: Any) -> tuple[float, float]:
    """Microseconds of a graph: launched by the host in a row, and each waited for."""
    made, times = instantiate(device, graph), []
    for wait in (False, True):
        started, count = time.perf_counter(), 0
        while count < 200 or time.perf_counter() - started < 0.05:
            call(cu.cuGraphLaunch(made, device.stream), "launching a graph")
            count += 1
            if wait or count % 100 == 0:
                device.synchronize()
        device.synchronize()
        times.append(1e6 * (time.perf_counter() - started) / count)
    destroy_exec(made)
    return times[0], times[1]


def _rows(device: Device) -> Iterator[dict[str, Any]]:
    """A decode step of many lanes beside a graph of 50 kernels: the scheduler's own work."""
    for lanes in LANES:
        for driver in ON_DEVICE:
            for host in (True, False):
                with _appliance(device, driver, lanes, nodes=50, host=host) as appliance:
                    yield {"measure": "step by lanes", "nodes": 50, "lanes": lanes, "driver": driver,
                           "ring": "host" if host else "GPU", "step_us": _step_us(appliance, lanes)}  # fmt: skip


def _full_device(device: Device) -> Iterator[dict[str, Any]]:
    """A step of ten kernels that fill the device, as those of a long prefill do: what a resident block takes away."""
    for driver in ON_DEVICE:
        with _appliance(device, driver, 1, nodes=11, fill_rounds=FILL_ROUNDS) as appliance:
            yield {"measure": "full device", "driver": driver, "step_us": _step_us(appliance, 1)}
            if driver == "conditional":
                appliance.stop(Control.STOP)
                alone = _from_host(device, appliance.graphs.graphs[0])[0]
    yield {"measure": "full device", "driver": "none: launched in a row", "step_us": alone}


def _captures(device: Device) -> Iterator[dict[str, Any]]:
    """What many graphs take in time and memory."""
    for nodes in NODES:
        for driver in ON_DEVICE:
            with _appliance(device, driver, 256, host=False, nodes=nodes, batch_tokens=4096) as appliance:
                graphs, loop = appliance.graphs, appliance.loop
                count = len(graphs.graphs)
                yield {"measure": "graphs", "nodes": nodes, "driver": driver, "graphs": count,
                       "capture_ms_each": 1000 * sum(graphs.capture_s) / count,
                       "build_ms_each": 1000 * loop.build_s / count,
                       "kib_each": loop.graph_bytes / count / 1024, "launch_us": 1e6 * loop.launch_s}  # fmt: skip


def _latency(device: Device) -> Iterator[dict[str, Any]]:
    """Doorbell to first token, prefill of 4 tokens included: the driver awake, and asleep."""
    for driver in ON_DEVICE:
        with _appliance(device, driver, 8) as appliance:
            objects = appliance.objects
            assert objects is not None
            slot = RingSlot(GEOMETRY, objects.g, objects.f, 0)
            for state, pause in (("awake", 0.0), ("asleep", PAUSE_S)):
                times = []
                for _ in range(REQUESTS):
                    time.sleep(pause)
                    times.append(slot.first_token_us(_request(2), WAIT_S))
                times.sort()
                yield {"measure": "first token", "driver": driver, "idle": state, "p50_us": statistics.median(times),
                       "p99_us": times[int(0.99 * len(times))]}  # fmt: skip


def _polls(device: Device) -> Iterator[dict[str, Any]]:
    """One poll of an idle driver: a scan of all slots, a plan and a publish."""
    for driver in ON_DEVICE:
        for host in (True, False):
            with _appliance(device, driver, 8, host=host, idle_sleep_us=0) as appliance:
                time.sleep(0.05)
                samples = []
                for _ in range(2):
                    samples.append((time.perf_counter(), appliance.loop.report()["turns"]))
                    time.sleep(WINDOW_S / 2)
            (t0, n0), (t1, n1) = samples
            yield {"measure": "idle poll", "slots": GEOMETRY.slots, "driver": driver, "ring": "host" if host else "GPU",
                   "poll_us": 1e6 * (t1 - t0) / (n1 - n0)}  # fmt: skip


def _power(device: Device) -> Iterator[dict[str, Any]]:
    """Power of an idle GPU, and of one with an idle scheduler, by how long it sleeps between polls."""
    yield {"measure": "idle power", "driver": "none, a context"} | _sample_power()
    for driver in ON_DEVICE:
        for sleep in SLEEPS_US:
            with _appliance(device, driver, 8, idle_sleep_us=sleep):
                yield {"measure": "idle power", "driver": driver, "sleep_us": sleep} | _sample_power()


def _sample_power() -> dict[str, Any]:
    time.sleep(1)
    watts, clocks, end = [], [], time.monotonic() + POWER_S
    while time.monotonic() < end:
        power, clock = query("power.draw,clocks.sm").split(", ")
        watts.append(float(power))
        clocks.append(int(clock))
        time.sleep(0.1)
    return {"watts": statistics.mean(watts), "samples": len(watts), "sm_mhz": max(clocks)}
