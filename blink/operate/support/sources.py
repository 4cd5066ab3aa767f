"""The list of what goes into a support bundle."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.config import ApplianceConfig

#: Where the kernel lists PCI devices; NVIDIA's networking is vendor 0x15b3.
PCI = Path("/sys/bus/pci/devices")
RDMA = Path("/sys/class/infiniband")

# Fields whose value is text and no secret. Numbers and switches are taken without being named; all else is left out.
_TEXT = frozenset({
    "instance.name", "instance.run_dir", "instance.ring_dir", "ring.transport", "rdma.device", "rdma.gid_type",
    "rdma.gid_address", "rdma.ringd_address", "rdma.backend_user", "model.path", "model.served_name", "model.aliases",
    "model.chat_template", "engine.kind", "frontend.host",
})  # fmt: skip
# Fields that name a file of secrets. Of the file, only mode and size are told.
SECRET_FILES = ("rdma.key_file", "rdma.next_key_file", "frontend.api_keys_file", "frontend.tls_key")


@dataclass(frozen=True)
class Command:
    """A program whose output goes into ``name``."""

    name: str
    argv: tuple[str, ...]
    timeout_s: float = 30.0


@dataclass(frozen=True)
class File:
    """A file whose end goes into ``name``."""

    name: str
    path: Path


def _command(name: str, line: str, timeout_s: float = 30.0) -> Command:
    return Command(name, tuple(shlex.split(line)), timeout_s)


def field(config: ApplianceConfig, name: str) -> Any:
    """The value of ``section.field``, or None where the section is missing."""
    section, key = name.split(".")
    return getattr(getattr(config, section), key, None)


def configuration(config: ApplianceConfig) -> dict[str, Any]:
    """The configuration without secrets, and without where they lie."""
    shown: dict[str, Any] = {}
    for section, fields in config.model_dump(mode="json").items():
        for key, value in (fields or {}).items():
            name = f"{section}.{key}"
            if value is None or isinstance(value, bool | int | float) or name in _TEXT:
                shown[name] = value
            elif name in SECRET_FILES:
                shown[name] = _describe(Path(value))
            else:
                shown[name] = "[left out]"
    return shown


def _describe(path: Path) -> str:
    try:
        status = path.stat()
    except OSError as e:
        return f"a file that cannot be read: {e.strerror}"
    return f"a file of {status.st_size} bytes, mode {status.st_mode & 0o7777:04o}, owner {status.st_uid}"


def sources(
    config_file: Path | None, config: ApplianceConfig | None, since: str, *, smoke: bool
) -> Iterator[Command | File]:
    """Everything that is gathered, in order. ``since`` is what journalctl takes."""
    blink = f"{shlex.quote(sys.executable)} -m blink"
    yield _command("blink/version", f"{blink} version")
    if config_file is not None and config is not None:
        named = f"--config {shlex.quote(str(config_file))}"
        yield _command("blink/status.json", f"{blink} status {named} --json -", 60)
        if smoke:
            yield _command("blink/smoke.json", f"{blink} smoke {named} --json -", 600)
        yield from _services(config_file, config, since)
    yield _command(
        "logs/kernel", f"journalctl --no-pager -o short-iso -k -n 5000 --since '{since}' -g 'NVRM|Xid|mlx5|rxe|oom'"
    )
    yield from _system()
    yield _command("gpu/nvidia-smi", "nvidia-smi -q", 60)
    yield _command("gpu/topology", "nvidia-smi topo -m", 60)
    yield File("gpu/driver", Path("/proc/driver/nvidia/version"))
    yield from _network()


def _services(config_file: Path, config: ApplianceConfig, since: str) -> Iterator[Command | File]:
    for log in sorted((config_file.parent / "log").glob("*.log")):
        yield File(f"logs/{log.name}", log)
    units = f"blink-{config.instance.name}-*"
    yield _command("logs/journal", f"journalctl --no-pager -o short-iso -n 20000 --since '{since}' -u '{units}'", 60)
    properties = "Id,ActiveState,SubState,Result,MainPID,NRestarts,ExecMainStatus,ActiveEnterTimestamp,MemoryCurrent"
    yield _command("system/units", f"systemctl --no-pager show -p {properties} '{units}'")


def _system() -> Iterator[Command | File]:
    yield _command("system/uname", "uname -a")
    for path in ("/etc/os-release", "/etc/mlnx-release", "/etc/blink-image.json", "/proc/meminfo", "/proc/cmdline"):
        yield File(f"system/{Path(path).name}", Path(path))
    yield _command("system/cpu", "lscpu")
    yield _command("system/disks", "df -h")
    yield _command("system/addresses", "ip -brief address")
    yield _command("system/routes", "ip route")


def _network() -> Iterator[Command | File]:
    yield _command("rdma/links", "rdma link show")
    yield _command("rdma/devices", "ibv_devinfo -v")
    for counters in ("counters", "hw_counters"):
        for file in sorted(RDMA.glob(f"*/ports/*/{counters}/*")):
            yield File(f"rdma/{'/'.join(file.relative_to(RDMA).parts)}", file)
    yield _command("card/pci", "lspci -nn -d 15b3:")
    for device in sorted(PCI.glob("*")):
        if device.name.endswith(".0") and _vendor(device) == "0x15b3":
            yield _command(f"card/mlxconfig-{device.name}", f"mlxconfig -d {device.name} -e q", 60)
            yield _command(f"card/firmware-{device.name}", f"flint -d {device.name} q", 60)


def _vendor(device: Path) -> str:
    try:
        return (device / "vendor").read_text().strip()
    except OSError:
        return ""
