"""What the host passes to kernels, described once: a class of Python from which the C struct is generated.

A kernel has one parameter, by value. Its class is a dataclass whose annotations give the types in C, so that the type
checker sees a wrong name or a missing field on this side, and the compiler on the other. Imports nothing of CUDA.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import numpy as np
import numpy.typing as npt

from blink.cstruct import CType, Field, Struct, c_type

U32 = Annotated[int, "u32"]
U64 = Annotated[int, "u64"]
F32 = Annotated[float, "f32"]
Pointers = Sequence[int] | npt.NDArray[np.uint64]
"""Value of a table of pointers: device addresses, u64."""


@dataclass(frozen=True)
class Arguments:
    """Base of such classes, each a dataclass of its own.

    A field is Annotated[type, C's type as in :class:`blink.cstruct.Field` or another such class, comment].
    """

    @classmethod
    def struct(cls) -> Struct:
        """The C struct, laid out as C does it. Its comment is the first line of the class's docstring."""
        hints, fields, end, widest = get_type_hints(cls, include_extras=True), [], 0, 1
        for field in dataclasses.fields(cls):
            kind, *comment = hints[field.name].__metadata__
            made: CType = kind.struct() if isinstance(kind, type) and issubclass(kind, Arguments) else kind
            facts = c_type(made)
            offset = -(-end // facts.align) * facts.align
            fields.append(Field(offset, made, field.name, *comment))
            end, widest = offset + facts.size, max(widest, facts.align)
        comment = (cls.__doc__ or "").split("\n")[0].rstrip(".")
        return Struct(cls.__name__, -(-end // widest) * widest, tuple(fields), comment)

    def record(self) -> npt.NDArray[Any]:
        """The struct's bytes as a structured array of shape [1]. Raises OverflowError for what does not fit."""
        out = np.zeros(1, self.struct().dtype())
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            out[field.name] = value.record() if isinstance(value, Arguments) else value
        return out

    def packed(self) -> ctypes.Array[ctypes.c_uint8]:
        """The struct for :func:`blink.gpu.cuda.launch`."""
        raw = self.record().tobytes()
        return (ctypes.c_uint8 * len(raw)).from_buffer_copy(raw)


@dataclass(frozen=True)
class Entry:
    """A kernel of kernels/``source``: its name, the threads of its blocks, its one parameter (None: it has none)."""

    source: str
    name: str
    threads: int
    arguments: type[Arguments] | None
