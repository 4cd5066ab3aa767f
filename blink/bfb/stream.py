"""The format of a boot stream: images one after another, each behind a header of 24 bytes.

The header is three little-endian 64-bit words, as ``mlx-mkbfb`` of NVIDIA's rshim-user-space writes them::

    0  magic 0x13026642 (32 bits), major (4), minor (4), reserved (4), next version (4), version (4),
       header length / 8 (4), image id (8)
    1  length of the image in bytes (32), CRC-32 of the image and its padding (32)
    2  bitmap of the ids that still follow

The image is padded to a multiple of 8 bytes. A card takes bytes after the last image for its ``bf.cfg``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAGIC = 0x13026642
HEADER_BYTES = 24
ALIGN = 8
MAJOR = 1
NEWEST_MINOR = 2
MOST_ID = 63  # of a bitmap of 64 bits

INFO = 50
KERNEL = 62
INITRAMFS = 63

NAMES = {
    1: "bl2", 2: "bl30", 3: "bl31", 4: "bl32", 5: "bl33", 6: "bl2-cert", 7: "trusted-key-cert", 8: "bl30-key-cert",
    9: "bl31-key-cert", 10: "bl32-key-cert", 11: "bl33-key-cert", 12: "bl30-cert", 13: "bl31-cert", 14: "bl32-cert",
    15: "bl33-cert", 29: "sys", 30: "bl2r", 31: "bl2r-cert", 32: "ddr_ini", 33: "snps_images", 34: "ddr_ate_imem",
    35: "ddr_ate_dmem", 36: "psc-bl", 37: "psc-fw", 38: "ddr-cert", 39: "psc-app", 40: "ddr5_snps_images",
    41: "nicfw", 42: "bl2r-auth-cert", 43: "bl2-auth-cert", 50: "info", 51: "upgrade-image", 52: "capsule",
    53: "psc-certs", 54: "ramdisk", 55: "boot-acpi", 56: "boot-dtb", 57: "boot-desc", 58: "boot-path",
    59: "boot-args", 60: "boot-timeout", 61: "uefi-tests", 62: "image", 63: "initramfs",
}  # fmt: skip


class BadHeaderError(ValueError):
    """24 bytes that are no image header; the text says which field is wrong."""


def image_name(image_id: int) -> str:
    """The vendor's name of an image id, or ``id-N`` where it has none."""
    return NAMES.get(image_id, f"id-{image_id}")


@dataclass(frozen=True)
class Header:
    """One image's header. ``length`` is in bytes, without padding; ``following`` is the bitmap of ids."""

    image_id: int
    length: int
    crc32: int
    following: int
    version: int = 0
    next_version: int = 0
    minor: int = NEWEST_MINOR

    @property
    def name(self) -> str:
        """The vendor's name of the image."""
        return image_name(self.image_id)

    @property
    def padded(self) -> int:
        """Bytes that the image takes in the stream, header not included."""
        return self.length + -self.length % ALIGN

    def pack(self) -> bytes:
        """The 24 bytes."""
        word = MAGIC | MAJOR << 32 | self.minor << 36 | self.next_version << 44 | self.version << 48
        word |= (HEADER_BYTES // ALIGN) << 52 | self.image_id << 56
        return struct.pack("<QQQ", word, self.length | self.crc32 << 32, self.following)

    @classmethod
    def unpack(cls, raw: bytes) -> Header:
        """Read ``raw``, 24 bytes. Raises BadHeaderError where a field has a value that no writer gives it."""
        word, size, following = struct.unpack("<QQQ", raw)
        magic, major, minor = word & 0xFFFFFFFF, word >> 32 & 0xF, word >> 36 & 0xF
        if magic != MAGIC:
            raise BadHeaderError(f"its magic number is {magic:#010x}, not {MAGIC:#010x}")
        if major != MAJOR or minor > NEWEST_MINOR:
            raise BadHeaderError(f"its version is {major}.{minor}, and this reads 1.0 to {MAJOR}.{NEWEST_MINOR}")
        if (word >> 52 & 0xF) * ALIGN != HEADER_BYTES:
            raise BadHeaderError(f"its header length is {(word >> 52 & 0xF) * ALIGN}, not {HEADER_BYTES}")
        if word >> 40 & 0xF:
            raise BadHeaderError("its reserved bits are set")
        if word >> 56 > MOST_ID:
            raise BadHeaderError(f"its image id is {word >> 56}, and ids end at {MOST_ID}")
        return cls(
            image_id=word >> 56,
            length=size & 0xFFFFFFFF,
            crc32=size >> 32,
            following=following,
            version=word >> 48 & 0xF,
            next_version=word >> 44 & 0xF,
            minor=minor,
        )
