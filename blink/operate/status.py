"""``blink status``: what the backend is doing, read from the ring without taking part in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blink.config import ApplianceConfig
from blink.drained import drain_reason
from blink.errors import BlinkError
from blink.output import write_json
from blink.ring.health import phase_name
from blink.ring.layout import Counter, Phase
from blink.ring.observe import Observer
from blink.ring_access import open_transport

SHOWN = (
    Counter.STEPS,
    Counter.PREFILL_STEPS,
    Counter.DECODE_STEPS,
    Counter.CLAIMS,
    Counter.REJECTS,
    Counter.TORN,
    Counter.PROMPT_TOKENS,
    Counter.OUTPUT_TOKENS,
    Counter.PREEMPTIONS,
)


def observer(config: ApplianceConfig) -> Observer:
    """An observer of the appliance's ring, by the operator's partition. Raises BlinkError where there is no ring."""
    return Observer(open_transport(config, config.operator_partition, observe=True))


def status(config: ApplianceConfig) -> dict[str, Any]:
    """The appliance's state as a JSON document; ``state`` is up, draining, stopped, stalled or down."""
    document: dict[str, Any] = {"appliance": config.instance.name, "state": "down"}
    if (reason := drain_reason(config)) is not None:
        document["drained"] = reason
    try:
        ring = observer(config)
    except BlinkError as e:
        return {**document, "cause": e.cause, "remedy": e.remedy}
    try:
        age = ring.wait_for_beat()
        seen = ring.observe()
    except BlinkError as e:
        return {**document, "cause": e.cause, "remedy": e.remedy}
    finally:
        ring.close()
    state = {Phase.DRAINING: "draining", Phase.STOPPED: "stopped"}.get(seen.phase or Phase.IDLE, "up")
    if seen.phase is None:
        state = "down"
        document["cause"] = "the scheduler publishes an unknown phase"
        document["remedy"] = "install the same version of Blink on both machines"
    if age is None and seen.phase is not Phase.STOPPED:
        state = "stalled"
        document["cause"] = "the scheduler's beat stands"
        document["remedy"] = "the backend was killed, stopped or hangs: look at its process and log, then restart it"
    return {
        **document,
        "state": state,
        "epoch": f"{seen.header.epoch:016x}",
        "phase": phase_name(seen.phase),
        "next_beat_ms": None if age is None else round(age * 1000, 1),
        "fingerprint": seen.header.fingerprint.hex(),
        "lanes": {"used": seen.lanes_used, "total": seen.header.lanes},
        "pages": {"used": seen.pages_used, "total": seen.header.pages},
        "requests": {"held": seen.requests_held, "limit": seen.header.queue_cap},
        "finished": {reason.name.lower(): n for reason, n in seen.finished.items()},
        "counters": {counter.name.lower(): seen.counter(counter) for counter in SHOWN},
    }


def backend_trouble(config: ApplianceConfig) -> str | None:
    """None where the scheduler serves the ring, else why not, in a few words."""
    seen = status(config)
    return None if seen["state"] == "up" else f"the ring is {seen['state']} ({seen.get('cause', 'no cause known')})"


def render(document: dict[str, Any]) -> str:
    """``document`` as aligned text, one fact a line."""
    lines = []
    for key, value in document.items():
        if isinstance(value, dict) and value and set(value) <= {"used", "held", "total", "limit"}:
            text = " of ".join(str(v) for v in value.values())
        elif isinstance(value, dict):
            text = ", ".join(f"{k} {v}" for k, v in value.items()) or "none"
        else:
            text = "unknown" if value is None else str(value)
        lines.append(f"{key.replace('_', ' '):<13} {text}")
    return "\n".join(lines)


def run(config: ApplianceConfig, *, json_path: Path | None) -> int:
    """Print the status; 0 where the backend serves, else 1."""
    document = status(config)
    if str(json_path) != "-":
        print(render(document))
    if json_path is not None:
        write_json(json_path, document)
    return 0 if document["state"] == "up" else 1
