"""Kernel arguments: what is packed, and what is refused. Needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pytest

from blink.engine.native.layout import NO_ROTARY, CheckArguments, RotateArguments, StepLimits
from blink.engine.seam.batch import BATCH
from blink.gpu.arguments import F32, U32, Arguments


@dataclass(frozen=True)
class Inner(Arguments):
    """inner"""

    small: Annotated[int, "u8"]
    word: U32


@dataclass(frozen=True)
class Outer(Arguments):
    """outer"""

    first: U32
    pointer: Annotated[int, "const float *", "of numbers"]
    inner: Annotated[Inner, Inner]
    last: F32


def test_a_struct_is_laid_out_as_c_does_it() -> None:
    struct = Outer.struct()
    assert [(f.name, f.offset) for f in struct.fields] == [("first", 0), ("pointer", 8), ("inner", 16), ("last", 24)]
    assert (struct.size, Inner.struct().size) == (32, 8)
    assert "    const float *pointer;  /* of numbers */" in struct.render()
    assert "    Inner inner;" in struct.render()
    packed = bytes(Outer(first=1, pointer=1 << 40, inner=Inner(small=2, word=3), last=1.0).packed())
    assert packed == np.array([1, 0, 0, 1 << 8, 2, 3, 0x3F800000, 0], np.uint32).tobytes()


def test_tables_of_pointers_and_structs_are_packed_whole() -> None:
    count = len(BATCH.arrays)
    limits = StepLimits(*range(1, 10))
    words = np.frombuffer(bytes(CheckArguments(np.arange(count, dtype=np.uint64), limits, 99).packed()), np.uint64)
    assert words[:count].tolist() == list(range(count))
    assert words[count : count + 5].view(np.uint32)[:9].tolist() == list(range(1, 10))
    assert words[-1] == 99
    assert len(RotateArguments(NO_ROTARY, 1, 2, 3).packed()) == RotateArguments.struct().size


@pytest.mark.parametrize("value", [-1, 1 << 32])
def test_what_does_not_fit_is_refused(value: int) -> None:
    with pytest.raises(OverflowError):
        Inner(small=0, word=value).packed()
