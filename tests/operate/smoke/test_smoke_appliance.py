"""``blink smoke`` on a real appliance: it passes where all is well, and names the hop where it is not."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from blink.model.prepared import PreparedModel
from blink.operate.smoke.check import Deadline
from blink.operate.smoke.golden import FOLDER_FILE
from blink.operate.smoke.main import CHECKS
from blink.operate.smoke.operator import Operator
from blink.ring.lease import PartitionLease
from tests.appliance import Appliance, appliance, call_blink, wait_for
from tests.authority import Authority
from tests.tiny_model import prepare_tiny

pytestmark = pytest.mark.e2e


@dataclass
class Running:
    appliance: Appliance
    backend: subprocess.Popen[bytes]
    frontend: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Running]:
    """An appliance that serves; a test that disturbs it puts it right again."""
    with appliance(tmp_path_factory.mktemp("smoke-appliance"), tiny_model) as a:
        yield Running(a, a.backend(), a.frontend())


def changed(a: Appliance, tmp_path: Path, old: str, new: str) -> Path:
    """A copy of the appliance's configuration with ``old`` replaced."""
    text = a.config_path.read_text()
    assert text.count(old) == 1
    path = tmp_path / "changed.toml"
    path.write_text(text.replace(old, new))
    return path


def smoke(config: Path, tmp_path: Path, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and outcomes by check."""
    report = tmp_path / "smoke.json"
    result = call_blink("smoke", "--config", str(config), "--json", str(report), *arguments)
    assert "Traceback" not in result.stderr
    document = json.loads(report.read_text())
    assert document["passed"] == (result.returncode == 0)
    return result.returncode, {c["name"]: c for c in document["checks"]}


def failed(outcomes: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, outcome in outcomes.items() if not outcome["passed"]}


def test_it_is_a_command(running: Running) -> None:
    """As a process; the others are calls."""
    result = running.appliance.command("smoke", "--only", "ring")
    assert (result.returncode, result.stderr) == (0, "")
    assert "1 of 1 checks passed" in result.stdout


def test_a_healthy_appliance_passes_every_check(running: Running, tmp_path: Path) -> None:
    code, outcomes = smoke(running.appliance.config_path, tmp_path, "--junit", str(tmp_path / "junit.xml"))
    assert (code, failed(outcomes)) == (0, set())
    assert list(outcomes) == [c.name for c in CHECKS if c.name != "http-auth" and not c.name.startswith("rdma-")]
    suite = ET.parse(tmp_path / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert [case.get("name") for case in suite.iter("testcase")] == list(outcomes)
    assert outcomes["slot"]["detail"].endswith("DECODE_COMPLETED > EMPTY, 16 tokens")
    assert "no golden record" in outcomes["golden"]["detail"]


def test_only_runs_what_is_named_and_list_names_all(running: Running, tmp_path: Path) -> None:
    code, outcomes = smoke(running.appliance.config_path, tmp_path, "--only", "http-models", "--only", "ring")
    assert (code, list(outcomes)) == (0, ["ring", "http-models"])
    listed = call_blink("smoke", "--list")
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [c.name for c in CHECKS]
    unknown = running.appliance.call("smoke", "--only", "nothing")
    assert unknown.returncode == 1
    assert "nothing: no such check of this appliance" in unknown.stderr


def test_another_model_in_the_folder_is_found(running: Running, tmp_path: Path, tiny_model: Path) -> None:
    other = prepare_tiny(tmp_path / "other", seed=1)
    config = changed(running.appliance, tmp_path, str(tiny_model), str(other))
    code, outcomes = smoke(config, tmp_path, "--only", "ring")
    assert code == 1
    assert "the model folder changed under a running backend" in outcomes["ring"]["cause"]


def test_another_geometry_is_found(running: Running, tmp_path: Path) -> None:
    config = changed(running.appliance, tmp_path, "slots = 64", "slots = 128")
    code, outcomes = smoke(config, tmp_path, "--only", "ring")
    assert code == 1
    assert "slots=64" in outcomes["ring"]["detail"]
    assert "slots=128" in outcomes["ring"]["detail"]


def test_golden_answers_are_compared_token_by_token(running: Running, tmp_path: Path, tiny_model: Path) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    config = changed(running.appliance, tmp_path, str(tiny_model), str(folder))
    prompt = [3, 4, 5]
    with PartitionLease(
        running.appliance.config.instance.run_dir, running.appliance.config.operator_partition
    ) as lease:
        operator = Operator(running.appliance.config, lease)
        answer = operator.ask([prompt], 8, Deadline(30, "the backend"))[0].tokens
        operator.close()
    record = {
        "fingerprint": PreparedModel.open(folder).fingerprint.hex(),
        "origin": "this test",
        "cases": [{"prompt": prompt, "answer": answer}],
    }
    (folder / FOLDER_FILE).write_text(json.dumps(record))
    code, outcomes = smoke(config, tmp_path, "--only", "golden")
    assert (code, outcomes["golden"]["detail"]) == (0, "1 recorded greedy answers (this test)")

    answer[5] = (answer[5] + 1) % 300
    (folder / FOLDER_FILE).write_text(json.dumps(record))
    code, outcomes = smoke(config, tmp_path, "--only", "golden")
    assert code == 1
    assert outcomes["golden"]["detail"].startswith("token 5 of the greedy answer")
    assert "damaged weights" in outcomes["golden"]["cause"]


def test_a_stopped_backend_is_found_by_every_check_that_needs_it(running: Running, tmp_path: Path) -> None:
    running.backend.send_signal(signal.SIGSTOP)
    try:
        wait_for("the frontend to notice", lambda: not running.appliance.healthy())
        code, outcomes = smoke(running.appliance.config_path, tmp_path)
    finally:
        running.backend.send_signal(signal.SIGCONT)
        wait_for("the appliance", running.appliance.healthy)
    assert code == 1
    assert failed(outcomes) == set(outcomes) - {"scratch", "http-models"}
    assert outcomes["ring"]["detail"].startswith("the scheduler's beat stands at ")
    assert "the backend or the ring does not" in outcomes["http-completion"]["cause"]


def test_a_frontend_that_is_down_is_found(running: Running, tmp_path: Path) -> None:
    config = changed(running.appliance, tmp_path, f"port = {running.appliance.port}", "port = 1")
    code, outcomes = smoke(config, tmp_path)
    assert code == 1
    assert failed(outcomes) == {name for name in outcomes if name.startswith("http-")}
    assert "the frontend is down" in outcomes["http-health"]["cause"]


def test_a_hung_frontend_fails_with_what_was_waited_for(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = tuple(replace(c, timeout_s=1.0) if c.name == "http-health" else c for c in CHECKS)
    monkeypatch.setattr("blink.operate.smoke.main.CHECKS", hasty)
    running.frontend.send_signal(signal.SIGSTOP)
    try:
        code, outcomes = smoke(running.appliance.config_path, tmp_path, "--only", "http-health")
    finally:
        running.frontend.send_signal(signal.SIGCONT)
    assert code == 1
    assert outcomes["http-health"]["detail"].startswith("waited 1 s for GET http://127.0.0.1:")
    assert "the frontend is hung" in outcomes["http-health"]["cause"]


def test_a_partition_in_use_is_named(running: Running, tmp_path: Path) -> None:
    config = running.appliance.config
    with PartitionLease(config.instance.run_dir, config.operator_partition):
        code, outcomes = smoke(running.appliance.config_path, tmp_path, "--only", "slot")
    assert code == 1
    assert "partition 1 is in use by process" in outcomes["slot"]["detail"]


def test_an_appliance_that_is_down_fails_every_check_at_once(tmp_path: Path, tiny_model: Path) -> None:
    with appliance(tmp_path / "down", tiny_model) as a:
        code, outcomes = smoke(a.config_path, tmp_path)
        assert code == 1
        assert failed(outcomes) == set(outcomes)
        assert "no ring in" in outcomes["ring"]["detail"]
        assert "start the backend" in outcomes["ring"]["cause"]


def test_keys_and_tls_are_used_and_checked(tmp_path: Path, tiny_model: Path) -> None:
    keys, cert, key = tmp_path / "keys", tmp_path / "cert.pem", tmp_path / "key.pem"
    keys.write_text("first-key\nsecond-key\n")
    for file, text in zip((cert, key), Authority("Fleet, simulated").issue("appliance"), strict=True):
        file.write_text(text)
    settings = {"api_keys_file": keys, "tls_cert": cert, "tls_key": key}
    with appliance(tmp_path / "guarded", tiny_model, frontend=settings) as a:
        a.backend()
        a.start("frontend")
        assert a.call("wait", "frontend").returncode == 0
        code, outcomes = smoke(a.config_path, tmp_path)
        assert (code, failed(outcomes)) == (0, set())
        assert "http-auth" in outcomes
        keys.write_text("another-key\n")
        code, outcomes = smoke(a.config_path, tmp_path, "--only", "http-models")
        assert code == 1
        assert (
            "the key in frontend.api_keys_file is not the one that the frontend loaded"
            in outcomes["http-models"]["cause"]
        )
