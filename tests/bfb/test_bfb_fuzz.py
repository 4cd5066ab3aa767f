"""Any file, however damaged, is either read or refused; damage that a CRC covers is always refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from blink.bfb.read import Bfb, read_bfb
from blink.errors import BlinkError
from tests.bfb.writer import INITRAMFS, KERNEL, Part, bundle, bundle_parts, stream
from tests.depth import examples

WHOLE = bundle()
MANY = examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(folder: Path, data: bytes) -> Bfb | None:
    path = folder / "fuzz.bfb"
    path.write_bytes(data)
    try:
        return read_bfb(path)
    except BlinkError:
        return None


def checked_bits() -> list[int]:
    """Bits of the whole file whose flip must be found.

    That is all but those that nothing in the format covers: the version fields of each header, the minor version, of
    which several are valid, the last three bits of a length, since the CRC covers the padding too, and the id of the
    first image, which none before it announces. The file's SHA-256 covers those.
    """
    uncovered, offset = set(range(56, 64)), 0
    for part in bundle_parts():
        uncovered |= {offset * 8 + bit for bit in [*range(36, 40), *range(44, 52), *range(64, 67)]}
        offset += len(part.bytes(0))
    return [bit for bit in range(len(WHOLE) * 8) if bit not in uncovered]


CHECKED = checked_bits()


@MANY
@given(st.sampled_from(CHECKED))
def test_a_flipped_bit_is_found(tmp_path: Path, bit: int) -> None:
    data = bytearray(WHOLE)
    data[bit // 8] ^= 1 << bit % 8
    assert read(tmp_path, bytes(data)) is None


def test_every_flipped_bit_of_the_headers_is_found(tmp_path: Path) -> None:
    offset, headers = 0, set()
    for part in bundle_parts():
        headers |= set(range(offset * 8, (offset + 24) * 8))
        offset += len(part.bytes(0))
    for bit in sorted(headers.intersection(CHECKED)):
        data = bytearray(WHOLE)
        data[bit // 8] ^= 1 << bit % 8
        assert read(tmp_path, bytes(data)) is None, f"bit {bit}"


@MANY
@given(st.binary(max_size=400))
def test_any_bytes_are_refused_or_read(tmp_path: Path, data: bytes) -> None:
    read(tmp_path, data)


@MANY
@given(
    st.lists(
        st.builds(
            Part,
            id=st.integers(0, 63),
            data=st.binary(max_size=64),
            version=st.integers(0, 15),
            length=st.none() | st.integers(0, 0xFFFFFFFF),
            crc=st.none() | st.integers(0, 0xFFFFFFFF),
            following=st.none() | st.integers(0, 2**64 - 1),
        ),
        max_size=6,
    ),
    st.binary(max_size=64),
)
def test_any_images_are_refused_or_read(tmp_path: Path, parts: list[Part], tail: bytes) -> None:
    usable = all(p.length is None and p.crc is None and p.following is None for p in parts)
    usable = usable and len({(p.id, p.version) for p in parts}) == len(parts)
    data = b"".join(p.bytes(sum({1 << q.id for q in parts[n + 1 :]})) for n, p in enumerate(parts))
    bfb = read(tmp_path, data + tail)
    if usable and parts:
        assert bfb is not None
        assert bfb.trailing == len(tail)


@MANY
@given(st.binary(max_size=2000), st.sampled_from([b"", b"\x1f\x8b\x08\0\0\0\0\0\0\3", b"070701" + b"0" * 104]))
def test_any_initramfs_is_looked_into_without_a_crash(tmp_path: Path, content: bytes, start: bytes) -> None:
    bfb = read(tmp_path, stream(Part(KERNEL, b"k"), Part(INITRAMFS, start + content)))
    assert bfb is not None


@pytest.mark.parametrize("cut", range(0, len(WHOLE), 61))
def test_a_hole_is_found(tmp_path: Path, cut: int) -> None:
    assert read(tmp_path, WHOLE[:cut] + WHOLE[cut + 8 :]) is None
