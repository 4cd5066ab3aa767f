"""A real set: packed, signed, checked, unpacked, and installed from with no index to fall back on."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from blink.bundle.manifest import Manifest
from blink.bundle.verify import check_signature, unpack
from blink.release import release_id
from tests.ansible.playbook import ROOT
from tests.bundle.test_set import key, signers

pytest.importorskip("ziglang", reason="needs requirements/cross.txt")
pytestmark = [pytest.mark.fleet, pytest.mark.e2e, pytest.mark.timeout(900)]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
MACHINE = platform.machine()
ISOLATED = {"PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "HOME": "/nonexistent"}


def run(*command: str | Path, **more: Any) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600, **more).stdout


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """The folder of a set that was unpacked, and its manifest."""
    folder = tmp_path_factory.mktemp("set")
    ours = key(folder, "release-key")
    halves = [f"--half={arch}:frontend.txt" for arch in ("x86_64", "aarch64")]
    run(
        sys.executable, ROOT / "scripts/pack_set.py", "--output", folder, "--python", PYTHON, "--key", ours, *halves,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    (bundle,) = folder.glob("blink-*.tar")
    assert check_signature(bundle, signers(folder, ("release@example.com", ours))) == "release@example.com"
    return folder / "unpacked", unpack(bundle, folder / "unpacked")


def wheels(half: Path) -> dict[str, bytes]:
    with tarfile.open(half) as tar:
        return {Path(m.name).name: tar.extractfile(m).read() for m in tar if m.name.endswith(".whl")}  # type: ignore[union-attr]


def halves(packed: tuple[Path, Manifest]) -> dict[str, Path]:
    return {half["arch"]: packed[0] / half["file"] for half in packed[1].about["halves"]}


def test_every_locked_package_is_there_for_both_processors(packed: tuple[Path, Manifest]) -> None:
    lock = (ROOT / "requirements/frontend.txt").read_text()
    pinned = {m[1].replace("-", "_") for m in re.finditer(r"^([a-z0-9-]+)==\S+ \\$", lock, re.MULTILINE)}
    for arch, half in halves(packed).items():
        names = {re.sub(r"[-_.]+", "_", n.split("-")[0]).lower() for n in wheels(half)}
        assert pinned <= names
        others = {"x86_64": "aarch64", "aarch64": "x86_64"}[arch]
        assert not [n for n in wheels(half) if n.endswith(f"{others}.whl")]


def test_both_halves_are_one_release(packed: tuple[Path, Manifest], tmp_path: Path) -> None:
    """The handshake compares these ids."""
    for arch, half in halves(packed).items():
        (wheel,) = [d for n, d in wheels(half).items() if n.startswith("blink_serve")]
        folder = tmp_path / arch
        folder.mkdir()
        (folder / "blink.whl").write_bytes(wheel)
        with zipfile.ZipFile(folder / "blink.whl") as archive:
            archive.extractall(folder)
        assert release_id([folder / "blink"]) == packed[1].about["release"]


def test_the_bill_of_materials_lists_every_wheel(packed: tuple[Path, Manifest]) -> None:
    document = json.loads((packed[0] / "sbom.cdx.json").read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    listed = {c["bom-ref"]: c["hashes"][0]["content"] for c in document["components"]}
    there = {p.name: p.read_bytes() for p in (packed[0] / "control").glob("*.whl")}
    for half in halves(packed).values():
        there |= wheels(half)
    assert listed == {name: hashlib.sha256(data).hexdigest() for name, data in there.items()}
    assert all(c["purl"].startswith(f"pkg:pypi/{c['name']}@{c['version']}") for c in document["components"])


@pytest.mark.skipif(MACHINE not in ("x86_64", "aarch64"), reason=f"no half is for {MACHINE}")
def test_a_half_installs_without_an_index(packed: tuple[Path, Manifest], tmp_path: Path) -> None:
    half = halves(packed)[MACHINE]
    venv = tmp_path / "opt/blink"
    venv.parent.mkdir()
    venv.with_name("blink.tar").write_bytes(half.read_bytes())
    (about,) = [h for h in packed[1].about["halves"] if h["arch"] == MACHINE]
    if not list(Path("/usr/share/python-wheels").glob("pip-*.whl")):
        pytest.skip("needs python3-venv of the distribution")
    run(
        "sh", ROOT / "roles/release/files/install_bundle.sh", venv, about["id"],
        env={**ISOLATED, "PYTHON": sys.executable, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
    )  # fmt: skip
    assert run(venv / "bin/blink", "version", env=ISOLATED).split()[-1] == packed[1].about["release"]
    run(venv / "bin/python", "-c", "import fastapi, tokenizers, uvloop; import blink.frontend.server", env=ISOLATED)


def test_ansible_installs_without_an_index(packed: tuple[Path, Manifest], tmp_path: Path) -> None:
    """As scripts/bootstrap does, from the checkout in the set."""
    with tarfile.open(packed[0] / "checkout.tar") as tar:
        tar.extractall(tmp_path, filter="data")
    checkout = tmp_path / "blink"
    run(
        checkout / "scripts/bootstrap", sys.executable, tmp_path / "venv", checkout / "requirements/control.txt",
        env={**ISOLATED, "PIP_FIND_LINKS": str(packed[0] / "control"), "CXX": "true"},
    )  # fmt: skip
    shown = run(
        tmp_path / "venv/bin/ansible-playbook",
        "--version",
        env={**ISOLATED, "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"},
    )
    assert "ansible-playbook [core 2." in shown
    assert (checkout / "site.yml").exists()
