"""``blink bench load`` against a real appliance: what it counts is what was served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.appliance import Appliance, appliance, run_blink

pytestmark = pytest.mark.e2e
COMMON = ("--model", "tiny", "--prompt", "12", "--answer", "6", "--ids", "10", "200", "--warm-up", "0", "--json", "-")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Appliance]:
    with appliance(tmp_path_factory.mktemp("load"), tiny_model) as a:
        a.backend()
        a.frontend()
        yield a


@pytest.mark.parametrize("how", [("--rate", "20"), ("--at-once", "3")], ids=["open", "closed"])
def test_every_counted_request_is_answered_whole(up: Appliance, how: tuple[str, str]) -> None:
    before = up.observe().finished
    url = f"http://127.0.0.1:{up.port}"
    done = run_blink("bench", "load", "--url", url, *COMMON, *how, "--seconds", "2", "--sigma", "0.5")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["errors"] == {}
    assert found["requests"] == found["completed"] > 5
    assert 0 < found["ttft_ms"]["p50"] <= found["ttft_ms"]["p99"]
    assert 0 < found["tpot_ms"]["p50"] <= found["tpot_ms"]["p99"]
    assert 0 < found["scheduler_ttft_ms"]["mean"] <= found["ttft_ms"]["mean"]
    assert 0 < found["scheduler_ttft_ms"]["p99"] <= found["ttft_ms"]["p99"]
    assert 0 < found["scheduler_tpot_ms"]["p50"] <= found["scheduler_tpot_ms"]["p99"]
    assert found["requests_per_s"] > 0
    served = sum(up.observe().finished.values()) - sum(before.values())
    assert served >= found["completed"]


def test_failures_are_counted_by_cause_and_fail_the_command(up: Appliance) -> None:
    arguments = ("--url", f"http://127.0.0.1:{up.port}", *COMMON, "--at-once", "1", "--seconds", "0.2")
    done = run_blink("bench", "load", *arguments, "--model", "other")
    assert done.returncode == 1
    errors = json.loads(done.stdout)["errors"]
    assert errors
    assert all("HTTP 404" in cause for cause in errors)


def test_a_server_that_is_not_there() -> None:
    arguments = ("--url", "http://127.0.0.1:1", "--model", "m", "--at-once", "1", "--seconds", "0.2")
    done = run_blink("bench", "load", *arguments, "--warm-up", "0")
    assert done.returncode == 1
    assert "Connect" in done.stdout
