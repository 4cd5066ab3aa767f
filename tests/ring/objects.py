"""Rings in shared memory for tests, of chosen limits."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from blink.ring.header import Header
from blink.ring.layout import Geometry
from blink.ring.shm import RingObjects


def ring_objects(directory: Path, geometry: Geometry, **limits: Any) -> RingObjects:
    """An unpublished ring of a new epoch; ``limits`` are the other fields of :class:`Header`."""
    return RingObjects(directory, Header(geometry, secrets.randbits(64) or 1, **limits))
