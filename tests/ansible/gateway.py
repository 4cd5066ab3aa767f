"""HAProxy as the role gateway configures it, in front of appliances of this machine, and clients behind it."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from tests.ansible.local_fleet import LocalFleet
from tests.appliance import wait_for
from tests.ports import free_port

HAPROXY = shutil.which("haproxy") or "/usr/sbin/haproxy"


class Gateway:
    """The gateway of ``fleet``, whose inventory gets it. Here the service manager is :meth:`start` and :meth:`stop`."""

    def __init__(self, fleet: LocalFleet, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.config = folder / "haproxy.cfg"
        self.command_file = folder / "blink-gateway"
        variables: dict[str, Any] = {
            "gateway_packages": [],
            "gateway_haproxy": HAPROXY,
            "gateway_config_file": str(self.config),
            "gateway_state_dir": str(folder),
            "gateway_socket": str(folder / "socket"),
            "gateway_command": str(self.command_file),
            "gateway_service": "",
            "gateway_user": "",
            "gateway_bind": f"127.0.0.1:{self.port}",
            "gateway_metrics_bind": f"127.0.0.1:{free_port()}",
            "gateway_check_ms": 200,
            "gateway_slowstart_s": 1,
            "gateway_requests": 8,
            "gateway_maxconn": 200,  # within the limit of open files that an ordinary user has
        }
        fleet.more["gateways"] = {"hosts": {"gateway1": {}}, "vars": variables}
        fleet.variables["drain_gateway_command"] = str(self.command_file)
        fleet.write()

    def start(self) -> None:
        """Start HAProxy and wait until it sends requests to an appliance."""
        with (self.folder / "log").open("ab") as log:
            self._process = process = subprocess.Popen([HAPROXY, "-db", "-f", self.config], stdout=log, stderr=log)

        def serves() -> bool:
            assert process.poll() is None, (self.folder / "log").read_text()
            return self.get("/health") == 200

        wait_for("an appliance behind the gateway", serves)

    def stop(self) -> None:
        """End HAProxy at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def get(self, path: str) -> int:
        """Status of a GET through the gateway, 0 where it does not answer."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=10, trust_env=False).status_code
        except httpx.HTTPError:
            return 0

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run blink-gateway."""
        return subprocess.run([self.command_file, *arguments], capture_output=True, text=True, timeout=60, check=False)

    def state(self, name: str) -> str:
        """What HAProxy says of an appliance: UP, DOWN, DRAIN and so on."""
        lines = self.command("show").stdout.splitlines()
        return next(line.split()[1] for line in lines if line.startswith(f"{name} "))


class Clients:
    """Clients that ask the gateway one after the other until the block ends, half of them for streams.

    Each answer has ``tokens``. With ``tls`` the gateway must show a certificate that it accepts. ``pause_s`` lies
    between two of a client's requests: the appliances share this machine's cores. With 0 a stream runs at any moment.
    """

    def __init__(
        self, port: int, count: int = 4, *, tokens: int = 40, tls: ssl.SSLContext | None = None, pause_s: float = 0.2
    ) -> None:
        self._url, self._end = f"http{'s' if tls else ''}://127.0.0.1:{port}/v1/completions", threading.Event()
        self._tokens, self._tls, self._pause_s = tokens, tls or ssl.create_default_context(), pause_s
        self.answers = 0
        self.failures: list[str] = []
        self.streams: list[tuple[float, float]] = []  # begin and end of those that were whole, by time.time()
        self._threads = [threading.Thread(target=self._ask, args=(n % 2 == 0,)) for n in range(count)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        wait_for("answers", lambda: self.answers > 4 or self.failures)
        return self

    def __exit__(self, *_: object) -> None:
        before = self.answers
        wait_for("more answers", lambda: self.answers > before + 4 or self.failures)
        self._end.set()
        for thread in self._threads:
            thread.join(60)

    def _ask(self, streams: bool) -> None:
        body = {"model": "tiny", "prompt": "a", "max_tokens": self._tokens, "ignore_eos": True, "stream": streams}
        with httpx.Client(timeout=120, trust_env=False, verify=self._tls) as client:
            while not self._end.is_set():
                try:
                    failure = self._one(client, body)
                except Exception as e:  # whatever it is, a client that ends would leave its requests out of the count
                    failure = f"{type(e).__name__}: {e}"
                if failure:
                    self.failures.append(failure)
                else:
                    self.answers += 1
                time.sleep(self._pause_s)

    def _one(self, client: httpx.Client, body: dict[str, Any]) -> str | None:
        begin = time.time()
        answer = client.post(self._url, json=body)
        if answer.status_code != 200:
            return f"{answer.status_code}: {answer.text[:200]}"
        if not body["stream"]:
            return (
                None if answer.json()["usage"]["completion_tokens"] == self._tokens else f"short: {answer.text[:200]}"
            )
        # Not splitlines(): a text of the tiny model has other line separators in it.
        events = [line for line in answer.text.split("\n") if line.startswith("data: ")]
        whole = events[-1] == "data: [DONE]" and not any("error" in json.loads(e[6:]) for e in events[:-1])
        if whole:
            self.streams.append((begin, time.time()))
        return None if whole else f"stream ended with {events[-1][:200]}"
