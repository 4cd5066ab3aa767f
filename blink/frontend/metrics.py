"""Prometheus metrics of one worker, and of the ring behind it.

With several workers a scrape reaches any of them, so their values are kept in files of a shared folder and added up
(prometheus_client's multiprocess mode, on where PROMETHEUS_MULTIPROC_DIR is set before this module is imported).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from blink.ring import layout
from blink.ring.counters import Counters
from blink.ring.header import Header
from blink.ring.health import RingHealth

MULTIPROC_DIR = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# They are a second series for each metric, and nobody asks when a counter was made.
disable_created_metrics()  # type: ignore[no-untyped-call]

_LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """The worker's own metrics; labels are the model's served name and what each metric says."""

    def __init__(self, model: str) -> None:
        _forget_dead_workers()
        self._registry = CollectorRegistry()
        self._model = model

        def latency(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            metric = Histogram(f"blink_{name}", text, ["model"], registry=self._registry, buckets=buckets)
            return metric.labels(model)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"blink_{name}", text, ["model", *labels], registry=self._registry)

        def gauge(name: str, text: str) -> Gauge:
            metric = Gauge(f"blink_{name}", text, ["model"], registry=self._registry, multiprocess_mode="livesum")
            return metric.labels(model)

        sight = "Time from the scheduler's first sight of a request to the first token, by its clock"
        paced = "Mean time per token after the first by the scheduler's clock, by request"
        self.latency = {
            "ttft": latency("ttft_seconds", "Time from submission to the first token", _LATENCY_S),
            "tpot": latency("tpot_seconds", "Mean time per token after the first, by request", _TOKEN_S),
            "scheduler_ttft": latency("scheduler_ttft_seconds", sight, _LATENCY_S),
            "scheduler_tpot": latency("scheduler_tpot_seconds", paced, _TOKEN_S),
        }
        self.e2e = latency("e2e_seconds", "Time from submission to the end of an answer", _LATENCY_S)
        self._finished = counter("requests", "Answers by how they ended", "finish_reason")
        self._responses = counter("http_responses", "HTTP responses by path and status", "path", "status")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of submitted requests").labels(model)
        self.output_tokens = counter("output_tokens", "Tokens received from the scheduler").labels(model)
        self.waiting = gauge("requests_waiting", "Requests without a first token")
        self.running = gauge("requests_running", "Requests that receive tokens")

    def finished(self, reason: str) -> None:
        """Count an answer that ended with ``reason``."""
        self._finished.labels(self._model, reason).inc()

    def response(self, path: str, status: int) -> None:
        """Count an HTTP response; ``path`` is a route, never what a client made up."""
        self._responses.labels(self._model, path, str(status)).inc()

    def in_flight(self) -> int:
        """Requests of all workers that wait for their first token or receive tokens."""
        folder, names = os.environ.get(MULTIPROC_DIR), ("blink_requests_waiting", "blink_requests_running")
        if folder is None:
            metrics = self._registry.collect()
        else:
            # Its collect() would read every worker's histograms too, and load balancers ask for this once a second.
            files = [str(path) for path in Path(folder).glob("gauge_livesum_*.db")]
            metrics = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        return sum(int(sample.value) for metric in metrics if metric.name in names for sample in metric.samples)

    def render(
        self, health: RingHealth | None, header: Header | None, ring: Counters | None, *, drained: bool = False
    ) -> bytes:
        """Everything in Prometheus' text format; the ring's part only as far as it can be read."""
        registry = CollectorRegistry()
        if MULTIPROC_DIR in os.environ:
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            own = b""
        else:
            own = generate_latest(self._registry)
        registry.register(_Pull(lambda: iter([_gauge("drained", "1 while GET /ready asks for no requests", drained)])))
        registry.register(_Pull(lambda: _ring_metrics(health, header, ring)))
        return own + generate_latest(registry)


def _forget_dead_workers() -> None:
    """Remove the gauges of workers that are gone, or what a killed one had last would be added up for ever."""
    folder = os.environ.get(MULTIPROC_DIR)
    for path in Path(folder).glob("gauge_live*.db") if folder else ():
        pid = path.stem.rsplit("_", 1)[-1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            path.unlink(missing_ok=True)


class _Pull(Collector):
    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        """What a scrape asks for."""
        return self._collect()


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"blink_{name}", text, value=value)


def _ring_metrics(health: RingHealth | None, header: Header | None, ring: Counters | None) -> Iterator[Metric]:
    if health is not None:
        yield _gauge("up", "1 while requests are served", float(not health.down))
        yield _gauge("link_up", "1 while the link to the ring is up", float(health.link_up))
        yield _gauge("slots_free", "Free slots of this worker's partition", health.free_slots)
        yield _gauge("slots_used", "Occupied slots of this worker's partition", health.outstanding)
        if health.beat_age_s is not None:
            yield _gauge("scheduler_beat_age_seconds", "How long the scheduler's beat has stood", health.beat_age_s)
        if health.phase is not None:
            yield _gauge("scheduler_phase", "0 starting 1 idle 2 prefill 3 decode 4 draining 5 stopped", health.phase)
    if header is None or ring is None:
        return
    yield _gauge("lanes", "Lanes of the scheduler", header.lanes)
    yield _gauge("lanes_used", "Lanes with a running request", ring.lanes_used)
    yield _gauge("kv_pages", "KV pages of the pool", header.pages)
    yield _gauge("kv_pages_used", "KV pages that belong to a request", ring.pages_used)
    yield _gauge("requests_held", "Requests in the scheduler: running, paused and waiting", ring.requests_held)
    for counter in layout.Counter:
        if counter is not layout.Counter.FINISHED_BASE:
            name = f"blink_ring_{counter.name.lower()}"
            yield CounterMetricFamily(name, "The scheduler's counter of that name", value=ring.counter(counter))
    ended = CounterMetricFamily("blink_ring_finished", "Requests of all workers by reason", labels=["reason"])
    for reason, count in ring.finished.items():
        ended.add_metric([reason.name.lower()], count)
    yield ended
