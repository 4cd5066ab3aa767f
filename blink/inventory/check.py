"""``blink inventory check``: every fault of an inventory, one line each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from blink.errors import BlinkError
from blink.inventory.document import Inventory, read_inventory
from blink.inventory.fault import Fault
from blink.inventory.hardware import check_hardware
from blink.inventory.pairs import check_pairs
from blink.inventory.rollout import check_rollout


def faults(inventory: Inventory, sources: list[Path]) -> Iterator[Fault]:
    """All that is wrong with ``inventory``, read from ``sources``."""
    from blink.inventory.secrets import check_secrets  # noqa: PLC0415 - needs PyYAML, which comes with Ansible

    yield from check_pairs(inventory)
    yield from check_hardware(inventory)
    yield from check_rollout(inventory)
    yield from check_secrets(sources)


def run(sources: list[Path]) -> int:
    """Print the faults of the inventory of ``sources``; 0 where it has none, else 1. Raises BlinkError."""
    try:
        inventory = read_inventory(sources)
        found = list(faults(inventory, sources))
    except BlinkError as e:
        raise BlinkError(f"inventory {' '.join(map(str, sources))}: {e.cause}", e.remedy) from None
    for fault in found:
        print(fault)
    if found:
        print(f"blink: {len(found)} faults in inventory {' '.join(map(str, sources))}", file=sys.stderr)
        return 1
    appliances = inventory.appliances()
    print(f"{len(appliances)} appliances, {len({h for a in appliances for h in a.members})} machines: no fault")
    return 0
