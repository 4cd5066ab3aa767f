"""One virtual machine of the lab: start it, reach it, disturb it, set it back.

Two NICs each. ``mgmt0`` is a user network without a way out, into which only SSH is let, from a loopback port.
``ring0`` is a cable to the other machine: datagrams between two UNIX sockets, MTU 9000, with Soft-RoCE on top.
Nothing here needs root.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from images.lab.arch import Arch, wanted
from images.lab.errors import LabError
from images.lab.monitor import Monitor
from images.lab.places import RUN, SSH_CONFIG, SSH_PORTS, STATE

MEMORY_MIB = {"gpu01": 2048, "dpu01": 1024}
# /dev/kvm may open and yet not run a stock kernel, as inside another virtual machine, so KVM must be asked for.
ACCEL = os.environ.get("LAB_ACCEL", "tcg")
REPORT_LINES = 60


@dataclass(frozen=True)
class Boot:
    """What a machine boots. Its disk lies over ``base``, a raw image, and takes its changes.

    ``installs``: they go into ``base`` itself, and a reboot ends QEMU, for another ``Boot`` to follow.
    """

    base: Path
    kernel: Path
    initrd: Path
    kernel_line: str
    installs: bool = False


def kernel_line(arch: Arch) -> str:
    """What the kernel of the lab's image is told by every machine that runs it."""
    return (
        f"root=/dev/vda rw console={arch.console} quiet loglevel=4 mitigations=off "
        # An emulated processor beside much other work takes longer than 90 s to show its devices.
        "audit=0 apparmor=0 random.trust_cpu=on net.ifnames=1 systemd.default_device_timeout_sec=300"
    )


class Machine:
    """``gpu01`` or ``dpu01``, running or not; any process may hold one of these."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = list(SSH_PORTS).index(name) + 1
        self.peer = next(other for other in SSH_PORTS if other != name)

    @property
    def pid(self) -> int | None:
        """Id of its QEMU, None while it is off: the pidfile counts while QEMU holds a lock on it."""
        with contextlib.suppress(FileNotFoundError), (RUN / f"{self.name}.pid").open("r+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return int(file.read())
        return None

    def start(self, boot: Boot | None = None) -> None:
        """Boot the lab's image or ``boot`` from a fresh disk, without the old one's snapshots.

        Returns once QEMU has read what it boots; see ``wait``. LabError where it does not start, or runs already with
        another architecture than it is to have.
        """
        arch = wanted(self.name)
        if self.pid:
            with self.monitor() as monitor:
                runs = monitor("query-target")["arch"]
            if runs != arch.uname:
                raise LabError(f"{self.name} runs already, as {runs} and not {arch.uname}; make lab-down turns it off")
            return
        RUN.mkdir(parents=True, exist_ok=True)
        for leftover in ("ring", "qmp", "pid", "card", "rshim"):
            (RUN / f"{self.name}.{leftover}").unlink(missing_ok=True)
        # For the inventory, whose LAB_DPU_ARCH may be another one by then.
        (RUN / f"{self.name}.arch").write_text(arch.uname)
        base = boot.base if boot else STATE / f"image-{arch.name}/rootfs.ext4"
        if not (boot and boot.installs):
            disk = RUN / f"{self.name}.qcow2"
            subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, disk], check=True)
        log = RUN / f"{self.name}.log"
        with log.open("wb") as output:
            # In the run directory, so that the sockets' paths are short.
            qemu = subprocess.Popen(
                self.argv(arch, boot),
                cwd=RUN,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        # Not before it has read kernel and initramfs, which its caller may remove.
        self._wait_for_monitor(qemu, log)

    def _wait_for_monitor(self, qemu: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                with Monitor(RUN, f"{self.name}.qmp", 30) as monitor:
                    monitor("query-status")
                return
            except (OSError, LabError):
                if qemu.poll() is not None or time.monotonic() > deadline:
                    said = log.read_text().strip() or "no word in 60 s"
                    raise LabError(f"QEMU for {self.name} did not start: {said}") from None
            time.sleep(0.05)

    def argv(self, arch: Arch, boot: Boot | None = None) -> list[str]:
        """The command line of its QEMU, which runs in the run directory."""
        image = STATE / f"image-{arch.name}"
        accel = "tcg" if arch.foreign else ACCEL
        line = boot.kernel_line if boot else f"{kernel_line(arch)} systemd.hostname={self.name}"
        installs = boot is not None and boot.installs
        disk = f"file={boot.base},format=raw" if boot and installs else f"file={self.name}.qcow2,format=qcow2"
        mgmt = f"user,id=mgmt,restrict=on,hostfwd=tcp:127.0.0.1:{SSH_PORTS[self.name]}-:22"
        near, far = f"local.path={self.name}.ring", f"remote.path={self.peer}.ring"
        ring = f"dgram,id=cable,local.type=unix,{near},remote.type=unix,{far}"
        options = {
            "name": f"blink-lab-{self.name}",
            "machine": arch.machine,
            "accel": "tcg,thread=multi,tb-size=256" if accel == "tcg" else accel,
            "cpu": arch.cpu if accel == "tcg" else "host",
            "smp": "1",  # two are slower under emulation
            "m": str(MEMORY_MIB[self.name]),
            "display": "none",
            "pidfile": f"{self.name}.pid",
            "serial": f"file:{self.name}.console",
            "qmp": f"unix:{self.name}.qmp,server=on,wait=off",
            "kernel": str(boot.kernel if boot else image / "vmlinuz"),
            "initrd": str(boot.initrd if boot else image / "initrd.img"),
            "append": line,
            "drive": f"{disk},if=virtio,cache=unsafe,discard=unmap",
        }
        devices = [
            "virtio-rng-pci",
            f"virtio-net-pci,netdev=mgmt,mac=52:54:00:00:00:0{self.number},romfile=",
            f"virtio-net-pci,id=ring,netdev=cable,mac=52:54:00:aa:00:0{self.number},romfile=,host_mtu=9000",
        ]
        argv = [arch.emulator, "-nodefaults", "-no-user-config", *(["-no-reboot"] if installs else [])]
        argv += [word for name, value in options.items() for word in (f"-{name}", value)]
        argv += [word for value in (mgmt, ring) for word in ("-netdev", value)]
        argv += [word for value in devices for word in ("-device", value)]
        # What a card is flashed through: the host's way into it, and the log that its software writes.
        if self.name == "gpu01":
            argv += ["-chardev", "socket,id=card,path=gpu01.card,server=on,wait=off", "-device", "virtio-serial-pci"]
            argv += ["-device", "virtserialport,chardev=card,name=card"]
        elif boot:
            argv += ["-serial", f"file:{self.name}.rshim"]
        return argv

    def wait(self, timeout_s: float = 300) -> None:
        """Wait until it answers over SSH and its RDMA device is there."""
        deadline = time.monotonic() + timeout_s
        said = ""
        while time.monotonic() < deadline:
            if self.pid is None:
                raise LabError(f"QEMU for {self.name} has ended; see {RUN}/{self.name}.log and .console")
            try:
                done = self.ssh("test -e /sys/class/infiniband/rxe0", check=False, timeout_s=60)
                if done.returncode == 0:
                    return
                said = done.stderr.strip() or "it has no device rxe0 yet"
            except LabError as error:
                said = str(error)
            time.sleep(0.5)
        raise LabError(f"{self.name} was not ready within {timeout_s:.0f} s: {said}; see {RUN}/{self.name}.console")

    def stop(self) -> None:
        """Pull the plug."""
        self.forget_connections()
        if pid := self.pid:
            os.kill(pid, signal.SIGTERM)
            _until(lambda: self.pid is None, 20, f"the end of {self.name}'s QEMU")

    def reset(self) -> None:
        """Press the reset button: it reboots without shutting down first. ``wait`` for it afterwards."""
        with self.monitor() as monitor:
            monitor("system_reset")
        self.forget_connections()

    def link(self, *, up: bool) -> None:
        """Plug this machine's end of the cable in, or pull it."""
        with self.monitor() as monitor:
            monitor("set_link", name="ring", up=up)

    def monitor(self) -> Monitor:
        """QEMU's monitor. LabError where the machine is off."""
        if self.pid is None:
            raise LabError(f"{self.name} is off; start it with make lab-up")
        return Monitor(RUN, f"{self.name}.qmp")

    def ssh(
        self, command: str, *, check: bool = True, timeout_s: float = 120, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command line as root. LabError when it does not end in time, or fails and ``check`` is set."""
        argv = ["ssh", "-F", str(SSH_CONFIG), self.name, command]
        try:
            done = subprocess.run(argv, check=False, capture_output=True, text=True, input=stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise LabError(f"{self.name} did not finish within {timeout_s:.0f} s: {command}") from None
        if check and done.returncode != 0:
            raise LabError(f"{self.name}: {command}: {done.stderr.strip() or f'exit code {done.returncode}'}")
        return done

    def report(self) -> str:
        """The end of its journal, and of its console where it does not answer; for somebody who looks for a fault."""
        try:
            journal = f"journalctl --no-pager --output=short-iso --lines={REPORT_LINES} --unit='blink-*' --unit=lab-rxe"
            said = self.ssh(f"{journal}; rdma link; dmesg --level=err,warn | tail -n 10", timeout_s=60).stdout
        except LabError as error:
            console = RUN / f"{self.name}.console"
            lines = console.read_text(errors="replace").splitlines() if console.exists() else []
            said = "\n".join([f"{error}; its console:", *lines[-REPORT_LINES:]])
        return f"--- {self.name}\n{said.strip()}"

    def forget_connections(self) -> None:
        """End the SSH connection that commands share; one from before a reset would hang."""
        subprocess.run(["ssh", "-F", SSH_CONFIG, "-O", "exit", self.name], check=False, capture_output=True, timeout=20)


def _until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(0.05)
