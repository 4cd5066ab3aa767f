"""What playbooks refuse, and whether they say why."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def test_a_machine_without_the_gpu_of_its_profile_is_refused_with_every_reason(
    variables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\necho no devices; exit 9\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    run = playbook("site.yml", variables | {"preflight_cpus": 4096}, "--inventory", "inventory/single")
    assert run.rc != 0
    assert "No GPU can be used (no devices). Engine native needs an NVIDIA GPU" in run.words
    assert "CPUs are available, 4096 are needed. Widen" in run.words
    assert not Path(variables["blink_state_dir"]).exists()


# --- variables: Ansible's own validator on what the roles state, and two plays that prove that it is asked ------------


def refused(variables: dict[str, Any]) -> str:
    """What the roles of site.yml say of an inventory's variables."""
    # Not at the top: its import replaces sys.intern, with which torch, in `make parity`, cannot be imported.
    from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

    found = []
    for role in ("preflight", "release", "model", "configuration", "backend", "frontend"):
        spec = yaml.safe_load((ROOT / "roles" / role / "meta/argument_specs.yml").read_text())
        options = spec["argument_specs"]["main"]["options"]
        given = {name: variables[name] for name in options if name in variables}
        found += ArgumentSpecValidator(options).validate(given).error_messages
    return "; ".join(found)


@pytest.fixture
def inventory() -> dict[str, Any]:
    """The variables of inventory/local, with a value of the right type in the place of a template."""
    said = yaml.safe_load((ROOT / "inventory/local/group_vars/all.yml").read_text())
    return {name: "/x" if "{{" in str(value) else value for name, value in said.items()}


def test_an_inventory_that_is_whole_is_not_refused(inventory: dict[str, Any]) -> None:
    assert refused(inventory) == ""


@pytest.mark.parametrize(
    "variable", ["blink_http_port", "blink_config_file", "blink_transport", "blink_model_source", "blink_venv"]
)
def test_an_inventory_without_a_variable_is_told_its_name(variable: str, inventory: dict[str, Any]) -> None:
    del inventory[variable]
    assert variable in refused(inventory)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"blink_transport": "carrier-pigeon"}, "value of blink_transport must be one of: shm, verbs"),
        ({"blink_engine": "steam"}, "value of blink_engine must be one of: reference, native, synthetic, tensorrt"),
        ({"blink_http_port": "eight thousand"}, "'blink_http_port' is of type"),
    ],
)
def test_a_wrong_value_is_refused_by_name(wrong: dict[str, str], message: str, inventory: dict[str, Any]) -> None:
    assert message in refused(inventory | wrong)


def test_a_play_refuses_a_missing_variable(variables: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "inventory"
    shutil.copytree(ROOT / "inventory/local", folder)
    file = folder / "group_vars/all.yml"
    kept = [line for line in file.read_text().splitlines() if not line.startswith("blink_config_file:")]
    file.write_text("\n".join(kept))
    # In check mode, since what comes before the role that misses it is not of interest.
    run = playbook("site.yml", variables | {"blink_checkout": str(ROOT)}, "--check", "--inventory", str(folder))
    assert run.rc != 0
    assert "blink_config_file" in run.output


def test_a_play_refuses_a_wrong_value(variables: dict[str, Any]) -> None:
    run = playbook("site.yml", variables | {"blink_engine": "steam"}, "--check")
    assert run.rc != 0
    assert "value of blink_engine must be one of: reference, native, synthetic, tensorrt" in run.words
