"""What operators and load balancers ask: health, readiness, metrics, the version."""

from __future__ import annotations

import platform

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

import blink
from blink.drained import drain_reason
from blink.frontend.metrics import CONTENT_TYPE
from blink.frontend.routes.bodies import frontend_of
from blink.ring.health import phase_name

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while requests are served, else 503 with the hop that is down."""
    frontend = frontend_of(request)
    ring, trouble = frontend.client.health(), frontend.trouble()
    document = {
        "status": "ok" if trouble is None else "unavailable",
        "hop": trouble[0] if trouble else None,
        "reason": trouble[1] if trouble else None,
        "partition": frontend.partition,
        "epoch": f"{ring.epoch:016x}",
        "phase": None if ring.phase is None else phase_name(ring.phase),
        "beat_age_s": None if ring.beat_age_s is None else round(ring.beat_age_s, 3),
        "free_slots": ring.free_slots,
        "outstanding": ring.outstanding,
    }
    return JSONResponse(document, 200 if trouble is None else 503)


@router.get("/ready")
async def ready(request: Request) -> Response:
    """200 while load balancers should send requests, else 503: it cannot serve, or it is drained and still serves.

    ``running`` counts the requests in flight of all workers, for whoever waits until none is.
    """
    frontend = frontend_of(request)
    trouble, drained = frontend.trouble(), drain_reason(frontend.config)
    status = "unavailable" if trouble is not None else "ok" if drained is None else "drained"
    hop, reason = trouble or (None, drained)
    document = {"status": status, "hop": hop, "reason": reason, "running": frontend.metrics.in_flight()}
    return JSONResponse(document, 200 if status == "ok" else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    frontend = frontend_of(request)
    counters, drained = await frontend.counters(), drain_reason(frontend.config) is not None
    text = frontend.metrics.render(frontend.client.health(), frontend.client.header, counters, drained=drained)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


@router.get("/version")
async def version() -> Response:
    """The version of Blink."""
    return JSONResponse({"version": blink.__version__, "python": platform.python_version()})
