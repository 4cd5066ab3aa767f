"""The file /dev/rshimN/misc as a host reads it."""

from __future__ import annotations

from collections.abc import Sequence


def misc(bdf: str, lines: Sequence[str], *, drop_mode: bool = False) -> str:
    """Settings of the card at ``bdf``, then its log."""
    settings = {
        "DISPLAY_LEVEL": "2 (0:basic, 1:advanced, 2:log)",
        "BOOT_MODE": "1 (0:rshim, 1:emmc, 2:emmc-boot-swap)",
        "DROP_MODE": f"{int(drop_mode)} (0:normal, 1:drop)",
        "DEV_NAME": f"pcie-{bdf}",
        "DEV_INFO": "BlueField-3(Rev 1)",
    }
    return "".join(f"{key:<16}{value}\n" for key, value in settings.items()) + "".join(f" {line}\n" for line in lines)
