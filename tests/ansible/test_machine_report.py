"""The script of the role preflight that measures and judges a machine, on the machine that the test runs on.

A script that answers alike stands in for nvidia-smi.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.playbook import ROOT

SCRIPT = ROOT / "roles/preflight/files/machine.py"
UUID = "GPU-5a7c0d9e-1b2f-4e6d-8c3a-0f9b8d7e6c5a"
H200 = f"0, {UUID}, NVIDIA H200, 580.159.04, 143771, 4, Default, Enabled, Disabled"
NEEDS: dict[str, Any] = {
    "state_dir": "/tmp", "ring_dir": "/dev/shm", "run_dir": "/tmp/blink-run", "config": "/none.toml", "port": 1,
    "cpus": 1, "memory_mib": 1, "disk_mib": 1, "shm_mib": 1, "run_dir_bytes": 80, "gpu": None,
}  # fmt: skip
GPU = {"engine": "native", "device": "0", "driver": "580", "memory_mib": 8192}


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("machine", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


machine = _load()


def said(needs: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Faults, as the role words them, and notes of this machine."""
    measured = machine.measure(needs)
    faults = [f"{cause}. {remedy}." for cause, remedy in machine.judge(measured, needs)]
    return faults, list(machine.notes(measured, needs))


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has nvidia-smi print a text and end with a code; without one it is not there."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(answer: str, rc: int = 0) -> None:
        script = tmp_path / "nvidia-smi"
        script.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\nexit {rc}\n")
        script.chmod(0o755)

    return write


def test_as_a_script_it_tells_a_machine_that_can_serve() -> None:
    command = [sys.executable, "-I", str(SCRIPT), json.dumps(NEEDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == {"faults": [], "notes": []}


@pytest.mark.parametrize(
    ("needed", "message"),
    [
        ({"memory_mib": 1 << 30}, "MiB of memory are available, 1073741824 are needed. Stop other programs"),
        ({"disk_mib": 1 << 30}, "are needed. Free some, or set blink_state_dir"),
        ({"shm_mib": 1 << 30}, "are needed. Enlarge that tmpfs"),
        ({"cpus": 4096}, "CPUs are available, 4096 are needed"),
        ({"run_dir": "/tmp/" + "long" * 20}, "is longer than 80 bytes, too long for a socket's path"),
        ({"run_dir": "/tmp/" + "ü" * 38}, "is longer than 80 bytes, too long for a socket's path"),
    ],
    ids=["memory", "disk", "shm", "cpus", "path", "bytes"],
)
def test_what_a_machine_lacks_is_told(needed: dict[str, Any], message: str) -> None:
    faults, _ = said(NEEDS | needed)
    assert len(faults) == 1
    assert message in faults[0]


def test_all_that_it_lacks_is_told_at_once() -> None:
    assert len(said(NEEDS | {"memory_mib": 1 << 30, "cpus": 4096})[0]) == 2


def test_an_old_python_is_told_from_a_newer_one() -> None:
    measured = machine.measure(NEEDS)
    assert list(machine.judge(measured | {"python": "3.11.0"}, NEEDS)) == []
    ((cause, remedy),) = machine.judge(measured | {"python": "3.9.18"}, NEEDS)
    assert (cause, "3.11 or newer" in remedy) == ("Python 3.9.18 is too old", True)


def test_what_this_appliance_holds_itself_is_not_missing() -> None:
    needs = NEEDS | {"memory_mib": 1 << 30, "disk_mib": 1 << 30, "shm_mib": 1 << 30}
    holder = {"busy": True, "own": True, "pid": 5, "command": "blink"}
    assert list(machine.judge(machine.measure(needs) | {"port_holder": holder}, needs)) == []


def test_a_port_of_another_user_is_told() -> None:
    holder = {"busy": True, "own": False, "pid": 0, "command": ""}
    ((cause, _),) = machine.judge(machine.measure(NEEDS) | {"port_holder": holder}, NEEDS)
    assert cause == "Port 1 is taken by another user's process"


@pytest.mark.parametrize("device", ["0", UUID])
def test_a_gpu_that_serves(smi: Callable[..., None], device: str) -> None:
    smi(H200)
    assert said(NEEDS | {"gpu": GPU | {"device": device}}) == ([], [])


@pytest.mark.parametrize(
    ("answer", "rc", "message"),
    [
        (None, 0, "No GPU can be used (nvidia-smi: No such file or directory). Engine native needs"),
        ("NVIDIA-SMI has failed because it couldn't communicate", 9, "couldn't communicate). Engine native needs"),
        (H200.replace("580.159.04", "570.86.10"), 0, "The driver is 570.86.10. CUDA 13.0"),
        (H200.removesuffix("Disabled") + "Enabled", 0, "GPU 0 is divided (MIG)"),
        (H200.replace("Default", "Prohibited"), 0, "The compute mode of GPU 0 is Prohibited"),
        (H200.replace(", 4,", ", 140000,"), 0, "GPU 0 has 3771 MiB free of 143771, 8192 are needed"),
        (
            H200.replace("0, ", "1, ", 1),
            0,
            f"There is no GPU 0; this machine has 1 NVIDIA H200 {UUID}. Set engine.device",
        ),
    ],
    ids=["no driver", "no device", "old driver", "mig", "prohibited", "full", "another"],
)
def test_a_gpu_that_does_not_serve(smi: Callable[..., None], answer: str | None, rc: int, message: str) -> None:
    if answer is not None:
        smi(answer, rc)
    faults, _ = said(NEEDS | {"gpu": GPU})
    assert len(faults) == 1
    assert message in faults[0]


def test_a_gpu_that_is_not_kept_initialised_is_mentioned(smi: Callable[..., None]) -> None:
    smi(H200.replace("Enabled", "Disabled"))
    faults, notes = said(NEEDS | {"gpu": GPU})
    assert (faults, len(notes)) == ([], 1)
    assert "Enable nvidia-persistenced" in notes[0]


def test_a_profile_without_a_gpu_asks_for_none(smi: Callable[..., None]) -> None:
    smi("", 9)
    assert said(NEEDS) == ([], [])


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])
def listener(request: pytest.FixtureRequest) -> Any:
    with socket.socket(request.param) as s:
        try:
            s.bind(("127.0.0.1" if request.param == socket.AF_INET else "::1", 0))
        except OSError as e:
            pytest.skip(f"this machine has no such loopback address: {e}")
        s.listen()
        yield s


def test_names_the_holder_of_a_port(listener: socket.socket) -> None:
    holder = machine.port_holder(listener.getsockname()[1], "/none.toml")
    assert holder["busy"]
    assert not holder["own"]
    assert holder["pid"] == os.getpid()
    assert Path("/proc/self/cmdline").read_text().split("\0")[0] in holder["command"]


def test_a_bound_port_that_nobody_listens_on_is_free() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        assert not machine.port_holder(s.getsockname()[1], "/none.toml")["busy"]


def test_knows_a_service_of_the_same_appliance_by_its_environment() -> None:
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    )
    environment = os.environ | {"BLINK_CONFIG": "/some where/blink.toml"}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert machine.port_holder(port, "/some where/blink.toml")["own"]
        assert not machine.port_holder(port, "/some where")["own"]
        child.communicate("\n")


def test_measures_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    seen = machine.measure(NEEDS | {"state_dir": str(tmp_path / "not" / "yet"), "ring_dir": "/dev/shm/not-yet"})
    here, shm = os.statvfs(tmp_path), os.statvfs("/dev/shm")
    assert abs(seen["disk_mib"] - (here.f_bavail * here.f_frsize >> 20)) < 1024
    assert abs(seen["shm_mib"] - (shm.f_bavail * shm.f_frsize >> 20)) < 1024
    assert 0 < seen["memory_mib"] <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    assert seen["cpus"] == len(os.sched_getaffinity(0))
