"""A BFB whose operating system is the lab's own image, without what opens it and names it: that is bf.cfg's part."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from images.lab.arch import ARCHES
from images.lab.errors import LabError
from images.lab.machine import kernel_line
from images.lab.places import STATE
from tests.bfb.writer import BOOT_ARGS, CAPSULE, INFO, INITRAMFS, KERNEL, VERSIONS, Part, cpio, stream
from tests.lab.card.card import refuse_foreign

HERE = Path(__file__).parent
HOOKS = HERE.parents[1] / "vendor/installer.sh"
RELEASE = "DOCA_3.2.1_BSP_4.13.1_Debian_13-simulated"
MODULES = ("virtio_blk", "crc32c_generic", "ext4")  # the last asks for the second by another name
PROGRAMS = (
    "bash cat chmod chroot cp cut dirname grep insmod ln ls mke2fs mkdir mktemp mount mv rm sleep sync tail tar "
    "tee touch umount zstd"
)
INSTALLER_LINE = "console=ttyS0 quiet loglevel=4 mitigations=off panic=1"

# Says what the vendor's image says in the rshim log once it has booted.
READY = """\
[Unit]
Description=Say in the rshim log that the card is up
After=ssh.service systemd-networkd.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'for said in "Linux up" "DPU is ready"; do echo "INFO[MISC]: $said" >/dev/ttyS1; done'
"""

# As root or under fakeroot, so that files keep their owners.
UNPACK = """
debugfs -R "rdump / $1" "$2" 2>/dev/null
cd "$1"
# Who may log in, who it is, its name and its addresses come from bf.cfg.
rm -f etc/ssh/ssh_host_* root/.ssh/authorized_keys etc/hostname etc/systemd/network/*.network
echo "$3" >etc/mlnx-release
echo "$4" >boot/cmdline
for file in vmlinuz initrd.img; do mv boot/$file-* boot/$file; done
echo "$5" >usr/lib/systemd/system/card-ready.service
ln -s /usr/lib/systemd/system/card-ready.service etc/systemd/system/multi-user.target.wants/
# This machine may have no zstd.
tar -c . | usr/lib64/ld-linux-x86-64.so.2 --library-path usr/lib/x86_64-linux-gnu usr/bin/zstd -q -6 >"$6"
"""


def write_bfb(path: Path, release: str = RELEASE) -> Path:
    """Write it to ``path``, 140 MB within half a minute; ``release`` is what the card then says that it runs.

    LabError without the lab's image, or for another dpu01.
    """
    refuse_foreign()
    disk = STATE / "image-amd64/rootfs.ext4"
    if not disk.exists():
        raise LabError(f"{disk} is missing: python -m images.lab build")
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        root, archive = Path(scratch) / "root", Path(scratch) / "image.tar.zst"
        root.mkdir()
        subprocess.run(
            [*([] if os.geteuid() == 0 else ["fakeroot", "--"]), "bash", "-euc", UNPACK, "-",
             root, disk, release, kernel_line(ARCHES["amd64"]), READY, archive],
            check=True, env=os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
        )  # fmt: skip
        files = _programs(root) | _modules(root)
        files |= {"init": (HERE / "install.sh").read_bytes(), "installer.sh": HOOKS.read_bytes()}
        files |= {"debian/image.tar.zst": archive.read_bytes()}
        parts = [
            Part(CAPSULE, b"simulated"),
            Part(BOOT_ARGS, INSTALLER_LINE.encode()),
            Part(INFO, VERSIONS),
            Part(KERNEL, (root / "boot/vmlinuz").read_bytes()),
            # What takes room in it is compressed already.
            Part(INITRAMFS, gzip.compress(cpio(_with_folders(files), 0o755), compresslevel=0, mtime=0)),
        ]
    path.write_bytes(stream(*parts))
    return path


def _programs(root: Path) -> dict[str, bytes]:
    """Programs of the image with their libraries, by path in the initramfs."""
    loader, libraries = root / "usr/lib64/ld-linux-x86-64.so.2", root / "usr/lib/x86_64-linux-gnu"
    files = {"lib64/ld-linux-x86-64.so.2": loader.read_bytes(), "bin/bash": (root / "usr/bin/bash").read_bytes()}
    for name in PROGRAMS.split():
        found = shutil.which(name if name != "insmod" else "kmod", path=f"{root}/usr/bin:{root}/usr/sbin")
        if not found:
            raise LabError(f"the lab's image has no program {name}")
        files[f"usr/bin/{name}"] = Path(found).read_bytes()
        needed = subprocess.run(
            [loader, "--library-path", libraries, "--list", found], check=True, capture_output=True, text=True
        ).stdout
        for line in needed.splitlines():
            _, arrow, place = line.partition(" => ")
            if arrow:
                library = Path(place.split(" (")[0])
                files[f"usr/lib/x86_64-linux-gnu/{library.name}"] = library.read_bytes()
    return files


def _modules(root: Path) -> dict[str, bytes]:
    """Kernel modules, unpacked, and the order in which they are loaded."""
    folder = next((root / "usr/lib/modules").iterdir())
    needs: dict[str, tuple[str, list[str]]] = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[Path(path).name.split(".")[0]] = (path, others.split())
    order: list[str] = []
    for name in MODULES:
        module, rest = needs[name]
        # modules.dep lists first what is loaded last.
        order += [path for path in [*reversed(rest), module] if path not in order]
    files = {f"modules/{n}.ko": lzma.decompress((folder / path).read_bytes()) for n, path in enumerate(order)}
    return files | {"modules/order": "".join(f"{n}.ko\n" for n in range(len(order))).encode()}


def _with_folders(files: dict[str, bytes]) -> dict[str, bytes | None]:
    """``files`` with every folder before what lies in it."""
    found: dict[str, bytes | None] = {}
    for name, data in files.items():
        for folder in reversed(Path(name).parents[:-1]):
            found.setdefault(str(folder), None)
        found[name] = data
    return found
