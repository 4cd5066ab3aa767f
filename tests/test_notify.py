"""Readiness over $NOTIFY_SOCKET."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from blink.notify import notify


@pytest.mark.parametrize("abstract", [False, True])
def test_fields_arrive_as_one_datagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    name = f"@blink-test-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind("\0" + name[1:] if abstract else name)
        s.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify(READY="1", STATUS="serving a model")
        assert s.recv(1000) == b"READY=1\nSTATUS=serving a model"


def test_a_supervisor_that_is_gone_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify(READY="1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify(READY="1")
