"""Killing, stopping and draining the processes of an appliance while it streams."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from blink.ring.layout import Counter, Reason
from tests.appliance import Appliance, appliance, wait_for

pytestmark = pytest.mark.e2e
LONG = 900
ENDED = (0, -signal.SIGTERM)
"""Exit codes of a process that did as it was told; one that ends by the signal itself has cleaned up before."""


class Stream:
    """One streamed completion, read in a thread of its own."""

    def __init__(self, a: Appliance, max_tokens: int = LONG) -> None:
        self.events: list[Any] = []
        self.broken: str | None = None
        body = {
            "model": "tiny", "prompt": "The capital", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        self._thread = threading.Thread(target=self._read, args=(a.client(), body), daemon=True)
        self._thread.start()

    def _read(self, client: httpx.Client, body: dict[str, Any]) -> None:
        try:
            with client.stream("POST", "/v1/completions", json=body) as response:
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        data = line.removeprefix("data: ")
                        self.events.append(json.loads(data) if data.startswith("{") else data)
        except httpx.HTTPError as e:
            self.broken = f"{type(e).__name__}: {e}"

    def wait_started(self) -> None:
        wait_for("the stream's first chunks", lambda: len(self.events) > 3)

    def wait_ended(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the stream hangs"

    @property
    def tokens(self) -> int | None:
        """completion_tokens of the usage chunk, where there is one."""
        usages = [e["usage"] for e in self.events if isinstance(e, dict) and e.get("usage")]
        return usages[0]["completion_tokens"] if usages else None

    @property
    def error(self) -> str | None:
        """The message of the error event that ended the stream, if one did."""
        errors = [e["error"] for e in self.events if isinstance(e, dict) and "error" in e]
        assert len(errors) <= 1
        return errors[0]["message"] if errors else None


def complete(a: Appliance, max_tokens: int = 5) -> httpx.Response:
    body = {"model": "tiny", "prompt": "The capital", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    with a.client() as client:
        return client.post("/v1/completions", json=body)


def hop(a: Appliance) -> str | None:
    """The hop that keeps a frontend from serving, as it says itself; None where it serves or does not answer."""
    try:
        with a.client(timeout=5) as client:
            return client.get("/health").json()["hop"]  # type: ignore[no-any-return]
    except httpx.HTTPError:
        return None


def wait_serving(a: Appliance) -> None:
    """Wait until the appliance answers a request."""
    wait_for("an answer", lambda: complete(a).status_code == 200)


def balanced(a: Appliance) -> Callable[[], Any]:
    """Whether nothing is held, and everything that was taken was given back; the observation where so."""

    def check() -> Any:
        seen = a.observe()
        held = (seen.requests_held, seen.lanes_used, seen.pages_used)
        return held == (0, 0, 0) and sum(seen.finished.values()) == seen.counter(Counter.CLAIMS) and seen

    return check


def smoke(a: Appliance) -> None:
    result = a.command("smoke")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture
def a(tmp_path: Path, tiny_model: Path) -> Iterator[Appliance]:
    with appliance(tmp_path, tiny_model) as a:
        yield a


def test_a_killed_backend_ends_streams_with_an_error_and_the_frontend_goes_on(a: Appliance) -> None:
    backend, frontend = a.backend(), a.frontend()
    stream = Stream(a)
    stream.wait_started()
    backend.kill()
    backend.wait(10)
    a.backend()
    stream.wait_ended()
    assert stream.broken is None
    assert stream.error is not None
    assert "backend" in stream.error
    assert stream.tokens is None
    wait_serving(a)
    assert frontend.poll() is None
    smoke(a)


def test_without_a_restart_a_dead_backend_is_noticed_and_named(a: Appliance) -> None:
    backend, frontend = a.backend(), a.frontend()
    stream = Stream(a)
    stream.wait_started()
    backend.kill()
    backend.wait(10)
    stream.wait_ended()
    assert stream.broken is None
    assert stream.error
    response = complete(a)
    assert response.status_code == 503
    assert response.json()["error"]["message"]
    assert not a.healthy()
    assert frontend.poll() is None


def test_a_restarted_frontend_reclaims_what_its_predecessor_held(a: Appliance) -> None:
    backend, frontend = a.backend(), a.frontend()
    streams = [Stream(a) for _ in range(6)]  # more than lanes, so that some wait
    # One that is cancelled before it is claimed is finished and no claim.
    wait_for("the scheduler to have them all", lambda: a.observe().counter(Counter.CLAIMS) == len(streams))
    streams[0].wait_started()
    # What the backend holds now cannot end before the next frontend has come for it, however long that takes to start.
    with a.stopped("backend"):
        frontend.kill()
        frontend.wait(10)
        for stream in streams:
            stream.wait_ended()
            assert stream.broken is not None
        a.start("frontend")
        wait_for("the next frontend to find them", lambda: hop(a) == "frontend")
    wait_serving(a)
    assert backend.poll() is None
    seen = wait_for("a balanced ring", balanced(a))
    assert Reason.CANCELLED in seen.finished
    smoke(a)
    smoke(a)


def test_a_frontend_killed_twice_while_it_recovers(a: Appliance) -> None:
    backend, frontend = a.backend(), a.frontend()
    stream = Stream(a)
    stream.wait_started()
    frontend.kill()
    frontend.wait(10)
    again = a.start("frontend")
    wait_for("its start", lambda: a.log("frontend").count("listening") == 2)
    again.kill()
    again.wait(10)
    a.frontend()
    wait_serving(a)
    wait_for("a balanced ring", balanced(a))
    assert backend.poll() is None


def test_a_stopped_backend_delays_a_stream_and_loses_nothing(a: Appliance) -> None:
    backend = a.backend()
    a.frontend()
    stream = Stream(a)
    stream.wait_started()
    backend.send_signal(signal.SIGSTOP)
    time.sleep(1)
    assert len(stream.events) < LONG
    backend.send_signal(signal.SIGCONT)
    stream.wait_ended()
    assert (stream.error, stream.broken, stream.tokens) == (None, None, LONG)
    assert stream.events[-1] == "[DONE]"


def test_a_stalled_backend_is_named_and_serves_again_when_continued(a: Appliance) -> None:
    backend = a.backend()
    a.frontend()
    backend.send_signal(signal.SIGSTOP)
    wait_for("the stall to be noticed", lambda: not a.healthy())
    assert complete(a).status_code == 503
    backend.send_signal(signal.SIGCONT)
    wait_serving(a)


def test_a_drained_backend_finishes_its_streams(a: Appliance) -> None:
    backend = a.backend()
    a.frontend()
    stream = Stream(a)
    stream.wait_started()
    backend.send_signal(signal.SIGTERM)
    stream.wait_ended()
    assert (stream.error, stream.broken, stream.tokens) == (None, None, LONG)
    assert backend.wait(10) == 0
    assert complete(a).status_code == 503


def test_a_frontend_told_to_stop_finishes_its_streams(a: Appliance) -> None:
    a.backend()
    frontend = a.frontend()
    stream = Stream(a)
    stream.wait_started()
    frontend.send_signal(signal.SIGTERM)
    stream.wait_ended()
    assert (stream.error, stream.broken, stream.tokens) == (None, None, LONG)
    assert frontend.wait(10) in ENDED
    wait_for("a balanced ring", balanced(a))


def test_stopping_leaves_no_process_and_no_file(a: Appliance) -> None:
    backend, frontend = a.backend(), a.frontend()
    wait_serving(a)
    for process in (frontend, backend):
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in ENDED
    assert list(a.ring_dir.iterdir()) == []
    for half in ("backend", "frontend"):
        assert "Traceback" not in a.log(half)
    commands = [p.read_bytes().split(b"\0") for p in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [c for c in commands if str(a.config_path).encode() in c]
