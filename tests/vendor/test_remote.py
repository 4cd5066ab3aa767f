"""An appliance whose card is in another server, a carrier: provisioned, flashed and rebooted by the playbooks.

ap001 is gpu02 and dpu01, and its card is in gpu01, the carrier. The tests go on where the one before stopped.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.appliance import wait_for
from tests.vendor import pci
from tests.vendor.conftest import RELEASE, Appliance, racked
from tests.vendor.fleet import HARDWARE, Fleet, audit, locks, set_clock
from tests.vendor.identity import FIRMWARE, OLD_FIRMWARE, SERIAL
from tests.vendor.machine import Machine
from tests.vendor.repository import Repository

pytestmark = [pytest.mark.e2e, pytest.mark.fleet, pytest.mark.timeout(1800)]

MODE = "INTERNAL_CPU_OFFLOAD_ENGINE"
NEEDS = "mkdir -p /run/blink/reboot-needed && echo {} >/run/blink/reboot-needed/test"


class Remote:
    """The machines. ``carrier`` is the rack that has the card."""

    def __init__(self, carrier: Appliance, server: Appliance, folder: Path) -> None:
        pair = copy.copy(carrier)
        pair.host, pair.pair = server.host, carrier.pair | {"blink_topology": "remote_dpu"}
        pair.pair["blink_gpu_uuid"] = server.pair["blink_gpu_uuid"]
        carriers = {"hosts": {carrier.host.name: {"ansible_host": str(carrier.host.directory)}}}
        self.fleet = Fleet(folder, pair, dpu_carriers=carriers)
        self.carrier, self.gpu_host, self.dpu = carrier, server.host, carrier.dpu

    def restart_carrier(self) -> None:
        """Turn the Arm cores off and restart the carrier, as a person does."""
        if self.dpu.power:
            self.dpu.run("systemctl poweroff", check=False)
            wait_for("the Arm cores to be off", lambda: not self.dpu.power)
        before = self.carrier.host.power
        self.carrier.host.run("systemctl reboot", check=False)
        wait_for("the carrier", lambda: self.carrier.host.power not in ("", before))
        self.carrier.host.wait()

    def boots(self) -> dict[str, str]:
        """What changes with each boot, by machine."""
        return {m.name: m.power for m in (self.carrier.host, self.gpu_host, self.dpu)}


def booted(machine: Machine) -> float:
    """When a machine was turned on last."""
    return (machine.directory / "pid").stat().st_mtime


@pytest.fixture(scope="module")
def remote(repository: Repository, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    with racked(repository, 1) as carrier, racked(repository, 2) as server:
        yield Remote(carrier, server, tmp_path_factory.mktemp("fleet"))


def test_the_carrier_gets_the_cards_tools_and_its_restart_is_left_to_a_person(remote: Remote) -> None:
    before = remote.boots()
    run = remote.fleet.run("provision")
    assert run.rc != 0
    reasons = f"doca_host: DOCA-Host 3.2.1-1 was installed; firmware: {MODE}=0 of the card's firmware"
    assert f"gpu01 needs a restart ({reasons}), and" in run.words, run.output
    assert "and holds the cards of ap001. Drain these" in run.words
    assert "(poweroff on dpu01), restart gpu01, and run this again" in run.words
    for machine, packages in (
        (remote.carrier.host, "doca-ofed mft rshim"),
        (remote.gpu_host, "doca-ofed mft nvidia-open"),
    ):
        names = machine.run(
            "dpkg-query --show --showformat='${Package}\\n' doca-ofed mft rshim nvidia-open", check=False
        )
        assert names.stdout.split() == packages.split()
    after = remote.boots()
    assert {name: after[name] != before[name] for name in after} == {"gpu01": False, "gpu02": True, "dpu01": False}

    remote.restart_carrier()
    assert remote.carrier.state()["card"]["config"][MODE]["current"] == "ENABLED(0)"
    again = remote.fleet.run("provision").require()
    assert audit(remote.gpu_host)[-1] == ("provision", "done")
    assert again.count("changed") == 0, again.output


def test_a_card_is_flashed_through_its_carrier(remote: Remote) -> None:
    remote.carrier.fault(firmware_waits=True)
    before = remote.boots()
    run = remote.fleet.run("flash")
    assert run.rc != 0
    assert f"gpu01 needs a restart (firmware: firmware {FIRMWARE} in the place of {OLD_FIRMWARE})" in run.words
    assert remote.carrier.flashes() == 1
    assert remote.dpu.run("cat /etc/mlnx-release /etc/hostname").stdout.split() == [RELEASE, "dpu01"]
    assert not (remote.gpu_host.directory / "flashes").exists()
    assert remote.gpu_host.run("ls /var/lib/blink/flash", check=False).stdout == ""
    remote.restart_carrier()
    remote.dpu.wait()
    again = remote.fleet.run("flash").require()
    assert again.count("changed") == 0, again.output
    assert remote.carrier.flashes() == 1
    assert remote.boots()["gpu02"] == before["gpu02"]
    assert audit(remote.gpu_host)[-1] == audit(remote.dpu)[-1] == ("flash", "done")
    assert locks(remote.gpu_host) == locks(remote.dpu) == ""


def test_a_dpu_that_needs_a_reboot_goes_first_and_one_that_needs_none_is_spared(remote: Remote) -> None:
    before = remote.boots()
    remote.gpu_host.run(NEEDS.format("a driver"))
    run = remote.fleet.play("reboot").require()
    assert "test: a driver" in run.words
    after = remote.boots()
    assert {name: after[name] != before[name] for name in after} == {"gpu01": False, "gpu02": True, "dpu01": False}

    remote.gpu_host.run(NEEDS.format("a driver"))
    remote.dpu.run(NEEDS.format("a kernel"))
    remote.fleet.play("reboot").require()
    last = remote.boots()
    assert {name: last[name] != after[name] for name in last} == {"gpu01": False, "gpu02": True, "dpu01": True}
    assert booted(remote.dpu) < booted(remote.gpu_host)
    assert remote.fleet.play("reboot").require().count("changed") == 0


def test_a_card_in_a_carrier_is_compared_with_the_inventory_too(remote: Remote) -> None:
    set_clock(remote.carrier.host, remote.gpu_host, remote.dpu)
    assert remote.fleet.run("preflight", **HARDWARE).require().count("changed") == 0
    (pci.device(remote.carrier.host.directory, pci.NIC) / "vpd").write_bytes(pci.vpd("MT9999X99999"))
    run = remote.fleet.run("preflight", **HARDWARE)
    assert run.rc != 0
    assert f"gpu01: the card at {pci.NIC} has the serial number MT9999X99999, not {SERIAL}" in run.words
    assert "if it was replaced, correct blink_card.serial" in run.words
