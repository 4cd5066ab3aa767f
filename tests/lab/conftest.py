"""The deployed lab, set back to the state right after site.yml before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from images.lab import pair
from tests.lab.deployed import Deployed

TAG = "deployed"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    off = [m.name for m in pair.MACHINES if m.pid is None]
    for item in items:
        if "tests/lab" not in item.path.as_posix():
            continue
        item.add_marker(pytest.mark.lab)
        item.add_marker(pytest.mark.timeout(600))
        if off:
            item.add_marker(pytest.mark.skip(reason=f"{' and '.join(off)} off: make lab, or make lab-up first"))


@pytest.fixture
def lab() -> Iterator[Deployed]:
    pair.restore(TAG)
    deployed = Deployed()
    try:
        deployed.wait_healthy()
        yield deployed
    finally:
        deployed.close()
