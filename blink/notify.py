"""The readiness protocol of systemd (sd_notify(3)), which other supervisors speak too."""

from __future__ import annotations

import os
import socket


def notify(**fields: str) -> None:
    """Send ``fields`` (READY="1", STATUS="…") to $NOTIFY_SOCKET; nothing where no supervisor listens.

    A supervisor that has gone away is no reason to stop serving, so errors of the socket are ignored.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    message = "\n".join(f"{key}={value}" for key, value in fields.items()).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s:
        s.settimeout(1)
        try:
            s.sendto(message, "\0" + address[1:] if address.startswith("@") else address)
        except OSError:
            return
