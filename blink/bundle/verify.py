"""Checking a set before anything of it is used, and unpacking it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, BinaryIO

from blink.bundle.manifest import MOST_BYTES, NAME, Entry, Manifest
from blink.errors import BlinkError

#: What a signature is for; another program's signature by the same key is not taken.
NAMESPACE = "blink-bundle"
AGAIN = "copy the file again from where it was made; if it fails twice, do not use it"
_CHUNK = 1 << 20
_SECONDS = 1800

Keep = Callable[[Entry], IO[bytes] | None]


def signature_of(bundle: Path) -> Path:
    """Where the detached signature of ``bundle`` lies."""
    return bundle.with_name(bundle.name + ".sig")


def check_signature(bundle: Path, signers: Path) -> str:
    """Who signed ``bundle``. Raises BlinkError unless ``signers`` names them (ssh-keygen(1), ALLOWED SIGNERS)."""
    signature = signature_of(bundle)
    for path in (bundle, signature, signers):
        if not path.is_file():
            raise BlinkError(f"{path}: there is no such file", "the set, its .sig and the file of signers are needed")
    if shutil.which("ssh-keygen") is None:
        raise BlinkError("ssh-keygen is missing, which checks the signature", "apt install openssh-client")
    common = ["-s", str(signature), "-f", str(signers)]
    found = _ssh_keygen(["-Y", "find-principals", *common], None)
    names = found.stdout.split("\n")
    if found.returncode or not names[0]:
        raise BlinkError(
            f"{signature}: signed by nobody in {signers}", "do not use this file before you know who made it"
        )
    with bundle.open("rb") as file:
        checked = _ssh_keygen(["-Y", "verify", *common, "-n", NAMESPACE, "-I", names[0]], file)
    if checked.returncode:
        raise BlinkError(f"{bundle}: the signature of {names[0]} does not fit it", AGAIN)
    return names[0]


def _ssh_keygen(arguments: list[str], data: BinaryIO | None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments],
            stdin=data or subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise BlinkError(f"ssh-keygen did not end within {_SECONDS} s", "look at the machine's load and disk") from None


def check_content(bundle: Path, keep: Keep = lambda entry: None) -> Manifest:
    """Compare every file in ``bundle`` with its manifest. Raises BlinkError naming the first that differs.

    Memory stays bounded, and nothing is written but to the files that ``keep`` opens.
    """
    try:
        with tarfile.open(bundle, "r|") as tar:
            return _check(bundle, tar, keep)
    except FileNotFoundError:
        raise BlinkError(f"{bundle}: there is no such file", "name the .tar that make bundle wrote") from None
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as e:
        raise BlinkError(f"{bundle}: not a whole tar ({e})", AGAIN) from None


def _check(bundle: Path, tar: tarfile.TarFile, keep: Keep) -> Manifest:
    first = tar.next()
    if first is None or first.name != NAME or not first.isreg() or first.size > MOST_BYTES:
        raise BlinkError(f"{bundle}: does not begin with {NAME}", "name the .tar that make bundle wrote")
    stream = tar.extractfile(first)
    assert stream is not None
    manifest = Manifest.parse(stream.read())
    missing = {entry.path: entry for entry in manifest.files}
    while (member := tar.next()) is not None:
        entry = missing.pop(member.name, None)
        if entry is None or not member.isreg():
            raise BlinkError(f"{bundle}: {member.name} is not in its manifest", "do not use this file")
        if member.size != entry.bytes:
            raise BlinkError(f"{bundle}: {entry.path} has {member.size} bytes, and {entry.bytes} are listed", AGAIN)
        stream = tar.extractfile(member)
        assert stream is not None
        _check_file(bundle, stream, entry, keep)
    if missing:
        raise BlinkError(f"{bundle}: {next(iter(missing))} is missing", AGAIN)
    return manifest


def _check_file(bundle: Path, stream: IO[bytes], entry: Entry, keep: Keep) -> None:
    digest, sink = hashlib.sha256(), keep(entry)
    try:
        while data := stream.read(_CHUNK):
            digest.update(data)
            if sink is not None:
                sink.write(data)
    finally:
        if sink is not None:
            sink.close()
    if digest.hexdigest() != entry.sha256:
        raise BlinkError(f"{bundle}: {entry.path} is damaged: its SHA-256 is not the listed one", AGAIN)


def unpack(bundle: Path, folder: Path) -> Manifest:
    """Unpack ``bundle`` into ``folder``, which appears whole or not at all. Raises BlinkError where it exists."""
    if folder.exists() or folder.is_symlink():
        raise BlinkError(f"{folder}: exists", "name a folder that does not exist yet")
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)

    def keep(entry: Entry) -> IO[bytes]:
        path = part / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")

    try:
        part.mkdir(parents=True)
        manifest = check_content(bundle, keep)
        (part / NAME).write_bytes(manifest.render())
        os.rename(part, folder)  # noqa: PTH104 - Path.rename would replace an empty folder as well
    except OSError as e:
        raise BlinkError(f"{folder}: {e.strerror}", "name a folder that can be made, on a disk with room") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return manifest
