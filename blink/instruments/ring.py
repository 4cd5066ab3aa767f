"""``blink bench ring``: what the ring's transports, a client and a frontend worker carry, side by side."""

from __future__ import annotations

import shlex
import signal
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from blink.errors import BlinkError
from blink.instruments import machine, ring_primitives, ring_worker
from blink.instruments.ring_client import PROMPT_TOKENS, ClientRun
from blink.instruments.ring_setup import configure, folder, missing, ringd
from blink.instruments.ring_sse import Reading
from blink.instruments.ring_synthetic import SyntheticRing
from blink.output import write_json
from blink.ring.client import RingClient
from blink.ring.lease import PartitionLease
from blink.ring_access import announced, open_transport

TRANSPORTS = ("shm", "verbs")
ROUNDS = 8
POLLS = 100
PER_POLL = (1, 4)
LOCKSTEP_TOKENS = 600
FINGERPRINT = bytes(32)  # of a ring without a model
MAX_STREAMS = 1024  # lanes of a scheduler
MIN_SECONDS, MAX_SECONDS = 0.1, 60.0
MIN_TOKENS, MAX_TOKENS = 20, 1 << 15  # of one stream


def run(
    transports: tuple[str, ...], *, streams: int, rates: tuple[float, ...], seconds: float, device: str | None,
    json_path: Path | None,
) -> int:  # fmt: skip
    """Measure each transport that this machine has and print a table; needs no running appliance.

    ``rates`` are tokens/s offered to all ``streams`` together, each for ``seconds``. Raises BlinkError.
    """
    if not 1 <= streams <= MAX_STREAMS:
        raise BlinkError(f"--streams: {streams} is not between 1 and {MAX_STREAMS}", "choose one that is")
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise BlinkError(f"--seconds: {seconds:g} is not between {MIN_SECONDS:g} and {MAX_SECONDS:g}", "choose one")
    if not all(MIN_TOKENS * streams <= rate * seconds <= MAX_TOKENS * streams for rate in rates):
        raise BlinkError(
            f"--rate: in {seconds:g} s each of {streams} streams would get fewer than {MIN_TOKENS} tokens or more than "
            f"{MAX_TOKENS}",
            "change --rate, --seconds or --streams",
        )
    # The processes and the rings in /dev/shm end with their blocks, so a signal must unwind them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    document: dict[str, Any] = {
        "command": shlex.join(["blink", *sys.argv[1:]]),
        "hardware": machine.hardware(),
        "versions": machine.versions(),
        "warning": machine.busy_warning(),
        "streams": streams,
        "transports": {},
    }
    for transport in transports:
        reason = missing(transport, device)
        document["transports"][transport] = (
            {"not_measured": reason} if reason else _measure(transport, device, streams, rates, seconds)
        )
    document["load_after"] = machine.hardware()["load average"]
    if str(json_path) != "-":
        print(render(document))
    if json_path is not None:
        write_json(json_path, document)
    return 0


def _measure(
    transport: str, device: str | None, streams: int, rates: tuple[float, ...], seconds: float
) -> dict[str, Any]:
    ring = _ring_alone(transport, device, streams, seconds)
    reason = ring_worker.missing()
    if reason is not None:
        return {**ring, "worker": [], "worker_not_measured": reason}
    runs = [
        _summary(
            offered,
            ring_worker.measure(
                transport, device, streams=streams, offered=offered,
                max_tokens=int(seconds * offered / streams) + 1 if offered else LOCKSTEP_TOKENS,
            ),
        )
        for offered in (0.0, *rates)
    ]  # fmt: skip
    return {**ring, "worker": runs}


def _ring_alone(transport: str, device: str | None, streams: int, seconds: float) -> dict[str, Any]:
    """The primitives, then a client; each on a ring of its own, since the first leaves one that nobody can use."""
    worker_core, other_core = ring_worker.cores()
    found: dict[str, Any] = {}
    for part in ("primitives", "client"):
        with folder() as root:
            context = PROMPT_TOKENS + max(PER_POLL) * POLLS
            config = configure(Path(root), transport, streams=streams, max_context=context, device=device)
            with ringd(config, other_core), closing(SyntheticRing(config, FINGERPRINT)) as world:
                world.ring.publish()
                with announced(config, world.ring), ring_worker.pinned(worker_core):
                    if part == "primitives":
                        link = open_transport(config, 0)
                        measured = ring_primitives.measure(link, config.ring.geometry(), seconds / 20)
                        found["primitives"] = {name: asdict(p) for name, p in measured.items()}
                        continue
                    lease = PartitionLease(config.instance.run_dir, 0)
                    with closing(RingClient(open_transport(config, 0), fingerprint=FINGERPRINT, lease=lease)) as client:
                        run = ClientRun(world, client, streams)
                        found["submissions"] = asdict(run.submissions(ROUNDS))
                        found["client_tokens"] = {str(n): asdict(run.tokens(n, POLLS)) for n in PER_POLL}
    return found


def _summary(offered: float, r: Reading) -> dict[str, Any]:
    p50, p99 = np.percentile(r.lag, (50, 99)) * 1000
    return {
        "offered_tokens_per_s": offered or None,
        "tokens_per_s": r.tokens / r.seconds,
        "events_per_s": r.events / r.seconds,
        "worker_cpu_percent": 100 * r.worker_cpu / r.seconds,
        "worker_cpu_us_per_token": 1e6 * r.worker_cpu / r.tokens,
        "readers_cpu_percent": 100 * r.own_cpu / r.seconds,
        "lag_ms": {"p50": float(p50), "p99": float(p99)},
        "seconds": r.seconds,
        "tokens_checked": sum(sum(s.tokens) for s in r.streams),
    }


def render(document: dict[str, Any]) -> str:
    """``document`` as text: the facts, then one line for each figure and a column for each transport."""
    lines = [f"{'command':<14}{document['command']}"]
    for name in ("hardware", "versions"):
        lines.append(f"{name:<14}" + ", ".join(f"{k} {v}" for k, v in document[name].items()))
    if document["warning"]:
        lines.append(f"WARNING       {document['warning']}")
    columns = {name: _column(found) for name, found in document["transports"].items()}
    for name, found in document["transports"].items():
        if "not_measured" in found:
            lines.append(f"{name:<14}not measured: {found['not_measured']}")
        elif "worker_not_measured" in found:
            lines.append(f"{f'{name} worker':<14}not measured: {found['worker_not_measured']}")
    rows = list(dict.fromkeys(row for column in columns.values() for row in column))
    lines += ["", "".join([f"{'WHAT':<46}", *(f"{name.upper():<50}" for name in columns)])]
    for row in rows:
        lines.append("".join([f"{row:<46}", *(f"{c.get(row, 'not measured'):<50}" for c in columns.values())]).rstrip())
    return "\n".join(lines)


def _column(found: dict[str, Any]) -> dict[str, str]:
    if "not_measured" in found:
        return {}
    column = {
        name: f"{p['ops_per_s']:>9,.0f}/s   p50 {p['p50_us']:.1f}, p99 {p['p99_us']:.1f} us"
        for name, p in found["primitives"].items()
    }
    column["client: submissions"] = _work(found["submissions"])
    for n, work in found["client_tokens"].items():
        column[f"client: tokens, {n} of each stream a poll"] = _work(work)
    for r in found["worker"]:
        offered = r["offered_tokens_per_s"]
        name = f"worker, {f'{offered:,.0f} tokens/s offered' if offered else 'next token once all are read'}: "
        column[name + "tokens"] = f"{r['tokens_per_s']:>9,.0f}/s   {r['worker_cpu_us_per_token']:.1f} us CPU each"
        column[name + "events"] = f"{r['events_per_s']:>9,.0f}/s"
        column[name + "CPU"] = f"{r['worker_cpu_percent']:>9.0f} %   (readers {r['readers_cpu_percent']:.0f} %)"
        column[name + "lag"] = f"      p50 {r['lag_ms']['p50']:.1f}, p99 {r['lag_ms']['p99']:.1f} ms"
    return column


def _work(work: dict[str, float]) -> str:
    return f"{work['per_s']:>9,.0f}/s   {work['cpu_us']:.1f} us CPU each"
