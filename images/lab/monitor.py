"""QEMU's monitor in its JSON form, QMP."""

import json
import os
import socket
from pathlib import Path
from typing import Any, Self

from images.lab.errors import LabError


def connect(directory: Path, name: str, timeout_s: float) -> socket.socket:
    """Connect to the UNIX socket ``directory/name``. OSError where nothing listens."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout_s)
    handle = os.open(directory, os.O_PATH)
    try:  # by way of /proc: a socket's path has 108 bytes, which that of a deep checkout exceeds
        connection.connect(f"/proc/self/fd/{handle}/{name}")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(handle)
    return connection


class Monitor:
    """A connection to the UNIX socket ``directory/name``; one JSON object a line each way."""

    def __init__(self, directory: Path, name: str, timeout_s: float = 120) -> None:
        self._name = name
        self._socket = connect(directory, name, timeout_s)
        self._lines = self._socket.makefile("r")
        self._lines.readline()  # the greeting
        self("qmp_capabilities")

    def __call__(self, command: str, **arguments: Any) -> Any:
        """Run one command and return what it returned. LabError carries QEMU's own words."""
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while line := self._lines.readline():
            answer = json.loads(line)
            if "error" in answer:
                raise LabError(f"{self._name}: QEMU refused {command}: {answer['error']['desc']}")
            if "return" in answer:  # and not an event
                return answer["return"]
        raise LabError(f"{self._name}: QEMU ended during {command}")

    def human(self, line: str) -> None:
        """Run a command that only the monitor for people has, such as savevm. LabError if it says anything."""
        if said := self("human-monitor-command", **{"command-line": line}).strip():
            raise LabError(f"{self._name}: QEMU said to {line}: {said}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()
