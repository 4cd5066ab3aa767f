"""What site.yml left on two machines, looked at without asking it."""

from __future__ import annotations

import httpx

from images.lab.machine import Machine
from tests.lab.deployed import KEY, Deployed, wait_for


def services(machine_units: str) -> set[str]:
    """Names of the appliance's units in what systemctl printed."""
    return {
        line.split()[0].removeprefix("blink-ap001-").removesuffix(".service") for line in machine_units.splitlines()
    }


def test_each_half_runs_its_own_services(calm_lab: Deployed) -> None:
    listing = "systemctl list-units --no-legend --plain --state=active 'blink-ap001-*.service'"
    assert services(calm_lab.gpu.ssh(listing).stdout) == {"backend", "ringd"}
    assert services(calm_lab.dpu.ssh(listing).stdout) == {"frontend"}


def test_both_halves_run_the_same_code(calm_lab: Deployed) -> None:
    versions = [machine.ssh("/opt/blink/bin/blink version").stdout for machine in (calm_lab.gpu, calm_lab.dpu)]
    assert versions[0] == versions[1]


def test_the_key_is_the_same_and_only_the_service_reads_it(calm_lab: Deployed) -> None:
    keys = [machine.ssh(f"stat --format %a {KEY} && cat {KEY}").stdout for machine in (calm_lab.gpu, calm_lab.dpu)]
    assert keys[0] == keys[1]
    assert keys[0].startswith("600\n")
    assert len(keys[0].split()[1]) == 64


def test_the_weights_stay_on_the_host(calm_lab: Deployed) -> None:
    listing = "ls /var/lib/blink/models/tiny-random-llama"
    assert "model.safetensors" in calm_lab.gpu.ssh(listing).stdout
    assert "tokenizer.json" in calm_lab.dpu.ssh(listing).stdout
    assert "model.safetensors" not in calm_lab.dpu.ssh(listing).stdout


def test_the_operator_gets_an_answer_over_http(calm_lab: Deployed) -> None:
    body = {"model": "tiny-random-llama", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    answer = httpx.post(f"{calm_lab.url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] >= 1


def processes(machine: Machine) -> list[str]:
    return machine.ssh("grep -lz BLINK_CONFIG= /proc/[0-9]*/environ", check=False).stdout.split()


def test_stopping_the_target_leaves_no_process(lab: Deployed) -> None:
    """The target's own stop returns at once; its services follow, each within its own time."""
    for machine in (lab.dpu, lab.gpu):
        machine.ssh("systemctl stop blink-ap001.target")
        wait_for(f"{machine.name} without a process of Blink", lambda m=machine: not processes(m))
