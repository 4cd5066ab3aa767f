"""A second implementation of the formats, from the vendor's description of them, to test the reader against.

Boot stream: https://github.com/Mellanox/rshim-user-space, scripts/mlx-mkbfb. cpio "newc": Linux,
Documentation/driver-api/early-userspace/buffer-format.rst. Nothing here comes from ``blink.bfb``.
"""

from __future__ import annotations

import binascii
import gzip
import json
from dataclasses import dataclass

CAPSULE, INFO, BOOT_ARGS, KERNEL, INITRAMFS, NIC_FIRMWARE = 52, 50, 59, 62, 63, 41

VERSIONS = json.dumps(
    {"Name": "BFB File Content", "Members": [{"Name": "DOCA", "Version": "3.2.1", "SoftwareId": "doca-runtime_3.2.1"}]}
).encode()


@dataclass
class Part:
    """One image, and what to lie about in its header."""

    id: int
    data: bytes
    version: int = 0
    magic: int = 0x13026642
    major: int = 1
    minor: int = 2
    header_words: int = 3
    length: int | None = None
    crc: int | None = None
    following: int | None = None
    padding: bytes | None = None

    def bytes(self, following: int) -> bytes:
        padding = bytes((8 - len(self.data) % 8) % 8) if self.padding is None else self.padding
        crc = binascii.crc32(padding, binascii.crc32(self.data)) if self.crc is None else self.crc
        length = len(self.data) if self.length is None else self.length
        following = following if self.following is None else self.following
        head = self.magic.to_bytes(4, "little")
        head += bytes([self.major | self.minor << 4])  # bits 32-39
        head += bytes([0])  # 40-47: reserved, next version
        head += bytes([self.version | self.header_words << 4])  # 48-55
        head += bytes([self.id])
        head += length.to_bytes(4, "little") + crc.to_bytes(4, "little") + following.to_bytes(8, "little")
        return head + self.data + padding


def stream(*parts: Part) -> bytes:
    """The boot stream of ``parts``: each header announces the ids of those after it."""
    out = b""
    for n, part in enumerate(parts):
        following = 0
        for later in (p for p in parts[n + 1 :] if p.id < 64):
            following |= 1 << later.id
        out += part.bytes(following)
    return out


def cpio(files: dict[str, bytes | None], mode: int = 0o644) -> bytes:
    """A cpio archive of regular files of one mode; None is a folder."""
    out = bytearray()
    for inode, (name, content) in enumerate([*files.items(), ("TRAILER!!!", b"")], start=1):
        path, data = name.encode() + b"\0", content or b""
        kind = 0o040755 if content is None else 0o100000 | mode
        fields = [inode, kind, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0]
        out += b"070701" + b"".join(b"%08x" % f for f in fields) + path
        out += bytes(-len(out) % 4)
        out += data
        out += bytes(-len(out) % 4)
    return bytes(out)


def initramfs(files: dict[str, bytes | None] | None = None) -> bytes:
    """What the vendor's installer boots into; without ``files`` it carries an operating system."""
    if files is None:
        files = {
            "./init": b"#!/bin/sh\n",
            "./ubuntu/install.sh": b"#!/bin/bash\n",
            "./ubuntu/image.tar.xz": b"root" * 99,
        }
    return gzip.compress(cpio(files), mtime=0)


def bundle_parts() -> list[Part]:
    """The images of a small BF-Bundle, in the vendor's order, one id in two versions."""
    return [
        Part(CAPSULE, b"capsule of three"),
        Part(BOOT_ARGS, b"console=hvc0", version=0),
        Part(BOOT_ARGS, b"console=ttyAMA0 x", version=2),
        Part(INFO, VERSIONS),
        Part(KERNEL, b"kernel!" * 1000),
        Part(INITRAMFS, initramfs()),
    ]


def bundle() -> bytes:
    """A small BF-Bundle."""
    return stream(*bundle_parts())
