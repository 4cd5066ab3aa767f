"""Where the lab keeps its files and which loopback ports it takes; the environment may move them."""

import hashlib
import os
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
STATE = Path(os.environ.get("LAB_STATE", HERE.parents[1] / ".state/lab")).resolve()
RUN = STATE / "run"
SSH_CONFIG = STATE / "ssh_config"

_FIRST_SSH_PORT = int(os.environ.get("LAB_SSH_PORT", "2221"))
SSH_PORTS = {"gpu01": _FIRST_SSH_PORT, "dpu01": _FIRST_SSH_PORT + 1}


def write_ssh_config() -> None:
    """Write the ssh_config(5) by which the machines are reached under their names, by Ansible too."""
    # A control socket's path has 108 bytes, which that of a deep checkout exceeds.
    control = Path(tempfile.gettempdir()) / f"blink-lab-{os.getuid()}-{hashlib.sha256(bytes(STATE)).hexdigest()[:8]}"
    control.mkdir(mode=0o700, exist_ok=True)
    (STATE / "known_hosts").write_text(f"blink-lab {(STATE / 'host_ed25519.pub').read_text()}")
    hosts = "".join(f"Host {name}\n    Port {port}\n" for name, port in SSH_PORTS.items())
    SSH_CONFIG.write_text(
        f"""{hosts}Host *
    HostName 127.0.0.1
    User root
    IdentityFile "{STATE}/id_ed25519"
    IdentitiesOnly yes
    HostKeyAlias blink-lab
    UserKnownHostsFile "{STATE}/known_hosts"
    StrictHostKeyChecking yes
    LogLevel ERROR
    ConnectTimeout 60
    ServerAliveInterval 10
    ControlMaster auto
    ControlPersist 600
    ControlPath "{control}/%n"
"""
    )
