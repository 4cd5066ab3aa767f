"""Whether the process that owns a ring still lives, asked without disturbing it.

The owner holds an open-file-description lock on G (fcntl(2), F_OFD_SETLK); the kernel drops it with the process, also
after SIGKILL, and keeps it while the process is stopped. Others ask with F_OFD_GETLK, which takes nothing: unlike a
trial flock, it can never make a starting backend believe that another one runs.
"""

from __future__ import annotations

import fcntl
import os
import struct

_FLOCK = struct.Struct("hhqqi4x")  # struct flock: l_type, l_whence, l_start, l_len, l_pid


def _whole_file(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)


def own(fd: int) -> None:
    """Lock the file behind ``fd``, open for writing, until ``fd`` is closed. Raises OSError where another holds it."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))


def owned(fd: int) -> bool:
    """Whether somebody owns the file behind ``fd``."""
    kind, *_ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_RDLCK)))
    return bool(kind != fcntl.F_UNLCK)
