"""The backend whose engine runs on a GPU."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from blink.backend.gpu import inspector as graphs
from blink.backend.gpu.assembly import assemble, open_device, require_free
from blink.backend.gpu.engines import memory_plan
from blink.backend.gpu.trial import longest_step_s
from blink.backend.readiness import budget_ms, serve_until_stopped
from blink.backend.setup import Setup
from blink.backend.shutdown import StopSignals
from blink.registry import driver_named

__all__ = ["check", "graphs", "serve"]


def check(setup: Setup) -> None:
    """Print what the configuration takes. Raises BlinkError where this machine has no such GPU, or a smaller one."""
    plan = memory_plan(setup)
    decode, prefill = setup.scheduling.buckets
    print(f"memory of the GPU: {plan}")
    print(f"graphs: {len(decode)} for decode, {len(prefill)} for prefill")
    device = open_device(setup)
    # Of a whole GPU: what runs on it now may be the backend that this configuration is to replace.
    plan.require(device.total_memory(), f" on the GPU {device.name}")


def serve(setup: Setup, stop: StopSignals) -> None:
    """Serve until ``stop``. Raises BlinkError where this machine cannot."""
    config, driver_type = setup.config, driver_named(setup.config.engine.driver)
    device = open_device(setup)
    require_free(device, setup)
    with closing(driver_type.open_ring(device, setup)) as ring, closing(assemble(device, setup)) as assembly:
        graphs.verify(setup, assembly)
        longest = longest_step_s(assembly.hosted, setup.scheduling)
        assembly.hosted.reset()
        scheduling = replace(setup.scheduling, step_budget_ms=budget_ms(longest))
        made = driver_type(assembly, scheduling, ring, drain_timeout_s=config.engine.drain_timeout_s)
        with closing(made) as driver:
            serve_until_stopped(config, ring, driver, stop, longest)
