"""Pre-shared keys of the handshake: files that only their owner may read."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from blink.errors import BlinkError

KEY_BYTES = 32
REMEDY = "write 64 hex digits, the same on both machines, owned by the service's user, mode 0600"


@dataclass(frozen=True)
class Key:
    """A key. ``id`` (8 bytes) names it on the wire and is derived from it."""

    secret: bytes = field(repr=False)

    @property
    def id(self) -> bytes:
        """The first 8 bytes of a hash of the key."""
        return hashlib.sha256(b"blink key id\0" + self.secret).digest()[:8]


def read_key(path: Path) -> Key:
    """The key in ``path``: 64 hex digits. Raises BlinkError where it is not one, or others may read it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(fd) as file:
            mode = os.fstat(fd).st_mode
            text = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as e:
        raise BlinkError(f"key file {path}: {getattr(e, 'strerror', None) or 'not text'}", REMEDY) from None
    if stat.S_IMODE(mode) & 0o077:
        raise BlinkError(f"key file {path} may be read by others (mode {stat.S_IMODE(mode):04o})", "chmod 0600 it")
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise BlinkError(f"key file {path} does not hold a key", REMEDY)
    return Key(secret)


class KeyRing:
    """The keys that ringd accepts: the current one and, while keys are being changed, the next."""

    def __init__(self, current: Path, following: Path | None = None) -> None:
        """Read them. Raises BlinkError; a missing next key is no error, since it comes and goes."""
        self._keys = [read_key(current)]
        if following is not None and following.exists():
            self._keys.append(read_key(following))

    def find(self, key_id: bytes) -> Key | None:
        """The key with that id."""
        return next((k for k in self._keys if k.id == key_id), None)
