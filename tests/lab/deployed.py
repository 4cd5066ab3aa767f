"""The deployed lab as its user and its operator see it: the API through SSH, units through systemd."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from images.lab.errors import LabError
from images.lab.machine import Machine
from images.lab.places import SSH_CONFIG
from tests import appliance
from tests.ports import free_port

CONFIG = "/var/lib/blink/blink.toml"
KEY = "/var/lib/blink/ring-key"
UNIT = "blink-ap001-{}.service"
STEP_S = 120.0  # for what takes seconds on hardware
T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T], timeout_s: float = STEP_S) -> T:
    """The same as here on this machine, with the lab's patience."""
    return appliance.wait_for(what, condition, timeout_s, every_s=0.2)


@dataclass
class Stream:
    """A streamed completion, read in a thread of its own, which hangs up once it has ``leave_at`` tokens.

    ``status`` is the HTTP status, 0 before there is one; ``broken`` says that the connection ended before the answer.
    """

    tokens: list[str] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None
    status: int = 0
    broken: bool = False
    leave_at: int | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def wait_tokens(self, count: int) -> None:
        """Wait until ``count`` tokens have come. Fails where the stream ends before."""

        def enough() -> bool:
            assert not self.done.is_set(), (
                f"ended after {len(self.tokens)} of {count} tokens: {self.error or self.finish}"
            )
            return len(self.tokens) >= count

        wait_for(f"{count} tokens", enough)

    def wait_end(self, timeout_s: float = 240) -> Stream:
        """Wait for the end, whichever it is."""
        assert self.done.wait(timeout_s), f"the stream hangs after {len(self.tokens)} tokens"
        return self


class Deployed:
    """gpu01, dpu01 and the API of the appliance on them."""

    def __init__(self) -> None:
        self.gpu, self.dpu = Machine("gpu01"), Machine("dpu01")
        self._tunnel: subprocess.Popen[bytes] | None = None
        self.connect()

    def connect(self) -> None:
        """Forward a port of this machine to the API on dpu01's loopback address."""
        self.close()
        port = free_port()
        forward = f"127.0.0.1:{port}:127.0.0.1:8000"
        argv = [
            "ssh",
            "-F",
            str(SSH_CONFIG),
            "-S",
            "none",
            "-o",
            "ExitOnForwardFailure=yes",
            "-N",
            "-L",
            forward,
            "dpu01",
        ]
        self._tunnel = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{port}"
        wait_for("the tunnel to dpu01", lambda: self._open(port))

    def _open(self, port: int) -> bool:
        assert self._tunnel is not None
        assert self._tunnel.poll() is None, "ssh to dpu01 has ended"
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0

    def close(self) -> None:
        """Close the tunnel."""
        if self._tunnel is not None:
            self._tunnel.kill()
            self._tunnel.wait(10)

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status and body of GET /health; status 0 where nothing answers."""
        try:
            answer = httpx.get(f"{self.url}/health", timeout=30, trust_env=False)
        except httpx.HTTPError as error:
            return 0, {"reason": str(error)}
        return answer.status_code, answer.json()

    def wait_healthy(self) -> dict[str, Any]:
        """Wait until requests are served; the body of GET /health."""
        last: dict[str, Any] = {}

        def healthy() -> bool:
            status, body = self.health()
            last.update(body)
            return status == 200

        try:
            wait_for("the appliance to serve", healthy, 240)
        except AssertionError as error:
            raise AssertionError(f"{error}; its last word: {last}") from None
        return last

    def wait_unhealthy(self, reason: str = "") -> dict[str, Any]:
        """Wait until the frontend says that requests are not served, and ``reason`` in why; the body of GET /health."""

        def unhealthy() -> dict[str, Any] | None:
            status, body = self.health()
            return body if status == 503 and reason in body["reason"] else None

        return wait_for(f"GET /health to say 503 and {reason!r}", unhealthy)

    def start_stream(
        self, *, seed: int = 1, tokens: int = 200, prompt: str = "The ring", temperature: float = 1.0,
        leave_at: int | None = None,
    ) -> Stream:  # fmt: skip
        """A completion of exactly ``tokens`` tokens; the same arguments give the same tokens."""
        body = {
            "model": "tiny-random-llama", "prompt": prompt, "max_tokens": tokens, "seed": seed,
            "temperature": temperature, "ignore_eos": True, "stream": True, "logprobs": 0,
        }  # fmt: skip
        stream = Stream(leave_at=leave_at)
        threading.Thread(target=self._read, args=(body, stream), daemon=True).start()
        return stream

    def _read(self, body: dict[str, Any], stream: Stream) -> None:
        try:
            with (
                httpx.Client(timeout=180, trust_env=False) as client,
                client.stream("POST", f"{self.url}/v1/completions", json=body) as answer,
            ):
                stream.status = answer.status_code
                if answer.status_code != 200:
                    stream.error = answer.read().decode()
                for line in answer.iter_lines():
                    self._take(line, stream)
                    if stream.leave_at is not None and len(stream.tokens) >= stream.leave_at:
                        return
        except httpx.HTTPError as error:
            stream.error, stream.broken = f"{type(error).__name__}: {error}", True
        finally:
            stream.done.set()

    @staticmethod
    def _take(line: str, stream: Stream) -> None:
        if not line.startswith("data: ") or line == "data: [DONE]":
            return
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            stream.error = event["error"]["message"]
            return
        for choice in event["choices"]:
            stream.tokens += (choice["logprobs"] or {"tokens": []})["tokens"]
            stream.finish = choice["finish_reason"] or stream.finish

    def systemctl(self, machine: Machine, verb: str, service: str) -> str:
        """Run systemctl on a service of the appliance; what it printed."""
        return machine.ssh(f"systemctl {verb} {UNIT.format(service)}").stdout.strip()

    def main_pid(self, machine: Machine, service: str) -> int:
        """Process id of a service, 0 where it does not run."""
        return int(self.systemctl(machine, "show --property=MainPID --value", service))

    def status(self) -> dict[str, Any]:
        """What `blink status` says on dpu01, as JSON."""
        done = self.dpu.ssh(f"/opt/blink/bin/blink status --config {CONFIG} --json -", check=False)
        try:
            return json.loads(done.stdout)  # type: ignore[no-any-return]
        except ValueError:
            raise LabError(f"blink status said: {done.stdout} {done.stderr}") from None
