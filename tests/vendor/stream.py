"""How the card reads what is pushed to it: boot stream, then bf.cfg. Nothing here comes from ``blink.bfb``."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zlib
from pathlib import Path

MAGIC = 0x13026642
BOOT_ARGS, KERNEL, INITRAMFS = 59, 62, 63


class StreamError(Exception):
    """What the card's boot ROM stops at."""


def split(pushed: bytes) -> tuple[dict[int, bytes], bytes]:
    """The images by id, and what follows the last of them."""
    images: dict[int, bytes] = {}
    at = 0
    while pushed[at : at + 4] == struct.pack("<I", MAGIC):
        if at + 24 > len(pushed):
            raise StreamError("header is cut off")
        w0, w1, following = struct.unpack_from("<QQQ", pushed, at)
        start, length, crc = at + (w0 >> 52 & 15) * 8, w1 & 0xFFFFFFFF, w1 >> 32
        at = start + (length + 7) // 8 * 8
        if at > len(pushed):
            raise StreamError("image is cut off")
        if zlib.crc32(pushed[start:at]) != crc:
            raise StreamError("CRC error")
        images[w0 >> 56] = pushed[start : start + length]
        if not following and pushed[at : at + 4] != struct.pack("<I", MAGIC):
            break
    if not images:
        raise StreamError("no boot stream")
    return images, pushed[at:]


def cpio(archive: bytes) -> dict[str, bytes]:
    """Files of a "newc" archive."""
    files, at = {}, 0
    while archive[at : at + 6] == b"070701":
        fields = [int(archive[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        name_at = at + 110
        name = archive[name_at : name_at + fields[11] - 1].decode()
        data_at = (name_at + fields[11] + 3) // 4 * 4
        files[name.removeprefix("./")] = archive[data_at : data_at + fields[6]]
        at = (data_at + fields[6] + 3) // 4 * 4
    return files


def unpack_system(images: dict[int, bytes], root: Path) -> None:
    """Put the operating system of the image into ``root``."""
    files = cpio(gzip.decompress(images[INITRAMFS]))
    systems = [name for name in files if name.endswith("/image.tar.xz")]
    if not systems:
        raise StreamError("No OS image found")
    with tarfile.open(fileobj=io.BytesIO(files[systems[0]]), mode="r:xz") as tar:
        tar.extractall(root, filter="tar")
