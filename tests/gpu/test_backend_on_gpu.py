"""``blink backend`` with a GPU engine, as a process: it behaves as one on a CPU does, and better when it is stopped."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")

from blink.gpu.toolchain import cache_folder
from blink.registry import DRIVERS, ENGINES
from blink.ring.layout import Reason
from tests.appliance import Appliance, appliance, wait_for
from tests.backend.test_backend_process import LONG, Worker

pytestmark = [pytest.mark.gpu, pytest.mark.e2e]

ON_GPU = [(kind, driver) for kind, entry in ENGINES.items() if entry.on_gpu and entry.package for driver in DRIVERS]


@pytest.fixture(params=ON_GPU, ids="-".join)
def engine(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"kind": request.param[0], "driver": request.param[1], "page_tokens": 16, "pages": 512}


@pytest.fixture
def a(gpu: object, tmp_path: Path, tiny_model: Path, engine: dict[str, Any]) -> Iterator[Appliance]:
    # What is kept of its graphs has its name, and tests of several processes run side by side.
    name = f"test-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
    with appliance(tmp_path, tiny_model, engine=engine, instance={"name": name}) as a:
        yield a


def served(a: Appliance) -> Worker:
    worker = Worker(a)
    worker.wait_up()
    return worker


def test_it_serves_drains_and_leaves_nothing(a: Appliance) -> None:
    backend = a.backend()
    worker = served(a)
    first = worker.submit(20)
    worker.wait(first)
    assert (worker.end[first], len(worker.tokens[first])) == (Reason.LENGTH, 20)
    running = worker.submit(LONG)
    worker.wait(running, 5)
    backend.send_signal(signal.SIGTERM)
    worker.wait(running)
    assert (worker.end[running], len(worker.tokens[running])) == (Reason.LENGTH, LONG)
    assert backend.wait(20) == 0
    assert list(a.ring_dir.iterdir()) == []
    assert "Traceback" not in a.log("backend")
    worker.client.close()


def test_a_second_signal_stops_at_once_and_a_killed_one_is_replaced(a: Appliance) -> None:
    backend = a.backend()
    worker = served(a)
    handle = worker.submit(LONG)
    worker.wait(handle, 5)
    backend.kill()
    backend.wait(10)
    backend = a.backend()
    worker.wait(handle)
    assert "restarted" in str(worker.end[handle]) or "removed" in str(worker.end[handle])
    worker.wait_up()
    again = worker.submit(LONG)
    worker.wait(again, 5)
    backend.send_signal(signal.SIGTERM)
    backend.send_signal(signal.SIGINT)
    worker.wait(again)
    assert worker.end[again] in (Reason.ERR_STOPPED, Reason.LENGTH)
    assert backend.wait(20) == 0
    worker.client.close()


def test_a_stopped_process_goes_on_serving(a: Appliance, engine: dict[str, Any]) -> None:
    if engine["driver"] == "host":
        pytest.skip("its scheduler is the process")
    backend = a.backend()
    worker = served(a)
    backend.send_signal(signal.SIGSTOP)
    for _ in range(20):
        handle = worker.submit(50)
        worker.wait(handle)
        assert (worker.end[handle], len(worker.tokens[handle])) == (Reason.LENGTH, 50)
    state = Path(f"/proc/{backend.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    assert state == "T"
    assert a.command("status").returncode == 0
    backend.send_signal(signal.SIGCONT)
    backend.terminate()
    assert backend.wait(20) == 0
    worker.client.close()


def test_graphs_are_prepared_once_and_anew_when_something_changes(a: Appliance) -> None:
    path = cache_folder() / f"graphs-{a.config.instance.name}.json"
    path.unlink(missing_ok=True)
    first = a.command("backend", "--prepare")
    assert first.returncode == 0, first.stderr
    assert "graphs of" in first.stdout
    assert a.command("backend", "--prepare").stdout.endswith("up to date\n")
    document = json.loads(path.read_text())
    assert all(set(record["nodes"]) <= {"KERNEL", "MEMCPY", "MEMSET"} for record in document["graphs"])
    text = a.config_path.read_text()
    a.config_path.write_text(text.replace("lanes = 4", "lanes = 3"))
    assert "would be made: decode_buckets, engine.lanes" in a.command("backend", "--prepare", "--check").stdout
    told = json.loads(a.command("backend", "--prepare", "--check", "--json", "-").stdout)
    assert told == {"differs": ["decode_buckets", "engine.lanes"]}
    a.config_path.write_text(text)
    path.write_text(json.dumps(document | {"answer": [1] * len(document["answer"])}))
    refused = a.start("backend")
    assert refused.wait(60) == 1
    assert "suspect the GPU's memory" in a.log("backend")
    path.unlink()
    a.backend()
    assert "is made anew: nothing is there" in a.log("backend")
    assert json.loads(path.read_text())["answer"] == document["answer"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "GPU-01234567-89ab-cdef-0123-456789abcdef"}, "this machine's CUDA devices are 0 "),
        ({"device": 99}, "engine.device 99: this machine's CUDA devices are 0 "),
        ({"pages": 1 << 26}, "are available on the GPU"),
    ],
    ids=["uuid", "index", "memory"],
)
def test_what_the_gpu_cannot_do_is_refused_before_anything_is_loaded(
    gpu: object, tmp_path: Path, tiny_model: Path, change: dict[str, Any], message: str
) -> None:
    engine = {"kind": "native", "page_tokens": 16} | change
    with appliance(tmp_path, tiny_model, engine=engine) as a:
        for arguments in (("backend",), ("backend", "--check")):
            done = a.command(*arguments)
            assert done.returncode == 1
            assert message in done.stderr
            assert "loaded" not in done.stderr


def test_a_ring_on_the_device_can_be_exported(gpu: Any) -> None:
    from blink.backend.gpu.ring import DeviceRing
    from blink.ring.header import Header
    from blink.ring.layout import Geometry

    gpu.require_ordered_rdma()
    limits = dict.fromkeys(("lanes", "queue_cap", "vocab", "max_context", "ext_words", "page_tokens", "pages"), 8)
    ring = DeviceRing(gpu, Header(Geometry(64, 2, 1 << 20, 1 << 20), 7, **limits, fingerprint=bytes(32)))
    fds = ring.descriptors()
    try:
        for fd, size in zip(fds, (ring.geometry.g_bytes, ring.geometry.f_bytes), strict=True):
            assert "dmabuf" in str(Path(f"/proc/self/fd/{fd}").readlink())
            assert os.lseek(fd, 0, os.SEEK_END) >= size
        assert ring.header_page()[:8] == b"BLNKRNG1"
    finally:
        for fd in fds:
            os.close(fd)
        ring.close()


def test_a_wait_for_nothing_leaves_no_process(a: Appliance) -> None:
    """A signal while it loads ends it at once, as on a CPU."""
    backend = a.start("backend")
    wait_for("the ring's files", lambda: a.ring_dir.exists() and list(a.ring_dir.iterdir()))
    backend.send_signal(signal.SIGTERM)
    assert backend.wait(30) == 0
    assert list(a.ring_dir.iterdir()) == []
