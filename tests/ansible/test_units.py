"""The systemd units, rendered by Ansible and judged by systemd's own verifier."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ansible.playbook import BIN, ROOT, ansible

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


@pytest.fixture(scope="module", params=["system", "user"])
def rendered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The scope, and a folder with the target and its services in it."""
    folder = tmp_path_factory.mktemp(request.param)
    common = {
        "blink_appliance": "test",
        "blink_state_dir": str(folder),
        "blink_run_dir": str(folder / "run"),
        "blink_config_file": str(folder / "blink.toml"),
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
    halves = {
        "backend": plain | {"service_description": "scheduler and engine", "service_gpu": True},
        "ringd": plain | {"service_description": "RDMA registrations and handshake", "service_rdma": True},
        "frontend": plain
        | {
            "service_description": "HTTP API",
            "service_after": ["backend"],
            "service_notifies": False,
            "service_cpus": "0-1,3",
        },
    }
    tasks = [template("target", folder / "blink-test.target", {})] + [
        template("unit", folder / f"blink-test-{half}.service", own | {"service_argv": [str(BIN / "blink"), half]})
        for half, own in halves.items()
    ]
    play = folder / "render.yml"
    play.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "vars": common, "tasks": tasks}]))
    ansible("ansible-playbook", str(play)).require()
    return request.param, folder


def template(name: str, dest: Path, variables: dict[str, Any]) -> dict[str, Any]:
    """A task that renders a template of the role."""
    source = f"{ROOT}/roles/service/templates/{name}.j2"
    return {"ansible.builtin.template": {"src": source, "dest": str(dest), "mode": "0644"}, "vars": variables}


@pytest.fixture
def units(rendered: tuple[str, Path], tmp_path: Path) -> tuple[str, list[Path]]:
    """The scope, and copies of the target and its services."""
    names = ("blink-test.target", *(f"blink-test-{half}.service" for half in ("backend", "ringd", "frontend")))
    return rendered[0], [Path(shutil.copy(rendered[1] / name, tmp_path)) for name in names]


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
