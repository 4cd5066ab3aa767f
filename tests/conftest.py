"""Fixtures that tests of several folders share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_model import prepare_tiny


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder with a small random checkpoint; do not change it."""
    return prepare_tiny(tmp_path_factory.mktemp("tiny"))
