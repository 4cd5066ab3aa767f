"""What every backend makes before it serves, whatever runs its engine: the model, the scheduler's limits, the ring."""

from __future__ import annotations

from dataclasses import fields

from blink.backend.memory import require_room
from blink.backend.scheduler.config import SchedulerConfig
from blink.config import ApplianceConfig
from blink.engine.seam.engine import DType, EngineSettings
from blink.errors import BlinkError
from blink.model.prepared import PreparedModel
from blink.model.spec import ModelSpec
from blink.ring.header import Header
from blink.ring.shares import queue_cap, share_of
from blink.ring.shm import RingObjects


class Setup:
    """A configuration with its ``model``, that model's ``spec``, and the scheduler's configuration ``scheduling``.

    Raises BlinkError where the model cannot be served so.
    """

    def __init__(self, config: ApplianceConfig) -> None:
        self.config = config
        self.model = PreparedModel.open(config.model.path, weights=config.engine.random_seed is None)
        self.spec = ModelSpec.from_config(self.model.config)
        if config.engine.max_context > self.spec.max_context:
            raise BlinkError(
                f"engine.max_context: {config.engine.max_context} exceeds the {self.spec.max_context} tokens of the "
                "checkpoint",
                f"set it to {self.spec.max_context} or less",
            )
        self.scheduling = self._scheduling()

    @property
    def settings(self) -> EngineSettings:
        """What the configuration says of the engine."""
        engine = self.config.engine
        same = {f.name: getattr(engine, f.name) for f in fields(EngineSettings) if f.name != "dtype"}
        return EngineSettings(**same, dtype=self._dtype())

    def _dtype(self) -> DType:
        """The type that ``engine.dtype`` means for this checkpoint: bfloat16 where it is that, else float16."""
        if self.config.engine.dtype != "auto":
            return self.config.engine.dtype
        stored = self.model.config.get("dtype") or self.model.config.get("torch_dtype")
        return "bfloat16" if stored == "bfloat16" else "float16"

    def _scheduling(self) -> SchedulerConfig:
        engine = self.config.engine
        try:
            return SchedulerConfig.for_engine(
                engine, self.spec.vocab, self.model.eos_ids, records=self._share * self.config.ring.partitions
            )
        except ValueError as e:
            raise BlinkError(f"{self.config.model.path}: {e}", "prepare a checkpoint that keeps to it") from None

    @property
    def _share(self) -> int:
        return share_of(self.config.engine.lanes + self.config.engine.queue, self.config.frontend.workers)

    def header(self) -> Header:
        """The ring's header, of a new epoch."""
        cap = queue_cap(self._share, self.config.ring.partitions)
        return self.scheduling.header(self.config.ring.geometry(), queue_cap=cap, fingerprint=self.model.fingerprint)

    def shared_ring(self) -> RingObjects:
        """The ring in shared memory, unpublished. Raises BlinkError where it finds no room."""
        geometry = self.config.ring.geometry()
        require_room(self.config.instance.ring_dir, geometry.g_bytes + geometry.f_bytes)
        return RingObjects(self.config.instance.ring_dir, self.header())
