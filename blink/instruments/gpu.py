"""The GPU that a measurement ran on."""

from __future__ import annotations

import subprocess

from blink.errors import BlinkError


def gpu() -> str:
    """Name, driver, clock, power and temperature of the first GPU now. Raises BlinkError without nvidia-smi."""
    return query("name,driver_version,clocks.sm,power.draw,temperature.gpu")


def query(fields: str) -> str:
    """``fields`` of `nvidia-smi --help-query-gpu`, comma-separated, of the first GPU."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "--id=0"],
            capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as e:
        raise BlinkError(f"nvidia-smi: {e}", "install the driver's utilities") from None
    return done.stdout.strip()
