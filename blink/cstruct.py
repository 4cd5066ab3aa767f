"""Memory layouts that Python and C++ share: described once here, emitted as C headers.

A layout is a :class:`Struct` (named fields at explicit offsets), a :class:`Buffers` (a table of pointers to arrays
whose shapes depend on a configuration), a packed word (:mod:`blink.bitfields`) or a :class:`Linear` (a size that grows
with a count). Python reads them through NumPy dtypes; C++ through the header that :func:`render_header` writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, Union

import numpy as np

from blink.bitfields import Word, render_word

_C_TYPES = {
    "u8": ("uint8_t", 1, "<u1"),
    "u16": ("uint16_t", 2, "<u2"),
    "u32": ("uint32_t", 4, "<u4"),
    "u64": ("uint64_t", 8, "<u8"),
    "i32": ("int32_t", 4, "<i4"),
    "f32": ("float", 4, "<f4"),
}
CType: TypeAlias = Union[str, "Struct", "Buffers"]


class TypeFacts(NamedTuple):
    """A type in C, its size and alignment in bytes, and what NumPy takes for it."""

    name: str
    size: int
    align: int
    numpy: Any


def c_type(kind: CType) -> TypeFacts:
    """Facts about the type of a :class:`Field`; a pointer is a u64 in NumPy, a table of pointers an array of them."""
    if isinstance(kind, Struct):
        return TypeFacts(kind.name, kind.size, max(c_type(f.type).align for f in kind.fields), kind.dtype())
    if isinstance(kind, Buffers):
        return TypeFacts(kind.name, 8 * len(kind.arrays), 8, ("<u8", len(kind.arrays)))
    if kind.endswith("*"):
        return TypeFacts(kind, 8, 8, "<u8")
    name, size, numpy = _C_TYPES[kind]
    return TypeFacts(name, size, size, numpy)


@dataclass(frozen=True)
class Field:
    """One field of a :class:`Struct`.

    ``type`` is one of u8, u16, u32, u64, i32, f32, a pointer in C ("const float *"), or a struct or a table of pointers
    by value; ``offset`` is in bytes from the start of the struct; ``count`` above 1 makes it an array; ``word`` says
    how a u64 is packed.
    """

    offset: int
    type: CType
    name: str
    doc: str = ""
    count: int = 1
    word: Word | None = None

    @property
    def about(self) -> str:
        """What the documentation says of the field."""
        return self.doc if self.word is None else self.word.about()

    @property
    def size(self) -> int:
        """Bytes the field takes."""
        return c_type(self.type).size * self.count

    @property
    def numpy(self) -> Any:
        """What NumPy takes for the field's type."""
        one = c_type(self.type).numpy
        return (one, self.count) if self.count > 1 else one


@dataclass(frozen=True)
class Struct:
    """A C struct of fixed size whose fields sit at explicit offsets; gaps become reserved bytes."""

    name: str
    size: int
    fields: tuple[Field, ...]
    doc: str = ""

    def __post_init__(self) -> None:
        end = 0
        for f in self.fields:
            if f.offset < end or f.offset % c_type(f.type).align:
                raise ValueError(f"{self.name}.{f.name}: offset {f.offset:#x} overlaps or is misaligned")
            end = f.offset + f.size
        if end > self.size:
            raise ValueError(f"{self.name}: fields end at {end}, the struct at {self.size}")

    def offset(self, name: str) -> int:
        """Byte offset of the field ``name``. Raises KeyError."""
        for f in self.fields:
            if f.name == name:
                return f.offset
        raise KeyError(f"{self.name} has no field {name}")

    def dtype(self) -> np.dtype[Any]:
        """The NumPy structured dtype with the same offsets and ``itemsize == size``."""
        return np.dtype(
            {
                "names": [f.name for f in self.fields],
                "formats": [f.numpy for f in self.fields],
                "offsets": [f.offset for f in self.fields],
                "itemsize": self.size,
            }
        )

    def render(self) -> str:
        """C++ text of the struct, followed by static assertions of every offset and of the size."""
        out = [f"/* {self.doc} */"] if self.doc else []
        out.append(f"struct {self.name} {{")
        end, pad = 0, 0
        for f in self.fields:
            if f.offset > end:
                out.append(f"    uint8_t reserved{pad}[{f.offset - end}];")
                pad += 1
            array = f"[{f.count}]" if f.count > 1 else ""
            comment = f"  /* {f.about} */" if f.about else ""
            gap = "" if c_type(f.type).name.endswith("*") else " "
            out.append(f"    {c_type(f.type).name}{gap}{f.name}{array};{comment}")
            end = f.offset + f.size
        if self.size > end:
            out.append(f"    uint8_t reserved{pad}[{self.size - end}];")
        out.append("};")
        out.append(f'static_assert(sizeof({self.name}) == {self.size}, "{self.name}");')
        out += [
            f'static_assert(__builtin_offsetof({self.name}, {f.name}) == {f.offset}, "{self.name}.{f.name}");'
            for f in self.fields
        ]
        return "\n".join(out)


@dataclass(frozen=True)
class Buffer:
    """One array of a :class:`Buffers`: ``type`` is a scalar type or a :class:`Struct`; ``shape`` names dimensions."""

    type: str | Struct
    name: str
    shape: tuple[str | int, ...]
    doc: str = ""


@dataclass(frozen=True)
class Buffers:
    """A C struct of pointers, one per array, in order; the arrays are allocated by whoever owns the memory."""

    name: str
    arrays: tuple[Buffer, ...]
    doc: str = ""

    def shapes(self, dims: Mapping[str, int]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of every array for the dimensions ``dims``. Raises KeyError on a missing dimension."""
        out = {}
        for a in self.arrays:
            dt = a.type.dtype() if isinstance(a.type, Struct) else np.dtype(_C_TYPES[a.type][2])
            out[a.name] = (tuple(d if isinstance(d, int) else dims[d] for d in a.shape), dt)
        return out

    def render(self) -> str:
        """C++ text of the pointer struct."""
        out = [f"/* {self.doc} */"] if self.doc else []
        out.append(f"struct {self.name} {{")
        for a in self.arrays:
            ctype = a.type.name if isinstance(a.type, Struct) else _C_TYPES[a.type][0]
            dims = "".join(f"[{d}]" for d in a.shape)
            out.append(f"    {ctype} *{a.name};  /* {dims} {a.doc} */")
        out.append("};")
        out.append(f'static_assert(sizeof({self.name}) == {8 * len(self.arrays)}, "{self.name}");')
        return "\n".join(out)


@dataclass(frozen=True)
class Linear:
    """A size that grows with counts: ``base`` plus ``terms`` (name → factor), rounded up to a multiple of ``align``."""

    name: str
    base: int
    terms: Mapping[str, int]
    align: int = 1
    doc: str = ""

    def __call__(self, **counts: int) -> int:
        """The size for these counts. Raises KeyError where one is missing."""
        size = self.base + sum(factor * counts[name] for name, factor in self.terms.items())
        return -(-size // self.align) * self.align

    def render(self) -> str:
        """C++ text of the function; BLINK_HD is the header's."""
        parameters = ", ".join(f"uint64_t {name}" for name in self.terms)
        sizes = " + ".join([str(self.base), *(f"{factor} * {name}" for name, factor in self.terms.items())])
        if self.align != 1:
            sizes = f"({sizes} + {self.align - 1}) / {self.align} * {self.align}"
        comment = [f"/* {self.doc} */"] if self.doc else []
        return "\n".join([*comment, f"BLINK_HD uint64_t {self.name}({parameters}) {{ return {sizes}; }}"])


_FUNCTIONS = """#ifndef BLINK_HD
#ifdef __CUDACC__
#define BLINK_HD __host__ __device__ inline
#else
#define BLINK_HD inline
#endif
#endif"""

Part = Struct | Buffers | Linear | Word


def render_header(
    source: str,
    guard: str,
    enums: Mapping[str, Mapping[str, int]],
    parts: Sequence[Part],
    includes: Sequence[str] = (),
) -> str:
    """C++ header with ``enums`` (prefix → names → values) and ``parts``; its banner names ``source``."""
    lines = [
        f"/* Generated from {source} by `make generate`. Do not edit. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "#ifndef __CUDACC_RTC__",
        "#include <cstdint>",
        "#endif",
        *(f'#include "{name}"' for name in includes),
        *([_FUNCTIONS] if any(isinstance(part, Linear | type) for part in parts) else []),
        "namespace blink {",
    ]
    for prefix, values in enums.items():
        lines.append("")
        for name, value in values.items():
            ctype = "uint64_t" if value > 0xFFFFFFFF else "uint32_t"
            lines.append(f"constexpr {ctype} {prefix}_{name} = {value:#x};")
    for part in parts:
        lines += ["", render_word(part) if isinstance(part, type) else part.render()]
    lines += ["", "}  // namespace blink", f"#endif  // {guard}", ""]
    return "\n".join(lines)
