"""The card in gpu01, whose own machine is dpu01: it parses what is pushed to it, and boots it.

It stands for what the vendor makes. What it boots is real: a kernel, an initramfs that installs, a system on a disk.
"""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from images.lab.arch import wanted
from images.lab.errors import LabError
from images.lab.machine import Boot, Machine
from images.lab.monitor import connect
from images.lab.places import RUN
from tests.bfb.writer import cpio
from tests.vendor.identity import BDF, FIRMWARE, OLD_FIRMWARE
from tests.vendor.misc import misc
from tests.vendor.stream import BOOT_ARGS, INITRAMFS, KERNEL, StreamError, split

DISK_BYTES = 4 << 30
PERIOD_S = 0.1


def refuse_foreign() -> None:
    """LabError where dpu01 is not the x86_64 machine that this card boots, or would not be started as one."""
    dpu = Machine("dpu01")
    kinds = {wanted("dpu01").uname} | ({(RUN / "dpu01.arch").read_text().strip()} if dpu.pid else set())
    for kind in kinds - {"x86_64"}:
        raise LabError(f"dpu01 is {kind}, and only an x86_64 one can be flashed: unset LAB_DPU_ARCH, and make lab-down")


class Card:
    """``faults``: what goes wrong from now on, as in tests/vendor. ``flashes``: how often something was pushed."""

    def __init__(self) -> None:
        refuse_foreign()
        self.dpu = Machine("dpu01")
        self.faults: dict[str, Any] = {}
        self.flashes = 0
        self.firmware = OLD_FIRMWARE
        self.lines: list[str] = []
        try:
            self._link = connect(RUN, "gpu01.card", 30)
        except OSError as error:
            raise LabError(f"there is no gpu01 to put a card into ({error}): python -m images.lab up") from None
        self._heard, self._pushed, self._shown = b"", bytearray(), b""
        self._installing = False
        log = RUN / "dpu01.rshim"  # what is in it already was said to another
        self._log_at = log.stat().st_size if log.exists() else 0

    # --- what the host sees -------------------------------------------------------------------------------------------
    def show(self, *, cleared: bool = False) -> None:
        """Tell the host what changed."""
        state = {"card": {"bdf": BDF, "firmware": self.firmware}, "faults": self.faults}
        shown = json.dumps({"misc": misc(BDF, self.lines), "state": state, "cleared": cleared}).encode() + b"\n"
        if shown != self._shown:
            self._link.sendall(shown)
            self._shown = shown

    def hear(self) -> None:
        """Take blocks of what the host pushes (P) until its end (E); clear the log (C); say all anew (H)."""
        if not select.select([self._link], [], [], PERIOD_S)[0]:
            return
        block = self._link.recv(1 << 20)
        if not block:
            raise LabError("gpu01's QEMU has ended, and the card with it")
        self._heard += block
        while len(self._heard) >= 5:
            kind, (length,) = self._heard[:1], struct.unpack_from("<I", self._heard, 1)
            if len(self._heard) < 5 + length:
                return
            content, self._heard = self._heard[5 : 5 + length], self._heard[5 + length :]
            match kind:
                case b"P":
                    self._pushed += content
                case b"E":
                    pushed, self._pushed = bytes(self._pushed), bytearray()
                    self.boot_stream(pushed)
                case b"C":
                    self.lines = []
                    self.show(cleared=True)
                case b"H":
                    self._shown = b""

    # --- what the card does -------------------------------------------------------------------------------------------
    def boot_stream(self, pushed: bytes) -> None:
        """Boot kernel and initramfs with an empty disk; bf.cfg lies in the initramfs, behind the vendor's."""
        self.flashes += 1
        self.dpu.stop()
        self._installing = False
        self.lines += ["INFO[PSC]: PSC BL1 START", "INFO[BL2]: start", "INFO[BL31]: runtime"]
        try:
            images, config = split(pushed)
            if self.faults.get("critical_error"):
                raise StreamError("DDR POST failed")
            kernel, initrd, line = images[KERNEL], images[INITRAMFS], images[BOOT_ARGS].decode()
        except (StreamError, KeyError) as error:
            self.lines.append(f"CRITICAL ERROR: {error}")
            return
        boot = self._boot(line, installs=True)
        boot.base.unlink(missing_ok=True)
        with boot.base.open("wb") as disk:
            disk.truncate(DISK_BYTES)
        boot.kernel.write_bytes(kernel)
        boot.initrd.write_bytes(initrd + bytes(-len(initrd) % 4) + cpio({"bf.cfg": config}, 0o600))
        self._start(boot)
        boot.initrd.unlink()  # it has secrets, and QEMU has read it
        self._installing = True

    def boot_disk(self) -> None:
        """Boot what lies on the disk, as its UEFI would."""
        boot = self._boot("", installs=False)
        for name, target in (("vmlinuz", boot.kernel), ("initrd.img", boot.initrd)):
            target.write_bytes(self._read(f"/boot/{name}"))
        self._start(self._boot(self._read("/boot/cmdline").decode().strip(), installs=False))

    def _boot(self, line: str, *, installs: bool) -> Boot:
        stem = "installer" if installs else "flashed"
        return Boot(RUN / "dpu01.disk", RUN / f"dpu01.{stem}.kernel", RUN / f"dpu01.{stem}.initrd", line, installs)

    def _read(self, path: str) -> bytes:
        """A file of the disk's file system."""
        argv = ["debugfs", "-R", f"cat {path}", str(RUN / "dpu01.disk")]
        environment = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        done = subprocess.run(argv, env=environment, check=False, capture_output=True, timeout=60)
        if not done.stdout:
            raise LabError(f"the card's disk has no {path}: {done.stderr.decode().strip()}")
        return done.stdout

    def _start(self, boot: Boot) -> None:
        self._log_at = 0
        try:
            self.dpu.start(boot)
        except LabError as error:
            self.lines.append(f"CRITICAL ERROR: {error}")  # the flash then says so

    def follow(self) -> None:
        """Pass on what dpu01 says, and go on after the installer has rebooted it."""
        ended = self._installing and self.dpu.pid is None  # before its last words are read
        said = (RUN / "dpu01.rshim").read_bytes() if (RUN / "dpu01.rshim").exists() else b""
        whole = said[self._log_at : said.rfind(b"\n") + 1]
        self._log_at += len(whole)
        self.lines += [line.strip() for line in whole.decode(errors="replace").splitlines()]
        if not ended:
            return
        self._installing = False
        if any("Installation finished" in line for line in self.lines):
            self.firmware = FIRMWARE
            self.boot_disk()
        elif not any("Rebooting" in line for line in self.lines):
            self.lines.append(f"CRITICAL ERROR: its QEMU ended, see {RUN}/dpu01.log")

    def run(self, stop: threading.Event) -> None:
        """Be the card until ``stop`` is set, or gpu01's QEMU ends."""
        with self._link:
            while not stop.is_set():
                self.hear()
                self.follow()
                self.show()


@contextmanager
def inserted() -> Iterator[Card]:
    """A card in gpu01, which runs; as long as the block."""
    card, stop = Card(), threading.Event()
    failures: list[Exception] = []

    def live() -> None:
        try:
            card.run(stop)
        except (LabError, OSError) as error:
            failures.append(error)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        yield card
    finally:
        stop.set()
        thread.join(60)
        if failures:
            raise LabError(f"the card: {failures[0]}")
