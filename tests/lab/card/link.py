"""Beside rshim on gpu01: the folder /vendor of tests/vendor, kept in step with the card at the end of a serial port.

Files of the card are written here as it sends them; what is pushed into rshim0/boot goes to it. Standard library only.
"""

import json
import os
import struct
import time
from pathlib import Path

PLACE, PORT = Path("/vendor"), "/dev/virtio-ports/card"
DEVICE = PLACE / "rshim0"
PERIOD_S = 0.05


def write(path, content):
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").replace(path)


class Link:
    """The card sends lines {"misc", "state", "cleared"}; it gets blocks: kind, length (4 bytes), content."""

    def __init__(self):
        DEVICE.mkdir(parents=True, exist_ok=True)
        if not (DEVICE / "boot").exists():
            os.mkfifo(DEVICE / "boot")
        self.boot = os.open(DEVICE / "boot", os.O_RDONLY | os.O_NONBLOCK)
        self.port = os.open(PORT, os.O_RDWR | os.O_NONBLOCK)
        self.heard = b""
        self.pushing = self.clearing = False

    def send(self, kind, content=b""):
        data = memoryview(kind + struct.pack("<I", len(content)) + content)
        while data:
            try:
                data = data[os.write(self.port, data) :]
            except BlockingIOError:
                time.sleep(0.001)

    def hear(self):
        try:
            self.heard += os.read(self.port, 1 << 16)
        except BlockingIOError:
            return
        *lines, self.heard = self.heard.split(b"\n")
        for line in map(json.loads, lines):
            write(PLACE / "state.json", json.dumps(line["state"]).encode())
            write(DEVICE / "misc", line["misc"].encode())
            if line["cleared"]:
                (DEVICE / "clear").unlink(missing_ok=True)
                self.clearing = False

    def push(self):
        """Pass on what is pushed; whether there was something."""
        try:
            block = os.read(self.boot, 1 << 16)
        except BlockingIOError:
            return False
        if block:
            self.pushing = True
            self.send(b"P", block)
        elif self.pushing:
            self.pushing = False
            self.send(b"E")
        return bool(block)

    def run(self):
        self.send(b"H")  # the card answers with what there is to see
        while True:
            self.hear()
            if not self.clearing and (DEVICE / "clear").exists():
                self.clearing = True
                self.send(b"C")
            if not self.push():
                time.sleep(PERIOD_S)


Link().run()
