from __future__ import annotations

import pytest


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """These modules import torch and transformers, which only `make parity` installs."""
    return True if config.option.markexpr == "not parity" else None
