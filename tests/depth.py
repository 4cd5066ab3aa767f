"""How long the tests search, which TEST_DEPTH says: dev, what a change is tried with; ci, the default of CI; deep."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

SCALES = {"dev": 0.2, "ci": 1.0, "deep": 10.0}
DEPTH = os.environ.get("TEST_DEPTH") or "dev"
if DEPTH not in SCALES:
    raise pytest.UsageError(f"TEST_DEPTH is {DEPTH}: choose one of {', '.join(SCALES)}")
SCALE = SCALES[DEPTH]

beyond_dev = pytest.mark.skipif(DEPTH == "dev", reason="searches long: TEST_DEPTH=ci")
"""For a test of which a shorter search stays in every run."""


def examples(count: int, **options: Any) -> settings:
    """Settings of a hypothesis test that tries ``count`` examples in CI. No deadline: that would measure the machine.

    ``options`` are hypothesis' own, such as ``suppress_health_check``.
    """
    return settings(max_examples=max(1, round(count * SCALE)), deadline=None, **options)
