"""Flashing, against a card that parses what is pushed to it and boots it.

The role itself runs for what only a playbook does. What goes wrong with a card is judged by flash.py and card.py, which
run here on the host as the role's unit runs them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.playbook import ROOT
from tests.bfb.writer import bundle_parts, initramfs, stream
from tests.vendor.conftest import RELEASE, Appliance, sha256, write_bfb
from tests.vendor.identity import BDF, FIRMWARE, SERIAL

pytestmark = [pytest.mark.e2e, pytest.mark.fleet, pytest.mark.timeout(900)]

FILES = ROOT / "roles/bluefield_image/files"
UNIT = f"blink-flash-{SERIAL}"


@pytest.fixture(scope="module")
def card(shared: Appliance) -> Appliance:
    """A card in a host that has DOCA-Host's tools."""
    shared.install("doca-ofed", "rshim")
    for script in FILES.glob("*.py"):
        shutil.copy(script, shared.host.directory)
    return shared


@pytest.fixture(autouse=True)
def mended(card: Appliance) -> Any:
    """No fault outlives its test."""
    yield
    card.write_state(card.state() | {"faults": {}})


def flash(card: Appliance, bfb: Path | None = None, limit: float = 30) -> dict[str, Any]:
    """Flash as the role's unit does, and return the verdict."""
    pair = {"appliance": "ap001", "ring": {"address": card.pair["blink_ring_net"]["dpu"]}}
    settings = card.variables["bluefield_image_settings"] | pair
    config = subprocess.run(
        [sys.executable, "-m", "images.bluefield", "config", "--settings", "-"],
        cwd=ROOT, input=json.dumps(settings), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    folder = card.host.directory / "flash"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "bf.cfg").write_text(config)
    shutil.copy(bfb or card.bfb, folder / "image.bfb")
    card.host.run(
        f"python3 /vendor/flash.py run /vendor/flash --device rshim0 --bdf {BDF} --bfb /vendor/flash/image.bfb "
        f"--config /vendor/flash/bf.cfg --sys /vendor/sys --limit {limit}",
        timeout_s=120,
    )
    assert not (folder / "bf.cfg").exists(), "it has secrets"
    verdict: dict[str, Any] = json.loads((folder / "status.json").read_text())
    assert verdict["done"]
    return verdict


def functions(card: Appliance) -> list[bool]:
    """Whether the host's driver has each function of the card."""
    devices = card.host.directory / "sys/bus/pci/devices"
    return [(devices / f"0000:0d:00.{n}/driver").exists() for n in range(3)]


def test_a_good_flash_boots_what_was_pushed_and_gives_the_functions_back(card: Appliance) -> None:
    verdict = flash(card)
    assert verdict["cause"] == "", (card.host.directory / "flash/log").read_text()
    assert verdict["phase"] == "installed"
    card.dpu.wait()
    assert card.dpu.run("cat /etc/mlnx-release").stdout.strip() == RELEASE
    assert card.dpu.run("cat /etc/hostname").stdout.strip() == "dpu01"
    assert functions(card) == [True, True, False]
    call = card.calls("bfb-install")[-1]
    assert call[:2] == ["--bfb", "/vendor/flash/image.bfb"]


@pytest.mark.parametrize(
    ("fault", "cause", "remedy"),
    [
        ({"push": "Device or resource busy"}, "rshim is busy: another program pushes", "fuser"),
        ({"push": "Invalid argument"}, "drops what is pushed (DROP_MODE 1)", "DROP_MODE 0"),
        ({"push": "Operation not permitted"}, "rshim is locked", "BMC"),
        ({"push": "No such device"}, "boot stream could not be pushed", "journalctl -u rshim"),
        ({"critical_error": True}, "stopped with a CRITICAL ERROR", "another generation of card"),
        ({"install_failed": True}, "the installation on the card failed", "flash it again"),
        ({"firmware_update_failed": True}, "NIC firmware was not updated", "power cycle"),
        ({"no_netdev": True}, "0000:0d:00.0 of the card has no network and RDMA device", "dmesg"),
    ],
    ids=["busy", "drop", "locked", "gone", "critical", "installer", "firmware", "functions"],
)
def test_a_failure_that_bfb_install_ends_with_0_after_is_named(
    card: Appliance, fault: dict[str, Any], cause: str, remedy: str
) -> None:
    card.fault(**fault)
    if "no_netdev" in fault:
        card.host.run("sed -i 's/, 180)/, 3)/' /vendor/flash.py")
    verdict = flash(card)
    assert verdict["phase"] == "failed"
    assert cause in verdict["cause"]
    assert remedy in verdict["remedy"]
    assert functions(card) == [True, True, False], "a failed flash leaves the host its functions"


@pytest.mark.parametrize("fault", ["hang", "silent"])
def test_a_card_that_never_says_that_it_is_up_is_given_up_with_its_last_words(card: Appliance, fault: str) -> None:
    card.fault(**{fault: True})
    verdict = flash(card, limit=6)
    assert "has not said within 6 s that its Linux is up" in verdict["cause"]
    assert ("Rebooting..." if fault == "silent" else "INFO[BL31]: runtime") in verdict["cause"]
    assert "/dev/rshim0/console" in verdict["remedy"]


def test_a_damaged_image_stops_the_card_and_is_named(card: Appliance, tmp_path: Path) -> None:
    damaged = bytearray(card.bfb.read_bytes())
    damaged[-100] ^= 1
    (tmp_path / "damaged.bfb").write_bytes(damaged)
    assert "CRITICAL ERROR" in flash(card, tmp_path / "damaged.bfb")["cause"]


def test_a_failed_card_is_recovered_by_another_flash(card: Appliance) -> None:
    card.fault(critical_error=True)
    assert flash(card)["cause"]
    assert card.dpu.power == "", "nothing runs on it"
    card.fault(critical_error=None)
    assert flash(card)["cause"] == ""
    card.dpu.wait()


# systemd refuses a unit that is started too often, which on a fast machine these tests would do.
RESTART_RSHIM = "systemctl reset-failed rshim; systemctl restart rshim"
AWAIT_RSHIM = "for _ in $(seq 100); do [ -e /dev/rshim0/misc ] && break; sleep 0.1; done"


def look(card: Appliance) -> dict[str, str]:
    found: dict[str, str] = json.loads(card.host.run(f"python3 /vendor/card.py {BDF}").stdout)
    return found


def test_the_card_is_found_by_its_address_and_its_firmware_is_read(card: Appliance) -> None:
    found = look(card)
    assert (found["device"], found["cause"]) == ("rshim0", "")
    assert found["firmware"] == card.state()["card"]["firmware"]


@pytest.mark.parametrize(
    ("fault", "cause", "remedy"),
    [
        ({"another_backend": True}, "belongs to another backend", "doca_host_rshim_force"),
        ({"drop_mode": True}, "drops everything", "DROP_MODE 0"),
        (
            {"other_bdf": "0000:ad:00.2"},
            "no rshim device is the card 0000:0d:00.2 (there are rshim0: pcie-0000:ad",
            "bdf",
        ),
    ],
    ids=["owned", "drop", "swapped"],
)
def test_a_card_that_cannot_be_flashed_is_named(
    card: Appliance, fault: dict[str, Any], cause: str, remedy: str
) -> None:
    card.fault(**fault)
    card.refresh()
    card.host.run(f"journalctl --rotate --vacuum-time=1s --quiet; {RESTART_RSHIM}; sleep 0.3")
    found = look(card)
    assert found["device"] == ""
    assert cause in found["cause"]
    assert remedy in found["remedy"]
    card.write_state(card.state() | {"faults": {}})
    card.refresh()
    card.host.run(f"{RESTART_RSHIM}; {AWAIT_RSHIM}")
    assert look(card)["device"] == "rshim0"


def test_a_stopped_rshim_is_named(card: Appliance) -> None:
    card.host.run("systemctl stop rshim; rm -f /dev/rshim0; journalctl --rotate --vacuum-time=1s --quiet")
    assert "rshim does not run" in look(card)["cause"]
    card.host.run(f"{RESTART_RSHIM}; {AWAIT_RSHIM}")
    assert look(card)["device"] == "rshim0"


# --- the role ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["firmware-only", "truncated", "other"])
def test_an_image_that_is_none_is_refused_before_anything_is_touched(
    card: Appliance, tmp_path: Path, kind: str
) -> None:
    image = tmp_path / "bad.bfb"
    given: dict[str, Any] = {"bluefield_image_bfb": str(image)}
    if kind == "firmware-only":
        image.write_bytes(stream(*bundle_parts()[:-1], type(bundle_parts()[0])(63, initramfs({"./init": b"#!"}))))
    elif kind == "truncated":
        image.write_bytes(card.bfb.read_bytes()[:-64])
    else:
        image.write_bytes(card.bfb.read_bytes())
        given["bluefield_image_bfb_sha256"] = "0" * 64
    before = card.flashes()
    run = card.play("flash", **given)
    assert run.rc != 0
    words = {"firmware-only": "firmware", "truncated": "truncated", "other": "0" * 64}
    assert words[kind] in run.words.lower()
    assert card.flashes() == before


@pytest.mark.timeout(2000)
def test_the_role_flashes_once_and_goes_on_with_a_flash_that_it_lost_sight_of(card: Appliance) -> None:
    before = card.flashes()
    newer = write_bfb(card.directory / "newer.bfb", RELEASE.replace("3.2.1", "3.2.2"))
    given = {"bluefield_image_bfb": str(newer), "bluefield_image_release": RELEASE.replace("3.2.1", "3.2.2")}

    card.host.run("systemd-run --quiet --unit=blink-ap001-backend sleep infinity")
    refused = card.play("flash", **given)
    assert "ap001 serves: backend of gpu01 is running, and a flash would end its requests" in refused.words
    card.host.run("systemctl stop blink-ap001-backend")
    foretold = card.play("flash", "--check", "--diff", **given).require()
    assert "the BFB is " in foretold.words
    assert card.flashes() == before

    card.fault(slow_install=60)
    card.variables["bluefield_image_answer_s"] = 60
    lost = subprocess.Popen(
        [sys.executable, "-c", _PLAY, str(card.directory), json.dumps(card.variables | given)],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 150
    while card.flashes() == before:
        assert time.monotonic() < deadline, "it did not begin"
        time.sleep(0.1)
    subprocess.run(["kill", "-KILL", "--", f"-{lost.pid}"], check=True)
    lost.wait()
    assert card.host.run(f"systemctl is-active {UNIT}").stdout.strip() == "active"

    card.fault(slow_install=None)
    run = card.play("flash", **given).require()
    assert card.flashes() == before + 1
    if "a flash that was begun goes on" in run.words:
        assert "installed" in run.words
    assert card.dpu.run("cat /etc/mlnx-release").stdout.strip() == given["bluefield_image_release"]
    assert json.loads(card.dpu.run("cat /etc/blink-image.json").stdout)["bfb_sha256"] == sha256(newer)
    assert card.state()["card"]["firmware"] == FIRMWARE
    hidden = card.variables["bluefield_image_settings"]["password_hash"]
    assert hidden not in run.output + foretold.output

    again = card.play("flash", **given).require()
    assert again.count("changed") == 0
    assert card.flashes() == before + 1


_PLAY = """
import sys
from tests.ansible.playbook import ansible
inventory = f"{sys.argv[1]}/hosts.yml"
ansible("ansible-playbook", "tests/vendor/flash.yml", "--inventory", inventory, "--extra-vars", sys.argv[2])
"""


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"never_up": True}, "dpu01 was flashed, and does not answer at"),
        ({"other_release": "DOCA_2.9.0"}, "is not what was asked for: the release is DOCA_2.9.0, not"),
        ({"critical_error": True}, "dpu01 was not flashed: the card stopped with a CRITICAL ERROR"),
    ],
    ids=["never-up", "release", "critical"],
)
def test_the_role_judges_by_the_card_that_comes_back(card: Appliance, fault: dict[str, Any], message: str) -> None:
    card.fault(**fault)
    run = card.play("flash", bluefield_image_force=True, bluefield_image_answer_s=8)
    assert run.rc != 0
    assert message in run.words
    assert "What to do:" in run.words
