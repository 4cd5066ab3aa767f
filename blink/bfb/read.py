"""Reading a boot stream from end to end in bounded memory."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from blink.bfb.initramfs import OsImageFinder
from blink.bfb.stream import HEADER_BYTES, INFO, INITRAMFS, KERNEL, BadHeaderError, Header, image_name
from blink.errors import BlinkError

CHUNK = 1 << 20
MOST_IMAGES = 1024
MOST_INFO_BYTES = 1 << 20
AGAIN = "fetch the file again from the vendor, and compare its SHA-256 with the published one"

#: What a file is good for. Only a bundle installs an operating system.
BF_BUNDLE, FIRMWARE, UNKNOWN = "bundle", "firmware", "unknown"


@dataclass(frozen=True)
class Image:
    """One image: where its header begins, and what the header says."""

    offset: int
    header: Header


@dataclass(frozen=True)
class Bfb:
    """A whole, undamaged boot stream.

    ``kind`` is bundle, firmware or unknown, and ``reason`` says why. ``trailing`` bytes follow the last image, from
    ``end`` on. ``info`` is the vendor's list of (name, version) of what is inside.
    """

    path: Path
    size: int
    sha256: str
    images: tuple[Image, ...]
    kind: str
    reason: str
    end: int
    info: tuple[tuple[str, str], ...]

    @property
    def trailing(self) -> int:
        """Bytes after the last image."""
        return self.size - self.end

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "file": str(self.path),
            "bytes": self.size,
            "sha256": self.sha256,
            "kind": self.kind,
            "reason": self.reason,
            "trailing_bytes": self.trailing,
            "images": [{"offset": i.offset, "name": i.header.name, **asdict(i.header)} for i in self.images],
            "info": [{"name": name, "version": version} for name, version in self.info],
        }


class _Reader:
    """A file that is hashed as it is read, and whose end is known."""

    def __init__(self, path: Path, file: BinaryIO, size: int, progress: Callable[[int, int], None]) -> None:
        self.path, self.file, self.size, self.progress = path, file, size, progress
        self.position = 0
        self.sha256 = hashlib.sha256()

    @property
    def left(self) -> int:
        return self.size - self.position

    def read(self, count: int) -> bytes:
        data = self.file.read(min(count, self.left))
        if len(data) < min(count, self.left):
            raise BlinkError(
                f"{self.path}: became shorter while it was read", "wait for what writes it, then try again"
            )
        self.position += len(data)
        self.sha256.update(data)
        self.progress(self.position, self.size)
        return data


def read_bfb(path: Path, progress: Callable[[int, int], None] = lambda done, size: None) -> Bfb:
    """Read ``path`` whole, check every header and CRC, and tell what it is.

    ``progress`` is called with bytes read and bytes in all. Memory stays at a few MiB, whatever the file claims. Raises
    BlinkError naming offset and image where the file is no boot stream, damaged or truncated.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BlinkError(f"{path}: not a file", "name a .bfb file")
            return _read(_Reader(path, file, status.st_size, progress))
    except OSError as e:
        raise BlinkError(f"{path}: {e.strerror}", "name a .bfb file that can be read") from None


def _read(reader: _Reader) -> Bfb:
    images: list[Image] = []
    finder, info = OsImageFinder(), b""
    while not images or images[-1].header.following:
        image = _next_image(reader, images)
        images.append(image)
        content = _content(reader, image, finder)
        if image.header.image_id == INFO:
            info = content
    end = reader.position
    _check_tail(reader, images)
    _check_following(reader.path, images)
    kind, reason = _kind({i.header.image_id for i in images}, finder)
    return Bfb(
        path=reader.path, size=reader.size, sha256=reader.sha256.hexdigest(), images=tuple(images), kind=kind,
        reason=reason, end=end, info=_versions(info),
    )  # fmt: skip


def _next_image(reader: _Reader, images: list[Image]) -> Image:
    offset = reader.position
    where = f"{reader.path}: offset {offset}, image {len(images) + 1}"
    if not images and reader.size < HEADER_BYTES:
        raise BlinkError(f"{reader.path}: {reader.size} bytes are no boot stream", AGAIN)
    if len(images) == MOST_IMAGES:
        raise BlinkError(f"{where}: there are more than {MOST_IMAGES} images", AGAIN)
    if reader.left < HEADER_BYTES:
        awaited = _names(images[-1].header.following)
        raise BlinkError(f"{where}: the file is truncated: it ends before {awaited}", AGAIN)
    try:
        header = Header.unpack(reader.read(HEADER_BYTES))
    except BadHeaderError as e:
        what = "this is no boot stream" if not images else "the stream is damaged"
        raise BlinkError(f"{where}: {what}: {e}", AGAIN) from None
    if header.padded > reader.left:
        raise BlinkError(
            f"{where} ({header.name}): the file is truncated: {header.padded} bytes should follow, {reader.left} do",
            AGAIN,
        )
    return Image(offset, header)


def _content(reader: _Reader, image: Image, finder: OsImageFinder) -> bytes:
    """Read an image's bytes and check their CRC; returns the first MiB."""
    header, crc, kept = image.header, 0, b""
    left, data_left = header.padded, header.length
    while left:
        data = reader.read(min(left, CHUNK))
        left -= len(data)
        crc = zlib.crc32(data, crc)
        own = data[:data_left]
        data_left -= len(own)
        if not kept:
            kept = own[:MOST_INFO_BYTES]
        if header.image_id == INITRAMFS:
            finder.feed(own)
    if crc != header.crc32:
        raise BlinkError(
            f"{reader.path}: offset {image.offset}, image {header.name}: damaged: its CRC-32 is {crc:08x}, and its "
            f"header says {header.crc32:08x}",
            AGAIN,
        )
    return kept


def _names(bitmap: int) -> str:
    return ", ".join(image_name(i) for i in range(64) if bitmap >> i & 1)


def _check_following(path: Path, images: list[Image]) -> None:
    """Every header announces the ids of all later images, so a lost or a foreign image shows."""
    following, seen = 0, set()
    for image in reversed(images):
        key = (image.header.image_id, image.header.version)
        if key in seen:
            where = f"{path}: offset {image.offset}, image {image.header.name}"
            raise BlinkError(f"{where}: the stream has version {key[1]} of it twice", AGAIN)
        seen.add(key)
        if image.header.following != following:
            raise BlinkError(
                f"{path}: offset {image.offset}, image {image.header.name}: announces "
                f"{_names(image.header.following) or 'none'} to follow, and {_names(following) or 'none'} do",
                AGAIN,
            )
        following |= 1 << image.header.image_id


def _check_tail(reader: _Reader, images: list[Image]) -> None:
    offset = reader.position
    start = reader.read(HEADER_BYTES) if reader.left else b""
    if len(start) == HEADER_BYTES:
        try:
            header = Header.unpack(start)
        except BadHeaderError:
            pass
        else:
            raise BlinkError(
                f"{reader.path}: offset {offset}, image {len(images) + 1} ({header.name}): follows an image that says "
                "it is the last",
                AGAIN,
            )
    while reader.left:
        reader.read(CHUNK)


def _kind(ids: set[int], finder: OsImageFinder) -> tuple[str, str]:
    missing = [image_name(i) for i in (KERNEL, INITRAMFS) if i not in ids]
    if missing:
        return FIRMWARE, f"it has no {' and no '.join(missing)}, so it installs no operating system"
    if finder.found:
        return BF_BUNDLE, f"its initramfs installs {finder.found}"
    if finder.unreadable:
        return UNKNOWN, f"its initramfs could not be looked into: {finder.unreadable}"
    return FIRMWARE, "its initramfs carries no image of an operating system, as that of a BF-FW-Bundle"


def _versions(info: bytes) -> tuple[tuple[str, str], ...]:
    """(name, version) of each member of the vendor's info image; empty where there is none or it is unreadable."""
    try:
        members = json.loads(info)["Members"]
        return tuple((str(m["Name"]), str(m["Version"])) for m in members)
    except (ValueError, TypeError, KeyError, RecursionError):
        return ()
