"""Who is changed first."""

from __future__ import annotations

from collections.abc import Iterator

from blink.inventory.document import Inventory
from blink.inventory.fault import Fault


def check_rollout(inventory: Inventory) -> Iterator[Fault]:
    """Faults of the group ``canary``."""
    appliances = inventory.appliances()
    canary = inventory.hosts("canary")
    if len(appliances) > 1 and not canary:
        yield Fault(
            "canary", f"is empty, and there are {len(appliances)} appliances", "put one or two appliances below it"
        )
    homes = {host: appliance for appliance in appliances for host in appliance.members}
    for host in canary:
        if host not in homes:
            yield Fault(
                host, "is in canary and in no appliance", "put whole appliances below canary: children, not hosts"
            )
        elif not set(homes[host].members) <= set(canary):
            yield Fault(
                homes[host].name,
                f"only {host} of it is in canary",
                "put the appliance's group below canary, not a host",
            )
