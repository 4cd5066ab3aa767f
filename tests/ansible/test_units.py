"""The systemd units, rendered by Ansible and judged by systemd's own verifier."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ansible.playbook import BIN, ROOT, ansible

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


@pytest.fixture(params=["system", "user"])
def units(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, list[Path]]:
    """The scope, and the target and its services in it."""
    common = {
        "blink_appliance": "test",
        "blink_state_dir": str(tmp_path),
        "blink_run_dir": str(tmp_path / "run"),
        "blink_config_file": str(tmp_path / "blink.toml"),
        "service_systemd_scope": request.param,
        "service_stamp": "0" * 64,
        "service_stop_s": 30,
    }
    plain = {
        "service_after": [],
        "service_notifies": True,
        "service_rdma": False,
        "service_gpu": False,
        "service_cpus": "",
    }
    backend = plain | {"service_description": "scheduler and engine", "service_gpu": True}
    ringd = plain | {"service_description": "RDMA registrations and handshake", "service_rdma": True}
    frontend = plain | {"service_description": "HTTP API", "service_after": ["backend"], "service_notifies": False}
    frontend |= {"service_cpus": "0-1,3"}
    rendered = []
    for name, template, variables in (
        ("blink-test.target", "target", {}),
        ("blink-test-backend.service", "unit", {**backend, "service_argv": [str(BIN / "blink"), "backend"]}),
        ("blink-test-ringd.service", "unit", {**ringd, "service_argv": [str(BIN / "blink"), "ringd"]}),
        ("blink-test-frontend.service", "unit", {**frontend, "service_argv": [str(BIN / "blink"), "frontend"]}),
    ):
        arguments = f"src={ROOT}/roles/service/templates/{template}.j2 dest={tmp_path / name} mode=0644"
        ansible(
            "ansible", "localhost", "--module-name", "ansible.builtin.template", "--args", arguments,
            "--extra-vars", json.dumps(common | variables),
        ).require()  # fmt: skip
        rendered.append(tmp_path / name)
    return request.param, rendered


def test_units_are_valid(units: tuple[str, list[Path]]) -> None:
    scope, files = units
    done = subprocess.run(
        ["systemd-analyze", f"--{scope}", "--man=no", "verify", *files],
        capture_output=True, text=True, timeout=60, check=False,
        env={"XDG_RUNTIME_DIR": str(files[0].parent), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    # The verifier also speaks of other units of the machine.
    complaints = [line for line in done.stderr.splitlines() if "blink-test" in line]
    assert complaints == []
    assert done.returncode == 0, done.stderr


def test_a_unit_says_where_it_runs_and_what_it_may_use(units: tuple[str, list[Path]]) -> None:
    scope, (_, backend, ringd, frontend) = units
    assert "CPUAffinity=0-1,3\n" in frontend.read_text()
    assert "CPUAffinity" not in backend.read_text()
    if scope == "system":
        assert "DeviceAllow=char-nvidia* rw\n" in backend.read_text()
        assert "After=modprobe@nvidia_uvm.service\n" in backend.read_text()
        assert "After=modprobe@ib_uverbs.service\n" in ringd.read_text()
        assert "PrivateDevices=yes" in frontend.read_text()


def test_a_mistake_in_a_unit_would_be_found(units: tuple[str, list[Path]]) -> None:
    scope, files = units
    files[1].write_text(files[1].read_text().replace("Restart=on-failure", "Restart=now-and-then"))
    done = subprocess.run(
        ["systemd-analyze", f"--{scope}", "--man=no", "verify", *files],
        capture_output=True, text=True, timeout=60, check=False,
        env={"XDG_RUNTIME_DIR": str(files[0].parent), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert "now-and-then" in done.stderr
