"""The reader of boot streams against files of another writer."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from blink.bfb.read import read_bfb
from blink.cli import main
from blink.errors import BlinkError
from tests.bfb.writer import (
    BOOT_ARGS,
    CAPSULE,
    INITRAMFS,
    KERNEL,
    NIC_FIRMWARE,
    Part,
    bundle,
    bundle_parts,
    cpio,
    initramfs,
    stream,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "bf-bundle-3.2.1.bfb"
    path.write_bytes(bundle())
    return path


def refusal(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(BlinkError) as e:
        read_bfb(path)
    return str(e.value)


def test_a_bundle_is_read_as_it_was_written(file: Path) -> None:
    bfb = read_bfb(file)
    assert [(i.header.image_id, i.header.version, i.header.length) for i in bfb.images] == [
        (p.id, p.version, len(p.data)) for p in bundle_parts()
    ]
    assert [i.header.name for i in bfb.images] == ["capsule", "boot-args", "boot-args", "info", "image", "initramfs"]
    assert bfb.kind == "bundle"
    assert bfb.info == (("DOCA", "3.2.1"),)
    assert bfb.trailing == 0
    assert bfb.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_vendors_own_bytes(tmp_path: Path) -> None:
    """A stream typed in by hand from the vendor's format, so that no writer is believed."""
    header = bytes.fromhex("4266021321003034050000001db513ff0000000000000000")
    path = tmp_path / "hand.bfb"
    path.write_bytes(header + b"hello\0\0\0")
    (image,) = read_bfb(path).images
    assert (image.header.name, image.header.length, image.header.minor) == ("capsule", 5, 2)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([Part(CAPSULE, b"c"), Part(NIC_FIRMWARE, b"fw")], "no image and no initramfs"),
        ([Part(KERNEL, b"k")], "no initramfs"),
        ([Part(KERNEL, b"k"), Part(INITRAMFS, initramfs({"./opt/mellanox/fw": b"x" * 9000}))], "BF-FW-Bundle"),
        # Listed, and yet empty.
        ([Part(KERNEL, b"k"), Part(INITRAMFS, initramfs({"./ubuntu/image.tar.xz": b""}))], "BF-FW-Bundle"),
    ],
)
def test_firmware_alone_is_refused_by_name(
    tmp_path: Path, parts: list[Part], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fw.bfb"
    path.write_bytes(stream(*parts))
    bfb = read_bfb(path)
    assert bfb.kind == "firmware"
    assert reason in bfb.reason
    assert main(["bfb", "inspect", str(path)]) == 0
    assert main(["bfb", "verify", str(path)]) == 1
    assert "kind firmware" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 64, b"\x28\xb5\x2f\xfd zstd", gzip.compress(b"070701" + b"z" * 200)],
    ids=["empty", "zeros", "zstd", "gzip"],
)
def test_an_initramfs_that_cannot_be_read_is_not_called_a_bundle(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.bfb"
    path.write_bytes(stream(Part(KERNEL, b"k"), Part(INITRAMFS, content)))
    assert read_bfb(path).kind in ("unknown", "firmware")


@pytest.mark.parametrize(
    "first", [cpio({"early": b"microcode"}), gzip.compress(cpio({"early": b"microcode"}))], ids=["plain", "gzip"]
)
def test_the_system_is_found_in_a_later_archive(tmp_path: Path, first: bytes) -> None:
    path = tmp_path / "two.bfb"
    path.write_bytes(stream(Part(KERNEL, b"k"), Part(INITRAMFS, first + bytes(5 * 4) + initramfs())))
    assert read_bfb(path).kind == "bundle"


def test_truncation_is_found_at_every_length(tmp_path: Path) -> None:
    whole = bundle()
    path = tmp_path / "cut.bfb"
    for length in [*range(0, 200), *range(200, len(whole), 97), len(whole) - 1]:
        message = refusal(path, whole[:length])
        assert "truncated" in message or "no boot stream" in message


def test_truncation_names_the_image_that_is_missing(tmp_path: Path) -> None:
    parts = bundle_parts()
    lost = parts[-1]
    whole = stream(*parts)
    message = refusal(tmp_path / "cut.bfb", whole[: -len(lost.bytes(0))])
    assert "it ends before initramfs" in message


def test_damage_names_offset_and_image(tmp_path: Path) -> None:
    parts = bundle_parts()
    offset = sum(len(p.bytes(0)) for p in parts[:4])
    whole = bytearray(bundle())
    whole[offset + 24 + 100] ^= 1
    message = refusal(tmp_path / "bad.bfb", bytes(whole))
    assert f"offset {offset}, image image: damaged" in message


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        ({"magic": 0x13026643}, "magic number"),
        ({"major": 2}, "version is 2.2"),
        ({"minor": 3}, "version is 1.3"),
        ({"header_words": 4}, "header length is 32"),
        ({"id": 64}, "its image id is 64"),
        ({"length": 0xFFFFFFFF}, "truncated: 4294967296 bytes should follow"),
        ({"crc": 1}, "damaged: its CRC-32"),
        ({"padding": b"\1" * 7, "crc": 0}, "damaged: its CRC-32"),
        ({"following": 1 << KERNEL | 1 << INITRAMFS | 1 << CAPSULE}, "announces"),
        ({"following": 0}, "follows an image that says it is the last"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, lie: dict[str, Any], complaint: str) -> None:
    parts = bundle_parts()
    lying = dataclasses.replace(Part(BOOT_ARGS, b"v"), **lie)
    message = refusal(tmp_path / "lie.bfb", stream(*parts[:1], lying, *parts[4:]))
    assert complaint in message


def test_padding_is_covered_by_the_crc(tmp_path: Path) -> None:
    path = tmp_path / "padded.bfb"
    path.write_bytes(stream(Part(CAPSULE, b"x", padding=b"\1\2\3\4\5\6\7")))
    assert read_bfb(path).images[0].header.length == 1


@pytest.mark.parametrize("text", [b"#", b"ubuntu_PASSWORD='$6$x'\n" * 3, b"x" * 5_000_000, bytes(30)])
def test_an_appended_bf_cfg_is_shown_and_refused(file: Path, text: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    size = file.stat().st_size
    file.write_bytes(file.read_bytes() + text)
    assert main(["bfb", "inspect", str(file)]) == 0
    assert f"{len(text)} bytes follow the last image" in capsys.readouterr().out
    assert main(["bfb", "verify", str(file)]) == 1
    assert f"offset {size}: {len(text)} bytes follow" in capsys.readouterr().err


@pytest.mark.parametrize("data", [b"", b"PK\3\4", b"\0" * 100, b"<!DOCTYPE html><html>Not found</html>"])
def test_what_is_no_boot_stream_is_said_to_be_none(tmp_path: Path, data: bytes) -> None:
    assert "no boot stream" in refusal(tmp_path / "wrong.bfb", data)


def test_too_many_images(tmp_path: Path) -> None:
    image = Part(CAPSULE, b"", following=1 << CAPSULE).bytes(0)
    assert "more than 1024 images" in refusal(tmp_path / "many.bfb", image * 1100)


@pytest.mark.parametrize("name", ["missing.bfb", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(BlinkError, match=r"name a \.bfb file"):
        read_bfb(tmp_path / name)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    read = subprocess.run(
        [sys.executable, "-m", "blink.bfb", "inspect", "/dev/stdin"],
        stdin=subprocess.PIPE,
        capture_output=True,
        timeout=60,
    )
    assert read.returncode == 1
    assert b"not a file" in read.stderr


def test_memory_is_bounded_whatever_the_size(tmp_path: Path) -> None:
    """48 MiB of file, and 256 MiB that its initramfs expands to."""
    expanding = gzip.compress(cpio({"zeros": bytes(256 << 20)}), compresslevel=1)
    path = tmp_path / "large.bfb"
    path.write_bytes(stream(Part(KERNEL, bytes(48 << 20)), Part(INITRAMFS, expanding)))
    tracemalloc.start()
    try:
        read_bfb(path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_verify_compares_the_hash(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert main(["bfb", "verify", str(file), "--sha256", digest.upper()]) == 0
    assert main(["bfb", "verify", str(file), "--sha256", "0" * 64]) == 1
    assert digest in capsys.readouterr().err
    with pytest.raises(SystemExit) as e:
        main(["bfb", "verify", str(file), "--sha256", "beef"])
    assert e.value.code == 2


def test_it_runs_with_nothing_but_the_standard_library(file: Path) -> None:
    """In a Python that sees no installed package at all."""
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c",
         f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); sys.argv[0] = 'blink.bfb';"
         "import runpy; runpy.run_module('blink.bfb', run_name='__main__')",
         "verify", str(file), "--json", "-"],
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["kind"] == "bundle"
    assert document["bytes"] == file.stat().st_size
    assert [i["name"] for i in document["images"]][-1] == "initramfs"
