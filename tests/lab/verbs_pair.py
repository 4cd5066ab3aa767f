"""The ring's machine and the frontend's of a running lab, with this checkout's code on both, for tests of the link.

The scheduler is the real core with the toy model (tests.ring.scheduler_process), so that every token is known.
"""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from blink import core
from images.lab.machine import Machine
from images.lab.places import SSH_CONFIG
from tests.appliance import to_toml

ROOT = Path(__file__).resolve().parents[2]
SRC = "/root/src"
CONFIG = "/root/verbs.toml"
KEY = "ab" * 32
ENV = f"PYTHONPATH=/root/site:{SRC}"
CODE, LIBRARY = ("blink", "tests"), "libblink_core.so"
HOSTS = ("gpu01", "dpu01")
PYTHON = "$(test -x /opt/blink/bin/python && echo /opt/blink/bin/python || echo python3)"
TABLES: dict[str, dict[str, Any]] = {
    "instance": {"name": "verbs", "run_dir": "/run/blink-verbs", "ring_dir": "/dev/shm/blink-verbs"},
    "ring": {"transport": "verbs", "slots": 64, "partitions": 2},
    "rdma": {"ringd_address": "10.9.1.1", "ringd_port": 18516, "key_file": "/root/verbs.key"},
    "model": {"path": "/root/model", "served_name": "toy"},
}


def ssh(host: str, command: str, timeout: float = 120) -> str:
    """The output of ``command`` on ``host``; fails where it fails."""
    done = subprocess.run(
        ["ssh", "-F", str(SSH_CONFIG), host, command], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{host}: {command}: {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


def push(host: str) -> None:
    """Put code, configuration and key onto ``host``."""
    local = ssh(host, "uname -m").strip() == platform.machine()
    with tempfile.TemporaryFile() as bundle:
        with tarfile.open(fileobj=bundle, mode="w:gz", compresslevel=1) as tar:
            for name in CODE:
                tar.add(ROOT / name, name, filter=_plain)
            if local:
                tar.add(core.library()._name, f"blink/{LIBRARY}")
        bundle.seek(0)
        command = f"rm -rf {SRC}; mkdir -p {SRC} && tar xzmf - -C {SRC}"
        subprocess.run(["ssh", "-F", str(SSH_CONFIG), host, command], stdin=bundle, check=True, timeout=120)
    if not local:  # the release's, which scripts/bundle compiled for that machine
        ssh(host, f"cp /opt/blink/lib/python3*/site-packages/blink/{LIBRARY} {SRC}/blink/")
    toml = to_toml(TABLES)
    ssh(host, f"umask 077; echo {KEY} > /root/verbs.key; echo {shlex.quote(toml)} > {CONFIG}")


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    skipped = ("__pycache__", "/golden/", "/data/")
    return None if any(part in info.name for part in skipped) else info


class Unit:
    """A process on a machine of the lab, as a transient unit of its systemd."""

    def __init__(self, host: str, name: str, command: str) -> None:
        self.host, self.name, self._command = host, f"test-{name}", command

    def start(self) -> None:
        """(Re)start it; its log begins anew."""
        log = f"/root/{self.name}.log"
        self.stop()
        ssh(
            self.host,
            f"rm -f {log}; systemctl reset-failed {self.name} 2>/dev/null; systemd-run -q --unit={self.name} "
            f"--working-directory={SRC} -p StandardOutput=append:{log} -p StandardError=append:{log} "
            f"-p LimitMEMLOCK=infinity --setenv={ENV} sh -c {shlex.quote('exec ' + self._command)}",
        )

    def stop(self) -> None:
        """End it."""
        ssh(self.host, f"systemctl stop {self.name} 2>/dev/null; true")

    def kill(self, signal: str) -> None:
        """Send a signal to all of it."""
        ssh(self.host, f"systemctl kill -s {signal} {self.name}")

    def log(self) -> str:
        """What it has written."""
        return ssh(self.host, f"cat /root/{self.name}.log 2>/dev/null; true")

    def wait_log(self, text: str, seconds: float = 300) -> None:
        """Wait until its log holds ``text``."""
        end = time.monotonic() + seconds
        while text not in (log := self.log()):
            assert time.monotonic() < end, f"waited {seconds} s for {text!r} of {self.name}: {log[-2000:]}"
            time.sleep(0.3)


RINGD = Unit("gpu01", "ringd", f"{PYTHON} -m blink ringd --config {CONFIG}")
SCHEDULER = Unit(
    "gpu01",
    "sched",
    f"sleep 100000 | {PYTHON} -m tests.ring.scheduler_process /dev/shm/blink-verbs 100000 /run/blink-verbs",
)


def resources(host: str) -> dict[str, int]:
    """What the kernel of ``host`` counts of RDMA objects."""
    words = ssh(host, "rdma resource show").split()
    return {kind: int(words[words.index(kind) + 1]) for kind in ("pd", "cq", "qp", "mr", "ctx")}


class Client:
    """A run of tests.ring.verbs.lab_client on the frontend's machine."""

    def __init__(self, *arguments: str, name: str = "client") -> None:
        command = f"{PYTHON} -m tests.ring.verbs.lab_client {CONFIG} {' '.join(arguments)}"
        self.unit = Unit("dpu01", name, command)
        self._read = 0
        self.unit.start()

    def wait_for(self, text: str, seconds: float = 300, *, newer: bool = False) -> None:
        """Wait until it has printed ``text``; if ``newer``, after what an earlier call found."""
        end = time.monotonic() + seconds
        while (at := (log := self.unit.log()).find(text, self._read if newer else 0)) < 0:
            assert time.monotonic() < end, f"waited {seconds} s for {text!r} of {self.unit.name}: {log[-2000:]}"
            time.sleep(0.3)
        self._read = at + len(text)

    def result(self, seconds: float = 600) -> Any:
        """The JSON object that it ends with."""
        end = time.monotonic() + seconds
        while ssh("dpu01", f"systemctl is-active {self.unit.name}; true").strip() == "active":
            assert time.monotonic() < end, f"waited {seconds} s for {self.unit.name}: {self.unit.log()[-2000:]}"
            time.sleep(0.3)
        lines = self.unit.log().splitlines()
        assert lines, "the client said nothing"
        assert lines[-1].startswith("{"), "\n".join(lines[-30:])
        return json.loads(lines[-1])


def client(*arguments: str, name: str = "client") -> Any:
    """Run a command of the client to its end."""
    return Client(*arguments, name=name).result()


def running() -> bool:
    """Whether both machines of the lab are on."""
    return all(Machine(name).pid for name in HOSTS)
