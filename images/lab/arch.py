"""The architectures that a machine of the lab may have, and which of them it is to have."""

import os
import platform
from dataclasses import dataclass

from images.lab.errors import LabError


@dataclass(frozen=True)
class Arch:
    """An architecture by Debian's name and by what `uname -m` says there, and what QEMU emulates for it."""

    name: str
    uname: str
    package: str  # Debian's, with the program that emulates a whole machine
    machine: str
    cpu: str
    console: str

    @property
    def emulator(self) -> str:
        """The program that emulates a whole machine."""
        return f"qemu-system-{self.uname}"

    @property
    def foreign(self) -> bool:
        """Whether the machine that this runs on has another one."""
        return self.uname != platform.machine()


ARCHES = {
    "amd64": Arch("amd64", "x86_64", "qemu-system-x86", "q35", "max", "ttyS0"),
    # The cores of BlueField-2, which are older than those of BlueField-3: what they run, both run.
    "arm64": Arch("arm64", "aarch64", "qemu-system-arm", "virt", "cortex-a72", "ttyAMA0"),
}


def wanted(host: str) -> Arch:
    """What ``host`` is to have: amd64, or as ``dpu01`` what LAB_DPU_ARCH names. LabError where it names no such."""
    name = os.environ.get("LAB_DPU_ARCH") or "amd64"
    if name not in ARCHES:
        raise LabError(f"LAB_DPU_ARCH is {name!r}; it may be {' or '.join(ARCHES)}")
    return ARCHES[name if host == "dpu01" else "amd64"]
