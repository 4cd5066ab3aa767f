"""Settings of a card for the tests, and the vendor's installer around bf.cfg."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PASSWORD_HASH = "$6$saltsalt$" + "Kq" * 43

# What the installer of a BFB has when it sources bf.cfg, and the order in which it calls the hooks: bfb-build,
# common/install.env/common and ubuntu/24.04/install.sh. Commands that reach beyond the new root are stand-ins.
INSTALLER = """
LOG={log}
log() {{ echo "$*" >>{rshim}; }}
ilog() {{ echo "$*" >>"$LOG"; }}
fail() {{ log "$@"; log "ERR Installation failed"; exit 9; }}
function_exists() {{ declare -f -F "$1" >/dev/null; return $?; }}
cx_pcidev=0000:03:00.0
. {config}
function_exists bfb_pre_install && bfb_pre_install
function_exists bfb_modify_os && bfb_modify_os
function_exists bfb_custom_action1 && bfb_custom_action1
function_exists bfb_post_install && bfb_post_install
log "INFO: Installation finished"
"""

SSHD_CONFIG = """\
Include /etc/ssh/sshd_config.d/*.conf
UsePAM yes
PasswordAuthentication yes
PermitRootLogin yes
"""


def document(host_key: str, /, **changes: Any) -> dict[str, Any]:
    """Settings with every field that must be there, and ``changes``; None leaves a field out."""
    whole = {
        "appliance": "ap001",
        "hostname": "ap001-dpu",
        "password_hash": PASSWORD_HASH,
        "authorized_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEmA operator@control"],
        "host_key": host_key,
        "ring": {"address": "10.9.1.2/30"},
        **changes,
    }
    return {k: v for k, v in whole.items() if v is not None}


def text(host_key: str, /, **changes: Any) -> str:
    """The same as JSON."""
    return json.dumps(document(host_key, **changes))


@dataclass
class Installed:
    """What a run of the installer left."""

    code: int
    root: Path
    rshim: str
    log: str
    calls: str

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def mode(self, path: str) -> int:
        return (self.root / path).stat().st_mode & 0o777


def install(
    folder: Path, config: str, *, payload: dict[str, bytes] | None = None, vpd: bytes | None = None
) -> Installed:
    """Run the hooks of ``config`` under bash, against a new root in ``folder``; ``payload`` is the release in the BFB,
    ``vpd`` what the card says of itself. chroot is a stand-in that fails when the release's id is "broken"."""
    root, tools, sys, embedded = folder / "mnt", folder / "tools", folder / "sys", folder / "blink"
    for path in (root / "etc/ssh", root / "etc/netplan", tools, sys / "bus/pci/devices/0000:03:00.0", embedded):
        path.mkdir(parents=True, exist_ok=True)
    (root / "etc/ssh/sshd_config").write_text(SSHD_CONFIG)
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    if vpd is not None:
        (sys / "bus/pci/devices/0000:03:00.0/vpd").write_bytes(vpd)
    for name, data in (payload or {}).items():
        (embedded / name).write_bytes(data)
    calls = folder / "calls"
    calls.touch()
    (tools / "chroot").write_text(f'#!/bin/sh\necho "$@" >>{calls}\n[ "$5" != broken ]\n')
    (tools / "chroot").chmod(0o755)
    (folder / "bf.cfg").write_text(config)
    log, rshim = folder / "install.log", folder / "rshim.log"
    ran = subprocess.run(
        ["bash", "-c", INSTALLER.format(log=log, rshim=rshim, config=folder / "bf.cfg")],
        env={
            "PATH": f"{tools}:{os.environ['PATH']}",
            "BLINK_ROOT": str(root),
            "BLINK_PAYLOAD": str(embedded),
            "BLINK_SYS": str(sys),
        },
        timeout=60,
        check=False,
    )
    return Installed(
        ran.returncode, root, rshim.read_text(), log.read_text() if log.exists() else "", calls.read_text()
    )
