"""The ring benchmark: what it would notice, and a small run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from blink.errors import BlinkError
from blink.instruments import ring, ring_primitives, ring_sse, ring_worker
from blink.instruments.ring_client import ClientRun
from blink.instruments.ring_setup import configure, missing
from blink.instruments.ring_synthetic import COUNT, WIDTH, SyntheticRing, answer, text, write_model
from blink.model.prepared import PreparedModel
from blink.ring.client import RingClient
from tests.appliance import call_blink, wait_for
from tests.ringd.host import host

PROMPT, TOKENS = 3, 6


def response(
    pieces: list[str], *, usage: int = TOKENS, done: bytes = b"data: [DONE]\n\n", per_chunk: int = 1
) -> tuple[bytes, list[tuple[float, int]]]:
    """A chunked response whose i-th event with text arrives at time i, and its arrivals."""
    documents: list[dict[str, Any]] = [{"choices": [{"text": p}]} for p in pieces]
    documents.append({"choices": [], "usage": {"completion_tokens": usage}})
    events = [b"data: " + json.dumps(d).encode() + b"\n\n" for d in documents]
    events[-1] += done
    data, arrivals = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", []
    for i in range(0, len(events), per_chunk):
        body = b"".join(events[i : i + per_chunk])
        data += b"%x\r\n%s\r\n" % (len(body), body)
        arrivals.append((float(i), len(data)))
    return data + b"0\r\n\r\n", arrivals


def pieces(seed: int = 5) -> list[str]:
    said = answer(PROMPT, seed, TOKENS)
    return [said[i : i + WIDTH] for i in range(0, len(said), WIDTH)]


@pytest.mark.parametrize("per_chunk", [1, 2, 10])
def test_a_right_response_is_counted(per_chunk: int) -> None:
    stream = ring_sse.check(*response(pieces(), per_chunk=per_chunk), 5, PROMPT, TOKENS)
    assert stream.tokens == (1,) * TOKENS
    assert stream.times == tuple(float(i // per_chunk * per_chunk) for i in range(TOKENS))


def test_tokens_of_one_event_are_counted() -> None:
    one, two, *rest = pieces()
    assert ring_sse.check(*response([one + two, *rest]), 5, PROMPT, TOKENS).tokens == (2, 1, 1, 1, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        pieces()[:-1],
        pieces()[1:],
        [*pieces()[:3], pieces()[2], *pieces()[3:]],
        [pieces()[1], pieces()[0], *pieces()[2:]],
        pieces(seed=6),
    ],
    ids=["last lost", "first lost", "doubled", "swapped", "another stream's"],
)
def test_a_wrong_token_is_a_defect(wrong: list[str]) -> None:
    with pytest.raises(BlinkError, match="stream 5"):
        ring_sse.check(*response(wrong), 5, PROMPT, TOKENS)


def test_a_wrong_end_is_a_defect() -> None:
    for data, arrivals in (response(pieces(), usage=TOKENS - 1), response(pieces(), done=b"")):
        with pytest.raises(BlinkError, match="stream 5"):
            ring_sse.check(data, arrivals, 5, PROMPT, TOKENS)


def test_the_synthetic_model_says_what_the_engine_counts(tmp_path: Path) -> None:
    fingerprint = write_model(tmp_path / "model")
    model = PreparedModel.open(tmp_path / "model")
    tokenizer = model.tokenizer()
    assert model.fingerprint == fingerprint
    assert [tokenizer.token_bytes(t).decode() for t in (0, 42, COUNT - 1)] == [text(0), text(42), text(COUNT - 1)]
    assert answer(COUNT - 1, 0, 2) == text(COUNT - 1) + text(0)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--streams", "0"), "--streams"),
        (("--streams", "1025"), "--streams"),
        (("--seconds", "0"), "--seconds"),
        (("--rate", "1"), "--rate"),
        (("--rate", "-5"), "--rate"),
        (("--rate", "1e12"), "--rate"),
        (("--rate", "nan"), "--rate"),
    ],
)
def test_bad_numbers_are_refused(arguments: tuple[str, ...], field: str) -> None:
    result = call_blink("bench", "ring", *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"blink: {field}")
    assert len(result.stderr.splitlines()) == 1


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "blink", "bench", "ring", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.e2e
def test_a_run_measures_and_checks_every_token(tmp_path: Path) -> None:
    path, streams, seconds, rate = tmp_path / "ring.json", 4, 1.0, 400.0
    process = start("--streams", str(streams), "--seconds", str(seconds), "--rate", str(rate), "--json", str(path))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    document = json.loads(path.read_text())
    shm = document["transports"]["shm"]
    assert len(shm["primitives"]) == 4
    assert all(p["ops_per_s"] > 0 and 0 < p["p50_us"] <= p["p99_us"] for p in shm["primitives"].values())
    assert shm["submissions"]["per_s"] > 0
    assert set(shm["client_tokens"]) == {"1", "4"}
    lockstep, offered = shm["worker"]
    assert lockstep["tokens_checked"] == streams * ring.LOCKSTEP_TOKENS
    assert offered["tokens_checked"] == streams * (int(seconds * rate / streams) + 1)
    for run in (lockstep, offered):
        assert 0 < run["events_per_s"] <= run["tokens_per_s"] * 1.01
        assert run["lag_ms"]["p50"] > 0
    assert lockstep["events_per_s"] == pytest.approx(lockstep["tokens_per_s"])  # no two tokens wait at once
    why = missing("verbs", None)
    if why is None:
        assert len(document["transports"]["verbs"]["worker"]) == 2
    else:
        assert document["transports"]["verbs"] == {"not_measured": why}
        assert f"not measured: {why}" in out
    assert document["hardware"]["cpu"] in out
    assert "load average" in out
    assert not leftovers(process.pid)


@pytest.mark.e2e
def test_a_stopped_run_leaves_nothing_behind() -> None:
    process = start("--transport", "shm", "--streams", "2", "--rate", "100")
    wait_for("the benchmark's own frontend", lambda: [p for p in leftovers(process.pid) if (p / "log").exists()])
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert not leftovers(process.pid)
    wait_for("its processes to end", lambda: not group_lives(process.pid), 10)


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def leftovers(pid: int) -> list[Path]:
    return list(Path("/dev/shm").glob(f"blink-bench-{pid}-*"))


def test_a_link_that_answers_later_is_measured_as_well(tmp_path: Path) -> None:
    """The verbs transport over a simulated device: what is posted completes some polls later."""
    config = configure(tmp_path, "verbs", streams=4, max_context=64 + 4 * 5, device=None)
    for part in ("primitives", "client"):
        (tmp_path / part).mkdir()
        with host(tmp_path / part) as h, closing(SyntheticRing(config, bytes(32))) as world:
            world.ring.publish()
            h.announce(config.instance.ring_dir)
            if part == "primitives":
                found = ring_primitives.measure(h.transport(), config.ring.geometry(), 0.05)
                assert len(found) == 4
                assert all(p.ops_per_s > 0 and 0 < p.p50_us <= p.p99_us for p in found.values())
                continue
            with closing(RingClient(h.transport(), fingerprint=bytes(32))) as client:
                run = ClientRun(world, client, 4)
                assert run.submissions(2).per_s > 0
                assert all(run.tokens(n, 5).cpu_us > 0 for n in (1, 4))


def test_a_machine_without_a_frontend_or_a_second_core_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3})
    assert "one core" in str(ring_worker.missing())
    assert ring_worker.cores() == (3, 3)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 3})
    assert ring_worker.missing() is None
    monkeypatch.setattr(ring_worker, "find_spec", lambda name: None if name == "uvicorn" else object())
    assert "uvicorn" in str(ring_worker.missing())
