"""pyverbs as this package uses it. It comes from the distribution, because it must fit the system's rdma-core."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import Any

from blink.errors import BlinkError

PARTS = ("addr", "cq", "device", "mr", "pd", "pyverbs_error", "qp", "wr")
ENUM_MODULES = ("libibverbs_enums", "enums")  # rdma-core 45 to 55 and 58 on; up to 57. Some releases have both.


class Pyverbs:
    """The modules of pyverbs, and its constants by name: ``verbs().IBV_QPT_RC``."""

    def __init__(self) -> None:
        """Import them. Raises BlinkError where they are missing or unfit."""
        modules = {}
        try:
            for part in PARTS:
                modules[part] = importlib.import_module(f"pyverbs.{part}")
        except ImportError as e:
            raise BlinkError(
                f"RDMA needs pyverbs of this system's rdma-core ({e})",
                "install the distribution's python3-pyverbs, and make the virtual environment with its Python and "
                "--system-site-packages",
            ) from None
        self.addr, self.cq, self.device, self.mr = (modules[n] for n in ("addr", "cq", "device", "mr"))
        self.pd, self.error, self.qp, self.wr = (modules[n] for n in ("pd", "pyverbs_error", "qp", "wr"))
        self._enums = [m for m in (_optional(f"pyverbs.{name}") for name in ENUM_MODULES) if m]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("IBV_"):
            for module in self._enums:
                value = getattr(module, name, None)
                if value is not None:
                    setattr(self, name, value)
                    return value
        raise AttributeError(name)


def _optional(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@cache
def verbs() -> Pyverbs:
    """The one binding of this process. Raises BlinkError where pyverbs is missing."""
    return Pyverbs()
