"""Both machines at once: start, stop, and snapshots that fit together."""

import os
import shutil
import subprocess
from contextlib import ExitStack

from images.lab.arch import Arch, wanted
from images.lab.errors import LabError
from images.lab.machine import Machine
from images.lab.places import HERE, SSH_PORTS, STATE, write_ssh_config

MACHINES = tuple(Machine(name) for name in SSH_PORTS)

# Programs and Debian's packages that have them.
TOOLS = {
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "fakeroot": "fakeroot",
    "newuidmap": "uidmap",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}


def arches() -> set[Arch]:
    """The architectures that the machines are to have. LabError where LAB_DPU_ARCH names none."""
    return {wanted(host) for host in SSH_PORTS}


def missing_packages() -> list[str]:
    """Debian's packages of the programs this machine lacks. LabError where LAB_DPU_ARCH names no architecture."""
    tools = TOOLS | {arch.emulator: arch.package for arch in arches()}
    for arch in arches():
        if arch.foreign:  # its programs run here while its image is built
            tools["arch-test"] = "arch-test"
            if not _executes(arch):
                tools |= {f"qemu-{arch.uname}-static": "qemu-user-static", "update-binfmts": "binfmt-support"}
    path = f"{os.environ['PATH']}:/usr/sbin"  # where an ordinary user's shell does not look for mke2fs
    return sorted({package for tool, package in tools.items() if not shutil.which(tool, path=path)})


def _executes(arch: Arch) -> bool:
    try:
        return subprocess.run(["arch-test", arch.name], check=False, capture_output=True, timeout=60).returncode == 0
    except FileNotFoundError:
        return False


def check_tools() -> None:
    """LabError that names what to install where this machine lacks something."""
    if missing := missing_packages():
        raise LabError(f"the lab needs programs that are not here: apt-get install {' '.join(missing)}")


def build() -> None:
    """Build the disk image of each architecture, or keep the one that was built from the same files."""
    check_tools()
    STATE.mkdir(parents=True, exist_ok=True)
    for arch in sorted(arches(), key=lambda arch: arch.name):
        if subprocess.run([HERE / "build", STATE, arch.name], check=False).returncode != 0:
            raise LabError(f"the image for {arch.name} could not be built; its own words are above")
    write_ssh_config()


def up() -> None:
    """Build what is missing, boot what is off, and wait until both answer."""
    build()
    for machine in MACHINES:
        machine.start()
    for machine in MACHINES:
        machine.wait()


def down() -> None:
    """Turn both off. Their disks are made anew at the next start."""
    for machine in MACHINES:
        machine.stop()


def save(tag: str) -> None:
    """Keep both machines' memory and disks, as of one moment, under ``tag``."""
    _together(f"savevm {tag}")


def restore(tag: str) -> None:
    """Set both machines back to ``tag``: a matter of seconds. Their clocks are set to now."""
    _together(f"loadvm {tag}")
    for machine in MACHINES:
        machine.forget_connections()
        machine.link(up=True)
        machine.ssh("date --utc --set=@$(cat)", stdin=_now())


def _now() -> str:
    return subprocess.run(["date", "+%s.%N"], check=True, capture_output=True, text=True).stdout


def _together(command: str) -> None:
    with ExitStack() as stack:
        monitors = [stack.enter_context(machine.monitor()) for machine in MACHINES]
        for monitor in monitors:
            monitor("stop")
        for monitor in monitors:
            monitor.human(command)
        for monitor in monitors:
            monitor("cont")
