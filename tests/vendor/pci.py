"""What the kernel shows of PCI devices, below a made-up root directory."""

from __future__ import annotations

import os
import struct
from pathlib import Path

GPU, NIC = "0000:18:00.0", "0000:0d:00.0"
SWITCH = "pci0000:0a/0000:0a:01.0/0000:0b:00.0"  # of both
ABOVE = {GPU: f"{SWITCH}/0000:0c:00.0", NIC: f"{SWITCH}/0000:0c:01.0"}
NVIDIA, MELLANOX = "0x10de", "0x15b3"
SOURCE_VALIDATION, REDIRECTS = 0x01, 0x1D  # of ACS; the second sends peer-to-peer traffic up to the root


def vpd(serial: str) -> bytes:
    """Vital product data: identifier, then read-only fields: part number and serial number."""
    name = b"BlueField-3"
    fields = b"PN" + bytes([4]) + b"900-" + b"SN" + bytes([len(serial)]) + serial.encode()
    return b"\x82" + struct.pack("<H", len(name)) + name + b"\x90" + struct.pack("<H", len(fields)) + fields + b"\x78"


def bridge_config(acs_control: int) -> bytes:
    """Configuration space whose second extended capability is ACS."""
    config = bytearray(4096)
    config[0x100:0x104] = struct.pack("<I", 0x0001 | 1 << 16 | 0x148 << 20)  # advanced error reporting, then
    config[0x148:0x150] = struct.pack("<IHH", 0x000D | 1 << 16, 0x5F, acs_control)
    return bytes(config)


def device(root: Path, bdf: str) -> Path:
    """Where the device ``bdf`` is listed."""
    return root / "sys/bus/pci/devices" / bdf


def add_device(root: Path, bdf: str, above: str, vendor: str) -> None:
    """Put a device at the end of a path of bridges. ``root`` may be seen elsewhere under another name."""
    path = root / "sys/devices" / above / bdf
    path.mkdir(parents=True)
    (path / "vendor").write_text(f"{vendor}\n")
    (path / "iommu_group").mkdir()
    translate(path, "identity")
    listed = device(root, bdf)
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.unlink(missing_ok=True)
    listed.symlink_to(os.path.relpath(path, listed.parent))


def translate(path: Path, domain: str) -> None:
    """Have the device at ``path`` in an IOMMU domain: identity, DMA, DMA-FQ."""
    (path / "iommu_group/type").write_text(f"{domain}\n")


def set_bridge(root: Path, acs_control: int) -> None:
    """The bridge above the NIC with this ACS control register."""
    (root / "sys/devices" / ABOVE[NIC] / "config").write_bytes(bridge_config(acs_control))


def secure_boot(root: Path) -> None:
    """Turn Secure Boot on; the machine has a key that signs modules."""
    variables, key = root / "sys/firmware/efi/efivars", root / "var/lib/dkms/mok.pub"
    variables.mkdir(parents=True)
    (variables / "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c").write_bytes(b"\6\0\0\0\1")
    key.parent.mkdir(parents=True)
    key.write_text("key")
