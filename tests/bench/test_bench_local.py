"""The local benchmark: its arithmetic, and a run on a real appliance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blink.bench.local import MAX_TOKENS, PROMPT_TOKENS, STREAMS
from blink.bench.streams import Load, Stream
from blink.instruments import machine
from tests.appliance import appliance


def test_rates_and_latencies_of_known_streams() -> None:
    one = Stream(sent=0.0, first=0.5, last=2.5, tokens=5)
    two = Stream(sent=1.0, first=1.5, last=4.5, tokens=5)
    assert (one.ttft, one.tpot) == (0.5, 0.5)
    assert Load(1, (one, two)).decode_rate == pytest.approx(8 / (2.0 + 3.0))
    assert Load(2, (one, two)).decode_rate == pytest.approx(8 / (4.5 - 0.5))
    assert Load(2, (one, two)).percentile("tpot", 50) == pytest.approx(0.625)


def test_a_busy_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr("os.getloadavg", lambda: (0.4, 0, 0))
    assert machine.busy_warning() is None
    monkeypatch.setattr("os.getloadavg", lambda: (0.6, 0, 0))
    assert "load 0.60 on 2 cores" in (machine.busy_warning() or "")


@pytest.mark.e2e
def test_a_run_counts_every_token_and_prints_what_it_ran_on(tmp_path: Path, tiny_model: Path) -> None:
    with appliance(tmp_path, tiny_model) as a:
        down = a.command("bench", "local")
        assert down.returncode == 1
        assert "start the frontend, then try again" in down.stderr
        a.backend()
        a.frontend()
        result = a.command("bench", "local", "--json", str(tmp_path / "bench.json"))
        assert result.returncode == 0, result.stderr
        seen = a.observe()
    lanes = seen.header.lanes
    document = json.loads((tmp_path / "bench.json").read_text())
    assert [load["streams"] for load in document["http"]] == [1, lanes]
    assert [load["requests"] for load in document["http"]] == [STREAMS, STREAMS]
    assert [figure["rows"] for figure in document["engine_only"]] == [1, lanes]
    assert all(load["decode_tokens_per_s"] > 0 for load in (*document["http"], *document["engine_only"]))
    served = 1 + 2 * STREAMS
    assert sum(seen.finished.values()) == served
    assert document["prompt_tokens"] == PROMPT_TOKENS
    for fact in ("cpu", "cores", "memory", "load average"):
        assert document["hardware"][fact] in result.stdout
    assert f"http, {lanes} streams" in result.stdout
    assert document["max_tokens"] == MAX_TOKENS
