"""The scheduler core (kernels/scheduler/scheduler.cuh) from Python: its configuration, its memory, its steps."""
