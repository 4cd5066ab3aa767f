"""Folders that appear whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blink.errors import BlinkError

_SLACK = 1 << 20  # directory blocks and the manifest
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextmanager
def lock(dest: Path) -> Iterator[None]:
    """Hold the right to replace ``dest``. Raises BlinkError where another process holds it."""
    path = dest.with_name(f".{dest.name}.lock")
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        handle = _locked(path)
    except BlockingIOError:
        raise BlinkError(f"another process is writing {dest}", "wait until it has finished") from None
    except OSError as e:
        raise BlinkError(f"{path}: {e.strerror}", "name a folder that this user can write") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _locked(path: Path) -> int:
    """Open and lock ``path``: the file that is there now, not one that its last holder has just removed."""
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    return handle
        except OSError:
            os.close(handle)
            raise
        os.close(handle)


@contextmanager
def scratch(dest: Path) -> Iterator[Path]:
    """An empty folder beside ``dest`` that is gone afterwards, also when a full disk or a signal ends the work.

    Errors of the file system become a BlinkError that names the folder.
    """
    path = dest.with_name(f".{dest.name}.partial")
    try:
        shutil.rmtree(path, ignore_errors=True)  # left by a process that was killed
        path.mkdir()
        yield path
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            free = shutil.disk_usage(dest.parent).free
            raise BlinkError(
                f"{dest.parent} is full ({e.strerror}; {free} bytes available)",
                "free space there or name another folder",
            ) from None
        raise BlinkError(
            f"{e.filename or dest}: {e.strerror}", "let this user read the source and write the destination"
        ) from None
    finally:
        shutil.rmtree(path, ignore_errors=True)


def ensure_space(folder: Path, needed: int) -> None:
    """Raise BlinkError, with both numbers, where the file system of ``folder`` has not ``needed`` bytes left."""
    needed += _SLACK
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BlinkError(
            f"{folder.parent} has {free} bytes available and {needed} are needed",
            "free space there or name a folder elsewhere",
        )


def replace(dest: Path, new: Path) -> None:
    """Put the folder ``new`` in the place of ``dest`` in one step; what was there is at ``new`` afterwards."""
    _sync(new)
    if not dest.exists() or not any(dest.iterdir()):
        new.rename(dest)  # POSIX: also over an empty folder
    elif not _exchange(new, dest):
        # A file system without exchange: a reader may find nothing for a moment, never half of something.
        old = dest.with_name(f".{dest.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        dest.rename(old)
        new.rename(dest)
        shutil.rmtree(old, ignore_errors=True)
    _sync_folder(dest.parent)


def _exchange(a: Path, b: Path) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), ctypes.c_uint(_RENAME_EXCHANGE))
    return bool(result == 0)


def _sync(folder: Path) -> None:
    """Bring the files of ``folder`` to the disk, so that a rename never outlives them through a power cut."""
    for path in folder.iterdir():
        with path.open("rb") as f:
            os.fsync(f.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network file systems have no fsync for folders
            os.fsync(fd)
    finally:
        os.close(fd)
