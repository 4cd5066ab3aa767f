"""Gathering a support bundle."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from blink.config import ApplianceConfig, load_config
from blink.errors import BlinkError
from blink.operate.support.redact import clean, secrets_in
from blink.operate.support.sources import SECRET_FILES, Command, File, configuration, field, sources

# Of longer outputs and files, the end is kept.
MOST_BYTES = 4 << 20


def secret_files(config: ApplianceConfig) -> list[Path]:
    """The files of secrets that ``config`` names."""
    return [Path(value) for name in SECRET_FILES if (value := field(config, name)) is not None]


def _packages() -> str:
    found = sorted({(d.metadata["Name"], d.version) for d in metadata.distributions()})
    return "".join(f"{name}=={version}\n" for name, version in found)


def _tail(data: bytes) -> str:
    cut = "" if len(data) <= MOST_BYTES else f"[the first {len(data) - MOST_BYTES} bytes are left out]\n"
    return cut + data[-MOST_BYTES:].decode(errors="replace")


def _run(command: Command) -> tuple[str, dict[str, Any]]:
    began = time.monotonic()
    try:
        done = subprocess.run(
            command.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            check=False, timeout=command.timeout_s,
        )  # fmt: skip
        text, code = _tail(done.stdout), done.returncode
    except FileNotFoundError:
        text, code = f"{command.argv[0]} is not on this machine\n", None
    except subprocess.TimeoutExpired as e:
        text, code = _tail(e.stdout or b"") + f"[ended after {command.timeout_s:g} s]\n", None
    except OSError as e:
        text, code = f"{command.argv[0]}: {e.strerror}\n", None
    argv = list(command.argv)
    return text, {"command": argv, "exit_code": code, "seconds": round(time.monotonic() - began, 1)}


def _read(file: File) -> tuple[str, dict[str, Any]]:
    about = {"file": str(file.path)}
    try:
        with file.path.open("rb") as stream:
            if (size := os.fstat(stream.fileno()).st_size) > MOST_BYTES:
                stream.seek(size - MOST_BYTES)
            return stream.read(MOST_BYTES).decode(errors="replace"), about
    except OSError as e:
        return f"{file.path}: {e.strerror}\n", about


def gather(config_file: Path | None, since: str, *, smoke: bool) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name → (text, where it is from), with every secret taken out. A source that fails says so in its place."""
    config, gathered = None, dict[str, tuple[str, dict[str, Any]]]()
    if config_file is not None:
        try:
            config = load_config(config_file)
            shown = json.dumps(configuration(config), indent=2) + "\n"
        except BlinkError as e:
            shown = f"{e}\n"
        gathered["blink/config.json"] = (shown, {"file": str(config_file)})
    secrets = secrets_in(secret_files(config)) if config is not None else []
    gathered["blink/packages"] = (_packages(), {})
    for source in sources(config_file, config, since, smoke=smoke):
        gathered[source.name] = _run(source) if isinstance(source, Command) else _read(source)
    return {
        name: (clean(text, secrets), json.loads(clean(json.dumps(about), secrets)))
        for name, (text, about) in gathered.items()
    }


def write(gathered: dict[str, tuple[str, dict[str, Any]]], output: Path) -> None:
    """Write ``output``, a tar.gz of mode 0600 that begins with a manifest. Raises BlinkError where it cannot."""
    folder = output.name.removesuffix(".gz").removesuffix(".tar")
    files = [
        {"path": name, "bytes": len(text.encode()), "sha256": hashlib.sha256(text.encode()).hexdigest(), **about}
        for name, (text, about) in gathered.items()
    ]
    manifest = json.dumps({"format": 1, "files": files}, indent=1) + "\n"
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as e:
        raise BlinkError(
            f"{output}: {e.strerror}", "name a new file with --output, in a folder that can be written"
        ) from None
    with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, text in [("MANIFEST.json", manifest), *((n, t) for n, (t, _) in gathered.items())]:
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size, info.mtime = len(text.encode()), int(time.time())
            tar.addfile(info, io.BytesIO(text.encode()))


def run(config_file: Path | None, output: Path | None, since: str, *, smoke: bool) -> int:
    """Gather, write, and say where it is."""
    target = output or Path(
        f"blink-support-{os.uname().nodename}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.tar.gz"
    )
    gathered = gather(config_file, since, smoke=smoke)
    write(gathered, target)
    print(f"{target}: {len(gathered)} files, {target.stat().st_size >> 10} KiB; look through it before you send it")
    return 0
