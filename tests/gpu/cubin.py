"""What a cubin says of its kernels: an ELF file whose sections ``.nv.info.KERNEL`` are lists of attributes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_SIZED = 0x04  # EIFMT_SVAL
_PARAMETER, _LARGE_PARAMETER, _THREADS = 0x17, 0x45, 0x05  # EIATTR_KPARAM_INFO, …_V2 past 4 KiB, EIATTR_MAX_THREADS


@dataclass(frozen=True)
class Launch:
    """Offset and bytes of each parameter, in their order; most threads of a block, where the kernel bounds them."""

    parameters: tuple[tuple[int, int], ...]
    most_threads: int | None


def launches(cubin: bytes) -> dict[str, Launch]:
    """Of every kernel of a cubin, by name."""
    (sections,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, sections + i * size) for i in range(count)]
    found = {}
    for header in headers:
        at = headers[names][4] + header[0]
        name = cubin[at : cubin.index(b"\0", at)].decode()
        if name.startswith(".nv.info."):
            found[name.removeprefix(".nv.info.")] = _launch(cubin[header[4] : header[4] + header[5]])
    return found


def _launch(attributes: bytes) -> Launch:
    at, parameters, threads = 0, {}, None
    while at < len(attributes):
        form, kind, size = struct.unpack_from("<BBH", attributes, at)
        value = attributes[at + 4 : at + 4 + size] if form == _SIZED else b""
        at += 4 + len(value)
        if kind in (_PARAMETER, _LARGE_PARAMETER):
            _, ordinal, offset, size = struct.unpack("<IHHI", value)
            parameters[ordinal] = (offset, size >> 18 if kind == _PARAMETER else size)
        if kind == _THREADS:
            x, y, z = struct.unpack("<III", value)
            threads = x * y * z
    return Launch(tuple(parameters[i] for i in sorted(parameters)), threads)
