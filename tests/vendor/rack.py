"""The hardware of one appliance: a host, a card in it, and the card's own machine. Ends, with both, when it is told to.

python -m tests.vendor.rack DIRECTORY NUMBER, in a mount namespace of its own. For number 1, DIRECTORY/gpu01 and
DIRECTORY/dpu01 are the machines' addresses. DIRECTORY/gpu01/state.json is the hardware and its faults, which tests
write. DIRECTORY/gpu01/rshim0 is what the host sees of the card, and DIRECTORY/gpu01/sys of its PCI functions.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.vendor import pci
from tests.vendor.machine import Machine
from tests.vendor.misc import misc
from tests.vendor.stream import StreamError, split, unpack_system

PERIOD_S = 0.05
INSTALLER = Path(__file__).with_name("installer.sh")


class Rack:
    """Everything that a reboot, a flash or a pulled plug has to do with."""

    def __init__(self, directory: Path, number: int) -> None:
        self.directory = directory
        self.host, self.dpu = (Machine(directory / f"{half}{number:02}") for half in ("gpu", "dpu"))
        self.rshim = self.host.directory / "rshim0"
        self.pci = self.host.directory / "sys/bus/pci"
        self.disk = directory / "disk"
        self.image = self.disk / "image"  # what the card's system was installed as
        self.disk.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g,mode=0755", "vendor-rack", self.disk], check=True)
        self.seed = self.disk / "seed"  # what this machine's own root must not bring along
        for folder in ("etc/apt/sources.list.d", "etc/apt/preferences.d", "vendor"):
            (self.seed / folder).mkdir(parents=True)
            os.setxattr(self.seed / folder, "trusted.overlay.opaque", b"y")
        (self.seed / "etc/apt/sources.list").write_text("")
        (self.seed / "etc/machine-id").write_text("")
        self.rshim.mkdir()
        os.mkfifo(self.rshim / "boot")
        self.boot = os.open(self.rshim / "boot", os.O_RDONLY | os.O_NONBLOCK)
        self.pushed = b""
        self.lines: list[str] = []
        self.say()
        self.install_devices()
        self.host_power = ""

    def state(self, change: Any = None) -> Any:
        with (self.host.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            file = self.host.directory / "state.json"
            content = json.loads(file.read_text())
            if change:
                change(content)
                file.with_suffix(".rack").write_text(json.dumps(content, indent=1))
                file.with_suffix(".rack").replace(file)
            return content

    def fault(self, name: str) -> Any:
        return self.state()["faults"].get(name)

    # --- what the host sees -------------------------------------------------------------------------------------------
    def say(self, *lines: str) -> None:
        """Write rshim's misc file: its settings, then the log."""
        self.lines += lines
        bdf = self.fault("other_bdf") or self.state()["card"]["bdf"]
        (self.rshim / "misc.new").write_text(misc(bdf, self.lines, drop_mode=bool(self.fault("drop_mode"))))
        (self.rshim / "misc.new").replace(self.rshim / "misc")

    def install_devices(self) -> None:
        """GPU and card below one switch, and a kernel that lets one reach the other."""
        root = self.host.directory
        driver = self.pci / "drivers/mlx5_core"
        driver.mkdir(parents=True)
        pci.add_device(root, pci.GPU, pci.ABOVE[pci.GPU], pci.NVIDIA)
        for n in (0, 1, 2):
            pci.add_device(root, self.function(n), pci.ABOVE[pci.NIC], pci.MELLANOX)
            (pci.device(root, self.function(n)) / "vpd").write_bytes(pci.vpd(self.state()["card"]["serial"]))
        (root / "boot").mkdir()
        (root / f"boot/config-{os.uname().release}").write_text("CONFIG_PCI_P2PDMA=y\n")
        for n in (0, 1):
            self.bind(self.function(n))
        for order in ("bind", "unbind"):
            (driver / order).write_text("")

    def function(self, n: int) -> str:
        return f"{self.state()['card']['bdf'].rsplit('.', 1)[0]}.{n}"

    def bind(self, name: str) -> None:
        device = self.pci / "devices" / name
        (device / "driver").symlink_to(os.path.relpath(self.pci / "drivers/mlx5_core", device.resolve()))
        if not self.fault("no_netdev"):
            (device / "net/enp13s0").mkdir(parents=True)
            (device / "infiniband/mlx5_0").mkdir(parents=True)

    def unbind(self, name: str) -> None:
        device = self.pci / "devices" / name
        (device / "driver").unlink()
        shutil.rmtree(device / "net", ignore_errors=True)
        shutil.rmtree(device / "infiniband", ignore_errors=True)

    # --- what the card does -------------------------------------------------------------------------------------------
    def receive(self) -> None:
        """Take what is pushed; after its end, boot it."""
        try:
            block = os.read(self.boot, 1 << 20)
        except BlockingIOError:
            return
        if block:
            if not self.pushed:
                self.say("INFO[PSC]: PSC BL1 START")
            self.pushed += block
        elif self.pushed:
            pushed, self.pushed = self.pushed, b""
            self.boot_stream(pushed)

    def boot_stream(self, pushed: bytes) -> None:
        (self.directory / "flashes").open("a").write("flash\n")
        self.dpu.stop()
        self.say("INFO[BL2]: start", "INFO[BL31]: runtime")
        if self.fault("hang"):
            return
        try:
            images, config = split(pushed)
            if self.fault("critical_error"):
                raise StreamError("DDR POST failed")
            shutil.rmtree(self.disk / "dpu", ignore_errors=True)
            shutil.rmtree(self.image, ignore_errors=True)
            self.image.mkdir()
            unpack_system(images, self.image)
        except StreamError as error:
            self.say(f"CRITICAL ERROR: {error}")
            return
        self.say("INFO[MISC]: Installing OS image")
        self.pause("slow_install")
        installed = self.configure(config) and not self.fault("install_failed")
        if self.fault("install_failed"):
            self.say("ERR[MISC]: Failed to partition /dev/nvme0n1", "ERR[MISC]: Installation failed")
        if installed:
            release = self.fault("other_release") or (self.image / "etc/mlnx-release").read_text()
            (self.image / "etc/mlnx-release").write_text(release)
            self.say("INFO[MISC]: Installation finished")
        if self.fault("firmware_update_failed"):
            self.say("INFO[MISC]: NIC firmware update failed")
        elif installed:
            self.state(_update)
        self.say("INFO[MISC]: Rebooting...")
        if installed and not self.fault("never_up"):
            self.power_card_on()
        if not self.fault("silent"):
            self.say("INFO[MISC]: Linux up", "INFO[MISC]: DPU is ready")

    def configure(self, config: bytes) -> bool:
        """Run the installer's hooks on the new root, which is this machine's own with the image over it."""
        root, work, file = (self.disk / name for name in ("mnt", "mnt-work", "bf.cfg"))
        below = self.disk / "image-below"
        for folder in (root, work, below):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        file.write_bytes(config)
        environment = {
            "PATH": os.environ["PATH"], "BLINK_ROOT": str(root), "BLINK_SYS": str(self.host.directory / "sys"),
            "CONFIG": str(file), "LOG": str(self.disk / "install.log"), "RSHIM": str(self.disk / "rshim.log"),
        }  # fmt: skip
        (self.disk / "rshim.log").write_text("")
        options = f"lowerdir={below}:/,upperdir={self.image},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", root], check=True)
        try:
            done = subprocess.run(["bash", INSTALLER], env=environment, check=False)
        finally:
            subprocess.run(["umount", root], check=True)
            file.unlink()
        self.say(*(self.disk / "rshim.log").read_text().splitlines())
        return done.returncode == 0

    def pause(self, fault: str) -> None:
        """Take as long as the fault says, and let the other parts live meanwhile."""
        end = time.monotonic() + float(self.fault(fault) or 0)
        while time.monotonic() < end and self.fault(fault):
            time.sleep(PERIOD_S)

    def power_card_on(self) -> None:
        self.dpu.start(self.disk / "dpu", self.image)

    # --- power --------------------------------------------------------------------------------------------------------
    def start_host(self) -> None:
        self.host.start(self.disk / "host", self.seed)
        self.host.wait()
        self.host_power = self.host.power

    def follow_host(self) -> None:
        """When the host restarts, a card whose cores are off is reset: settings of its firmware come into force."""
        power = self.host.power
        if power and power != self.host_power:
            self.host_power = power
            if not self.dpu.power:
                if not self.fault("reset_ignored"):
                    self.state(_apply)
                if self.image.exists():
                    self.power_card_on()

    def step(self) -> None:
        self.receive()
        self.follow_host()
        if (self.rshim / "clear").exists():
            self.lines = []
            self.say()
            (self.rshim / "clear").unlink()
        driver = self.pci / "drivers/mlx5_core"
        for order, act in (("bind", self.bind), ("unbind", self.unbind)):
            if name := (driver / order).read_text().strip():
                (driver / order).write_text("")
                act(name)


def _update(state: Any) -> None:
    card = state["card"]
    if state["faults"].get("firmware_waits"):
        card.setdefault("running", card["firmware"])
    card["firmware"] = card["firmware_in_bfb"]


def _apply(state: Any) -> None:
    state["card"].pop("running", None)
    for values in state["card"]["config"].values():
        values["current"] = values["next"]


def main(directory: Path, number: int) -> None:
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    rack = Rack(directory, number)
    try:
        rack.start_host()
        (directory / "ready").write_text("")
        while not stopping:
            rack.step()
            time.sleep(PERIOD_S)
    finally:
        rack.host.stop()
        rack.dpu.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
