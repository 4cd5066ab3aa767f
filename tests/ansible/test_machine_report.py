"""The measuring script of the role preflight, against the machine that the test runs on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.playbook import ROOT

SCRIPT = ROOT / "roles/preflight/files/machine.py"


def report(tmp_path: Path, port: int, config: str = "/none.toml") -> dict[str, Any]:
    command = [sys.executable, "-I", str(SCRIPT), "--port", str(port), "--config", config]
    command += ["--disk", str(tmp_path / "not" / "yet"), "--shm", "/dev/shm/not-yet"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout)


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])
def listener(request: pytest.FixtureRequest) -> Any:
    with socket.socket(request.param) as s:
        try:
            s.bind(("127.0.0.1" if request.param == socket.AF_INET else "::1", 0))
        except OSError as e:
            pytest.skip(f"this machine has no such loopback address: {e}")
        s.listen()
        yield s


def test_names_the_holder_of_a_port(tmp_path: Path, listener: socket.socket) -> None:
    holder = report(tmp_path, listener.getsockname()[1])["port_holder"]
    assert holder["busy"]
    assert not holder["own"]
    assert holder["pid"] == os.getpid()
    assert Path("/proc/self/cmdline").read_text().split("\0")[0] in holder["command"]


def test_a_bound_port_that_nobody_listens_on_is_free(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        assert not report(tmp_path, s.getsockname()[1])["port_holder"]["busy"]


def test_knows_a_service_of_the_same_appliance_by_its_environment(tmp_path: Path) -> None:
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    )
    environment = os.environ | {"BLINK_CONFIG": "/some where/blink.toml"}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert report(tmp_path, port, "/some where/blink.toml")["port_holder"]["own"]
        assert not report(tmp_path, port, "/some where")["port_holder"]["own"]
        child.communicate("\n")


def test_measures_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    seen = report(tmp_path, 1)
    here, shm = os.statvfs(tmp_path), os.statvfs("/dev/shm")
    assert abs(seen["disk_mib"] - (here.f_bavail * here.f_frsize >> 20)) < 1024
    assert abs(seen["shm_mib"] - (shm.f_bavail * shm.f_frsize >> 20)) < 1024
    assert 0 < seen["memory_mib"] <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    assert seen["cpus"] == len(os.sched_getaffinity(0))
