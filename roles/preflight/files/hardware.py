"""Compare this machine's hardware with the inventory, and see whether a NIC can reach the GPU; JSON list on stdout.

hardware.py [--gpu UUID --ecc MODE] [--card BDF --serial SERIAL] [--root /]

Each entry is {"cause", "remedy"}; an empty list is a machine that fits. Without --gpu and --card only what holds for
any half is looked at. ``--root`` is where /sys, /proc and /boot are. Standard library only.
"""

import argparse
import json
import os
import platform
import subprocess
from pathlib import Path

MELLANOX = "0x15b3"
ACS = 0x000D  # extended capability
ACS_REDIRECT = 0x04 | 0x08  # P2P request redirect, P2P completion redirect


def run(*argv):
    """(exit code, output); the code is None where there is no such program or it hangs."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None, ""
    return done.returncode, " ".join(f"{done.stdout} {done.stderr}".split())


def vpd_serial(data):
    """The serial number in a device's vital product data; empty where there is none. PCI Local Bus 3.0, appendix I."""
    at = 0
    while at + 3 <= len(data) and data[at] & 0x80:  # large resources come first
        tag, length = data[at], int.from_bytes(data[at + 1 : at + 3], "little")
        block, at = data[at + 3 : at + 3 + length], at + 3 + length
        while tag == 0x90 and len(block) >= 3:
            if block[:2] == b"SN":
                return block[3 : 3 + block[2]].decode(errors="replace").strip()
            block = block[3 + block[2] :]
    return ""


def acs_redirects(config):
    """Whether a bridge with this configuration space sends peer-to-peer traffic up to the root."""
    at = 0x100
    while at and at + 8 <= len(config):
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == ACS:
            return bool(int.from_bytes(config[at + 6 : at + 8], "little") & ACS_REDIRECT)
        at = header >> 20
    return False


class Machine:
    """What is looked at, and what is found wrong."""

    def __init__(self, root):
        self.root = root
        self.faults = []

    def refuse(self, cause, remedy):
        self.faults.append({"cause": cause, "remedy": remedy})

    def read(self, path, default=""):
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return default

    def device(self, bdf):
        return self.root / "sys/bus/pci/devices" / bdf

    # --- any half ----------------------------------------------------------------------------------------------------
    def look_at_system(self):
        size = os.sysconf("SC_PAGE_SIZE")
        if size != 4096:
            self.refuse(
                f"the kernel has pages of {size} bytes", "flash a BFB, or boot a kernel, with pages of 4096 bytes"
            )
        code, said = run("timedatectl", "show", "--property=NTPSynchronized", "--value")
        if code == 0 and said != "yes":
            self.refuse(
                "the clock is not synchronised",
                "give it time servers that it reaches: certificates and apt depend on it",
            )

    # --- GPU ---------------------------------------------------------------------------------------------------------
    def look_at_gpu(self, uuid, ecc):
        """PCI address of the GPU of the inventory, None where it cannot be had."""
        fields = "uuid,pci.bus_id,ecc.mode.current"
        code, said = run("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "--id=" + uuid)
        if code is None:
            self.refuse("nvidia-smi is not here", "run the role gpu_driver")
            return None
        if code != 0 or not said.startswith(uuid):
            code, others = run("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
            here = others if code == 0 else f"nvidia-smi says: {said}"
            self.refuse(
                f"the GPU {uuid} is not here ({here})",
                "if it was replaced, set blink_gpu_uuid to the new one and build its engines again",
            )
            return None
        _, bus, ecc_now = (value.strip() for value in said.split(","))
        if ecc and ecc_now not in (ecc, "[N/A]"):
            self.refuse(
                f"ECC of the GPU {uuid} is {ecc_now}, not {ecc}, and its engines were built for that",
                f"nvidia-smi -i {uuid} -e {int(ecc == 'Enabled')}, and reboot the pair",
            )
        return bus.lower().removeprefix("0000")

    # --- card --------------------------------------------------------------------------------------------------------
    def look_at_card(self, bdf, serial):
        """PCI address of the card's first function, None where it is not there."""
        first = bdf.rsplit(".", 1)[0] + ".0"
        if self.read(f"sys/bus/pci/devices/{first}/vendor") != MELLANOX:
            self.refuse(
                f"no card of NVIDIA networking is at {first}",
                "correct blink_card.bdf against `lspci -d 15b3:`; a card that hangs comes back with a power cycle",
            )
            return None
        try:
            found = vpd_serial((self.device(first) / "vpd").read_bytes())
        except OSError:
            found = ""
        if found != serial:
            self.refuse(
                f"the card at {first} has the serial number {found or '(unreadable)'}, not {serial}",
                "if it was replaced, correct blink_card.serial; if two cards are swapped, correct the bdf of both",
            )
        return first

    # --- between them ------------------------------------------------------------------------------------------------
    def look_at_platform(self):
        """What decides for every pair of devices whether one reaches the other's memory."""
        kernel = platform.release()
        config = self.read(f"boot/config-{kernel}")
        if config and "CONFIG_PCI_P2PDMA=y" not in config:
            self.refuse(
                f"the kernel {kernel} is built without PCI P2PDMA, so a NIC cannot be given GPU memory as a dma-buf",
                "install the distribution's kernel 6.x, or set gpu_driver_peer_memory: peermem",
            )
        variables = self.root / "sys/firmware/efi/efivars"
        secure = sorted(variables.glob("SecureBoot-*")) if variables.is_dir() else []
        if secure and secure[0].read_bytes()[-1:] == b"\1":
            key = self.root / "var/lib/dkms/mok.pub"
            code, said = run("mokutil", "--test-key", str(key))
            if not key.exists() or code is None or "already enrolled" not in said:
                self.refuse(
                    "Secure Boot is on, and the key that signs modules built here is not enrolled, so the kernel will "
                    "refuse the drivers of DOCA and of the GPU",
                    f"mokutil --import {key}, reboot, and confirm at the console; or turn Secure Boot off",
                )

    def look_between(self, gpu, nic):
        paths = [self.device(bdf).resolve() for bdf in (gpu, nic)]
        roots = [next((part for part in path.parts if part.startswith("pci0")), "") for path in paths]
        if roots[0] != roots[1]:
            self.refuse(
                f"GPU {gpu} and card {nic} are under different PCIe root complexes ({roots[0]}, {roots[1]})",
                "put the card into a slot of the GPU's root complex, best below the same switch (nvidia-smi topo -m)",
            )
        for bdf, path in zip((gpu, nic), paths, strict=True):
            kind = self.read(f"sys/bus/pci/devices/{bdf}/iommu_group/type")
            if kind.startswith("DMA"):
                self.refuse(
                    f"the IOMMU translates the addresses of {bdf} (domain {kind})",
                    "add iommu=pt to the kernel's command line, and reboot the pair",
                )
            common = Path(os.path.commonpath(paths))
            for bridge in [parent for parent in path.parents if common in parent.parents]:
                if acs_redirects(_bytes(bridge / "config")):
                    self.refuse(
                        f"the PCIe bridge {bridge.name} above {bdf} redirects peer-to-peer traffic to the root (ACS)",
                        "turn ACS off in the firmware's settings; what setpci sets is gone after a reboot",
                    )


def _bytes(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", default="")
    parser.add_argument("--ecc", default="")
    parser.add_argument("--card", default="")
    parser.add_argument("--serial", default="")
    parser.add_argument("--root", type=Path, default=Path("/"))
    args = parser.parse_args()
    machine = Machine(args.root)
    machine.look_at_system()
    gpu = machine.look_at_gpu(args.gpu, args.ecc) if args.gpu else None
    nic = machine.look_at_card(args.card, args.serial) if args.card else None
    if args.gpu:
        machine.look_at_platform()
    if gpu and nic:
        machine.look_between(gpu, nic)
    print(json.dumps(machine.faults))


if __name__ == "__main__":
    main()
