"""The appliance on one machine, brought up by the playbooks and looked at from outside.

Each run of a playbook takes some 20 s of a processor, so only what every change may break is not of the tier `fleet`.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import tomllib
from pathlib import Path

import httpx
import pytest

from blink.config import load_config
from tests.ansible.conftest import Deployed
from tests.ansible.playbook import processes
from tests.appliance import wait_for
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def health(port: int) -> int:
    return httpx.get(f"http://127.0.0.1:{port}/health", timeout=10, trust_env=False).status_code


def test_check_mode_needs_nothing_installed_and_changes_nothing(deployed: Deployed) -> None:
    state, port = deployed.state_dir.parent / "foretold", free_port()
    run = deployed.run("site.yml", "--check", "--diff", blink_state_dir=str(state), blink_http_port=port)
    run.require()
    assert run.count("changed") > 0
    assert "+port = " in run.output, "--diff shows the configuration"
    assert "backend would be started" in run.output
    assert not state.exists()
    assert processes(state / "blink.toml") == {}


def test_up_serves_with_the_configuration_of_the_inventory(running: Deployed) -> None:
    running.up()
    assert health(running.port) == 200
    config = load_config(running.config)
    assert config.instance.name == "test"
    assert (config.frontend.host, config.frontend.port) == ("127.0.0.1", running.port)
    assert config.engine.lanes == running.settings()["blink_settings"]["engine"]["lanes"]
    assert running.config.stat().st_mode & 0o077 == 0
    assert set(running.services()) == {"backend", "frontend"}


def test_only_the_api_listens(running: Deployed) -> None:
    sockets = {
        str(descriptor.readlink())
        for pid in processes(running.config)
        for descriptor in Path(f"/proc/{pid}/fd").iterdir()
        if descriptor.is_symlink()
    }
    listening = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                address, port = fields[1].split(":")
                listening.add((socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)))
    assert listening == {("127.0.0.1", running.port)}


def test_second_run_changes_nothing_and_restarts_nothing(running: Deployed) -> None:
    running.up()
    before = processes(running.config)
    run = running.run("site.yml").require()
    assert run.count("changed") == 0, run.output
    assert processes(running.config).keys() == before.keys()
    assert "checks passed" in run.output
    assert f"http://127.0.0.1:{running.port}/v1" in run.output


def test_changed_field_restarts_both_halves_once(running: Deployed) -> None:
    before = running.services()
    changed = running.settings(queue=9)
    foretold = running.deploy("--check", **changed).require()
    assert "backend would be started" in foretold.output
    assert "frontend would be started" in foretold.output
    assert running.services() == before

    running.deploy(**changed).require()
    assert load_config(running.config).engine.queue == 9
    after = running.services()
    assert after["backend"] != before["backend"]
    assert after["frontend"] != before["frontend"]


@pytest.mark.fleet
def test_restart_is_not_forgotten_by_a_run_that_failed_in_between(running: Deployed) -> None:
    before = running.services()
    changed = running.settings(queue=10)
    failed = running.deploy(**changed, backend_ready_s="soon")
    assert failed.rc != 0
    assert "backend_ready_s" in failed.output
    assert load_config(running.config).engine.queue == 10, "the change was written before the run failed"
    assert running.services() == before

    run = running.deploy(**changed).require()
    written = re.search(r"Write the configuration\].*\n(\w+):", run.output)
    assert written is not None
    assert written[1] == "ok", "nothing changed in the file, so nothing but the processes tells"
    assert running.services().keys() == before.keys()
    assert not running.services().items() & before.items(), "both were started anew"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": {"lanes": 0}}, "engine.lanes"),
        pytest.param({"engine": {"lane": 4}}, "engine.lane", marks=pytest.mark.fleet),
        pytest.param(
            {"engine": {"max_context": 1 << 20, "pages": 1 << 20}},
            "engine.max_context: 1048576 exceeds",
            marks=pytest.mark.fleet,
        ),
        pytest.param({"frontend": {"host": "0.0.0.0"}}, "is not loopback", marks=pytest.mark.fleet),
    ],
    ids=["range", "name", "model", "exposed"],
)
def test_settings_that_cannot_serve_are_refused_while_the_old_ones_serve(
    running: Deployed, settings: dict[str, dict[str, object]], message: str
) -> None:
    before = running.services()
    run = running.deploy(blink_settings=settings)
    assert run.rc != 0
    assert message in run.words
    assert running.services() == before
    assert health(running.port) == 200


@pytest.mark.parametrize("half", ["backend", "frontend"])
def test_killed_service_comes_back(running: Deployed, half: str) -> None:
    before = running.services()
    os.kill(before[half], signal.SIGKILL)
    wait_for(f"another {half}", lambda: running.services().get(half, before[half]) != before[half])
    wait_for("health", lambda: _answers(running.port) == 200)
    other = "frontend" if half == "backend" else "backend"
    assert running.services()[other] == before[other]


def _answers(port: int) -> int | None:
    try:
        return health(port)
    except httpx.HTTPError:
        return None


@pytest.mark.fleet
def test_a_service_that_ends_at_once_is_reported_with_its_log(running: Deployed) -> None:
    # The ring's directory cannot be made below a file, which only the backend finds out.
    running.is_up = False
    run = running.deploy(blink_ring_dir=str(running.config / "ring"))
    assert run.rc != 0
    assert "The backend does not serve" in run.words
    assert "instance.ring_dir" in run.words


@pytest.mark.fleet
def test_api_keys_are_not_shown(running: Deployed) -> None:
    key = "sk-test-secret-of-this-test"
    run = running.deploy("--diff", "-v", blink_api_keys=[key]).require()
    assert key not in run.output
    assert health(running.port) == 200
    models = f"http://127.0.0.1:{running.port}/v1/models"
    assert httpx.get(models, timeout=10, trust_env=False).status_code == 401
    good = httpx.get(models, headers={"Authorization": f"Bearer {key}"}, timeout=10, trust_env=False)
    assert good.status_code == 200
    keys = Path(tomllib.loads(running.config.read_text())["frontend"]["api_keys_file"])
    assert keys.stat().st_mode & 0o077 == 0


@pytest.mark.fleet
def test_down_leaves_the_model_and_nothing_that_runs(running: Deployed) -> None:
    ring = load_config(running.config).instance.ring_dir
    assert ring.exists()
    running.down().require()
    assert processes(running.config) == {}
    with socket.socket() as s:
        assert s.connect_ex(("127.0.0.1", running.port)) != 0
    assert not ring.exists()
    assert not (running.state_dir / "run").exists()
    assert (running.state_dir / "models/tiny/blink-manifest.json").exists()
    again = running.down().require()
    assert again.count("changed") == 0


@pytest.mark.fleet
def test_down_ends_what_a_killed_supervisor_left(running: Deployed) -> None:
    pid_file = running.state_dir / "run/supervisord.pid"
    if not pid_file.exists():
        pytest.skip("systemd runs the services here, and it is never killed")
    supervisor = int(pid_file.read_text())
    os.kill(supervisor, signal.SIGKILL)
    wait_for("the supervisor's end", lambda: not Path(f"/proc/{supervisor}/exe").exists())
    assert set(running.services()) == {"backend", "frontend"}, "they outlive it"
    running.down().require()
    assert processes(running.config) == {}
