"""Two appliances of two halves each behind a gateway: upgraded and rolled back by the playbooks while clients ask.

The tests share the fleet and leave it serving the first release; the last takes an appliance out.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ansible.bundles import Bundles
from tests.ansible.gateway import HAPROXY, Clients, Gateway
from tests.ansible.local_fleet import LocalFleet
from tests.ansible.playbook import processes
from tests.appliance import wait_for

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.fleet,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not Path(HAPROXY).exists(), reason="needs haproxy, of the Debian package"),
    pytest.mark.skipif(not any(Path("/usr/share/python-wheels").glob("pip-*.whl")), reason="needs python3-venv"),
]
HALVES = ("ap1-gpu", "ap1-dpu", "ap2-gpu", "ap2-dpu")
UPGRADE, ROLLBACK = "playbooks/upgrade.yml", "playbooks/rollback.yml"
DECOMMISSION = "playbooks/decommission.yml"
MAIN = "def main(config: ApplianceConfig) -> int:"


class Stage:
    """The fleet, its gateway, and three releases: the first, a newer one, and one whose backend does not start."""

    def __init__(self, root: Path) -> None:
        bundles = Bundles(root / "bundles")
        self.first = bundles.release("first")
        self.newer = bundles.release("newer", {"blink/__init__.py": ("0.1.0", "0.1.1")})
        broken = f"{MAIN}\n    raise RuntimeError('broken on purpose')\n\n\ndef other(config: ApplianceConfig) -> int:"
        self.broken = bundles.release("broken", {"blink/backend/server.py": (MAIN, broken)})
        self.fleet = LocalFleet(root, 2, self.first)
        self.gateway = Gateway(self.fleet, root / "gateway")

    def releases(self) -> set[str]:
        """Ids of what the halves would start."""
        return {self.fleet.release(half) for half in HALVES}

    def pids(self, *names: str) -> dict[str, dict[str, int]]:
        """Process ids of the services, by appliance."""
        return {name: self.fleet.services(name) for name in names or self.fleet.names}

    def results(self, half: str) -> list[str]:
        """Results of the changes on record."""
        return [line["result"] for line in self.fleet.audit(half) if "result" in line]


def commands() -> list[str]:
    """The command lines of all processes."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(file.read_text().replace("\0", " "))
    return found


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    # pytest's own directories have paths that are too long for the sockets.
    root = Path(tempfile.mkdtemp(prefix="bf-"))
    made = Stage(root)
    try:
        made.fleet.run("site.yml").require()
        made.fleet.run("playbooks/gateway.yml").require()
        made.gateway.start()
        yield made
    finally:
        made.gateway.stop()
        made.fleet.run("playbooks/down.yml").require()
        shutil.rmtree(root)


def test_what_is_right_is_left_alone(stage: Stage) -> None:
    before = stage.pids()
    assert {len(services) for services in before.values()} == {2}
    run = stage.fleet.run(UPGRADE).require()
    assert run.count("changed") == 0, run.output
    assert stage.pids() == before
    assert stage.results("ap2-gpu")[-1] == "unchanged"
    assert stage.fleet.run("playbooks/gateway.yml").require().count("changed") == 0


def test_an_upgrade_and_a_rollback_under_load_fail_no_request(stage: Stage) -> None:
    first, before = stage.releases(), stage.pids()
    assert len(first) == 1
    with Clients(stage.gateway.port) as clients:
        stage.fleet.run(UPGRADE, release_set=stage.newer).require()
        newer, between = stage.releases(), stage.pids()
        assert len(newer) == 1
        assert newer != first
        stage.fleet.run(ROLLBACK).require()
    assert clients.failures == []
    assert stage.releases() == first
    after = stage.pids()
    for name in ("ap1", "ap2"):
        for service in ("backend", "frontend"):
            assert len({pids[name][service] for pids in (before, between, after)}) == 3, "each was started with each"
    assert stage.fleet.locks() == []
    assert {stage.gateway.state(name) for name in stage.fleet.names} == {"UP"}
    for half in HALVES:
        upgraded, back = stage.fleet.audit(half)[-3::2]
        assert (upgraded["verb"], upgraded["result"], {upgraded["to"]}) == ("upgrade", "done", newer)
        assert (back["verb"], back["result"], {back["to"]}) == ("rollback", "done", first)
    print(f"{clients.answers} answers during an upgrade and a rollback of two appliances, none failed")


def test_a_second_rollback_changes_nothing(stage: Stage) -> None:
    first, before = stage.releases(), stage.pids()
    stage.fleet.run(ROLLBACK).require()
    assert (stage.releases(), stage.pids()) == (first, before)


def test_a_release_that_does_not_start_goes_back_and_stops_the_fleet(stage: Stage) -> None:
    first, before = stage.releases(), stage.pids("ap2")
    with Clients(stage.gateway.port) as clients:
        run = stage.fleet.run(UPGRADE, release_set=stage.broken, backend_ready_s=20)
    assert run.rc != 0
    assert "broken on purpose" in run.output, "the end of the backend's log is shown"
    assert "ap1 was not upgraded, and serves as before; the fleet stops here" in run.words
    assert clients.failures == []
    assert stage.releases() == first
    assert stage.pids("ap2") == before, "the second batch was not begun"
    assert stage.fleet.audit("ap2-dpu")[-1]["verb"] == "rollback"
    assert [stage.results(half)[-1] for half in ("ap1-gpu", "ap1-dpu")] == ["rolled back"] * 2
    assert stage.fleet.locks() == []
    assert stage.fleet.status("ap1", "/ready") == 200


def test_check_mode_foretells_and_changes_nothing(stage: Stage) -> None:
    first, before = stage.releases(), stage.pids()
    run = stage.fleet.run(UPGRADE, "--check", "--diff", release_set=stage.newer).require()
    assert run.count("changed") > 0
    assert (stage.releases(), stage.pids(), stage.fleet.locks()) == (first, before, [])
    assert {stage.fleet.status(name, "/ready") for name in stage.fleet.names} == {200}


def test_half_an_appliance_is_refused(stage: Stage) -> None:
    run = stage.fleet.run(UPGRADE, "--limit", "ap2-gpu", release_set=stage.newer)
    assert run.rc != 0
    assert (
        "ap2 is ap2-gpu and ap2-dpu, and ap2-dpu is not in this batch. Limit the run to whole appliances" in run.words
    )
    assert len(stage.releases()) == 1


def test_an_appliance_that_another_run_changes_is_refused(stage: Stage) -> None:
    lock = stage.fleet.root / "lock-ap1"
    lock.mkdir()
    (lock / "holder").write_text(json.dumps({"run": "R1", "operator": "ann", "time": "now", "verb": "flash"}))
    for playbook in (UPGRADE, "playbooks/deploy.yml"):
        run = stage.fleet.run(playbook, "--limit", "ap1", release_set=stage.newer)
        assert run.rc != 0
        assert "ap1 is being changed: run R1 of ann since now (flash). Wait for that run." in run.words
        assert lock.exists(), "it is still the other run's"
    shutil.rmtree(lock)
    assert len(stage.releases()) == 1


def test_a_killed_frontend_fails_no_request_that_was_not_a_stream(stage: Stage) -> None:
    frontend = stage.fleet.services("ap1")["frontend"]
    with Clients(stage.gateway.port) as clients:
        os.kill(frontend, signal.SIGKILL)
    broken = [failure for failure in clients.failures if not failure.startswith("RemoteProtocolError")]
    assert broken == [], "what had no answer yet was sent to the other appliance"
    assert len(clients.failures) <= 2, "streams that ran on it end"
    wait_for("the supervisor to start it again", lambda: stage.fleet.status("ap1", "/ready") == 200)


def test_a_drained_appliance_stays_so_over_a_restart_of_the_gateway(stage: Stage) -> None:
    wait_for("both appliances", lambda: {stage.gateway.state(n) for n in ("ap1", "ap2")} == {"UP"})
    assert stage.gateway.command("drain", "ap1").returncode == 0
    stage.gateway.stop()
    stage.gateway.start()
    assert stage.gateway.state("ap1") == "DRAIN"
    assert stage.gateway.command("wait", "ap1", "drained", "5").returncode == 0
    assert stage.gateway.command("ready", "ap1").returncode == 0
    done = stage.gateway.command("wait", "ap1", "serving", "20")
    assert done.returncode == 0, done.stderr
    done = stage.gateway.command("drain", "ap9")
    assert "ap9 is no appliance of this gateway (ap1, ap2): run playbooks/gateway.yml" in done.stderr


def test_drain_and_undrain_by_playbook(stage: Stage) -> None:
    stage.fleet.run("playbooks/drain.yml", "--limit", "ap1").require()
    assert stage.fleet.status("ap1", "/ready") == 503
    assert stage.gateway.state("ap1") == "DOWN"
    with Clients(stage.gateway.port) as clients:
        pass
    assert clients.failures == []
    stage.fleet.run("playbooks/undrain.yml", "--limit", "ap1").require()
    assert stage.gateway.state("ap1") == "UP"
    assert stage.fleet.audit("ap1-dpu")[-1]["verb"] == "undrain"


def test_a_card_that_was_flashed_stays_drained_with_its_appliance(stage: Stage) -> None:
    fleet, half = stage.fleet, stage.fleet.root / "ap1-dpu"
    fleet.run("playbooks/drain.yml", "--limit", "ap1", drain_stop=True).require()
    control = [half / "blink/bin/supervisorctl", "-c", half / "supervisor/supervisord.conf"]
    subprocess.run([*control, "shutdown"], check=True, timeout=60)
    wait_for("the end of all that ran on the card", lambda: not processes(half / "blink.toml"))
    shutil.rmtree(half)
    fleet.run("site.yml", "--limit", "ap1").require()
    assert (fleet.status("ap1", "/health"), fleet.status("ap1", "/ready")) == (200, 503)
    fleet.run("playbooks/undrain.yml", "--limit", "ap1").require()
    assert fleet.status("ap1", "/ready") == 200
    assert not (fleet.root / "ap1-gpu/run/dpu-drained").exists()


def test_a_decommissioned_appliance_leaves_its_record_and_nothing_else(stage: Stage) -> None:
    fleet, records = stage.fleet, stage.fleet.root / "records"
    halves = ("ap2-gpu", "ap2-dpu")
    run = fleet.run(DECOMMISSION, decommission="canary")
    assert run.rc != 0
    assert "canary is no appliance of this inventory. Name one" in run.words
    given = {"decommission": "ap2", "decommission_records": str(records)}
    with Clients(stage.gateway.port) as clients:
        run = fleet.run(DECOMMISSION, **given).require()
    assert clients.failures == []
    assert f"What stays: its record of changes ({records}/ap2-gpu.jsonl here)" in run.words
    kept = {half: (records / f"{half}.jsonl").read_text() for half in halves}
    for half in halves:
        assert not (fleet.root / half).exists()
        verbs = [(line["verb"], line.get("result")) for line in map(json.loads, kept[half].splitlines())]
        assert ("deploy", "done") in verbs
        assert verbs[-1] == ("decommission", "done")
    assert not list(Path("/dev/shm").glob(f"blink-{fleet.root.name}-ap2*"))
    assert [line for line in commands() if f"{fleet.root}/ap2" in line] == [], "its supervisors are gone too"
    assert (fleet.status("ap1", "/ready"), fleet.status("ap2", "/ready")) == (200, 0)

    assert fleet.run(DECOMMISSION, **given).require().count("changed") == 0
    assert {half: (records / f"{half}.jsonl").read_text() for half in halves} == kept
    fleet.names.remove("ap2")
    fleet.write()
    fleet.run("playbooks/gateway.yml").require()
    stage.gateway.stop()
    stage.gateway.start()
    assert "ap2" not in stage.gateway.command("show").stdout + stage.gateway.config.read_text()
