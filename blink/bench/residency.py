"""``blink bench residency``: one engine under a scheduler on the GPU, and under the same scheduler on a CPU thread.

Both are the backend of the given configuration, with nothing changed but ``engine.driver``. The same requests are
submitted at once, and the makespan is the time until the last has ended (paper, figure 3): short and long prompts by
short and long answers, on quiet cores, and on cores that busy processes share.
"""

from __future__ import annotations

import os
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blink.bench.interference import busy
from blink.config import ApplianceConfig
from blink.errors import BlinkError
from blink.instruments import machine
from blink.instruments.gpu import gpu
from blink.instruments.ring_setup import running
from blink.output import write_json
from blink.registry import ON_DEVICE
from blink.ring.client import RingClient, SamplingParams, SubmitRequest
from blink.ring.layout import Reason
from blink.ring.shm import ShmTransport

SHORT_IN, LONG_IN, SHORT_OUT, LONG_OUT = 64, 1024, 64, 512
SHAPES = {
    "short in, short out": (SHORT_IN, SHORT_OUT),
    "short in, long out": (SHORT_IN, LONG_OUT),
    "long in, short out": (LONG_IN, SHORT_OUT),
    "long in, long out": (LONG_IN, LONG_OUT),
}
CLIENT_CORES = 1
BUSY_PER_CORE = 2
START_S = 300.0
RUN_S = 300.0
IDLE_S = 0.002


@dataclass(frozen=True)
class Makespan:
    """Seconds that one run of a shape took; ``resident`` says where the scheduler was."""

    shape: str
    resident: bool
    busy: bool
    seconds: float


def run(config: ApplianceConfig, *, requests: int, rounds: int, json_path: Path | None) -> int:
    """Measure both and print them side by side; returns the exit code."""
    if not config.engine.on_gpu or config.ring.transport != "shm":
        raise BlinkError("this compares GPU engines over shared memory", "set engine.kind and ring.transport so")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) <= CLIENT_CORES:
        raise BlinkError(f"{len(cores)} core is too little", "the client needs one that the backend does not use")
    theirs, ours = cores[:-CLIENT_CORES], cores[-CLIENT_CORES:]
    document: dict[str, Any] = {
        "command": shlex.join(["blink", *sys.argv[1:]]),
        "engine": config.engine.model_dump(mode="json"),
        "gpu": gpu(),
        "hardware": machine.hardware(),
        "versions": machine.versions(),
        "warning": machine.busy_warning(),
        "requests": requests,
        "backend cores": f"{theirs[0]}-{theirs[-1]}",
        "busy processes": BUSY_PER_CORE * len(theirs),
    }
    for name, value in document.items():
        print(f"{name}: {value}")
    os.sched_setaffinity(0, ours)
    found: list[Makespan] = []
    for resident in (True, False):
        found += _measure(config, theirs, resident=resident, requests=requests, rounds=rounds)
    document["makespans"] = [vars(m) for m in found]
    print(render(found))
    if json_path is not None:
        write_json(json_path, document)
    return 0


def render(found: Sequence[Makespan]) -> str:
    """Makespans side by side: median seconds, and how many times longer the CPU-resident scheduler took."""
    lines = [f"{'MAKESPAN, S':<22}{'QUIET: GPU':>12}{'CPU':>9}{'RATIO':>8}{'BUSY: GPU':>12}{'CPU':>9}{'RATIO':>8}"]
    for shape in dict.fromkeys(m.shape for m in found):
        line = f"{shape:<22}"
        for is_busy in (False, True):
            gpu_s, cpu_s = (
                statistics.median(
                    m.seconds for m in found if (m.shape, m.busy, m.resident) == (shape, is_busy, resident)
                )
                for resident in (True, False)
            )
            line += f"{gpu_s:>12.3f}{cpu_s:>9.3f}{cpu_s / gpu_s:>8.2f}"
        lines.append(line)
    return "\n".join(lines)


def _measure(
    config: ApplianceConfig, cores: Sequence[int], *, resident: bool, requests: int, rounds: int
) -> Iterator[Makespan]:
    with _backend(config, cores, resident=resident) as client:
        _makespan(client, 2, SHORT_IN, SHORT_OUT)  # connections, caches
        for is_busy in (False, True):
            with busy(BUSY_PER_CORE * len(cores) if is_busy else 0, cores):
                for shape, (prompt, answer) in SHAPES.items():
                    for _ in range(rounds):
                        yield Makespan(shape, resident, is_busy, _makespan(client, requests, prompt, answer))


@contextmanager
def _backend(config: ApplianceConfig, cores: Sequence[int], *, resident: bool) -> Iterator[RingClient]:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="blink-bench-"))
    driver = config.engine.driver if config.engine.driver in ON_DEVICE else ON_DEVICE[0]
    engine = config.engine.model_copy(update={"driver": driver if resident else "host"})
    instance = config.instance.model_copy(
        update={"name": "bench", "run_dir": folder / "run", "ring_dir": folder / "ring"}
    )
    mine = config.model_copy(update={"engine": engine, "instance": instance})
    try:
        with running(_serve, mine, list(cores)) as process:
            client = RingClient(ShmTransport(folder / "ring", 0))
            deadline = time.monotonic() + START_S
            while client.health().down:
                client.poll(time.monotonic())
                if not process.is_alive() or time.monotonic() > deadline:
                    raise BlinkError(f"the benchmark's backend did not start: {client.health().down}", "see above")
                time.sleep(IDLE_S)
            yield client
            client.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve(config: ApplianceConfig, cores: list[int]) -> None:
    from blink.backend.server import main  # noqa: PLC0415

    os.sched_setaffinity(0, cores)
    try:
        main(config)
    except BlinkError as e:
        raise SystemExit(f"blink: {e}") from None


def _makespan(client: RingClient, requests: int, prompt: int, answer: int) -> float:
    """Seconds from the first submission to the end of the last of ``requests`` equal requests."""
    rng = np.random.default_rng(prompt + answer)
    assert client.header is not None
    prompts = rng.integers(0, client.header.vocab, (requests, prompt)).astype(np.uint32)
    started = time.monotonic()
    for i, tokens in enumerate(prompts):
        client.submit(SubmitRequest(tokens, answer, SamplingParams(seed=i, temperature=0), ignore_eos=True))
    left = requests
    while left:
        updates = client.poll(time.monotonic())
        for update in updates:
            if update.error is not None or update.reason not in (None, Reason.LENGTH):
                raise BlinkError(f"a request ended with {update.error or update.reason}", "see the backend's log")
            left -= update.reason is not None
        if time.monotonic() - started > RUN_S:
            raise BlinkError(f"waited {RUN_S:g} s for {left} of {requests} requests", "take fewer, or look at the log")
        if not updates:
            time.sleep(0.0005)
    return time.monotonic() - started
