"""Words of 64 bits that Python and C++ share: their fields are declared once here, and both languages' packing follows.

A word is a class::

    class W0(PackedWord):
        gen = Bits(16)
        count = Bits(32)

Its fields stand from high to low and end at bit 0. Python packs with ``W0.pack(gen=…, count=…)``, reads with
``W0(word).gen``, and reads arrays with ``W0.gen.of(words)``. In C++, through the text of :func:`render_word`,
``W0::put_gen(…) | W0::put_count(…)`` and ``W0::gen(word)`` are the same.
"""

from __future__ import annotations

from typing import Any, ClassVar, overload

import numpy as np
import numpy.typing as npt

WORD_BITS = 64


class Bits:
    """A field of ``width`` bits, at most 32. What is packed is cut to the width; with ``saturates`` the largest value
    that fits stands for all beyond it.

    With ``inverse_of`` the field holds the complement of the named one, of the same width, and nobody packs or reads
    it: a word that is torn or was never written shows by it (:attr:`PackedWord.intact`).
    """

    def __init__(self, width: int, *, saturates: bool = False, inverse_of: str | None = None) -> None:
        if not 1 <= width <= 32:
            raise ValueError(f"width: {width} is not between 1 and 32")
        self.width, self.saturates, self.inverse_of = width, saturates, inverse_of
        self.name, self.shift = "", 0  # set by the word

    @property
    def limit(self) -> int:
        """The largest value."""
        return (1 << self.width) - 1

    def put(self, value: int) -> int:
        """``value``, not negative unless it is to be cut, at the field's place."""
        return (min(value, self.limit) if self.saturates else value & self.limit) << self.shift

    def of(self, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """The field of each of ``words``, u64, any shape."""
        return words >> np.uint64(self.shift) & np.uint64(self.limit)

    @overload
    def __get__(self, word: None, owner: type[PackedWord]) -> Bits: ...
    @overload
    def __get__(self, word: PackedWord, owner: type[PackedWord]) -> int: ...
    def __get__(self, word: PackedWord | None, owner: type[PackedWord]) -> Bits | int:
        return self if word is None else word >> self.shift & self.limit


class PackedWord(int):
    """Base of the declarations; an instance is the whole word. Raises TypeError for fields that do not fit."""

    fields: ClassVar[tuple[Bits, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        named = {name: value for name, value in vars(cls).items() if isinstance(value, Bits)}
        shift = 0
        for name, field in reversed(named.items()):
            field.name, field.shift = name, shift
            shift += field.width
            if field.inverse_of and named[field.inverse_of].width != field.width:
                raise TypeError(f"{cls.__name__}.{name}: it is not as wide as {field.inverse_of}")
        if shift > WORD_BITS:
            raise TypeError(f"{cls.__name__}: {shift} bits exceed a word of {WORD_BITS}")
        cls.fields = tuple(named.values())

    @classmethod
    def pack(cls, **values: int) -> int:
        """The word with these ``values``. Raises TypeError unless every field has one."""
        own = {f.name: f for f in cls.fields if f.inverse_of is None}
        if own.keys() != values.keys():
            raise TypeError(f"{cls.__name__}: the fields are {', '.join(own)}, not {', '.join(values)}")
        word = sum(own[name].put(value) for name, value in values.items())
        return word | sum(f.put(~values[f.inverse_of]) for f in cls.fields if f.inverse_of is not None)

    @property
    def intact(self) -> bool:
        """Whether every complement matches."""
        return all(
            self >> f.shift & f.limit == ~getattr(self, f.inverse_of) & f.limit for f in self.fields if f.inverse_of
        )

    @classmethod
    def describe(cls) -> str:
        """Names and widths, high to low, as the documentation has them."""
        return " ‖ ".join(f"~{f.inverse_of}{f.width}" if f.inverse_of else f"{f.name}{f.width}" for f in cls.fields)

    @classmethod
    def about(cls) -> str:
        """:meth:`describe`, and what the word says."""
        doc = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
        return f"{cls.describe()}: {doc.removesuffix('.')}"


def render_word(word: type[PackedWord]) -> str:
    """C++ text of ``word``: a struct of functions that put and get each field; BLINK_HD is the header's."""
    out = [f"/* {word.about()} */", f"struct {word.__name__} {{"]
    checks = []
    inverses = {f.inverse_of: f for f in word.fields if f.inverse_of}
    for f in word.fields:
        if f.inverse_of:
            continue
        value = f"(v > {f.limit:#x}u ? {f.limit:#x}u : v)" if f.saturates else f"(v & {f.limit:#x}u)"
        put = f"{value} << {f.shift}"
        if inverse := inverses.get(f.name):
            put += f" | (~v & {inverse.limit:#x}u) << {inverse.shift}"
            checks.append(f"(word >> {inverse.shift} & {inverse.limit:#x}u) == (~{f.name}(word) & {f.limit:#x}u)")
        get = f"(uint32_t)(word >> {f.shift}) & {f.limit:#x}u"
        out += [
            f"    BLINK_HD static uint64_t put_{f.name}(uint64_t v) {{ return {put}; }}",
            f"    BLINK_HD static uint32_t {f.name}(uint64_t word) {{ return {get}; }}",
        ]
    if checks:
        out.append(f"    BLINK_HD static bool intact(uint64_t word) {{ return {' && '.join(checks)}; }}")
    return "\n".join([*out, "};"])


Word = type[PackedWord]
"""The declaration of a word."""
