"""The same random use, the same engine, the same oracle as on the CPU, with the scheduler's step as a GPU kernel."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")

from tests.kernels.random_use import RandomUse

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device(gpu: object) -> object:
    from tests.gpu.device_scheduler import Device

    return Device()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_use(device: object, seed: int) -> None:
    use = RandomUse(seed, device.make, may_reside=False)
    for _ in range(4):
        use.round(300)
    counters = use.end()
    assert min(counters[n] for n in ("PREEMPTIONS", "RELAUNCHES", "FINISHED_CANCELLED", "FINISHED_ERR_PARAMS")) > 0


def test_the_same_use_goes_the_same_way_on_cpu_and_gpu(device: object) -> None:
    """Not only is each right: with one clock they take the same decisions, so one stands for the other in tests."""
    counts = []
    for make in (None, device.make):
        use = RandomUse(7, make, may_reside=False)
        for _ in range(2):
            use.round(300)
        counts.append(use.end())
    assert counts[0] == counts[1]
