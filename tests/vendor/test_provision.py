"""The roles that bring a GPU host to its drivers and its card to a mode, against a real systemd, apt and reboot."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from tests.ansible.playbook import ROOT
from tests.appliance import wait_for
from tests.vendor.conftest import DRIVERS, Appliance

pytestmark = [pytest.mark.e2e, pytest.mark.fleet, pytest.mark.timeout(900)]

DRIVER = ROOT / "roles/gpu_driver/files/driver.py"
MLXCONFIG = ROOT / "roles/doca_host/files/mlxconfig.py"
MODE = "INTERNAL_CPU_OFFLOAD_ENGINE"


@pytest.fixture(scope="module")
def host(shared: Appliance) -> Appliance:
    """A host with driver and tools that no role has installed."""
    shared.install("doca-ofed", "rshim", "nvidia-open")
    for script in (DRIVER, MLXCONFIG):
        shutil.copy(script, shared.host.directory)
    return shared


def change(host: Appliance, **driver: Any) -> None:
    content = host.state()
    content["driver"] |= driver
    host.write_state(content)


def judge(host: Appliance, peer_memory: str = "dmabuf") -> dict[str, str]:
    found: dict[str, str] = json.loads(host.host.run(f"python3 /vendor/driver.py {DRIVERS[1]} {peer_memory}").stdout)
    return found


@pytest.mark.parametrize(
    ("driver", "state", "cause", "remedy"),
    [
        ({"loaded": "570.1.0"}, "reboot", "library and its loaded kernel module differ", "Reboot the pair"),
        ({"loaded": None}, "unloaded", "kernel module is not loaded", "Secure Boot"),
        ({"installed": "570.1.0", "loaded": "570.1.0"}, "reboot", "570.1.0 is loaded, and 580.95.05", "Reboot"),
        ({"closed": True}, "broken", "closed kernel modules (license NVIDIA)", "nvidia-open"),
        ({"built_for": "3.1.0"}, "rebuild", "Unknown symbol ib_register_peer_memory_client", "role gpu_driver"),
        ({}, "ready", "580.95.05 is loaded", ""),
    ],
    ids=["mismatch", "module-missing", "older", "closed", "ofed-after-driver", "ready"],
)
def test_the_state_of_the_driver_is_named(
    host: Appliance, driver: dict[str, Any], state: str, cause: str, remedy: str
) -> None:
    good = {
        "installed": "580.95.05",
        "loaded": "580.95.05",
        "boot": host.host.boot_id(),
        "built_for": "3.2.1",
        "closed": False,
    }
    change(host, **good | driver)
    verdict = judge(host, "peermem")
    assert verdict["state"] == state
    assert cause in verdict["cause"]
    assert remedy in verdict["remedy"]


def test_a_driver_that_was_built_for_other_rdma_drivers_is_built_again(host: Appliance) -> None:
    good = {"installed": "580.95.05", "loaded": "580.95.05", "boot": host.host.boot_id(), "closed": False}
    change(host, **good, built_for="3.1.0")
    given = {"gpu_driver_peer_memory": "peermem"}
    run = host.play("driver", **given).require()
    assert "Build the kernel modules again" in run.words
    assert host.state()["driver"]["built_for"] == "3.2.1"
    assert host.play("driver", **given).require().count("changed") == 0


def firmware(host: Appliance, *settings: str, device: str = "0000:0d:00.0") -> dict[str, Any]:
    command = f"python3 /vendor/mlxconfig.py {device} {' '.join(settings)}"
    found: dict[str, Any] = json.loads(host.host.run(command).stdout)
    return found


@pytest.mark.parametrize(
    ("current", "following", "wants_set", "wants_reset"),
    [
        ("DISABLED(1)", "DISABLED(1)", True, True),
        ("DISABLED(1)", "ENABLED(0)", False, True),
        ("ENABLED(0)", "DISABLED(1)", True, False),
        ("ENABLED(0)", "ENABLED(0)", False, False),
    ],
)
def test_what_is_in_force_and_what_will_be_are_told_apart(
    host: Appliance, current: str, following: str, wants_set: bool, wants_reset: bool
) -> None:
    content = host.state()
    content["card"]["config"][MODE] |= {"current": current, "next": following}
    host.write_state(content)
    found = firmware(host, f"{MODE}=0", "INTERNAL_CPU_MODEL=1")
    assert found["error"] == ""
    assert (found["set"] != [], found["reset"] != []) == (wants_set, wants_reset)


def test_a_card_that_is_not_there_or_is_of_another_kind_is_named(host: Appliance) -> None:
    assert "compare blink_card.bdf in the inventory" in firmware(host, f"{MODE}=0", device="0000:ad:00.0")["error"]
    assert "mlxconfig cannot read" in firmware(host, "NO_SUCH_KEY=0")["error"]


def test_a_repository_that_cannot_be_read_is_named(host: Appliance) -> None:
    source = host.variables["gpu_driver_repository"] | {"uri": "file:/nowhere"}
    run = host.play("driver", gpu_driver_repository=source, gpu_driver_version="581.1.0-1")
    assert run.rc != 0
    assert "apt cannot read the repository blink-gpu (file:/nowhere)" in run.words
    host.host.run("rm /etc/apt/sources.list.d/blink-gpu.sources")


@pytest.mark.timeout(2000)
def test_a_mode_that_a_reset_did_not_bring_is_named(host: Appliance) -> None:
    content = host.state()
    content["card"]["config"][MODE] |= {"current": "DISABLED(1)", "next": "ENABLED(0)"}
    host.write_state(content)
    run = host.play("verify")
    assert run.rc != 0
    assert f"The card does not run with {MODE}=0, though that is set" in run.words
    assert "Turn the host off and on again at its power supply" in run.words


# In the place of what the kernel shows of the processors, from the start of each boot.
PROCESSORS = """
[Unit]
DefaultDependencies=no
Before=local-fs.target
[Mount]
What=/vendor/cpu
Where=/sys/devices/system/cpu
Type=none
Options=bind
"""


def test_the_governor_is_set_now_and_after_a_reboot(host: Appliance) -> None:
    policies = [host.host.directory / f"cpu/cpufreq/policy{n}" for n in (0, 1)]
    for policy in policies:
        policy.mkdir(parents=True)
        (policy / "scaling_available_governors").write_text("performance schedutil\n")
        (policy / "scaling_governor").write_text("schedutil\n")
    unit = "sys-devices-system-cpu.mount"
    host.host.run(f"cat >/etc/systemd/system/{unit} <<'END'{PROCESSORS}END\nsystemctl add-wants local-fs.target {unit}")
    host.host.run(f"systemctl start {unit}")

    def governors() -> set[str]:
        return {(policy / "scaling_governor").read_text().strip() for policy in policies}

    refused = host.play("tuning", host_tuning_governor="powersave")
    assert "host_tuning_governor is powersave, and the processors offer performance, schedutil" in refused.words
    assert governors() == {"schedutil"}
    host.play("tuning", "--check", host_tuning_governor="performance").require()
    assert governors() == {"schedutil"}
    host.play("tuning", host_tuning_governor="performance").require()
    assert governors() == {"performance"}
    assert host.play("tuning", host_tuning_governor="performance").require().count("changed") == 0

    (policies[1] / "scaling_governor").write_text("schedutil\n")
    run = host.play("tuning", host_tuning_governor="performance")
    assert "The governor is performance, schedutil and not performance. Another service sets it" in run.words
    before = host.host.power
    host.host.run("systemctl reboot", check=False)
    wait_for("the host", lambda: host.host.power not in ("", before))
    host.host.wait()
    wait_for("the governor", lambda: governors() == {"performance"})
