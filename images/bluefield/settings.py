"""What a card's bf.cfg is made from, and which values are refused.

The result is a shell file that runs as root on the card, so every value has a form that it must match.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, dataclass, field, fields
from ipaddress import ip_address, ip_interface
from typing import Any

from blink.errors import BlinkError

_CRYPT = re.compile(r"\$(5|6|y|2b)\$[./A-Za-z0-9$=,]{20,}")
_HOSTNAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*")
_APPLIANCE = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_PUBLIC_KEY = re.compile(r"(sk-)?(ssh|ecdsa)-[a-z0-9@.-]+ [A-Za-z0-9+/]+=*( [\w@.+: -]*)?")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN OPENSSH PRIVATE KEY-----\n([A-Za-z0-9+/=]+\n)+-----END OPENSSH PRIVATE KEY-----\n?"
)
_INTERFACE = re.compile(r"[A-Za-z0-9_.-]{1,15}")
_DEVICE = re.compile(r"/dev/[a-z0-9]+")
_SERIAL = re.compile(r"[A-Za-z0-9-]{4,32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# The vendor's installer masks passwords in its log with sed, which these would break.
_BMC_PASSWORD = re.compile(r"[!#-+.-\[\]-~\-]{8,64}")


def _refuse(name: str, problem: str, remedy: str) -> BlinkError:
    return BlinkError(f"settings: {name}: {problem}", remedy)


def _match(name: str, value: object, pattern: re.Pattern[str], remedy: str) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise _refuse(name, "not in the form that it must have", remedy)


def _address(name: str, value: object) -> None:
    try:
        if not isinstance(value, str) or "/" not in value:
            raise ValueError
        ip_interface(value)
    except ValueError:
        raise _refuse(name, f"{value!r} is no address with a prefix", "write it as 10.9.1.2/30") from None


@dataclass(frozen=True)
class Management:
    """The interface that Ansible reaches the card by; DHCP where ``address`` is left out."""

    interface: str = "oob_net0"
    address: str | None = None
    gateway: str | None = None
    nameservers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _match("management.interface", self.interface, _INTERFACE, "name an interface of the card, such as oob_net0")
        if self.address is not None:
            _address("management.address", self.address)
        elif self.gateway is not None:
            raise _refuse("management.gateway", "needs management.address", "give both, or neither for DHCP")
        for name, value in [("gateway", self.gateway), *(("nameservers", n) for n in self.nameservers)]:
            try:
                _ = value is None or ip_address(value)
            except ValueError:
                raise _refuse(f"management.{name}", f"{value!r} is no address", "write it as 10.0.0.1") from None


@dataclass(frozen=True)
class Ring:
    """The sub-function whose address the ring is reached by. A switchdev PF has no GIDs; an SF has."""

    address: str
    interface: str = "enp3s0f0s0"
    mtu: int | None = None

    def __post_init__(self) -> None:
        _match("ring.interface", self.interface, _INTERFACE, "name the sub-function's interface, such as enp3s0f0s0")
        _address("ring.address", self.address)
        if self.mtu is not None and (type(self.mtu) is not int or not 1280 <= self.mtu <= 9216):
            raise _refuse("ring.mtu", f"{self.mtu!r} is no MTU", "give 1280 to 9216, or leave it out")


@dataclass(frozen=True)
class Update:
    """Which firmware the installer brings to the version in the BFB."""

    atf_uefi: bool = True
    nic_firmware: bool = True
    bmc: bool = False

    def __post_init__(self) -> None:
        for name in ("atf_uefi", "nic_firmware", "bmc"):
            if type(getattr(self, name)) is not bool:
                raise _refuse(f"update.{name}", "neither true nor false", "give one of them")


@dataclass(frozen=True)
class Bmc:
    """What the card's BMC is logged in to with, for its firmware."""

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        _match("bmc.user", self.user, re.compile(r"[a-z_][a-z0-9_-]{0,31}"), "give a user name")
        _match(
            "bmc.password",
            self.password,
            _BMC_PASSWORD,
            "give 8 to 64 printable characters without space, comma, quotes or backslash",
        )


@dataclass(frozen=True)
class Settings:
    """One card. ``password_hash``, ``host_key`` and ``bmc`` are secrets, and left out of the repr."""

    appliance: str
    hostname: str
    password_hash: str = field(repr=False)
    authorized_keys: tuple[str, ...]
    host_key: str = field(repr=False)
    ring: Ring
    management: Management = Management()
    time_servers: tuple[str, ...] = ()
    update: Update = Update()
    bmc: Bmc | None = None
    device: str | None = None
    card_serial: str | None = None
    bfb_sha256: str | None = None

    def __post_init__(self) -> None:
        _match("appliance", self.appliance, _APPLIANCE, "give lower-case letters, digits and hyphens")
        _match("hostname", self.hostname, _HOSTNAME, "give a host name in lower case")
        _match("password_hash", self.password_hash, _CRYPT, "give a crypt hash and not a password: mkpasswd -m sha-512")
        if not self.authorized_keys:
            raise _refuse("authorized_keys", "empty, so nobody could log in to the card", "give a public SSH key")
        for n, key in enumerate(self.authorized_keys):
            _match(f"authorized_keys[{n}]", key, _PUBLIC_KEY, "give a line of a .pub file")
        _match(
            "host_key",
            self.host_key,
            _PRIVATE_KEY,
            "give an OpenSSH private key without a passphrase: ssh-keygen -t ed25519 -N ''",
        )
        for n, server in enumerate(self.time_servers):
            _match(f"time_servers[{n}]", server, re.compile(r"[A-Za-z0-9.:-]{1,253}"), "give a host name or an address")
        if self.update.bmc and self.bmc is None:
            raise _refuse("update.bmc", "needs bmc.user and bmc.password", "give them, or set update.bmc to false")
        for name, pattern, remedy in (
            ("device", _DEVICE, "name the disk to install on, such as /dev/nvme0n1"),
            ("card_serial", _SERIAL, "give the serial number of the card, as in its VPD"),
            ("bfb_sha256", _SHA256, "give 64 hexadecimal digits in lower case"),
        ):
            if getattr(self, name) is not None:
                _match(name, getattr(self, name), pattern, remedy)


_SECTIONS: dict[str, type] = {"management": Management, "ring": Ring, "update": Update, "bmc": Bmc}
_LISTS = ("authorized_keys", "time_servers", "nameservers")


def _make(kind: type, name: str, value: object) -> Any:
    if not isinstance(value, dict):
        raise _refuse(name or "file", "not a table of fields", "see docs/images.md")
    known = {f.name for f in fields(kind)}
    prefix = f"{name}." if name else ""
    for key in value:
        if key not in known:
            raise _refuse(f"{prefix}{key}", "there is no such field", f"fields are {', '.join(sorted(known))}")
    built: dict[str, Any] = {}
    for key, item in value.items():
        if item is None:
            continue
        if key in _SECTIONS and not name:
            built[key] = _make(_SECTIONS[key], key, item)
        elif key in _LISTS:
            if not isinstance(item, list):
                raise _refuse(f"{prefix}{key}", "not a list", "give a list")
            built[key] = tuple(item)
        else:
            built[key] = item
    try:
        return kind(**built)
    except TypeError:
        missing = [f.name for f in fields(kind) if f.name not in built and _required(f)]
        raise _refuse(f"{prefix}{missing[0]}" if missing else name, "missing", "give it") from None


def _required(f: Any) -> bool:
    return f.default is MISSING and f.default_factory is MISSING


def parse(text: str) -> Settings:
    """Read a JSON document. Raises BlinkError naming the first wrong field, never its value where that is a secret."""
    try:
        document = json.loads(text)
    except ValueError:
        raise BlinkError("settings: not JSON", "give one JSON object, see docs/images.md") from None
    settings: Settings = _make(Settings, "", document)
    return settings
