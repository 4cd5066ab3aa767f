"""Whether an appliance is out of service: a file in its run directory says so, and why.

It outlives the processes: an appliance that is restarted for an upgrade, or that reboots, stays drained until somebody
undrains it. ``blink drain`` writes it; the frontend and ``blink status`` read it.
"""

from __future__ import annotations

from pathlib import Path

from blink.config import ApplianceConfig


def drain_file(run_dir: Path) -> Path:
    """The file that is there while the appliance of ``run_dir`` is drained; its text is the reason."""
    return run_dir / "drain"


def drain_reason(config: ApplianceConfig) -> str | None:
    """Why the appliance is drained; None where it is not."""
    file = drain_file(config.instance.run_dir)
    try:
        return file.read_text(encoding="utf-8").strip() or "no reason was given"
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as e:
        return f"{file} cannot be read ({e})"
