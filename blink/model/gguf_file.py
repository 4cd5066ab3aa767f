"""Reading a GGUF file, versions 2 and 3 little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

The header is parsed here and not by ``gguf.GGUFReader``, which believes every count in the file: a corrupted one makes
it build a list until memory runs out. Here a count or length that the rest of the file cannot hold is an error before
anything is allocated for it. Block formats and their dequantization come from the ``gguf`` package.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from blink.errors import BlinkError

F32 = npt.NDArray[np.float32]

MAGIC = b"GGUF"
MAX_DIMS = 4
MAX_NAME = 256
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class _InvalidFileError(Exception):
    """What is wrong with the file; GgufFile adds its name and the remedy."""


@dataclass(frozen=True)
class GgufTensor:
    """Where one tensor lies. ``shape`` is in NumPy order (GGUF stores it reversed); rows are whole blocks."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    nbytes: int


class GgufFile:
    """An open GGUF file: ``metadata`` (key to int, float, bool, str or list of them) and ``tensors`` by name."""

    def __init__(self, path: Path) -> None:
        """Map ``path`` and check its header. Raises BlinkError naming the file and what is wrong in it."""
        self.path = path
        try:
            with path.open("rb") as f:
                self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as e:
            raise BlinkError(f"{path}: {e.strerror}", "name a readable GGUF file") from None
        except ValueError:
            raise BlinkError(f"{path}: the file is empty", "copy it again from its source") from None
        try:
            cursor = _Cursor(self._map)
            self.metadata, self.tensors = _header(cursor)
        except _InvalidFileError as e:
            self._map.close()
            raise BlinkError(f"{path} is not a usable GGUF file ({e})", "copy it again from its source") from None

    def rows(self, tensor: GgufTensor, at_most: int = 32 << 20) -> Iterator[F32]:
        """The tensor as float32, in pieces of whole rows of about ``at_most`` bytes each.

        Each piece has shape ``[rows, shape[-1]]``; together they have ``prod(shape[:-1])`` rows.
        Raises BlinkError for a block format that the gguf package cannot dequantize.
        """
        width = tensor.shape[-1]
        block, size = GGML_QUANT_SIZES[tensor.type]
        row_bytes = width // block * size
        raw = np.frombuffer(self._map, np.uint8, tensor.nbytes, tensor.offset).reshape(-1, row_bytes)
        step = max(1, at_most // (4 * width))
        for first in range(0, len(raw), step):
            try:
                piece = dequantize(raw[first : first + step], tensor.type)
            except NotImplementedError:
                raise BlinkError(
                    f"{self.path}: tensor {tensor.name} has type {tensor.type.name}, which cannot be dequantized here",
                    "use a file with another quantization, such as Q4_1, Q8_0 or F16",
                ) from None
            yield np.ascontiguousarray(piece, dtype=np.float32).reshape(-1, width)

    def array(self, tensor: GgufTensor) -> F32:
        """The whole tensor as float32, in its shape."""
        return np.concatenate(list(self.rows(tensor))).reshape(tensor.shape)

    def close(self) -> None:
        """Unmap the file. Arrays from :meth:`rows` that alias it must be gone."""
        self._map.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # On an error a piece may still be referenced from the traceback; the map then goes with the last reference.
        if kind is None:
            self.close()


class _Cursor:
    """A position in the file; every read is checked against what is left."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.size = data, 0, len(data)

    def take(self, n: int, what: str) -> int:
        """Advance over ``n`` bytes and return where they begin."""
        if n > self.size - self.at:
            raise _InvalidFileError(f"{what} at byte {self.at} needs {n} bytes, and {self.size - self.at} are left")
        self.at += n
        return self.at - n

    def number(self, code: str, what: str) -> Any:
        layout = struct.Struct("<" + code)
        return layout.unpack_from(self.data, self.take(layout.size, what))[0]

    def string(self, what: str) -> str:
        n = self.number("Q", what)
        start = self.take(n, what)
        try:
            return self.data[start : start + n].decode()
        except UnicodeDecodeError:
            raise _InvalidFileError(f"{what} at byte {start} is not UTF-8") from None

    def value(self, kind: int, what: str) -> Any:
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(what)
        if kind not in _SCALARS:
            raise _InvalidFileError(f"{what} has the unknown value type {kind}")
        return self.number(_SCALARS[kind], what)

    def array(self, what: str) -> list[Any]:
        kind, n = self.number("I", what), self.number("Q", what)
        if kind in _SCALARS:
            size = struct.calcsize("<" + _SCALARS[kind])
            start = self.take(n * size, what)
            return list(struct.unpack_from(f"<{n}{_SCALARS[kind]}", self.data, start))
        if kind != _STRING:
            raise _InvalidFileError(f"{what} is an array of the unsupported value type {kind}")
        if n > (self.size - self.at) // 8:  # a string has at least its length
            raise _InvalidFileError(f"{what} claims {n} strings, and {self.size - self.at} bytes are left")
        return [self.string(what) for _ in range(n)]


def _header(cursor: _Cursor) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    start = cursor.take(4, "the magic")
    magic = cursor.data[start : cursor.at]
    if magic != MAGIC:
        raise _InvalidFileError(f"it begins with {magic!r}, not {MAGIC!r}")
    version = cursor.number("I", "the version")
    if version not in (2, 3):
        raise _InvalidFileError(f"version {version}; 2 and 3, little-endian, are supported")
    tensor_count, value_count = cursor.number("Q", "the tensor count"), cursor.number("Q", "the value count")
    # A value takes at least a name's length, a type and one byte; a tensor a length, a dimension count, a type, an
    # offset: more than these cannot be in the file.
    for count, least, what in ((value_count, 13, "values"), (tensor_count, 24, "tensors")):
        if count > cursor.size // least:
            raise _InvalidFileError(f"it claims {count} {what} in {cursor.size} bytes")
    metadata: dict[str, Any] = {}
    for _ in range(value_count):
        key = cursor.string("a value's name")
        if key in metadata:
            raise _InvalidFileError(f"{key} appears twice")
        metadata[key] = cursor.value(cursor.number("I", key), key)
    infos = [_tensor_info(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise _InvalidFileError(f"general.alignment is {alignment!r}, not a power of two")
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in infos:
        if name in tensors:
            raise _InvalidFileError(f"tensor {name} appears twice")
        block, size = GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise _InvalidFileError(f"tensor {name} has rows of {shape[-1]} values, not whole blocks of {block}")
        nbytes = math.prod(shape) // block * size
        if start + offset + nbytes > cursor.size:
            raise _InvalidFileError(
                f"tensor {name} ends at byte {start + offset + nbytes} of {cursor.size}: it was cut off"
            )
        tensors[name] = GgufTensor(name, shape, kind, start + offset, nbytes)
    return metadata, tensors


def _tensor_info(cursor: _Cursor) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
    name = cursor.string("a tensor's name")
    if len(name) > MAX_NAME:
        raise _InvalidFileError(f"a tensor's name of {len(name)} characters")
    dims = cursor.number("I", name)
    if not 1 <= dims <= MAX_DIMS:
        raise _InvalidFileError(f"tensor {name} has {dims} dimensions")
    shape = tuple(cursor.number("Q", name) for _ in range(dims))[::-1]
    if 0 in shape:
        raise _InvalidFileError(f"tensor {name} has shape {shape}")
    kind = cursor.number("I", name)
    try:
        known = GGMLQuantizationType(kind)
    except ValueError:
        raise _InvalidFileError(f"tensor {name} has the unknown type {kind}") from None
    return name, shape, known, cursor.number("Q", name)
