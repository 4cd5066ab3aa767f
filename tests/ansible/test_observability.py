"""What watches the appliances: judged by promtool, over the numbers that an appliance really gives."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.ansible.playbook import ROOT, ansible
from tests.appliance import Appliance, appliance
from tests.inventory.fleet import fleet, write

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's prometheus")
METRIC = re.compile(r"\b((?:blink|haproxy)_[a-z0-9_]+)\b")
SUFFIX = re.compile(r"_(bucket|sum|count)$")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the role writes for a fleet of three appliances and a gateway."""
    root = tmp_path_factory.mktemp("observability")
    inventory = fleet(3)
    children = inventory["all"]["children"]
    children["gateways"] = {"hosts": {"gw1": {"ansible_host": "192.0.2.1"}}}
    children["monitoring"] = {
        "hosts": {"watch1": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}}
    }
    inventory["all"]["vars"] = {"blink_http_host": "0.0.0.0", "blink_http_port": 8443}
    out = root / "out"
    out.mkdir()
    variables = {
        "observability_dir": str(out),
        "observability_packages": [],
        "observability_service": "",
        "observability_promtool": shutil.which("promtool"),
        "observability_authority": "-----BEGIN CERTIFICATE-----",
    }
    source = write(inventory, root / "inventory")
    for _ in range(2):
        run = ansible(
            "ansible-playbook", "-i", str(source), "playbooks/observability.yml", "-e", json.dumps(variables)
        ).require()
    assert run.count("changed") == 0, "a second run changes nothing"
    return out


def test_every_appliance_and_gateway_is_read(files: Path) -> None:
    jobs = {job["job_name"]: job for job in yaml.safe_load((files / "prometheus.yml").read_text())["scrape_configs"]}
    targets = {config["labels"]["appliance"]: config["targets"] for config in jobs["blink"]["static_configs"]}
    assert targets == {f"ap{n:03d}": [f"ap{n:03d}-dpu:8443"] for n in (1, 2, 3)}
    assert jobs["blink"]["scheme"] == "https"
    assert jobs["gateway"]["static_configs"] == [{"targets": ["192.0.2.1:8405"], "labels": {"gateway": "gw1"}}]


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_promtool_accepts_what_is_written(files: Path) -> None:
    done = promtool("check", "config", str(files / "prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "17 rules found" in done.stdout


RULES = {
    "BlinkFrontendUnreachable": ('up{job="blink", appliance="ap001"}', "0x40"),
    "BlinkNotServing": ('blink_up{appliance="ap001"}', "0x40"),
    "BlinkLinkDown": ('blink_link_up{appliance="ap001"}', "0x40"),
    "BlinkSchedulerStalled": ('blink_scheduler_beat_age_seconds{appliance="ap001"}', "0+6x40"),
    "BlinkBackendRestarted": ('blink_ring_publishes_total{appliance="ap001"}', "1000+1x19 0+1x20"),
    "BlinkTornRequests": ('blink_ring_torn_total{appliance="ap001"}', "0x20 1x20"),
    "BlinkEngineFails": ('blink_ring_finished_total{appliance="ap001", reason="err_engine"}', "0x20 1x20"),
    "BlinkAtCapacity": ('blink_http_responses_total{appliance="ap001", status="429"}', "0+1x200"),
    "BlinkDrainedForLong": ('blink_drained{appliance="ap001"}', "1x800"),
    "BlinkNoApplianceLeft": ('haproxy_backend_active_servers{proxy="appliances", gateway="gw1"}', "0x40"),
    "BlinkRequestsWaitAtGateway": ('haproxy_backend_current_queue{proxy="appliances", gateway="gw1"}', "1x60"),
}


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_fires_for_its_failure_and_not_without(alert: str, files: Path, tmp_path: Path) -> None:
    series, values = RULES[alert]
    end = 10 * sum(int(n) for n in re.findall(r"x(\d+)", values))
    expected = {"severity": _severity(files, alert), **dict(re.findall(r'(\w+)="([^"]*)"', series))}
    expected = {k: v for k, v in expected.items() if alert != "BlinkAtCapacity" or k != "status"}
    healthy = {"blink_up": 1, "blink_link_up": 1, "haproxy_backend_active_servers": 3}.get(series.split("{")[0], 0)
    if series.startswith("up{"):
        healthy = 1
    cases = [(values, [{"exp_labels": expected}]), (f"{healthy}x{end // 10}", [])]
    for number, (samples, alerts) in enumerate(cases):
        test = {
            "rule_files": [str(files / "blink.rules.yml")],
            "evaluation_interval": "10s",
            "tests": [
                {
                    "interval": "10s",
                    "input_series": [{"series": series, "values": samples}],
                    "alert_rule_test": [{"eval_time": f"{end}s", "alertname": alert, "exp_alerts": alerts}],
                }
            ],
        }
        if alerts:
            alerts[0]["exp_annotations"] = _annotations(files, alert, expected)  # type: ignore[assignment]
        file = tmp_path / f"{number}.yml"
        file.write_text(yaml.safe_dump(test))
        done = promtool("test", "rules", str(file))
        assert done.returncode == 0, done.stdout + done.stderr


def _rule(files: Path, alert: str) -> dict[str, dict[str, str]]:
    groups = yaml.safe_load((files / "blink.rules.yml").read_text())["groups"]
    found: dict[str, dict[str, str]] = next(r for g in groups for r in g["rules"] if r["alert"] == alert)
    return found


def _severity(files: Path, alert: str) -> str:
    return _rule(files, alert)["labels"]["severity"]


def _annotations(files: Path, alert: str, labels: dict[str, str]) -> dict[str, str]:
    return {
        key: re.sub(r"{{ \$labels\.(\w+) }}", lambda m: labels.get(m[1], ""), text)
        for key, text in _rule(files, alert)["annotations"].items()
    }


def test_every_alert_has_its_entry_in_the_runbook(files: Path) -> None:
    runbook = (ROOT / "docs/runbook.md").read_text()
    groups = yaml.safe_load((files / "blink.rules.yml").read_text())["groups"]
    for rule in (r for g in groups for r in g["rules"]):
        assert f"### `{rule['annotations']['runbook']}" in runbook, rule["alert"]


@pytest.fixture(scope="module")
def told(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the metrics that a real appliance tells after a request."""
    with appliance(tmp_path_factory.mktemp("told") / "a", tiny_model) as a:
        a.backend()
        a.frontend()
        return _metrics(a)


def _metrics(a: Appliance) -> set[str]:
    with a.client() as client:
        assert client.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 3}).status_code == 200
        return {line.split("{")[0].split(" ")[0] for line in client.get("/metrics").text.splitlines() if line[0] != "#"}


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["blink.rules.yml", "blink-dashboard.json"])
def test_alerts_and_dashboard_ask_for_what_an_appliance_tells(name: str, files: Path, told: set[str]) -> None:
    text = (files / name).read_text()
    asked = {m for m in METRIC.findall(text) if m.startswith("blink_")}
    assert len(asked) > 10
    assert asked <= told, asked - told


def test_the_dashboard_has_panels_with_queries(files: Path) -> None:
    dashboard = json.loads((files / "blink-dashboard.json").read_text())
    panels = [p for p in dashboard["panels"] if p["type"] != "row"]
    assert len(panels) > 10
    assert all(p["targets"] and p["title"] for p in panels)
    assert len({p["id"] for p in dashboard["panels"]}) == len(dashboard["panels"])
