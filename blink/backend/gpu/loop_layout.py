"""What drivers on the device keep and are launched with; kernels/drivers/loop_layout.h is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy.typing as npt

from blink.cstruct import Field, Struct
from blink.engine.seam.batch import BATCH, SCHED_CONFIG
from blink.gpu.arguments import Arguments, Entry, Pointers

LOOP = Struct(
    "LoopState",
    64,
    (
        Field(0x00, "u64", "idle_spin_ns", "how long an idle driver polls without sleeping"),
        Field(0x08, "u32", "idle_sleep_ns", "sleep between two polls after that"),
        Field(0x0C, "u32", "error", "of the last graph launch that failed"),
        Field(0x10, "u64", "busy_ns", "when there was last something to run"),
        Field(0x18, "u64", "turns", "of the driver: times that it decided"),
        Field(0x20, "u64", "executions", "of the driver's graph, or bodies of its loop"),
        Field(0x28, "u64", "failed", "graph launches that failed"),
    ),
    "state of a driver; the first two fields are the host's, the others the device's",
)

THREADS = 256
"""Of the one block that a driver's kernels have; the scheduler's, too."""
CONSTANTS = {"DRIVER": {"THREADS": THREADS}}


@dataclass(frozen=True)
class InitArguments(Arguments):
    """of blink_init"""

    memory: Annotated[int, "void *", "the scheduler's"]
    config: Annotated[npt.NDArray[Any], SCHED_CONFIG]
    g: Annotated[int, "uint8_t *"]
    f: Annotated[int, "const uint8_t *"]
    batch: Annotated[Pointers, BATCH]
    control: Annotated[int, "const uint32_t *"]


@dataclass(frozen=True)
class StepArguments(Arguments):
    """of blink_step"""

    memory: Annotated[int, "void *"]
    out: Annotated[int, "Decision *"]
    now_ns: Annotated[int, "u64", "a test's clock; 0: the GPU's"]


@dataclass(frozen=True)
class PublishArguments(Arguments):
    """of blink_publish"""

    memory: Annotated[int, "void *"]


@dataclass(frozen=True)
class TurnArguments(Arguments):
    """of blink_turn"""

    memory: Annotated[int, "void *"]
    loop: Annotated[int, "LoopState *"]
    again: Annotated[int, "u64", "handle of the condition of WHILE"]
    pick: Annotated[int, "u64", "of SWITCH"]


@dataclass(frozen=True)
class ResidentArguments(Arguments):
    """of blink_resident"""

    memory: Annotated[int, "void *"]
    loop: Annotated[int, "LoopState *"]
    execs: Annotated[int, "const uint64_t *", "two executable graphs for each graph"]


INIT = Entry("drivers/step.cu", "blink_init", 1, InitArguments)
STEP = Entry("drivers/step.cu", "blink_step", THREADS, StepArguments)
TURN = Entry("drivers/conditional.cu", "blink_turn", THREADS, TurnArguments)
PUBLISH = Entry("drivers/conditional.cu", "blink_publish", THREADS, PublishArguments)
RESIDENT = Entry("drivers/persistent.cu", "blink_resident", THREADS, ResidentArguments)
ENTRIES = (INIT, STEP, TURN, PUBLISH, RESIDENT)
PARTS = (LOOP, *(entry.arguments.struct() for entry in ENTRIES if entry.arguments))
