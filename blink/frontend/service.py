"""One frontend worker: its model's tokenizer, its partition of the ring, and what watches over both."""

from __future__ import annotations

import asyncio
import logging
import signal
import time

from blink.config import ApplianceConfig
from blink.errors import BlinkError
from blink.frontend.errors import ApiError, unavailable
from blink.frontend.metrics import Metrics
from blink.frontend.parameters import Defaults
from blink.frontend.poller import RingPoller
from blink.frontend.prompts import PromptBuilder
from blink.frontend.tracker import RequestTracker, hop_of
from blink.model.chat import ChatTemplate
from blink.model.prepared import PreparedModel
from blink.ring.client import RingClient
from blink.ring.counters import Counters
from blink.ring.header import Header
from blink.ring.lease import PartitionLease
from blink.ring_access import open_transport

COUNTERS_S = 1.0  # how long a scrape waits for the scheduler's counters
RELEASE_S = 2.0  # how long a stopping worker waits for the scheduler to confirm its last cancels

log = logging.getLogger("blink.frontend")


def first_free_partition(config: ApplianceConfig) -> PartitionLease:
    """The lease of the first partition that no other worker holds. Raises BlinkError where every one is held."""
    for partition in range(config.frontend.workers):
        try:
            return PartitionLease(config.instance.run_dir, partition)
        except BlinkError as e:
            held = e
    raise held


class Frontend:
    """The state behind the routes.

    Making it opens the model folder and takes a lease; a backend that is not up yet is attached to when it comes.
    Raises BlinkError.
    """

    def __init__(self, config: ApplianceConfig) -> None:
        self.config = config
        self.names = (config.model.served_name, *config.model.aliases)
        self.started = int(time.time())
        model = PreparedModel.open(config.model.path, weights=False)
        self.fingerprint = f"fp_{model.fingerprint.hex()[:16]}"
        self.defaults = Defaults.from_generation_config(model.generation_config)
        self.tokenizer = model.tokenizer()
        self.prompts = PromptBuilder(self.tokenizer, _chat_template(model, config))
        lease = first_free_partition(config)
        self.partition = lease.partition
        self.client = RingClient(
            open_transport(config, self.partition),
            fingerprint=model.fingerprint,
            lease=lease,
            link_timeout_s=config.frontend.link_timeout_s,
        )
        self.metrics = Metrics(config.model.served_name)
        self.tracker = RequestTracker(self.client, self.metrics)
        self._poller = RingPoller(self.client, self.tracker, stall_timeout_s=config.frontend.link_timeout_s)
        self._task: asyncio.Task[None] | None = None
        self.draining = False

    def start(self) -> None:
        """Begin to poll the ring, in the running event loop."""
        self._task = asyncio.create_task(self._poller.run(), name="ring poller")
        self._task.add_done_callback(_reader_ended)
        log.info("partition %d, model %s (%s)", self.partition, self.config.model.served_name, self.fingerprint)

    def drain(self) -> None:
        """Take no new requests; what still runs after drain_timeout_s ends with an error. Idempotent."""
        if not self.draining:
            self.draining = True
            log.info("draining: %d requests are running", len(self.tracker))
            asyncio.get_running_loop().call_later(
                self.config.frontend.drain_timeout_s,
                self.tracker.fail_all,
                unavailable("frontend", "it is shutting down"),
            )

    async def stop(self) -> None:
        """Cancel what still runs, see the scheduler confirm it, and give the partition up."""
        self.tracker.fail_all(unavailable("frontend", "it is shutting down"))
        deadline = time.monotonic() + RELEASE_S
        while len(self.tracker) and not self.client.health().down and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        if self._task is not None:
            self._task.cancel()
        self.client.close()

    def trouble(self) -> tuple[str, str] | None:
        """The hop that is down and what is wrong with it; None while requests are served."""
        if self.draining:
            return "frontend", "it is shutting down"
        down = self.client.health().down
        return hop_of(down) if down else None

    def require_ready(self) -> Header:
        """The limits of the ring. Raises ApiError 503 naming the hop that is down."""
        trouble, header = self.trouble(), self.client.header
        if trouble is not None:
            raise unavailable(*trouble)
        if header is None:
            raise unavailable("link", "not attached to the ring yet")
        return header

    def require_model(self, name: str | None) -> None:
        """Raise ApiError 404 unless ``name`` is served here; None is the one model that is."""
        if name is not None and name not in self.names:
            raise ApiError(
                404,
                f"model: {name!r} does not exist here; this server has {', '.join(self.names)}",
                param="model",
                code="model_not_found",
            )

    async def counters(self) -> Counters | None:
        """The scheduler's counters; None where they cannot be read now."""
        found: asyncio.Future[Counters] = asyncio.get_running_loop().create_future()

        def arrived(counters: Counters) -> None:
            if not found.done():
                found.set_result(counters)

        if not self.client.read_counters(arrived):
            return None
        self.tracker.wake.set()
        try:
            async with asyncio.timeout(COUNTERS_S):
                return await found
        except TimeoutError:  # the link was lost meanwhile
            return None


def _chat_template(model: PreparedModel, config: ApplianceConfig) -> ChatTemplate | None:
    """The configured or the checkpoint's template. Raises BlinkError where a configured one cannot be used."""
    try:
        return model.chat_template(config.model.chat_template)
    except BlinkError as e:
        if config.model.chat_template is not None:
            raise
        log.warning("no chat: %s", e)
        return None


def _reader_ended(task: asyncio.Task[None]) -> None:
    """A worker whose reader died answers nobody: end it, so that its supervisor starts another."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("the poller of the ring failed, so this worker stops", exc_info=error)
        signal.raise_signal(signal.SIGTERM)
