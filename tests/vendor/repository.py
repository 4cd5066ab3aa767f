"""A signed apt repository of stand-in packages, with the names and the dependencies of the vendor's."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

TOOLS = Path(__file__).parent / "tools"
SUITE, COMPONENT = "stable", "main"

PYTHON = "/usr/bin/python3 -I -c"
STATE = "import sys; sys.path.insert(0, '/usr/lib/vendor'); import vendor\nwith vendor.state() as s:\n"
# What installing does beyond copying files: the driver is built, against the RDMA drivers that are there, and the
# modules in memory stay as they were until the machine boots.
BUILD_DRIVER = f"""#!/bin/sh
[ "$1" = configure ] || exit 0
{PYTHON} "{STATE}
 if not vendor.Path('/usr/src/linux-headers-' + vendor.os.uname().release).exists(): sys.exit('no kernel headers')
 d = s['driver']
 if d.get('boot') != vendor.boot_id(): d['loaded'] = d['installed']
 d.update(installed='@VERSION@', boot=vendor.boot_id(), built_for=s['ofed'])"
"""
BUILD_OFED = f"""#!/bin/sh
[ "$1" = configure ] || exit 0
{PYTHON} "{STATE}
 if not vendor.Path('/usr/src/linux-headers-' + vendor.os.uname().release).exists(): sys.exit('no kernel headers')
 s['ofed'] = '@VERSION@'"
"""


def unit(description: str, command: str, extra: str = "") -> str:
    return (
        f"[Unit]\nDescription={description}\n[Service]\nExecStart={command}\n{extra}[Install]\nWantedBy=basic.target\n"
    )


PERSISTENCED = unit(
    "NVIDIA persistence daemon, simulated",
    "/bin/sleep infinity",
    "ExecStartPost=/bin/touch /run/nvidia-persistenced.up\nExecStopPost=/bin/rm -f /run/nvidia-persistenced.up\n",
)

LIBRARY: dict[str, str | Path] = {"/usr/lib/vendor/vendor.py": TOOLS / "vendor.py"}
RSHIM: dict[str, str | Path] = {
    "/usr/sbin/rshim": TOOLS / "rshim",
    "/usr/sbin/bfb-install": TOOLS / "bfb-install",
    "/lib/systemd/system/rshim.service": unit("rshim, simulated", "/usr/sbin/rshim"),
    "/etc/rshim.conf": "",
}
MFT: dict[str, str | Path] = {f"/usr/bin/{tool}": TOOLS / tool for tool in ("mlxconfig", "flint", "mst", "ofed_info")}


class Repository:
    """Packages below ``folder``, signed by a key made for it; ``key`` is the public half."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = folder.parent / "vendor.asc"
        self._gpg = folder.parent / "gpg"
        self._packages: list[Path] = []
        folder.mkdir(parents=True)
        self._gpg.mkdir(mode=0o700)
        self._run_gpg("--quick-generate-key", "Vendor, simulated", "rsa2048", "sign", "never")
        self.key.write_text(self._run_gpg("--armor", "--export").stdout)

    def add(
        self,
        name: str,
        version: str,
        *,
        depends: str = "",
        files: dict[str, str | Path] | None = None,
        postinst: str = "",
    ) -> None:
        """Build one package; ``files`` are contents or files to copy, by path."""
        tree = self.folder.parent / "build"
        shutil.rmtree(tree, ignore_errors=True)
        (tree / "DEBIAN").mkdir(parents=True)
        control = (
            f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Vendor, simulated <v@example.org>\n"
        )
        control += f"Depends: {depends}\n" if depends else ""
        (tree / "DEBIAN/control").write_text(control + "Description: stand-in for a vendor's package\n")
        if postinst:
            (tree / "DEBIAN/postinst").write_text(postinst.replace("@VERSION@", version.split("-", maxsplit=1)[0]))
            (tree / "DEBIAN/postinst").chmod(0o755)
        for path, content in (files or {}).items():
            target = tree / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copy(content, target)
            else:
                target.write_text(content)
        package = self.folder / f"{name}_{version}_all.deb"
        subprocess.run(
            ["dpkg-deb", "--build", "-Znone", "--root-owner-group", tree, package], check=True, capture_output=True
        )
        self._packages.append(package)

    def take(self, package: Path) -> None:
        """Add a package that is built already."""
        self._packages.append(Path(shutil.copy(package, self.folder)))

    def publish(self) -> None:
        """Write the index and sign it."""
        binary = self.folder / "dists" / SUITE / COMPONENT / "binary-amd64"
        binary.mkdir(parents=True, exist_ok=True)
        index = ""
        for package in self._packages:
            control = subprocess.run(
                ["dpkg-deb", "--field", package], check=True, capture_output=True, text=True
            ).stdout
            content = package.read_bytes()
            index += f"{control}Filename: {package.name}\nSize: {len(content)}\n"
            index += f"SHA256: {hashlib.sha256(content).hexdigest()}\n\n"
        (binary / "Packages").write_text(index)
        (binary / "Packages.gz").write_bytes(gzip.compress(index.encode(), mtime=0))
        root = self.folder / "dists" / SUITE
        release = f"Origin: Vendor\nLabel: Vendor\nSuite: {SUITE}\nCodename: {SUITE}\nArchitectures: amd64\n"
        release += f"Components: {COMPONENT}\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n"
        for file in sorted(binary.iterdir()):
            content = file.read_bytes()
            release += f" {hashlib.sha256(content).hexdigest()} {len(content)} {file.relative_to(root)}\n"
        (root / "Release").write_text(release)
        self._run_gpg("--yes", "--clearsign", "--output", str(root / "InRelease"), str(root / "Release"))

    def _run_gpg(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["gpg", "--homedir", str(self._gpg), "--batch", "--quiet", "--passphrase", "", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True)


def vendor_repository(folder: Path, *, driver: list[str], doca: list[str]) -> Repository:
    """The packages that roles install; versions of driver and of DOCA-Host in ascending order."""
    repository = Repository(folder)
    headers = f"linux-headers-{os.uname().release}"
    repository.add("vendor-simulation", "1.0", files=LIBRARY)
    repository.add(headers, "1.0", files={f"/usr/src/{headers}/Makefile": ""})
    for version in driver:
        only = f"(= {version})"
        kernel = "nvidia-kernel-open-dkms"
        repository.add(kernel, version, depends="vendor-simulation", postinst=BUILD_DRIVER)
        repository.add(
            "nvidia-driver-cuda", version, depends=f"vendor-simulation, {kernel} {only}",
            files={"/usr/bin/nvidia-smi": TOOLS / "nvidia-smi", "/usr/local/sbin/modprobe": TOOLS / "modprobe",
                   "/usr/local/sbin/modinfo": TOOLS / "modinfo"},
        )  # fmt: skip
        service = {"/lib/systemd/system/nvidia-persistenced.service": PERSISTENCED}
        repository.add("nvidia-persistenced", version, files=dict(service))
        repository.add("nvidia-open", version, depends=f"nvidia-driver-cuda {only}, nvidia-persistenced {only}")
    for version in doca:
        repository.add("mft", version, depends="vendor-simulation", files=MFT)
        repository.add("mlnx-ofed-kernel-dkms", version, depends="vendor-simulation", postinst=BUILD_OFED)
        repository.add("doca-ofed", version, depends=f"mft (= {version}), mlnx-ofed-kernel-dkms (= {version})")
        repository.add("rshim", version, depends="vendor-simulation", files=RSHIM)
    repository.publish()
    return repository
