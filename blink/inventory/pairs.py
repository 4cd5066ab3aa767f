"""Appliances are pairs: one GPU host and one DPU, each in one appliance."""

from __future__ import annotations

from collections.abc import Iterator

from blink.inventory.document import Appliance, Inventory
from blink.inventory.fault import Fault

PAIR_VARIABLES = ("blink_appliance", "blink_topology", "blink_card", "blink_gpu_uuid", "blink_ring_net")
ONE_OF_EACH = "an appliance is one machine of gpu_hosts and one of dpus (one machine may be both)"


def check_pairs(inventory: Inventory) -> Iterator[Fault]:
    """Faults of who belongs to what."""
    appliances = inventory.appliances()
    if not appliances:
        yield Fault(
            "appliances", "the group has no group below it", "make one group for each appliance, below appliances"
        )
    for host in inventory.direct_hosts("appliances"):
        yield Fault(host, "is listed in appliances itself", "list it in the group of its appliance")
    for appliance in appliances:
        yield from _check_members(appliance)
        yield from _check_variables(inventory, appliance)
    homes: dict[str, list[str]] = {}
    for appliance in appliances:
        for host in appliance.members:
            homes.setdefault(host, []).append(appliance.name)
    for host, names in homes.items():
        if len(names) > 1:
            yield Fault(host, f"is in the appliances {' and '.join(names)}", "leave it in one")
    for half in ("gpu_hosts", "dpus"):
        for host in inventory.hosts(half):
            if host not in homes:
                yield Fault(host, f"is in {half} and in no appliance", "list it in its appliance's group, or remove it")


def _check_members(appliance: Appliance) -> Iterator[Fault]:
    for kind, hosts in (("GPU host", appliance.gpu_hosts), ("DPU", appliance.dpus)):
        group = "gpu_hosts" if kind == "GPU host" else "dpus"
        if not hosts:
            yield Fault(appliance.name, f"has no {kind}: none of its machines is in {group}", ONE_OF_EACH)
        elif len(hosts) > 1:
            yield Fault(appliance.name, f"has {len(hosts)} {kind}s ({', '.join(hosts)})", ONE_OF_EACH)
    for host in appliance.members:
        if host not in appliance.gpu_hosts and host not in appliance.dpus:
            yield Fault(host, f"is in appliance {appliance.name} and neither in gpu_hosts nor in dpus", ONE_OF_EACH)


def _check_variables(inventory: Inventory, appliance: Appliance) -> Iterator[Fault]:
    for name in PAIR_VARIABLES:
        values = [inventory.variable(host, name) for host in appliance.members]
        if any(value != values[0] for value in values):
            yield Fault(
                appliance.name,
                f"its machines have different values of {name}",
                f"set it once, on group {appliance.name}",
            )
            return
    said = appliance.variables.get("blink_appliance")
    if appliance.members and said != appliance.name:
        yield Fault(
            appliance.name,
            "does not set blink_appliance" if said is None else f"sets blink_appliance to {said}",
            f"set it to the group's name, {appliance.name}",
        )
