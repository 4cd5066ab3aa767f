"""Fixtures that tests of several folders share, and the order in which files begin where several run side by side."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.tiny_model import prepare_tiny

# The tools of the environment, whose bin need not be on the PATH of whoever calls pytest.
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

LONGEST = (
    "ansible/test_fleet",
    "vendor/test_flash",
    "vendor/test_playbooks",
    "vendor/test_remote",
    "vendor/test_provision",
    "ansible/test_losses",
    "ansible/test_local",
    "ansible/test_refusals",
    "ansible/test_gpu_preflight",
    "gpu/test_toolchain",
    "frontend/test_lifecycle",
    "e2e/test_crashes",
    "frontend/test_drain",
)
"""Begun first, longest first: what begins last and is long keeps one process busy while the others have nothing."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.relative_to(root).with_suffix("").as_posix(), len(rank)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What did not run here, by reason, and not by line as pytest's own list has it."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(r.longrepr[2].removeprefix("Skipped: ") for r in reports if isinstance(r.longrepr, tuple))
    if reasons:
        terminalreporter.section("not run here")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5} {reason}")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder with a small random checkpoint; do not change it."""
    return prepare_tiny(tmp_path_factory.mktemp("tiny"))
