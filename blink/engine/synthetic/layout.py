"""What Python and kernels/synthetic/synthetic.cu agree on; kernels/synthetic/layout.h is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from blink.cstruct import Field, Struct
from blink.engine.seam.batch import BATCH
from blink.gpu.arguments import U32, Arguments, Entry, Pointers

ROW_THREADS = 128
FILL_THREADS, FILL_BLOCKS = 1024, 2
"""Which fill a multiprocessor."""
CONSTANTS = {"ROW": {"THREADS": ROW_THREADS}, "FILL": {"THREADS": FILL_THREADS, "BLOCKS": FILL_BLOCKS}}

TRACE = Struct(
    "TraceEntry",
    16,
    (Field(0, "u64", "seed"), Field(8, "u64", "step")),
    "which requests began to run, and when: what a test of the order of service reads",
)


@dataclass(frozen=True)
class HashArguments(Arguments):
    """of synthetic_hash"""

    batch: Annotated[Pointers, BATCH]
    kv: Annotated[int, "uint32_t *", "[pages][page_tokens], token ids"]
    page_tokens: U32
    lane_pages: U32
    vocab: U32
    traced: Annotated[int, "uint32_t *", "how many began"]
    trace: Annotated[int, "TraceEntry *"]
    trace_size: U32


@dataclass(frozen=True)
class FillArguments(Arguments):
    """of synthetic_fill"""

    rounds: U32
    never: Annotated[int, "float *", "written by nobody"]


@dataclass(frozen=True)
class HoldArguments(Arguments):
    """of synthetic_hold"""

    held: Annotated[int, "const uint32_t *", "the host's word"]


@dataclass(frozen=True)
class EndArguments(Arguments):
    """of synthetic_done"""

    control: Annotated[int, "StepControl *"]


_SOURCE = "synthetic/synthetic.cu"
HASH = Entry(_SOURCE, "synthetic_hash", ROW_THREADS, HashArguments)
NOTHING = Entry(_SOURCE, "synthetic_nothing", 1, None)
FILL = Entry(_SOURCE, "synthetic_fill", FILL_THREADS, FillArguments)
HOLD = Entry(_SOURCE, "synthetic_hold", 1, HoldArguments)
DONE = Entry(_SOURCE, "synthetic_done", 1, EndArguments)
ENTRIES = (HASH, NOTHING, FILL, HOLD, DONE)
STRUCTS = (TRACE, *(entry.arguments.struct() for entry in ENTRIES if entry.arguments))
