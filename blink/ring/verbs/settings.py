"""What the verbs transport asks of a configuration."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Protocol


class RdmaSettings(Protocol):
    """The fields of ``[rdma]`` that it uses; :class:`blink.config.RdmaConfig` says what each means."""

    @property
    def device(self) -> str | None: ...
    @property
    def port(self) -> int: ...
    @property
    def gid_type(self) -> str: ...
    @property
    def gid_address(self) -> IPv4Address | IPv6Address | None: ...
    @property
    def ringd_address(self) -> IPv4Address | IPv6Address: ...
    @property
    def ringd_port(self) -> int: ...
    @property
    def key_file(self) -> Path: ...
    @property
    def handshake_timeout_s(self) -> float: ...
