"""Finding the operating system that an installer's initramfs carries.

A BF-Bundle and a BF-FW-Bundle both boot a kernel with an initramfs. The installer there unpacks ``*/image.tar.*`` onto
the card's disk; a firmware bundle has no such file, and flashing it leaves the card with whatever system it had.
"""

from __future__ import annotations

import fnmatch
import zlib

OS_IMAGE = "*/image.tar.*"
_CPIO_HEADER = 110
_CPIO_MAGICS = (b"070701", b"070702")
_NAME_LIMIT = 4096
_TRAILER = "TRAILER!!!"
# Decompressed at once, and so the most that is held.
_STEP = 1 << 20
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class OsImageFinder:
    """Takes an initramfs piece by piece (:meth:`feed`) and holds no more than a few MiB of it.

    An initramfs is one or several cpio archives (newc), each as it is or compressed with gzip. ``found`` is the name of
    the operating system's image once it was seen; ``unreadable`` the reason why the rest could not be looked into.
    """

    def __init__(self) -> None:
        self.found: str | None = None
        self.unreadable: str | None = None
        self._head = b""
        self._gzip = zlib.decompressobj(_GZIP_WINDOW)
        self._inside = self._list
        self._started = False
        self._cpio = b""
        self._skip = 0

    @property
    def done(self) -> bool:
        """Whether further bytes make no difference."""
        return self.found is not None or self.unreadable is not None

    def feed(self, data: bytes) -> None:
        """Look at the next bytes of the initramfs."""
        while data and not self.done:
            if not self._started:
                # Zeros between archives are padding.
                self._head = (self._head + data).lstrip(b"\0")
                if len(self._head) < len(_CPIO_MAGICS[0]):
                    return
                data, self._head = self._head, b""
                self._start(data)
            data = self._inside(data)

    def _start(self, data: bytes) -> None:
        self._started = True
        if data.startswith(b"\x1f\x8b"):
            self._gzip = zlib.decompressobj(_GZIP_WINDOW)
            self._inside = self._expand
        elif data.startswith(_CPIO_MAGICS):
            self._inside = self._list
        else:
            self.unreadable = f"it starts with {data[:6].hex()}, which is neither gzip nor cpio"

    def _expand(self, data: bytes) -> bytes:
        """Decompress step by step; returns what belongs to the next archive."""
        while data and not self.done:
            try:
                out = self._gzip.decompress(data, _STEP)
            except zlib.error as e:
                self.unreadable = f"its compression is damaged ({e})"
                break
            self._list(out)
            if self._gzip.eof:
                self._started = False
                return self._gzip.unused_data
            data = self._gzip.unconsumed_tail
        return b""

    def _list(self, data: bytes) -> bytes:
        """Walk cpio entries, skipping their contents; returns what belongs to the next archive."""
        if self._skip >= len(data):
            self._skip -= len(data)
            return b""
        self._cpio += data[self._skip :]
        self._skip = 0
        while not self.done:
            if self._cpio[:1] == b"\0":  # between archives
                self._cpio = self._cpio.lstrip(b"\0")
            if len(self._cpio) < _CPIO_HEADER:
                return b""
            if self._cpio[:6] not in _CPIO_MAGICS:
                self.unreadable = f"a cpio header begins with {self._cpio[:6].hex()}"
                return b""
            try:
                size, name_size = int(self._cpio[54:62], 16), int(self._cpio[94:102], 16)
            except ValueError:
                self.unreadable = "a cpio header holds something else than numbers"
                return b""
            if name_size > _NAME_LIMIT:
                self.unreadable = f"a cpio entry has a name of {name_size} bytes"
                return b""
            start = _CPIO_HEADER + name_size + -(_CPIO_HEADER + name_size) % 4
            if len(self._cpio) < start:
                return b""
            name = self._cpio[_CPIO_HEADER : _CPIO_HEADER + name_size].rstrip(b"\0").decode("utf-8", "replace")
            if size and fnmatch.fnmatchcase(name.removeprefix("./"), OS_IMAGE):
                self.found = name.removeprefix("./")
                return b""
            end = start + size + -size % 4
            self._skip = max(0, end - len(self._cpio))
            self._cpio = self._cpio[end:]
            if name == _TRAILER and self._inside == self._list:
                # Not compressed, so another archive may begin here that is.
                rest, self._cpio, self._started = self._cpio, b"", False
                return rest
        return b""
