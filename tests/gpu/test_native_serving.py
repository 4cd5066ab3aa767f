"""``blink backend`` with the native engine: long answers, and a worker that writes nonsense beside an honest one."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")

from blink.backend.scheduler.config import SchedulerConfig
from blink.model.prepare import prepare
from blink.registry import ON_DEVICE
from blink.ring.client import RingClient, SamplingParams, SubmitRequest
from blink.ring.layout import Counter, Reason
from blink.ring.lease import PartitionLease
from blink.ring.shm import ShmTransport
from tests.appliance import Appliance, appliance, wait_for
from tests.gpu.storm import run
from tests.kernels.nonsense import misbehave, nonsense
from tests.kernels.ring_writer import Ring
from tests.tiny_model import write_checkpoint

pytestmark = [pytest.mark.gpu, pytest.mark.e2e]

CONTEXT, LONG, HOSTILE = 12288, 11_000, 1
ENGINE = {"kind": "native", "lanes": 8, "queue": 16, "page_tokens": 64, "pages": 256, "max_context": CONTEXT,
          "batch_tokens": 256, "exact": True}  # fmt: skip
NONSENSE_S = 6.0


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that is made for contexts of 16384 tokens."""
    folder = tmp_path_factory.mktemp("long")
    write_checkpoint(folder / "source", max_position_embeddings=16384)
    prepare(str(folder / "source"), folder / "model")
    return folder / "model"


@pytest.fixture(params=ON_DEVICE)
def a(gpu: object, request: pytest.FixtureRequest, tmp_path: Path, long_model: Path) -> Iterator[Appliance]:
    sections = {"engine": ENGINE | {"driver": request.param}, "ring": {"partitions": 3, "slots": 96, "input_mib": 1}}
    with appliance(tmp_path, long_model, frontend={"workers": 2}, **sections) as a:
        a.backend()
        yield a


def client(a: Appliance) -> RingClient:
    made = RingClient(ShmTransport(a.ring_dir, 0), lease=PartitionLease(a.config.instance.run_dir, 0))

    def up() -> bool:
        made.poll(time.monotonic())
        return not made.health().down

    wait_for("the ring", up)
    return made


def request(seed: int, tokens: int, temperature: float = 1.0) -> SubmitRequest:
    prompt = np.arange(5 + seed % 40, dtype=np.uint32) % 200
    return SubmitRequest(prompt, tokens, SamplingParams(seed=seed, temperature=temperature), ignore_eos=True)


def test_an_answer_past_ten_thousand_tokens(a: Appliance) -> None:
    """Beyond it, the same seed gives the same tokens again, as it does in a batch."""
    worker = client(a)
    tokens, reason = run(worker, request(3, LONG), timeout_s=120)
    assert (len(tokens), reason) == (LONG, Reason.LENGTH)
    handles = [worker.submit(request(3, LONG)), *(worker.submit(request(s, 500)) for s in range(10, 14))]
    got: dict[object, list[int]] = {h: [] for h in handles}
    ended: set[object] = set()
    deadline = time.monotonic() + 120
    while len(ended) < len(handles):
        for update in worker.poll(time.monotonic()):
            got[update.handle] += update.tokens
            ended |= {update.handle} if update.reason is not None else set()
        assert time.monotonic() < deadline
    assert got[handles[0]] == tokens
    worker.close()


def test_nonsense_in_one_partition_changes_no_answer_in_another(a: Appliance) -> None:
    worker, geometry = client(a), a.config.ring.geometry()
    alone = {seed: run(worker, request(seed, 60)) for seed in range(8)}
    limits = SchedulerConfig.for_engine(a.config.engine, 400, ())
    shadow, gens = Ring(geometry, limits).writer(HOSTILE), dict[int, int]()
    rng = np.random.default_rng(1)
    with (a.ring_dir / "F").open("r+b") as file, mmap.mmap(file.fileno(), geometry.f_bytes) as f:
        at, end, served = HOSTILE * geometry.f_stride, time.monotonic() + NONSENSE_S, 0
        while time.monotonic() < end:
            for _ in range(20):
                misbehave(shadow, nonsense(rng), gens)
            f[at : at + len(shadow.f)] = shadow.f.tobytes()
            assert run(worker, request(served % 8, 60)) == alone[served % 8]
            served += 1
    seen = a.observe()
    assert seen.counter(Counter.REJECTS) > 0
    assert served > 10
    assert a.command("status").returncode == 0
    worker.close()
