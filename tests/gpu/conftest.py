"""The device that the tests of this folder need."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from blink.errors import BlinkError


@pytest.fixture(scope="session")
def gpu() -> object:
    """The machine's first CUDA device; skips where there is none, with the reason."""
    pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")
    from blink.gpu.cuda import Device

    try:
        return Device()
    except BlinkError as e:
        pytest.skip(str(e))


@pytest.fixture
def shm() -> Iterator[Path]:
    """A directory on a tmpfs, whose files a device can map."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)
