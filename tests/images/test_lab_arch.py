"""Which architecture dpu01 gets, what that takes, and how QEMU is asked for it. No machine is started."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from images.lab import arch, pair
from images.lab.__main__ import main
from images.lab.errors import LabError
from images.lab.machine import Machine
from tests.ansible.playbook import ROOT
from tests.lab.card.card import inserted
from tests.lab.card.image import RELEASE, write_bfb
from tests.vendor.identity import BDF, FIRMWARE, SERIAL

FLAG = "LAB_DPU_ARCH"
BUILD = Path(pair.__file__).with_name("build")


@pytest.mark.parametrize(("flag", "dpu"), [(None, "amd64"), ("", "amd64"), ("amd64", "amd64"), ("arm64", "arm64")])
def test_the_flag_is_for_dpu01_alone(flag: str | None, dpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if flag is None:
        monkeypatch.delenv(FLAG, raising=False)
    else:
        monkeypatch.setenv(FLAG, flag)
    assert (arch.wanted("gpu01").name, arch.wanted("dpu01").name) == ("amd64", dpu)


@pytest.mark.parametrize("command", ["up", "build", "packages"])
def test_another_value_is_refused_by_name(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FLAG, "aarch64")
    assert main([command]) == 1
    assert capsys.readouterr().err == "lab: LAB_DPU_ARCH is 'aarch64'; it may be amd64 or arm64\n"


def test_the_machines_differ_in_what_the_architecture_differs_in() -> None:
    lines = {name: dict(enumerate(Machine("dpu01").argv(a))) for name, a in arch.ARCHES.items()}
    amd64, arm64 = lines["amd64"], lines["arm64"]
    assert (amd64[0], arm64[0]) == ("qemu-system-x86_64", "qemu-system-aarch64")
    differing = {amd64[at - 1] for at in amd64 if at and amd64[at] != arm64[at]}
    assert differing == {"-machine", "-cpu", "-kernel", "-initrd", "-append"}
    assert "console=ttyAMA0" in arm64[list(arm64.values()).index("-append") + 1]


def test_kvm_is_not_asked_to_run_another_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("images.lab.machine.ACCEL", "kvm")
    for known in arch.ARCHES.values():
        argv = Machine("dpu01").argv(known)
        assert (argv[argv.index("-accel") + 1] == "kvm") is not known.foreign


def test_what_a_foreign_image_takes_is_named_with_the_flag_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda tool, **_: None)  # a machine that has nothing
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    emulation = {"qemu-system-arm", "qemu-user-static", "binfmt-support", "arch-test"}
    monkeypatch.delenv(FLAG, raising=False)
    assert not emulation & set(pair.missing_packages())
    monkeypatch.setenv(FLAG, "arm64")
    assert emulation <= set(pair.missing_packages())
    # Where the kernel knows an interpreter already, whoever gave it one, nothing more is needed.
    test = tmp_path / "arch-test"
    test.write_text("#!/bin/sh\n")
    test.chmod(0o755)
    assert emulation & set(pair.missing_packages()) == {"qemu-system-arm", "arch-test"}


@pytest.mark.skipif(not shutil.which("dpkg"), reason="needs Debian")
def test_an_architecture_that_cannot_run_here_is_refused_in_a_line(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LAB_MIRROR": "http://x", "LAB_SECURITY_MIRROR": "http://x"}
    done = subprocess.run(
        [BUILD, tmp_path, "s390"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("build: programs for s390 cannot run here; install arch-test")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("runs", [False, True])
def test_an_aarch64_dpu01_is_not_flashed(runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if runs:  # and the flag was for the terminal in which it was started
        monkeypatch.delenv(FLAG, raising=False)
        monkeypatch.setattr(Machine, "pid", property(lambda _: 1))
        monkeypatch.setattr("tests.lab.card.card.RUN", tmp_path)
        (tmp_path / "dpu01.arch").write_text("aarch64")
    else:
        monkeypatch.setenv(FLAG, "arm64")
    words = "dpu01 is aarch64, and only an x86_64 one can be flashed: unset LAB_DPU_ARCH"
    with pytest.raises(LabError, match=words):
        write_bfb(tmp_path / "card.bfb")
    with pytest.raises(LabError, match=words), inserted():
        pass


def test_the_labs_card_is_the_one_that_its_inventory_has() -> None:
    given = yaml.safe_load((ROOT / "tests/lab/card/hosts.yml").read_text())["all"]["children"]["ap001"]["vars"]
    card = given["blink_card"]
    found = (card["serial"], card["bdf"], given["bluefield_image_firmware"], given["bluefield_image_release"])
    assert found == (SERIAL, BDF, FIRMWARE, RELEASE)
