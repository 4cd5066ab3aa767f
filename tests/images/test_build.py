"""The set that a card is flashed with, and a BFB that carries a release."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import zlib
from pathlib import Path

import pytest

from blink.bfb.read import read_bfb
from images.bluefield.__main__ import main
from images.bluefield.config import template_sha256
from images.bluefield.embed import INSTALLER
from tests.bfb.writer import INITRAMFS, KERNEL, VERSIONS, Part, bundle, bundle_parts, stream
from tests.images.card import text

NAME = "bf-bundle-3.2.1-34_25.11_ubuntu-24.04_prod.bfb"
REQUIREMENTS = b"numpy==2.0 --hash=sha256:00\n"


@pytest.fixture
def bfb(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_bytes(bundle())
    return path


@pytest.fixture
def release(tmp_path: Path) -> Path:
    path = tmp_path / "frontend.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in (("requirements.txt", REQUIREMENTS), ("wheels/numpy.whl", b"wheel" * 999)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def settings(tmp_path: Path, host_key: str) -> Path:
    path = tmp_path / "settings.json"
    path.write_text(text(host_key, management={"address": "10.0.0.5/24"}))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run_build(bfb: Path, settings: Path, output: Path, *more: str) -> int:
    return main(["build", "--bfb", str(bfb), "--settings", str(settings), "--output", str(output), *more])


def unpack(initramfs: bytes) -> dict[str, bytes]:
    """Every file of the archives in ``initramfs``, as Linux finds them: gzip members, with zeros between them."""
    files: dict[str, bytes] = {}
    while initramfs := initramfs.lstrip(b"\0"):
        member = zlib.decompressobj(31)
        archive = member.decompress(initramfs)
        assert member.eof
        initramfs = member.unused_data
        while archive[:6] == b"070701":
            size, name_size = int(archive[54:62], 16), int(archive[94:102], 16)
            name = archive[110 : 110 + name_size - 1].decode()
            start = (110 + name_size + 3) // 4 * 4
            files[name] = archive[start : start + size]
            archive = archive[(start + size + 3) // 4 * 4 :]
            if name == "TRAILER!!!":
                break
        assert not archive.strip(b"\0")
    del files["TRAILER!!!"]
    return files


def image(path: Path, image_id: int) -> bytes:
    bfb = read_bfb(path)
    (found,) = [i for i in bfb.images if i.header.image_id == image_id]
    start = found.offset + 24
    return path.read_bytes()[start : start + found.header.length]


def test_a_set_has_all_but_the_bfb(bfb: Path, settings: Path, tmp_path: Path, host_key: str) -> None:
    output = tmp_path / "set"
    assert run_build(bfb, settings, output, "--sha256", sha256(bfb)) == 0
    assert {f.name for f in output.iterdir()} == {"bf.cfg", "known_hosts", "manifest.json"}
    assert (output / "bf.cfg").stat().st_mode & 0o777 == 0o600
    assert output.stat().st_mode & 0o777 == 0o700
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["bfb"] == {
        "name": NAME,
        "bytes": bfb.stat().st_size,
        "sha256": sha256(bfb),
        "versions": {"DOCA": "3.2.1"},
    }
    assert manifest["template_sha256"] == template_sha256()
    assert manifest["files"] == {n: sha256(output / n) for n in ("bf.cfg", "known_hosts")}
    assert host_key.splitlines()[2] not in (output / "manifest.json").read_text() + (output / "known_hosts").read_text()


def test_known_hosts_is_of_the_seeded_key(bfb: Path, settings: Path, tmp_path: Path, host_key: str) -> None:
    output = tmp_path / "set"
    assert run_build(bfb, settings, output, "--sha256", sha256(bfb)) == 0
    private = tmp_path / "again"
    private.touch(0o600)
    private.write_text(host_key)
    fingerprint = subprocess.run(["ssh-keygen", "-lf", private], capture_output=True, text=True, check=True, timeout=60)
    for host in ("ap001-dpu", "10.0.0.5"):
        found = subprocess.run(
            ["ssh-keygen", "-lF", host, "-f", output / "known_hosts"],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert fingerprint.stdout.split()[1] in found.stdout


def test_the_same_input_makes_the_same_set(bfb: Path, settings: Path, tmp_path: Path) -> None:
    for name in ("one", "two", "two"):
        assert run_build(bfb, settings, tmp_path / name, "--sha256", sha256(bfb)) == 0
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_an_unpinned_bfb_is_refused(
    bfb: Path, settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_build(bfb, settings, tmp_path / "set") == 1
    assert "SHA-256 is not pinned" in capsys.readouterr().err
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("name", "doca", "complaint"),
    [
        ("bf-bundle-3.2.1-34_25.11_ubuntu-24.04_64k_prod.bfb", "3.2.1", "is not like"),
        ("bf-fwbundle-3.2.1-34_25.11-prod.bfb", "3.2.1", "is not like"),
        (NAME, "3.1.0", "it has DOCA 3.1.0, and 3.2.1 is wanted"),
        (NAME, "3.2.10", "it has DOCA 3.2.10, and 3.2.1 is wanted"),
    ],
)
def test_another_platform_is_refused(
    settings: Path, name: str, doca: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [Part(p.id, p.data.replace(b"3.2.1", doca.encode()), p.version) for p in bundle_parts()]
    path = settings.with_name(name)
    path.write_bytes(stream(*parts))
    output = settings.with_name("set")
    assert run_build(path, settings, output, "--sha256", sha256(path)) == 1
    assert complaint in capsys.readouterr().err
    assert run_build(path, settings, output, "--sha256", sha256(path), "--any-platform") == 0


def test_a_damaged_or_changed_bfb_is_refused(bfb: Path, settings: Path, tmp_path: Path) -> None:
    before = sha256(bfb)
    data = bytearray(bfb.read_bytes())
    data[-20] ^= 1
    bfb.write_bytes(data)
    assert run_build(bfb, settings, tmp_path / "set", "--sha256", sha256(bfb)) == 1
    assert run_build(bfb, settings, tmp_path / "set", "--sha256", before) == 1
    assert not (tmp_path / "set").exists()


def embed(bfb: Path, release: Path, output: Path, digest: str | None = None) -> int:
    return main(
        [
            "embed",
            "--bfb",
            str(bfb),
            "--sha256",
            digest or sha256(bfb),
            "--bundle",
            str(release),
            "--output",
            str(output),
        ]
    )


def test_an_embedded_release_arrives_in_the_installers_system(bfb: Path, release: Path, tmp_path: Path) -> None:
    derived = tmp_path / "derived.bfb"
    assert embed(bfb, release, derived) == 0
    files = unpack(image(derived, INITRAMFS))
    assert files["./ubuntu/image.tar.xz"]
    assert files["blink/frontend.tar"] == release.read_bytes()
    assert files["blink/id"].decode().strip() == hashlib.sha256(REQUIREMENTS).hexdigest()[:16]
    assert files["blink/install_bundle.sh"] == INSTALLER.read_bytes()
    before, after = read_bfb(bfb), read_bfb(derived)
    assert [(i.header.image_id, i.header.version) for i in before.images] == [
        (i.header.image_id, i.header.version) for i in after.images
    ]
    assert image(derived, KERNEL) == image(bfb, KERNEL)
    again = tmp_path / "again.bfb"
    assert embed(bfb, release, again) == 0
    assert again.read_bytes() == derived.read_bytes()


@pytest.mark.parametrize("extra", range(8))
def test_any_length_of_the_vendors_archive_will_do(tmp_path: Path, release: Path, extra: int) -> None:
    """Images behind the initramfs stay what they are, wherever it ends."""
    parts = bundle_parts()
    vendor = gzip.compress(gzip.decompress(parts[-1].data), compresslevel=0, mtime=0) + bytes(extra)
    path = tmp_path / "vendor.bfb"
    path.write_bytes(stream(*parts[:-1], Part(INITRAMFS, vendor), Part(61, b"after it")))
    derived = tmp_path / "derived.bfb"
    assert embed(path, release, derived) == 0
    assert "blink/id" in unpack(image(derived, INITRAMFS))
    assert image(derived, 61) == b"after it"


def test_a_set_of_a_bfb_with_a_release(bfb: Path, release: Path, settings: Path, tmp_path: Path) -> None:
    derived = tmp_path / "blink.bfb"
    assert embed(bfb, release, derived) == 0
    assert run_build(derived, settings, tmp_path / "set") == 0
    manifest = json.loads((tmp_path / "set/manifest.json").read_text())
    assert manifest["bfb"]["sha256"] == sha256(derived)
    assert manifest["vendor_bfb"] == {"name": NAME, "sha256": sha256(bfb)}
    assert manifest["release"] == hashlib.sha256(REQUIREMENTS).hexdigest()[:16]
    assert run_build(derived, settings, tmp_path / "set", "--sha256", "0" * 64) == 1
    derived.write_bytes(bfb.read_bytes())
    assert run_build(derived, settings, tmp_path / "set") == 1
    (tmp_path / "blink.bfb.json").write_text("{}")
    assert run_build(derived, settings, tmp_path / "set") == 1


def test_embedding_refuses_what_must_not_be_flashed(bfb: Path, release: Path, tmp_path: Path) -> None:
    output = tmp_path / "derived.bfb"
    assert embed(bfb, release, output, "0" * 64) == 1
    assert embed(bfb, tmp_path / "missing.tar", output) == 1
    release.write_bytes(b"no tar")
    assert embed(bfb, release, output) == 1
    bfb.write_bytes(stream(Part(50, VERSIONS)))
    assert embed(bfb, release, output) == 1
    assert not list(tmp_path.glob("derived*"))
