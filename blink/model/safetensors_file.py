"""Safetensors files: checked views without a copy, and a writer that holds one piece of a tensor at a time.

The format (https://github.com/huggingface/safetensors#format): u64 header length, JSON header, tensor bytes. The
library's own loader has no NumPy type for bfloat16 and its writer wants the whole model in memory, hence these.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blink.errors import BlinkError
from blink.model.progress import Progress

# bfloat16 has no NumPy type: its bits are exposed, see to_float32.
DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000  # the limit of the safetensors library
_COPY_AGAIN = "prepare the model again, or copy the file again from its source"


@dataclass(frozen=True)
class TensorEntry:
    """A tensor's place in a file: safetensors ``dtype`` name, shape, and bytes ``begin:end`` of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class TensorSource:
    """A tensor to be written: ``pieces()`` yields arrays whose bytes, in order, are the tensor's."""

    name: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[npt.NDArray[np.float32]]]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor as float32."""
        return 4 * math.prod(self.shape)


def read_entries(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a file, by name. Raises BlinkError where the file cannot be what its header says."""
    try:
        size = path.stat().st_size
        with path.open("rb") as f:
            prefix = f.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
            if not 2 <= length <= min(MAX_HEADER, size - 8):
                raise _broken(path, f"its header length is {length} in a file of {size} bytes")
            raw = f.read(length)
    except OSError as e:
        raise BlinkError(f"{path}: {e.strerror}", _COPY_AGAIN) from None
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        raise _broken(path, "its header is not JSON") from None
    if not isinstance(header, dict):
        raise _broken(path, "its header is not a JSON object")
    header.pop("__metadata__", None)
    return {name: _entry(path, name, value, 8 + length, size) for name, value in header.items()}


def _entry(path: Path, name: str, value: Any, start: int, size: int) -> TensorEntry:
    try:
        dtype, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
        valid = isinstance(dtype, str) and all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        valid = False
    if not valid:
        raise _broken(path, f"tensor {name} has no valid dtype, shape and data_offsets")
    if dtype not in DTYPES:
        raise BlinkError(
            f"{path}: tensor {name} has the unsupported dtype {dtype!r}",
            f"use a checkpoint stored as one of {', '.join(DTYPES)}",
        )
    if end - begin != math.prod(shape) * DTYPES[dtype].itemsize:
        raise _broken(path, f"tensor {name} of {dtype} {list(shape)} spans {end - begin} bytes")
    if start + end > size:
        raise _broken(path, f"tensor {name} ends at byte {start + end} of {size}: the file was cut off")
    return TensorEntry(name, dtype, shape, start + begin, start + end)


def map_tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a file as read-only views of one memory map; bfloat16 comes as its bits in uint16."""
    entries = read_entries(path)
    raw = np.memmap(path, np.uint8, mode="r")
    return {e.name: raw[e.begin : e.end].view(DTYPES[e.dtype]).reshape(e.shape) for e in entries.values()}


def to_float32(array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """A tensor of :func:`map_tensors` as float32: exact for float32, float16 and bfloat16 (uint16 bits)."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)


def write_tensors(path: Path, tensors: Sequence[TensorSource], progress: Progress) -> None:
    """Write ``tensors`` as float32 in their order, piece by piece. Raises OSError as the file system does."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for t in tensors:
        header[t.name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(raw)))
        f.write(raw)
        for t in tensors:
            written = 0
            for piece in t.pieces():
                f.write(np.ascontiguousarray(piece, dtype="<f4").data)
                written += piece.nbytes
                progress.advance(piece.nbytes)
            assert written == t.nbytes, f"{t.name}: {written} bytes for {t.shape}"


def shards(folder: Path) -> list[Path]:
    """The safetensors files of a HuggingFace folder: those of its index, or model.safetensors.

    Raises BlinkError where there are none, or a shard that the index names is missing.
    """
    index, single = folder / INDEX, folder / SINGLE
    if not index.exists():
        if single.exists():
            return [single]
        raise BlinkError(
            f"{folder} holds no {SINGLE} and no {INDEX}",
            "name a folder with safetensors weights (PyTorch .bin files are not read)",
        )
    names = sorted(set(read_index(index).values()))
    for name in names:
        if not (folder / name).is_file():
            raise BlinkError(f"{folder / name} is missing, and {index.name} names it", _COPY_AGAIN)
    return [folder / name for name in names]


def read_index(index: Path) -> dict[str, str]:
    """``weight_map`` of a sharded checkpoint: tensor name to file name."""
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        valid = all(isinstance(v, str) and Path(v).name == v for v in weight_map.values()) and bool(weight_map)
    except OSError as e:
        raise BlinkError(f"{index}: {e.strerror}", _COPY_AGAIN) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        valid = False
    if not valid:
        raise _broken(index, "its weight_map does not name a file for each tensor")
    return dict(weight_map)


def iter_entries(folder: Path) -> Iterator[tuple[Path, TensorEntry]]:
    """Every tensor of a folder with the file it lies in. Raises BlinkError for a name that two shards hold."""
    seen: dict[str, Path] = {}
    for path in shards(folder):
        for entry in read_entries(path).values():
            if entry.name in seen:
                raise _broken(path, f"tensor {entry.name} is in {seen[entry.name].name} as well")
            seen[entry.name] = path
            yield path, entry


def _broken(path: Path, what: str) -> BlinkError:
    return BlinkError(f"{path} is damaged ({what})", _COPY_AGAIN)
