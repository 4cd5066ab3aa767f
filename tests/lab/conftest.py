"""The deployed lab, set back to the state right after site.yml."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

from images.lab import pair
from tests.lab.deployed import Deployed

TAG = "deployed"
TIMEOUT_S = 1800  # of one test; a round of all faults takes a third of it, on a machine that does nothing else


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    off = [m.name for m in pair.MACHINES if m.pid is None]
    for item in items:
        if "tests/lab" not in item.path.as_posix():
            continue
        item.add_marker(pytest.mark.lab)
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        if off and item.path.name != "test_flash.py":  # which starts them
            item.add_marker(pytest.mark.skip(reason=f"{' and '.join(off)} off: make lab, or make lab-up first"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put what the machines have logged into the report of a test that failed, before the next one sets them back."""
    report = yield
    if report.failed and "tests/lab" in item.path.as_posix():
        report.sections += [(f"log of {machine.name}", machine.report()) for machine in pair.MACHINES]
    return report


@contextmanager
def restored() -> Iterator[Deployed]:
    """The lab, set back and serving."""
    pair.restore(TAG)
    deployed = Deployed()
    try:
        deployed.wait_healthy()
        yield deployed
    finally:
        deployed.close()


@pytest.fixture
def lab() -> Iterator[Deployed]:
    """Set back for this test."""
    with restored() as deployed:
        yield deployed


@pytest.fixture(scope="module")
def calm_lab() -> Iterator[Deployed]:
    """Set back once, for tests that only look."""
    with restored() as deployed:
        yield deployed
