"""Starting, failing and stopping: what clients and operators see when a part is not there."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from blink.model.prepared import PreparedModel
from blink.ring.lease import PartitionLease
from tests.appliance import Appliance, appliance, wait_for
from tests.authority import Authority
from tests.frontend.conftest import ENGINE
from tests.frontend.sse_client import events
from tests.tiny_model import prepare_tiny

pytestmark = pytest.mark.e2e
ASK = {"model": "tiny", "prompt": "a", "max_tokens": 4}
LONG = {"model": "tiny", "prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True}


@pytest.fixture
def made(chat_model: Path, tmp_path: Path) -> Iterator[Appliance]:
    """An appliance that a test may break, with short timeouts; nothing runs yet."""
    frontend = {"link_timeout_s": 1.0, "drain_timeout_s": 0.5}
    with appliance(tmp_path / "a", chat_model, engine=ENGINE, frontend=frontend) as a:
        yield a


def answers(a: Appliance) -> bool:
    """Whether HTTP is served at all."""
    try:
        a.client(timeout=2).get("/version")
    except httpx.HTTPError:
        return False
    return True


def start_frontend(a: Appliance) -> subprocess.Popen[bytes]:
    """A frontend whose backend may be missing."""
    process = a.start("frontend")
    wait_for("the frontend's port", lambda: answers(a))
    return process


def hop(a: Appliance) -> Any:
    with a.client() as client:
        response = client.get("/health")
    assert response.status_code == (200 if response.json()["hop"] is None else 503)
    return response.json()["hop"]


def test_a_backend_that_comes_later(made: Appliance) -> None:
    start_frontend(made)
    assert hop(made) == "link"
    with made.client() as client:
        response = client.post("/v1/completions", json=ASK)
        assert response.status_code == 503
        assert "backend not up" in response.json()["error"]["message"]
        assert int(response.headers["retry-after"]) >= 1
        made.backend()
        wait_for("the link", lambda: hop(made) is None)
        assert client.post("/v1/completions", json=ASK).status_code == 200


def post_in_thread(a: Appliance, body: dict[str, Any]) -> tuple[threading.Thread, list[httpx.Response]]:
    got: list[httpx.Response] = []

    def post() -> None:
        with a.client() as client:
            got.append(client.post("/v1/completions", json=body))

    thread = threading.Thread(target=post)
    thread.start()
    return thread, got


@pytest.mark.parametrize(
    ("number", "message"),
    [(signal.SIGKILL, "link: backend not up: the process that made the ring"), (signal.SIGSTOP, "scheduler: no beat")],
)
def test_a_backend_that_dies_or_hangs_while_it_answers(made: Appliance, number: signal.Signals, message: str) -> None:
    """A stream ends with an error event that names the hop, a whole answer with 503, and both may be tried again."""
    backend = made.backend()
    made.frontend()
    thread, whole = post_in_thread(made, LONG | {"stream": False})
    with made.client() as client, client.stream("POST", "/v1/completions", json=LONG) as response:
        stream = events(response)
        next(stream)
        backend.send_signal(number)
        *_, last = stream
    assert isinstance(last, dict)
    assert set(last) == {"error"}
    assert last["error"]["code"] == "backend_unavailable"
    assert last["error"]["message"].startswith(message)
    thread.join(30)
    assert whole[0].status_code == 503
    assert hop(made) == message.partition(":")[0]
    with made.client() as client:
        assert client.post("/v1/completions", json=ASK).status_code == 503
    if number == signal.SIGSTOP:
        backend.send_signal(signal.SIGCONT)
    else:
        made.backend()
    wait_for("the backend", lambda: hop(made) is None)
    with made.client() as client:
        assert client.post("/v1/completions", json=ASK).status_code == 200
    wait_for("the slots", lambda: made.observe().requests_held == 0)


def test_a_backend_that_drains_names_itself(made: Appliance) -> None:
    """What runs is finished or fails with the scheduler's reason; what comes then is refused with it."""
    backend = made.backend()
    made.frontend()
    with made.client() as client, client.stream("POST", "/v1/completions", json=LONG) as response:
        stream = events(response)
        next(stream)
        backend.terminate()
        refused = client_post(made)
        assert refused.status_code == 503
        assert refused.json()["error"]["message"].split(":")[0] in ("scheduler", "link")
        *_, last = stream
    assert last == "[DONE]" or set(last) == {"error"}  # type: ignore[arg-type]
    wait_for("the frontend to notice", lambda: hop(made) == "link")


def client_post(a: Appliance) -> httpx.Response:
    with a.client() as client:
        while (response := client.post("/v1/completions", json=ASK)).status_code == 200:
            pass
        return response


def test_another_model_than_the_backends(made: Appliance, tmp_path: Path) -> None:
    """Both fingerprints are named, to operators and to clients."""
    made.backend()
    other = prepare_tiny(tmp_path / "other", seed=7)
    text = made.config_path.read_text()
    made.config_path.write_text(text.replace(str(made.config.model.path), str(other)))
    start_frontend(made)
    with made.client() as client:
        reason = wait_for("the header", lambda: "model" in (r := client.get("/health").json()["reason"]) and r)
        error = client.post("/v1/completions", json=ASK)
    assert error.status_code == 503
    for text in (reason, error.json()["error"]["message"]):
        for fingerprint in (made.observe().header.fingerprint, PreparedModel.open(other).fingerprint):
            assert fingerprint.hex()[:12] in text


def test_sigterm_lets_short_answers_finish_and_frees_the_slots_of_long_ones(made: Appliance) -> None:
    made.backend()
    frontend = made.frontend()
    got: dict[str, Any] = {}

    def read(name: str, body: dict[str, Any], started: threading.Event) -> None:
        with made.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
            stream = events(response)
            next(stream)
            started.set()
            *_, got[name] = stream

    bodies = {f"long{i}": LONG | {"prompt": f"{i}"} for i in range(2)} | {"short": LONG | {"max_tokens": 30}}
    started = {name: threading.Event() for name in bodies}
    threads = [threading.Thread(target=read, args=(n, b, started[n])) for n, b in bodies.items()]
    for thread in threads:
        thread.start()
    assert all(event.wait(20) for event in started.values())
    frontend.terminate()
    assert frontend.wait(20) == 0
    for thread in threads:
        thread.join(10)
    assert got["short"] == "[DONE]"
    for name in ("long0", "long1"):
        assert got[name]["error"]["message"] == "frontend: it is shutting down"
    assert made.observe().requests_held == 0
    assert made.observe().lanes_used == 0
    assert "Traceback" not in made.log("frontend")


def test_a_frontend_that_was_killed_is_followed_by_one_that_takes_over(made: Appliance) -> None:
    made.backend()
    frontend = made.frontend()
    with made.client() as client, client.stream("POST", "/v1/completions", json=LONG) as response:
        next(events(response))
        frontend.kill()
        frontend.wait(10)
    made.frontend()
    with made.client() as client:
        assert client.post("/v1/completions", json=ASK).status_code == 200
    wait_for("the old requests", lambda: made.observe().requests_held == 0)


def refused_start(a: Appliance) -> str:
    """The one line with which ``blink frontend`` refuses to start; e2e/test_bad_input sees the process end by it."""
    done = a.call("frontend")
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line]
    assert "Traceback" not in done.stderr
    assert ": " in lines[-1]
    return lines[-1]


def test_a_busy_port(made: Appliance) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", made.port))
        s.listen()
        assert str(made.port) in refused_start(made)


def test_a_partition_in_use(made: Appliance) -> None:
    with PartitionLease(made.config.instance.run_dir, 0):
        assert f"partition 0 is in use by process {os.getpid()}" in refused_start(made)


def edit(a: Appliance, section: str, **values: object) -> None:
    """Set ``values`` in one section of the configuration."""
    lines = "".join(f"{k} = {v!r}\n" for k, v in values.items())
    text = a.config_path.read_text()
    kept = "\n".join(line for line in text.splitlines() if line.split(" = ")[0] not in values)
    a.config_path.write_text(kept.replace(f"[{section}]\n", f"[{section}]\n{lines}") + "\n")


@pytest.mark.parametrize(
    ("section", "values", "named"),
    [
        ("model", {"path": "/nowhere"}, "/nowhere"),
        ("model", {"chat_template": "/nowhere.jinja"}, "/nowhere.jinja"),
        ("frontend", {"api_keys_file": "/nowhere.keys"}, "/nowhere.keys"),
        ("frontend", {"tls_cert": "/nowhere.pem"}, "tls_key"),
        ("frontend", {"tls_cert": "/nowhere.pem", "tls_key": "/nowhere.pem"}, "/nowhere.pem"),
        ("frontend", {"host": "0.0.0.0"}, "host"),
        (
            "frontend",
            {"host": "192.0.2.1", "api_keys_file": "x", "tls_cert": "/no.pem", "tls_key": "/no.pem"},
            "/no.pem",
        ),
    ],
)
def test_what_cannot_be_used_is_named(made: Appliance, section: str, values: dict[str, str], named: str) -> None:
    edit(made, section, **values)
    assert named in refused_start(made)


def test_api_keys(made: Appliance, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first-key\nsecond-key\n")
    edit(made, "frontend", api_keys_file=str(keys))
    start_frontend(made)
    with made.client() as client:
        for header in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer"},
            {"Authorization": "first-key"},
        ):
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/tokenize")):
                response = client.request(method, path, headers=header)
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
        for key in ("first-key", "second-key"):
            assert client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert client.get("/version").status_code == 200
        assert client.get("/metrics").status_code == 200
    assert "first-key" not in made.log("frontend")


def test_tls_and_keys_off_loopback(made: Appliance, tmp_path: Path) -> None:
    cert, key, keys = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "keys"
    authority = Authority("Fleet, simulated")
    for file, text in zip((cert, key), authority.issue("localhost"), strict=True):
        file.write_text(text)
    keys.write_text("the-key\n")
    edit(made, "frontend", host="0.0.0.0", api_keys_file=str(keys), tls_cert=str(cert), tls_key=str(key))
    made.start("frontend")
    trust = ssl.create_default_context(cadata=authority.pem)
    with httpx.Client(base_url=f"https://127.0.0.1:{made.port}", verify=trust, trust_env=False) as client:

        def version() -> bool:
            try:
                return client.get("/version").status_code == 200
            except httpx.HTTPError:
                return False

        wait_for("https", version)
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"Authorization": "Bearer the-key"}).status_code == 200


def test_an_answer_that_takes_too_long(made: Appliance) -> None:
    """The scheduler ends it at its deadline; the client learns that it was the time."""
    edit(made, "frontend", request_timeout_s=0.2)
    made.backend()
    made.frontend()
    with made.client() as client:
        whole = client.post("/v1/completions", json=LONG | {"stream": False, "n": 4})
        assert (whole.status_code, whole.json()["error"]["code"]) == (504, "timeout")
        with client.stream("POST", "/v1/completions", json=LONG | {"n": 4}) as response:
            *_, last = events(response)
        assert last["error"]["code"] == "timeout"  # type: ignore[index]
    wait_for("the slots", lambda: made.observe().requests_held == 0)


def test_a_chat_template_of_ones_own(made: Appliance, tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages[0].content }}!")
    edit(made, "model", chat_template=str(template))
    start_frontend(made)
    body = {"messages": [{"role": "user", "content": "hi"}]}
    with made.client() as client:
        tokens = client.post("/tokenize", json=body).json()["tokens"]
        assert client.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == "hi!"
        tools = [{"type": "function", "function": {"name": "f"}}]
        made.backend()
        wait_for("the link", lambda: hop(made) is None)
        refused = client.post("/v1/chat/completions", json=body | {"model": "tiny", "tools": tools})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")


class Workers:
    """The two workers of a frontend, which ``run_dir`` names by the partitions that they hold."""

    def __init__(self, a: Appliance) -> None:
        self._a = a

    def pid(self, partition: int) -> int:
        """The process that took the partition last; 0 where one is about to say so."""
        return int((self._a.config.instance.run_dir / f"partition-{partition}.lock").read_text() or 0)

    @contextmanager
    def only(self, partition: int) -> Iterator[httpx.Client]:
        """A client of one worker: the other, which could accept its connection too, does not run meanwhile."""
        other = self.pid(1 - partition)
        os.kill(other, signal.SIGSTOP)
        try:
            with self._a.client() as client:
                yield client
        finally:
            os.kill(other, signal.SIGCONT)


def test_two_workers(made: Appliance) -> None:
    """Each has a partition of its own, a scrape of either shows both, and one that dies is replaced."""
    edit(made, "frontend", workers=2, link_timeout_s=60)
    edit(made, "ring", partitions=3, slots=66)
    made.backend()
    process = made.frontend()
    workers = Workers(made)
    # Their supervisor takes both partitions first, for a look.
    wait_for("both workers", lambda: {0, process.pid}.isdisjoint({workers.pid(0), workers.pid(1)}))

    for partition in (0, 1):
        with workers.only(partition) as client:
            assert client.get("/health").json()["partition"] == partition
            wait_for("its link", lambda client=client: client.get("/health").status_code == 200)
            for _ in range(4):
                assert client.post("/v1/completions", json=ASK).status_code == 200
    for partition in (0, 1):
        with workers.only(partition) as client:
            lines = client.get("/metrics").text.splitlines()
        assert 'blink_requests_total{finish_reason="length",model="tiny"} 8.0' in lines

    def ask() -> None:
        with made.client() as client:
            client.post("/v1/completions", json=ASK)

    def running(partition: int) -> int:
        """What a worker says is in flight."""
        with workers.only(partition) as client:
            return int(client.get("/ready").json()["running"])

    with ThreadPoolExecutor(8) as pool:
        with made.stopped("backend"):
            asked = [pool.submit(ask) for _ in range(8)]
            for partition in (0, 1):
                # A worker that has noticed that the backend stands refuses those that come late.
                wait_for("it to count both's", lambda n=partition: running(n) == sum(not a.done() for a in asked) != 0)
        for asking in asked:
            asking.result(60)
    assert {running(partition) for partition in (0, 1)} == {0}

    worker = workers.pid(0)
    assert worker != process.pid
    os.kill(worker, signal.SIGKILL)
    wait_for("another worker", lambda: workers.pid(0) not in (0, worker))
    with workers.only(0) as client:
        assert client.get("/health").json()["partition"] == 0
    process.terminate()
    assert process.wait(20) == 0
    assert made.observe().requests_held == 0
