"""``blink smoke``: run the checks, print the table, write the reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from blink.config import ApplianceConfig
from blink.errors import BlinkError
from blink.operate.smoke import http_checks, rdma_checks, report, ring_checks
from blink.operate.smoke.check import Check, run_check
from blink.operate.smoke.context import Context

CHECKS: tuple[Check[Context], ...] = (*rdma_checks.CHECKS, *ring_checks.CHECKS, *http_checks.CHECKS)


def list_checks() -> int:
    """Print every check with what it shows."""
    width = max(len(c.name) for c in CHECKS)
    for check in CHECKS:
        print(f"{check.name:<{width}}  {check.hop:<9}  {check.summary}")
    return 0


def select(config: ApplianceConfig, only: Sequence[str] | None) -> list[Check[Context]]:
    """The checks for an appliance, or those named in ``only``. Raises BlinkError for a name that is none."""
    left_out = set() if config.frontend.api_keys_file is not None else {"http-auth"}
    if config.ring.transport != "verbs":
        left_out |= {c.name for c in rdma_checks.CHECKS}
    applicable = [c for c in CHECKS if c.name not in left_out]
    if not only:
        return applicable
    unknown = set(only) - {c.name for c in applicable}
    if unknown:
        raise BlinkError(
            f"{', '.join(sorted(unknown))}: no such check of this appliance",
            f"name one of {', '.join(c.name for c in applicable)}",
        )
    return [c for c in applicable if c.name in only]


def run(
    config: ApplianceConfig, *, only: Sequence[str] | None, json_path: Path | None, junit_path: Path | None,
    rounds: int = 1000,
) -> int:  # fmt: skip
    """Run the checks of an appliance, one after the other; 0 where all passed, else 1.

    ``rounds`` are those of check rdma-order, whose time grows with them.
    """
    checks = [
        replace(c, timeout_s=c.timeout_s + rounds * rdma_checks.ROUND_S) if c.name == "rdma-order" else c
        for c in select(config, only)
    ]
    with Context(config, rounds=rounds) as context:
        outcomes = [run_check(check, context) for check in checks]
    if "-" not in (str(json_path), str(junit_path)):
        print(report.table(outcomes))
    if json_path is not None:
        report.write_json(json_path, config.instance.name, outcomes)
    if junit_path is not None:
        report.write_junit(junit_path, config.instance.name, outcomes)
    return 0 if all(o.passed for o in outcomes) else 1
