"""What playbooks refuse, and whether they say why."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.playbook import ROOT, playbook
from tests.appliance import free_port


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, Any]:
    return {"blink_state_dir": str(tmp_path / "s"), "blink_run_dir": "/tmp/blink-run", "blink_http_port": free_port()}


def test_a_busy_port_is_refused_with_its_holder(variables: dict[str, Any]) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", variables["blink_http_port"]))
        s.listen()
        run = playbook("site.yml", variables)
    assert run.rc != 0
    assert f"Port {variables['blink_http_port']} is taken by process {os.getpid()} (" in run.words
    assert "make up PORT=" in run.words
    assert not Path(variables["blink_state_dir"]).exists()


@pytest.mark.parametrize(
    ("needed", "message"),
    [
        ({"preflight_memory_mib": 1 << 30}, "MiB of memory are available, 1073741824 are needed. Stop other programs"),
        ({"preflight_disk_mib": 1 << 30}, "are needed. Free some, or set blink_state_dir"),
        ({"preflight_shm_mib": 1 << 30}, "are needed. Enlarge that tmpfs"),
        ({"preflight_cpus": 4096}, "CPUs are available, 4096 are needed"),
        ({"blink_run_dir": "/tmp/" + "long" * 20}, "is longer than 80 bytes, too long for a socket's path"),
    ],
    ids=["memory", "disk", "shm", "cpus", "path"],
)
def test_a_machine_that_cannot_serve_is_refused(
    variables: dict[str, Any], needed: dict[str, Any], message: str
) -> None:
    run = playbook("site.yml", variables | needed)
    assert run.rc != 0
    assert message in run.words
    assert not Path(variables["blink_state_dir"]).exists()


@pytest.mark.parametrize(
    "variable", ["blink_http_port", "blink_config_file", "blink_transport", "blink_model_source", "blink_venv"]
)
def test_an_inventory_without_a_variable_is_told_its_name(
    variable: str, variables: dict[str, Any], tmp_path: Path
) -> None:
    inventory = tmp_path / "inventory"
    shutil.copytree(ROOT / "inventory/local", inventory)
    file = inventory / "group_vars/all.yml"
    kept = [line for line in file.read_text().splitlines() if not line.startswith(f"{variable}:")]
    assert len(kept) == len(file.read_text().splitlines()) - 1
    file.write_text("\n".join(kept))
    given = {k: v for k, v in variables.items() if k != variable} | {"blink_checkout": str(ROOT)}
    # In check mode, since what comes before the role that misses it is not of interest.
    run = playbook("site.yml", given, "--check", "--inventory", str(inventory))
    assert run.rc != 0
    assert variable in run.output


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"blink_transport": "carrier-pigeon"}, "value of blink_transport must be one of: shm, verbs"),
        ({"blink_engine": "steam"}, "value of blink_engine must be one of: reference, native, synthetic, tensorrt"),
        ({"blink_http_port": "eight thousand"}, "blink_http_port"),
    ],
)
def test_a_wrong_value_is_refused_by_name(wrong: dict[str, str], message: str, variables: dict[str, Any]) -> None:
    run = playbook("site.yml", variables | wrong, "--check")
    assert run.rc != 0
    assert message in run.words
