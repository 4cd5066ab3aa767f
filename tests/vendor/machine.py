"""A throwaway machine with systemd as PID 1, which Ansible reaches as it would over SSH."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).parent
SSH = HERE / "ssh"


def missing() -> str:
    """Why this machine cannot run others; empty if it can."""
    if os.geteuid() != 0:
        return "throwaway machines need root"
    tools = [
        tool
        for tool in ("systemd-nspawn", "unshare", "nsenter", "setpriv", "pgrep", "gpg", "dpkg-deb")
        if not shutil.which(tool)
    ]
    if tools:
        return (
            f"throwaway machines need {' '.join(tools)} (of Debian's systemd-container, gnupg, procps and util-linux)"
        )
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "throwaway machines need overlayfs"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False, timeout=10).returncode != 0:
        return "throwaway machines need mounts of their own (CAP_SYS_ADMIN)"
    return ""


class Machine:
    """One machine. ``directory`` is its address, is seen inside as /vendor, and is not its disk."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = directory.name
        self._room: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def power(self) -> str:
        """What changes with every boot from outside, and is empty while it is off."""
        try:
            return (self.directory / "pid").read_text().strip()
        except FileNotFoundError:
            return ""

    def start(self, disk: Path, seed: Path) -> None:
        """Boot from ``disk``, over what ``seed`` holds; only in the mount namespace of ``rack``."""
        self.stop()
        with (self.directory / "console").open("ab") as console:
            self._room = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", HERE / "room.sh", self.directory, disk, seed],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True,
            )  # fmt: skip

    def stop(self) -> None:
        """Pull the plug."""
        if self._room is not None:
            if self._room.poll() is None:
                self._room.send_signal(signal.SIGTERM)
            self._room.wait(timeout=30)
            self._room = None
        (self.directory / "pid").unlink(missing_ok=True)

    def wait(self, timeout_s: float = 60) -> None:
        """Wait until systemd takes orders. AssertionError with the end of its console otherwise."""
        deadline = time.monotonic() + timeout_s
        while self.run("systemctl is-active --quiet basic.target", check=False).returncode != 0:
            console = self.directory / "console"
            assert time.monotonic() < deadline, console.read_text()[-2000:] if console.exists() else "never started"
            time.sleep(0.1)

    def run(self, command: str, *, check: bool = True, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a shell command line as root, the way Ansible does."""
        done = subprocess.run(
            [SSH, self.directory, command], capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert not check or done.returncode == 0, f"{self.name}: {command}: {done.stdout}{done.stderr}"
        return done

    def boot_id(self) -> str:
        return self.run("cat /proc/sys/kernel/random/boot_id").stdout.strip()
