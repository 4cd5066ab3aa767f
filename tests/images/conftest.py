"""Fixtures of the images' tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def host_key(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A fresh private SSH key."""
    path = tmp_path_factory.mktemp("key") / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True, timeout=60)
    return Path(path).read_text()
