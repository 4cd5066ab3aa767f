"""A BFB that also carries a release of the frontend.

bf.cfg may have 128 KiB, and a card that is being installed has no network, so the release travels in the initramfs that
the installer runs from: Linux unpacks several archives that lie one behind the other. The vendor's ``bfb-tool repack``
changes the same image.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tarfile
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from blink.bfb.command import check
from blink.bfb.read import read_bfb
from blink.bfb.stream import HEADER_BYTES, INITRAMFS, Header
from blink.errors import BlinkError

INSTALLER = Path(__file__).parents[2] / "roles/release/files/install_bundle.sh"
#: Where the installer's system has the release; bf.cfg.j2 says the same.
FOLDER = "blink"


@dataclass(frozen=True)
class Origin:
    """What stands in FILE.json beside a BFB that carries a release: its own hash, and what it was made from."""

    sha256: str
    release: str | None
    vendor_name: str
    vendor_sha256: str

    @staticmethod
    def place(bfb: Path) -> Path:
        """Where the origin of ``bfb`` is noted."""
        return bfb.with_name(bfb.name + ".json")

    @classmethod
    def read(cls, bfb: Path) -> Origin | None:
        """The origin of ``bfb``, or None where it is the vendor's own."""
        place = cls.place(bfb)
        if not place.exists():
            return None
        try:
            return cls(**json.loads(place.read_text()))
        except (OSError, ValueError, TypeError):
            raise BlinkError(f"{place}: not what embed wrote", "embed the bundle anew, or remove that file") from None


def bundle_id(bundle: Path) -> str:
    """The id that scripts/bundle printed for ``bundle``: from the hash of its list of wheels."""
    try:
        with tarfile.open(bundle) as tar:
            listing = tar.extractfile("requirements.txt")
            assert listing is not None
            return hashlib.sha256(listing.read()).hexdigest()[:16]
    except (OSError, tarfile.TarError, KeyError, AssertionError):
        raise BlinkError(
            f"{bundle}: not a bundle of the frontend", "make one with scripts/bundle or make bundle"
        ) from None


def _entry(name: str, mode: int, size: int, inode: int) -> bytes:
    """The header of a cpio entry (newc), padded."""
    path = name.encode() + b"\0"
    numbers = (inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(path), 0)
    entry = b"070701" + b"".join(b"%08X" % n for n in numbers) + path
    return entry + bytes(-len(entry) % 4)


def _archive(bundle: Path) -> bytes:
    """The release as a compressed cpio archive, the same for the same bundle."""
    release = bundle_id(bundle)
    files = {
        "frontend.tar": bundle.read_bytes(),
        "id": release.encode() + b"\n",
        "install_bundle.sh": INSTALLER.read_bytes(),
    }
    parts = [_entry(FOLDER, 0o040755, 0, 1)]
    for inode, (name, data) in enumerate(files.items(), start=2):
        parts += [_entry(f"{FOLDER}/{name}", 0o100644, len(data), inode), data, bytes(-len(data) % 4)]
    parts.append(_entry("TRAILER!!!", 0, 0, 0))
    # Wheels are compressed already.
    return gzip.compress(b"".join(parts), compresslevel=1, mtime=0)


def embed(vendor: Path, sha256: str, bundle: Path, output: Path) -> Origin:
    """Write ``vendor`` with ``bundle`` inside to ``output``, and its origin beside it.

    ``sha256`` is what the vendor's file must hash to. The same inputs give the same file. Raises BlinkError where the
    vendor's file must not be flashed, or has no room in the 4 GiB of one image.
    """
    bfb = read_bfb(vendor)
    check(bfb, sha256)
    archive = _archive(bundle)
    target = next(i for i in bfb.images if i.header.image_id == INITRAMFS)
    # Ours begins at a multiple of four.
    gap = bytes(-target.header.length % 4)
    length = target.header.length + len(gap) + len(archive)
    if length >= 1 << 32:
        raise BlinkError(f"{bundle}: too large: an image of a BFB ends at 4 GiB", "leave the model out of the bundle")
    part = output.with_name(output.name + ".part")
    with vendor.open("rb") as source, part.open("wb") as sink:
        _copy(source, sink, target.offset)
        sink.write(bytes(HEADER_BYTES))
        source.seek(HEADER_BYTES, 1)
        crc = _copy(source, sink, target.header.length)
        tail = gap + archive + bytes(-length % 8)
        sink.write(tail)
        crc = zlib.crc32(tail, crc)
        source.seek(target.header.padded - target.header.length, 1)
        shutil.copyfileobj(source, sink)
        sink.seek(target.offset)
        h = target.header
        sink.write(Header(h.image_id, length, crc, h.following, h.version, h.next_version, h.minor).pack())
    derived = read_bfb(part)
    check(derived, None)
    origin = Origin(derived.sha256, bundle_id(bundle), vendor.name, bfb.sha256)
    part.replace(output)
    Origin.place(output).write_text(json.dumps(asdict(origin), indent=2) + "\n")
    return origin


def _copy(source: BinaryIO, sink: BinaryIO, count: int) -> int:
    """Copy ``count`` bytes; returns their CRC-32."""
    crc = 0
    while count:
        data = source.read(min(count, 1 << 20))
        if not data:
            raise BlinkError("the BFB became shorter while it was copied", "wait for what writes it, then try again")
        sink.write(data)
        crc = zlib.crc32(data, crc)
        count -= len(data)
    return crc
