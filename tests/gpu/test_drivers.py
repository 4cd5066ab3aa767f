"""The scheduler that runs by itself on a GPU, under both drivers, with the ring in either memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")

from blink.backend.gpu.loop_watcher import LoopWatcher
from blink.engine.seam.batch import Control
from blink.errors import BlinkError
from blink.instruments.synthetic import SyntheticAppliance
from blink.registry import ON_DEVICE
from blink.ring.client import SamplingParams, SubmitRequest
from blink.ring.layout import Geometry, Phase, Reason
from tests.gpu.storm import CONFIG, GEOMETRY, VOCAB, Storm, attach, run
from tests.kernels.hash_engine import answer

pytestmark = pytest.mark.gpu

Make = Callable[..., SyntheticAppliance]
LONG_TOKENS, PAGE = 1_000_000, 1024
LONG = replace(
    CONFIG, lanes=1, records=2, page_tokens=PAGE, pages=LONG_TOKENS // PAGE + 2, max_context=LONG_TOKENS + PAGE,
    batch_tokens=16,
)  # fmt: skip
LONG_RING = Geometry(2, 1, 1 << 16, 8 << 20)
SLOW_NODES = 150  # so that requests of a client in Python overlap


@pytest.fixture(params=["host", "device"])
def placement(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=ON_DEVICE)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(gpu: Any, driver: str, placement: str, shm: Path) -> Iterator[Make]:
    """Appliances with this driver and placement; stopped and closed at the end."""
    made: list[SyntheticAppliance] = []

    def one(config: Any = CONFIG, geometry: Geometry = GEOMETRY, **options: Any) -> SyntheticAppliance:
        directory = shm / f"ring{len(made)}" if placement == "host" else None
        made.append(SyntheticAppliance(gpu, driver, config, geometry, directory, **options))
        return made[-1]

    yield one
    for appliance in made:
        if appliance.engine.held is not None:
            appliance.engine.held[0] = 0
        if not appliance.loop.ended():
            with suppress(BlinkError):
                appliance.stop(Control.STOP, timeout_s=5)
        if appliance.loop.ended():
            appliance.close()


def request(prompt: list[int], max_tokens: int, seed: int = 1, **options: Any) -> SubmitRequest:
    return SubmitRequest(np.array(prompt, np.uint32), max_tokens, SamplingParams(seed=seed), **options)


def balanced(counters: dict[str, int]) -> bool:
    return all(counters[f"{what}_TAKEN"] == counters[f"{what}_RETURNED"] for what in ("PAGES", "LANES", "RECORDS"))


@pytest.mark.parametrize("seed", [1, 2])
def test_random_use(make: Make, driver: str, seed: int) -> None:
    """Answers, ends, order and books are right with cancels, deadlines, faults, few pages and a hostile worker."""
    appliance = make(nodes=SLOW_NODES, trace=1 << 14)
    storm = Storm(appliance, seed)
    for _ in range(2):
        for _ in range(700):
            storm.act()
        storm.settle()
    storm.check_order()
    appliance.stop()
    counters = appliance.scheduler.counters()
    appliance.scheduler.check_integrity()
    assert balanced(counters)
    assert appliance.loop.report()["failed"] == 0, appliance.loop.report()
    happened = ("PREEMPTIONS", "FINISHED_CANCELLED", "FINISHED_ERR_PARAMS", "FINISHED_ERR_ENGINE", "FINISHED_EOS")
    assert not [n for n in happened if not counters[n]]
    assert (counters["RELAUNCHES"] > 0) == (driver == "persistent")


def test_its_times_lie_within_the_clients(make: Make) -> None:
    """By the GPU's clock a request's first token is not later, after its first sight, than the client reads it."""
    client, timed = attach(make(nodes=SLOW_NODES), 0), 0
    for seed in range(10):
        started, first, end = time.monotonic(), None, None
        client.submit(request([1, 2, 3], 8, seed, ignore_eos=True))
        while end is None:
            assert time.monotonic() < started + 10
            for update in client.poll(time.monotonic()):
                read_us = 1e6 * (time.monotonic() - started)
                first = first or (read_us if update.tokens else None)
                end = update if update.reason is not None else None
        assert end.reason is Reason.LENGTH
        if end.times is not None:  # a read may have caught them half written, but hardly ever
            timed += 1
            assert first is not None
            assert 0 < end.times.first_us <= first
            assert end.times.first_us < end.times.last_us <= read_us
    assert timed
    client.close()


def test_drain_lets_what_runs_end(make: Make) -> None:
    appliance = make(nodes=SLOW_NODES, trace=1 << 12)
    storm = Storm(appliance, 3)
    while len(storm.running) < 12 or not any(r.got for r in storm.running.values()):
        storm.submit(len(storm.requests) % 2, ignore_eos=True)
        storm.poll()
    storm.mode = Control.DRAIN
    appliance.stop(Control.DRAIN)
    storm.settle()
    ends = [r.ended for r in storm.requests]
    assert Reason.LENGTH in ends
    assert Reason.ERR_DRAINING in ends
    assert storm.clients[0].health().phase is Phase.STOPPED
    appliance.scheduler.check_integrity()


def test_stop_ends_everything(make: Make) -> None:
    appliance = make(nodes=SLOW_NODES, trace=1 << 12)
    storm = Storm(appliance, 4)
    while len(storm.running) < 12:
        storm.submit(len(storm.requests) % 2, ignore_eos=True)
        storm.poll()
    storm.mode = Control.STOP
    appliance.stop(Control.STOP)
    storm.settle()
    assert Reason.ERR_STOPPED in [r.ended for r in storm.requests]
    appliance.scheduler.check_integrity()
    assert balanced(appliance.scheduler.counters())


@pytest.mark.parametrize("stops", [1, 2])
def test_a_stop_has_an_end(make: Make, gpu: Any, stops: int) -> None:
    """What outlasts the drain, or a second signal, ends with an error, and the host's part with it."""
    appliance = make(LONG, LONG_RING, hashes=False, start=False)
    driver = LoopWatcher(appliance.loop, drain_timeout_s=0.2 if stops == 1 else 600)

    def serve() -> None:
        gpu.make_current()
        driver.run()

    host = threading.Thread(target=serve)
    host.start()
    client = attach(appliance, 0)
    client.submit(request([1], LONG_TOKENS, ignore_eos=True))
    got, reason, deadline = 0, None, time.monotonic() + 20
    while reason is None:
        for update in client.poll(time.monotonic()):
            if got == 0 and update.tokens:
                for _ in range(stops):
                    driver.stop()
            got, reason = got + len(update.tokens), update.reason
        assert time.monotonic() < deadline, f"{got} tokens, and no end"
    assert reason is Reason.ERR_STOPPED
    assert 0 < got < LONG_TOKENS
    host.join(10)
    assert not host.is_alive()
    assert appliance.loop.ended()
    driver.close()


def test_a_stopped_loop_starts_again(make: Make) -> None:
    appliance = make()
    client = attach(appliance, 0)
    for turn in range(3):
        assert run(client, request([1, 2, 3], 20, seed=turn, ignore_eos=True))[0] == answer([1, 2, 3], turn, 20, VOCAB)
        appliance.stop()
        appliance.scheduler.request(Control.RUN)
        appliance.loop.start()
        deadline = time.monotonic() + 10
        while client.health().down:
            client.poll(time.monotonic())
            assert time.monotonic() < deadline, client.health().down


def test_an_idle_scheduler_beats(make: Make) -> None:
    appliance = make()
    client = attach(appliance, 0)
    before = appliance.scheduler.counters()["IDLE_STEPS"]
    time.sleep(0.1)
    assert appliance.scheduler.counters()["IDLE_STEPS"] > before
    time.sleep(2.5)  # longer than a beat may stand
    for _ in range(2):
        time.sleep(0.05)
        client.poll(time.monotonic())
        assert client.health().beat_age_s == 0, "the beat did not move"
    assert client.health().phase is Phase.IDLE
    assert not client.health().down


def test_a_batch_that_hangs_shows_in_the_ring_and_recovers(make: Make) -> None:
    appliance = make(replace(CONFIG, step_budget_ms=300), may_hang=True)
    client = attach(appliance, 0)
    held = appliance.engine.held
    assert held is not None
    held[0] = 1
    handle = client.submit(request([7], 5, ignore_eos=True))
    deadline = time.monotonic() + 10
    while not client.health().stalled:
        assert not any(u.tokens for u in client.poll(time.monotonic()))
        assert time.monotonic() < deadline, "the beat never stood still"
    assert "no beat" in client.health().down
    with pytest.raises(BlinkError, match=r"waited 0\.2 s for the scheduler"):
        appliance.stop(Control.RUN, timeout_s=0.2)
    held[0] = 0
    got: list[int] = []
    while len(got) < 5:
        got += [t for u in client.poll(time.monotonic()) if u.handle == handle for t in u.tokens]
        assert time.monotonic() < deadline + 10, "the batch never ended"
    assert got == answer([7], 1, 5, VOCAB)
    assert not client.health().stalled


@pytest.mark.parametrize("placement", ["device"], indirect=True)
def test_a_million_steps(make: Make, driver: str) -> None:
    tokens = LONG_TOKENS
    appliance = make(LONG, LONG_RING, hashes=False)
    client, deadline = attach(appliance, 0), time.monotonic() + 120
    client.submit(request([1], tokens, ignore_eos=True))
    got, reason = 0, None
    while reason is None:
        for update in client.poll(time.monotonic()):
            assert not any(update.tokens), "the engine's token is 0"
            got, reason = got + len(update.tokens), update.reason
        assert time.monotonic() < deadline, f"{got} tokens after 120 s"
        time.sleep(0.02)
    assert (got, reason) == (tokens, Reason.LENGTH)
    appliance.stop()
    report, counters = appliance.loop.report(), appliance.scheduler.counters()
    assert report["failed"] == 0
    assert counters["LAUNCHES"] == tokens
    if driver == "persistent":
        assert counters["RELAUNCHES"] >= tokens // 120 - 1
        assert report["executions"] == counters["RELAUNCHES"] + 1
    else:
        assert report["executions"] >= tokens
