"""bf.cfg, run by bash as the vendor's installer runs it."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from images.bluefield.config import render, template_sha256
from images.bluefield.settings import parse
from tests.images.card import PASSWORD_HASH, install, text

FULL: dict[str, Any] = {
    "management": {"address": "10.0.0.5/24", "gateway": "10.0.0.1", "nameservers": ["10.0.0.2", "fd00::2"]},
    "ring": {"address": "10.9.1.2/30", "interface": "enp3s0f1s0", "mtu": 9000},
    "time_servers": ["ntp1.example", "10.0.0.3"],
    "update": {"atf_uefi": False, "nic_firmware": True, "bmc": True},
    "bmc": {"user": "root", "password": "S3cret!$pass#1"},
    "device": "/dev/nvme0n1",
    "card_serial": "MT2330X01234",
    "bfb_sha256": "ab" * 32,
}
VPD = b"\x82\x10\0NVIDIA BlueField\x90\x20\0SN\x0cMT2330X01234V3\x02x\x78"


def config(host_key: str, **changes: Any) -> str:
    return render(parse(text(host_key, **changes)))


@pytest.mark.parametrize("optional", [c for n in (0, 1, len(FULL)) for c in itertools.combinations(FULL, n)])
def test_every_form_passes_shellcheck(host_key: str, tmp_path: Path, optional: tuple[str, ...]) -> None:
    if "update" in optional and "bmc" not in optional:
        optional = (*optional, "bmc")
    path = tmp_path / "bf.cfg"
    path.write_text(config(host_key, **{name: FULL[name] for name in optional}))
    checked = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout


def test_a_card_gets_all_that_it_needs(host_key: str, tmp_path: Path) -> None:
    card = install(tmp_path, config(host_key, **FULL), vpd=VPD)
    assert card.code == 0, card.rshim
    assert card.read("etc/hostname") == "ap001-dpu\n"
    assert card.read("etc/hosts").splitlines() == ["127.0.0.1 localhost", "127.0.1.1 ap001-dpu"]
    assert yaml.safe_load(card.read("etc/cloud/cloud.cfg.d/95-blink.cfg")) == {"preserve_hostname": True}

    assert card.read("etc/ssh/blink_host_ed25519_key") == host_key
    assert card.mode("etc/ssh/blink_host_ed25519_key") == 0o600
    assert card.read("etc/ssh/blink_authorized_keys").startswith("ssh-ed25519 AAAA")

    networks = yaml.safe_load(card.read("etc/netplan/70-blink.yaml"))["network"]["ethernets"]
    assert card.mode("etc/netplan/70-blink.yaml") == 0o600
    assert networks["oob_net0"] == {
        "dhcp4": False,
        "addresses": ["10.0.0.5/24"],
        "routes": [{"to": "default", "via": "10.0.0.1"}],
        "nameservers": {"addresses": ["10.0.0.2", "fd00::2"]},
    }
    assert networks["enp3s0f1s0"]["addresses"] == ["10.9.1.2/30"]
    assert networks["enp3s0f1s0"]["ignore-carrier"] is True  # else a cut cable takes the GID away
    assert networks["enp3s0f1s0"]["mtu"] == 9000

    assert "NTP=ntp1.example 10.0.0.3" in card.read("etc/systemd/timesyncd.conf.d/blink.conf")
    assert json.loads(card.read("etc/blink-image.json")) == {
        "appliance": "ap001",
        "bfb_sha256": "ab" * 32,
        "template_sha256": template_sha256(),
    }
    assert not list(card.root.rglob("*.blink"))


def test_the_variables_arrive_as_given(host_key: str, tmp_path: Path) -> None:
    path = tmp_path / "bf.cfg"
    path.write_text(config(host_key, **FULL))
    names = ["ubuntu_PASSWORD", "UPDATE_ATF_UEFI", "WITH_NIC_FW_UPDATE", "UPDATE_BMC_FW", "BMC_PASSWORD", "device"]
    shown = subprocess.run(
        ["bash", "-c", f'. {path}; printf "%s\\n" ' + " ".join(f'"${n}"' for n in names)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert shown.stdout.splitlines() == [PASSWORD_HASH, "no", "yes", "yes", "S3cret!$pass#1", "/dev/nvme0n1"]


def test_without_the_bmc_nothing_of_it_is_touched(host_key: str) -> None:
    lines = config(host_key, bmc=FULL["bmc"]).splitlines()
    for part in ("BMC_FW", "CEC_FW", "DPU_GOLDEN_IMAGE", "NIC_FW_GOLDEN_IMAGE", "CERTIFICATES"):
        assert f"UPDATE_{part}=no" in lines
    assert not any(line.startswith("BMC_") for line in lines)


def test_dhcp_where_no_address_is_given(host_key: str, tmp_path: Path) -> None:
    card = install(tmp_path, config(host_key))
    networks = yaml.safe_load(card.read("etc/netplan/70-blink.yaml"))["network"]["ethernets"]
    assert networks["oob_net0"] == {"dhcp4": True}
    assert networks["enp3s0f0s0"]["dhcp4"] is False


def test_chrony_is_told_where_the_image_has_it(host_key: str, tmp_path: Path) -> None:
    (tmp_path / "mnt/etc/chrony").mkdir(parents=True)
    card = install(tmp_path, config(host_key, time_servers=["10.0.0.3"]))
    assert card.read("etc/chrony/sources.d/blink.sources") == "server 10.0.0.3 iburst\n"
    assert not (card.root / "etc/systemd").exists()


def test_the_host_learns_how_it_went(host_key: str, tmp_path: Path) -> None:
    card = install(tmp_path, config(host_key))
    assert card.rshim.splitlines() == [
        "INFO: blink: installing ap001",
        "INFO: blink: no release in this BFB",
        f"INFO: blink: configured ap001 {template_sha256()[:16]}",
        "INFO: Installation finished",
    ]


@pytest.mark.parametrize("vpd", [b"\x82\x10\0SN\x0cMT2330X09999", b""])
def test_another_card_is_refused_before_its_disk_is_written(host_key: str, tmp_path: Path, vpd: bytes) -> None:
    card = install(tmp_path, config(host_key, card_serial="MT2330X01234"), vpd=vpd)
    assert card.code == 9
    assert card.rshim.splitlines() == [
        "ERR blink: this card: this card's serial number is not MT2330X01234",
        "ERR Installation failed",
    ]
    assert not (card.root / "etc/hostname").exists()


def test_a_card_that_does_not_tell_its_serial_number_is_installed(host_key: str, tmp_path: Path) -> None:
    card = install(tmp_path, config(host_key, card_serial="MT2330X01234"))
    assert card.code == 0
    assert "not compared" in card.log


def test_the_vendors_other_tools_may_source_it(host_key: str, tmp_path: Path) -> None:
    """bfcfg does, where neither log nor fail exist."""
    path = tmp_path / "bf.cfg"
    path.write_text(config(host_key, **FULL))
    sourced = subprocess.run(["bash", "-euc", f". {path}"], capture_output=True, timeout=60, check=False)
    assert (sourced.returncode, sourced.stdout, sourced.stderr) == (0, b"", b"")


def test_a_step_that_fails_stops_the_installation(host_key: str, tmp_path: Path) -> None:
    (tmp_path / "mnt/etc").mkdir(parents=True)
    (tmp_path / "mnt/etc/cloud").write_text("in the way")
    card = install(tmp_path, config(host_key))
    assert card.code == 9
    assert "ERR blink: host name: mkdir:" in card.rshim
    assert "ERR Installation failed" in card.rshim
    assert "configured" not in card.rshim


def test_an_sshd_that_would_not_read_our_file_is_found(host_key: str, tmp_path: Path) -> None:
    path = tmp_path / "mnt/etc/ssh"
    path.mkdir(parents=True)
    text_of_card = config(host_key).replace('/etc/ssh/sshd_config"', '/etc/ssh/other_config"')
    (path / "other_config").write_text("PasswordAuthentication yes\n")
    card = install(tmp_path, text_of_card)
    assert card.code == 9
    assert "does not include sshd_config.d" in card.rshim


def test_secrets_stay_out_of_what_the_installer_logs(host_key: str, tmp_path: Path) -> None:
    card = install(tmp_path, config(host_key, **FULL), vpd=VPD)
    body = host_key.splitlines()[2]
    for secret in (PASSWORD_HASH, body, "S3cret"):
        assert secret not in card.rshim + card.log


RELEASE = {"id": b"0123456789abcdef\n", "frontend.tar": b"wheels", "install_bundle.sh": b"#!/bin/sh\n"}


def test_an_embedded_release_is_installed_into_the_new_root(host_key: str, tmp_path: Path) -> None:
    card = install(tmp_path, config(host_key), payload=RELEASE)
    assert card.read("opt/blink.tar") == "wheels"
    assert card.calls.split() == [
        str(card.root), "/bin/sh", "/opt/install_bundle.sh", "/opt/blink", "0123456789abcdef", "--system-site-packages",
    ]  # fmt: skip
    assert "INFO: blink: release 0123456789abcdef installed" in card.rshim
    assert not (card.root / "opt/install_bundle.sh").exists()


def test_a_release_that_does_not_install_leaves_a_card_that_does_its_other_work(host_key: str, tmp_path: Path) -> None:
    card = install(tmp_path, config(host_key), payload={**RELEASE, "id": b"broken\n"})
    assert card.code == 0
    assert "WARN blink: release not installed" in card.rshim
    assert "configured ap001" in card.rshim
