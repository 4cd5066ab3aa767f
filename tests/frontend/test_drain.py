"""Taking an appliance out of service: what load balancers, clients and operators see of it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.appliance import Appliance, appliance, run_blink, wait_for
from tests.frontend.conftest import ENGINE

pytestmark = pytest.mark.e2e
ASK = {"model": "tiny", "prompt": "a", "max_tokens": 4}
AT_ONCE = ("--settle", "0")


@pytest.fixture
def made(chat_model: Path, tmp_path: Path) -> Iterator[Appliance]:
    # Where the machine is slow, a backend is stopped for as long as a command takes to start, and its requests wait.
    frontend = {"drain_timeout_s": 0.5, "link_timeout_s": 60.0}
    with appliance(tmp_path / "a", chat_model, engine=ENGINE, frontend=frontend) as a:
        a.backend()
        a.frontend()
        yield a


def ready(a: Appliance) -> tuple[int, str | None]:
    with a.client() as client:
        response = client.get("/ready")
    return response.status_code, response.json()["reason"]


def test_a_drained_appliance_asks_for_no_requests_and_serves_those_that_come(made: Appliance) -> None:
    assert ready(made) == (200, None)
    done = made.command("drain", "--reason", "a new card", *AT_ONCE)
    assert (done.returncode, done.stdout) == (0, "drained: no request runs\n"), done.stderr
    assert ready(made) == (503, "a new card")
    with made.client() as client:
        assert client.get("/health").status_code == 200
        assert client.post("/v1/completions", json=ASK).status_code == 200
        assert "\nblink_drained 1.0\n" in client.get("/metrics").text
    assert "drained       a new card" in made.call("status").stdout

    assert made.call("drain", "--reason", "another", *AT_ONCE).returncode == 0
    assert ready(made) == (503, "a new card"), "the first reason stays"

    assert made.call("undrain").stdout == "takes requests again\n"
    assert ready(made) == (200, None)
    assert made.call("undrain").stdout == "was not drained\n"
    with made.client() as client:
        assert "\nblink_drained 0.0\n" in client.get("/metrics").text


def test_it_stays_drained_over_a_restart(made: Appliance) -> None:
    made.call("drain", *AT_ONCE)
    process = made.start("frontend")
    assert process.wait(20) != 0, "the first one still has the port"
    made.close()
    assert made.call("drain", *AT_ONCE).returncode == 0, "nothing runs where no frontend does"
    made.backend()
    made.frontend()
    assert ready(made)[0] == 503


def test_the_drain_waits_for_what_runs_and_says_what_it_waited_for(made: Appliance) -> None:
    with made.client() as client, ThreadPoolExecutor(1) as pool:
        # A backend that runs could be done with any request before the drain begins.
        with made.stopped("backend"):
            answer = pool.submit(client.post, "/v1/completions", json=ASK)
            wait_for("the request", lambda: client.get("/ready").json()["running"] == 1)
            done = made.call("drain", "--timeout", "2", *AT_ONCE)
        assert done.returncode == 3
        assert done.stderr.startswith("blink: 1 requests still run 2 s after the drain began: wait")
        assert ready(made)[0] == 503
        assert answer.result(30).status_code == 200
    done = made.call("drain", *AT_ONCE)
    assert done.returncode == 0, done.stderr
    wait_for("the slot", lambda: made.observe().requests_held == 0)
    with made.client() as client:
        assert client.get("/ready").json()["running"] == 0


def test_an_appliance_that_cannot_serve_is_not_ready_and_says_why(made: Appliance) -> None:
    with made.stopped("backend"):
        wait_for("the frontend to notice", lambda: ready(made)[0] == 503)
        assert "beat" in str(ready(made)[1])
    wait_for("the backend", lambda: ready(made)[0] == 200)


class SomethingElse(BaseHTTPRequestHandler):
    """A server that is no frontend."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")


def test_a_drain_asks_no_frontend_of_something_else_on_its_port(tmp_path: Path, chat_model: Path) -> None:
    with appliance(tmp_path / "c", chat_model) as a, HTTPServer(("127.0.0.1", a.port), SomethingElse) as server:
        a.config.instance.run_dir.mkdir()
        Thread(target=server.serve_forever, daemon=True).start()
        done = a.call("drain", *AT_ONCE)
        server.shutdown()
    assert done.returncode == 1
    assert "the frontend does not say in GET /ready what it runs (KeyError: 'running')" in done.stderr


def test_a_drain_before_the_first_deployment_is_told_what_to_do(tmp_path: Path, chat_model: Path) -> None:
    with appliance(tmp_path / "b", chat_model) as a:
        done = a.call("drain", *AT_ONCE)
    assert done.returncode == 1
    assert "deploy the appliance first" in done.stderr


def test_an_appliance_without_a_configuration_is_marked_as_drained_and_the_first_reason_counts(tmp_path: Path) -> None:
    folder = tmp_path / "run/c"
    for reason in ("a new card", "another"):
        assert run_blink("drain", "--mark", str(folder), "--reason", reason).returncode == 0
    assert (folder / "drain").read_text() == "a new card\n"
    assert folder.stat().st_mode & 0o077 == 0
