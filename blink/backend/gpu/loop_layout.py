"""What a driver on the device keeps beside the scheduler's memory; kernels/drivers/loop_layout.h is made of it."""

from __future__ import annotations

from blink.cstruct import Field, Struct

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

PARTS = (LOOP,)
