"""The compiled library, and the ring primitives in it that need single loads and stores with a stated ordering."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

import blink
from blink.errors import BlinkError

U32 = npt.NDArray[np.uint32]


def load(name: str) -> ctypes.CDLL:
    """Load a library of this package, such as "libblink_core.so". Raises BlinkError where it was not built."""
    # An editable install keeps the library in site-packages, beside the metadata and not beside the sources.
    for folder in blink.__path__:
        path = Path(folder) / name
        if path.exists():
            try:
                return ctypes.CDLL(str(path))
            except OSError as e:
                raise BlinkError(f"{path} cannot be loaded ({e})", "install what it names, or build it here") from None
    raise BlinkError(f"{name} is missing from the blink package", "install it: `pip install .`")


@cache
def library() -> ctypes.CDLL:
    """libblink_core, with the types of its ring primitives. Raises BlinkError where the package was not built."""
    lib = load("libblink_core.so")
    p, u32, u64, size = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t
    for name, result, args in (
        ("blink_load_acquire", u64, [p]),
        ("blink_store_release", None, [p, u64]),
        ("blink_copy_to_ring", None, [p, p, size]),
        ("blink_copy_from_ring", None, [p, p, size]),
        ("blink_copy_words", None, [p, p, size]),
        ("blink_words_hash", u32, [p, u32, u32]),
        ("blink_crc32c", u32, [p, u32]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, args
    return lib


def load_acquire(address: int) -> int:
    """The u64 at ``address``, with acquire ordering."""
    return int(library().blink_load_acquire(address))


def store_release(address: int, value: int) -> None:
    """Store the u64 ``value`` at ``address`` with release ordering."""
    library().blink_store_release(address, value)


def words_hash(words: U32, first_index: int = 0) -> int:
    """Order-dependent 32-bit hash of u32 ``words``, shape [n]; parts add up (mod 2**32) when indices continue."""
    words = np.ascontiguousarray(words, dtype=np.uint32)
    return int(library().blink_words_hash(words.ctypes.data, len(words), first_index))


def crc32c(words: U32) -> int:
    """CRC-32C (RFC 3720) of u32 ``words``, shape [n], as little-endian bytes."""
    words = np.ascontiguousarray(words, dtype=np.uint32)
    return int(library().blink_crc32c(words.ctypes.data, len(words)))
