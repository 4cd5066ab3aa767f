"""provision.yml and flash.yml as an operator runs them, over two bare appliances of which the first is the canary.

The tests share the fleet and go on where the one before stopped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ansible.playbook import Run
from tests.vendor import pci
from tests.vendor.conftest import RELEASE, Appliance, racked
from tests.vendor.fleet import HARDWARE, Fleet, audit, locks, set_clock
from tests.vendor.identity import FIRMWARE, SERIAL
from tests.vendor.repository import TOOLS, Repository

pytestmark = [pytest.mark.e2e, pytest.mark.fleet, pytest.mark.timeout(1800)]

MODE = "INTERNAL_CPU_OFFLOAD_ENGINE"
BLINK = '#!/bin/sh\n[ "$1" = drain ] || exec sleep infinity\n'  # in the place of a release
LEFT = "/opt/blink* /var/lib/blink /etc/blink-api-keys /dev/shm/blink-* /etc/systemd/system/*blink-ap001*"


@pytest.fixture(scope="module")
def pairs(repository: Repository) -> Iterator[tuple[Appliance, Appliance]]:
    with racked(repository, 1) as canary, racked(repository, 2) as other:
        yield canary, other


@pytest.fixture(scope="module")
def fleet(pairs: tuple[Appliance, Appliance], tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"), *pairs)


def untouched(pair: Appliance) -> bool:
    """Whether nothing that a role does was done to a host."""
    installed = pair.host.run("dpkg-query -W doca-ofed nvidia-open rshim", check=False)
    assert "doca-ofed" in installed.stderr
    left = pair.host.run("ls -d /run/blink /var/log/blink /etc/apt/sources.list.d/* 2>/dev/null", check=False).stdout
    return not (installed.stdout or left or (pair.host.directory / "transcript").exists())


def boots(*pairs: Appliance) -> list[str]:
    return [pair.host.boot_id() for pair in pairs]


def test_check_mode_on_a_bare_pair_foretells_and_changes_nothing(fleet: Fleet) -> None:
    before = boots(*fleet.appliances)
    run = fleet.run("provision", "--check", "--diff", "--limit", "ap001").require()
    assert "doca-ofed=3.2.1-1, rshim would be installed" in run.words
    assert "nvidia-open=580.95.05-1 would be installed" in run.words
    assert run.count("changed") > 0
    assert all(map(untouched, fleet.appliances))
    assert boots(*fleet.appliances) == before


def test_a_canary_whose_half_fails_stops_the_fleet(fleet: Fleet) -> None:
    canary, other = fleet.appliances
    before = boots(canary, other)
    source = fleet.variables["gpu_driver_repository"] | {"uri": "file:/nowhere"}
    run = fleet.run("provision", gpu_driver_repository=source)
    assert run.rc != 0
    assert (
        "ap001 could not be provisioned, and the fleet stops here. gpu01: apt cannot read the repository blink-gpu "
        "(file:/nowhere)" in run.words
    )
    assert "Check address, suite and key in the inventory" in run.words
    assert boots(canary, other) == before, "what failed is not rebooted"
    assert untouched(other)
    assert audit(canary.host) == [("provision", ""), ("provision", "failed")]
    assert locks(canary.host) == ""


def test_bare_pairs_get_drivers_and_mode_with_one_reboot_and_then_nothing_changes(fleet: Fleet) -> None:
    before = boots(*fleet.appliances)
    run = fleet.run("provision").require()
    assert f"firmware: {MODE}=0 of the card" in run.words
    after = boots(*fleet.appliances)
    assert not set(before) & set(after)
    for pair in fleet.appliances:
        assert pair.state()["driver"]["loaded"] == "580.95.05"
        assert pair.state()["card"]["config"][MODE]["current"] == "ENABLED(0)"
        assert ["-d", pci.NIC, "-y", "set", f"{MODE}=0"] in pair.calls("mlxconfig")
        shown = pair.host.run("nvidia-smi --query-gpu=persistence_mode --format=csv,noheader").stdout
        assert shown.strip() == "Enabled"
        assert audit(pair.host)[-1] == ("provision", "done")
        assert locks(pair.host) == ""

    again = fleet.run("provision", "--limit", "ap001").require()
    assert again.count("changed") == 0, again.output
    assert boots(*fleet.appliances) == after


def test_half_an_appliance_is_not_flashed(fleet: Fleet) -> None:
    run = fleet.run("flash", "--limit", "dpu02")
    assert run.rc != 0
    assert "ap002 is gpu02 and dpu02, and gpu02 is not in this batch. Limit the run to whole appliances" in run.words


def test_a_canary_that_serves_is_not_flashed_and_stops_the_fleet(fleet: Fleet) -> None:
    canary, other = fleet.appliances
    canary.host.run("systemd-run --quiet --unit=blink-ap001-backend sleep infinity")
    run = fleet.run("flash")
    canary.host.run("systemctl stop blink-ap001-backend")
    assert run.rc != 0
    assert "ap001 serves: backend of gpu01 is running, and a flash would end its requests" in run.words
    assert (canary.flashes(), other.flashes()) == (0, 0)
    assert audit(other.host)[-1] == ("provision", "done")
    assert locks(canary.host) == ""


def test_a_canary_whose_flash_fails_stops_the_fleet(fleet: Fleet) -> None:
    canary, other = fleet.appliances
    canary.fault(critical_error=True)
    run = fleet.run("flash")
    canary.fault(critical_error=None)
    assert run.rc != 0
    assert "The card of ap001 could not be flashed, and the fleet stops here. dpu01: dpu01 was not flashed" in run.words
    assert "the card stopped with a CRITICAL ERROR" in run.words
    assert (canary.flashes(), other.flashes()) == (1, 0)
    assert audit(canary.host)[-1] == ("flash", "failed")
    assert locks(canary.host) == ""


def test_cards_get_their_image_and_a_reset_where_its_firmware_waits_and_then_nothing_changes(fleet: Fleet) -> None:
    canary, other = fleet.appliances
    canary.fault(firmware_waits=True)
    before = boots(canary, other)
    run = fleet.run("flash").require()
    assert "firmware: firmware 32.47.1026 in the place of 32.43.1014" in run.words
    after = boots(canary, other)
    assert (after[0] != before[0], after[1] != before[1]) == (True, False), "one waits for a reset"
    assert (canary.flashes(), other.flashes()) == (2, 1)
    for pair in fleet.appliances:
        assert pair.dpu.run("cat /etc/mlnx-release /etc/hostname").stdout.split() == [RELEASE, pair.dpu.name]
        assert pair.state()["card"]["firmware"] == FIRMWARE
        assert "running" not in pair.state()["card"]
        assert audit(pair.host)[-1] == ("flash", "done")
        assert locks(pair.host) == locks(pair.dpu) == ""

    again = fleet.run("flash", "--limit", "ap001").require()
    assert again.count("changed") == 0, again.output
    assert (canary.flashes(), other.flashes()) == (2, 1)
    assert boots(canary, other) == after


@pytest.fixture(scope="module")
def whole(fleet: Fleet) -> Appliance:
    """The canary after its provisioning and its flash, with what only a real machine has."""
    pair = fleet.appliances[0]
    set_clock(pair.host, pair.dpu)
    shutil.copy(TOOLS / "mokutil", pair.host.directory)
    pair.host.run("install -m 755 /vendor/mokutil /usr/local/sbin/")
    pci.secure_boot(pair.host.directory)
    pci.set_bridge(pair.host.directory, pci.SOURCE_VALIDATION)
    return pair


def preflight(fleet: Fleet, **variables: Any) -> Run:
    return fleet.run("preflight", "--limit", "ap001", **HARDWARE, **variables)


def test_hardware_that_is_the_inventorys_passes(fleet: Fleet, whole: Appliance) -> None:
    assert preflight(fleet).require().count("changed") == 0
    asked = [call for call in whole.calls("mokutil") if call[0] == "--test-key"]
    assert asked, "Secure Boot was looked at"


def test_hardware_that_is_not_is_refused_with_every_reason_at_once(fleet: Fleet, whole: Appliance) -> None:
    root, content = whole.host.directory, whole.state()
    nic = pci.device(root, pci.NIC)
    whole.write_state(content | {"gpu": content["gpu"] | {"ecc": "Disabled"}, "faults": {"key_unknown": True}})
    (nic / "vpd").write_bytes(pci.vpd("MT9999X99999"))
    pci.translate(nic, "DMA-FQ")
    pci.set_bridge(root, pci.REDIRECTS)
    set_clock(whole.host, synchronised=False)
    run = preflight(fleet)
    whole.write_state(content)
    (nic / "vpd").write_bytes(pci.vpd(SERIAL))
    pci.translate(nic, "identity")
    pci.set_bridge(root, pci.SOURCE_VALIDATION)
    set_clock(whole.host)
    assert run.rc != 0
    for cause in (
        "the clock is not synchronised",
        f"ECC of the GPU {whole.pair['blink_gpu_uuid']} is Disabled, not Enabled, and its engines were built for that",
        f"the card at {pci.NIC} has the serial number MT9999X99999, not {SERIAL}",
        "Secure Boot is on, and the key that signs modules built here is not enrolled",
        f"the IOMMU translates the addresses of {pci.NIC} (domain DMA-FQ)",
        f"the PCIe bridge 0000:0c:01.0 above {pci.NIC} redirects peer-to-peer traffic to the root (ACS)",
    ):
        assert f"gpu01: {cause}" in run.words


def test_a_gpu_that_is_gone_or_another_is_refused(fleet: Fleet, whole: Appliance) -> None:
    content, uuid = whole.state(), whole.pair["blink_gpu_uuid"]
    whole.fault(gpu_gone=True)
    gone = preflight(fleet)
    whole.write_state(content | {"gpu": content["gpu"] | {"uuid": "GPU-other"}})
    other = preflight(fleet)
    whole.write_state(content)
    assert "No GPU can be used (No devices were found)" in gone.words
    assert f"gpu01: the GPU {uuid} is not here (GPU-other)" in other.words
    assert (gone.rc, other.rc) == (2, 2)


def test_a_full_disk_is_refused(fleet: Fleet, whole: Appliance) -> None:
    whole.host.run("mkdir -p /var/lib/blink && mount -t tmpfs -o size=8m full /var/lib/blink")
    run = preflight(fleet)
    whole.host.run("umount /var/lib/blink")
    assert run.rc != 0
    assert "8 MiB are free for /var/lib/blink, 64 are needed. Free some" in run.words


def test_a_decommissioned_appliance_leaves_no_unit_and_no_file(fleet: Fleet) -> None:
    pair = fleet.appliances[0]
    for machine in (pair.host, pair.dpu):
        machine.run("mkdir -p /opt/blink/bin /opt/blink.releases /var/lib/blink /dev/shm/blink-ap001")
        machine.run(f"cat >/opt/blink/bin/blink <<'END'\n{BLINK}END\nchmod +x /opt/blink/bin/blink")
        machine.run("touch /var/lib/blink/ring-key; echo secret >/etc/blink-api-keys")
    given = {"blink_api_keys_file": "/etc/blink-api-keys", "decommission_records": str(fleet.folder / "records")}
    fleet.play("serve", "--limit", "ap001").require()
    for machine, service in ((pair.host, "backend"), (pair.dpu, "frontend")):
        assert (
            machine.run(f"systemctl is-active blink-ap001-{service} blink-ap001.target").stdout.split()
            == ["active"] * 2
        )

    fleet.run("decommission", decommission="ap001", **given).require()
    for machine in (pair.host, pair.dpu):
        assert machine.run("systemctl list-units --all --plain --no-legend 'blink-ap001*'").stdout == ""
        assert machine.run(f"ls -d {LEFT} 2>/dev/null || true").stdout == ""
        assert audit(machine)[-1] == ("decommission", "done")
        kept = (fleet.folder / "records" / f"{machine.name}.jsonl").read_text()
        assert kept == machine.run("cat /var/log/blink/audit.jsonl").stdout
        assert locks(machine) == ""
    again = fleet.run("decommission", decommission="ap001", **given).require()
    assert again.count("changed") == 0, again.output
