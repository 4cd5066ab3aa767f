"""What checks share: the configuration, the model folder, and connections opened when first needed."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from types import TracebackType

import httpx

from blink.config import ApplianceConfig
from blink.model.prepared import PreparedModel
from blink.operate.http import client_options
from blink.operate.smoke.operator import Operator
from blink.operate.status import observer
from blink.ring.lease import PartitionLease
from blink.ring.observe import Observer


class Context:
    """Opened for one run of checks. Properties raise BlinkError where an appliance is not as configured."""

    def __init__(self, config: ApplianceConfig, *, rounds: int = 1000) -> None:
        self.config = config
        self.rounds = rounds
        """Rounds of check rdma-order."""
        self.text: str | None = None
        """The answer of check http-completion, for check http-stream to compare."""
        self._stack = ExitStack()

    @cached_property
    def model(self) -> PreparedModel:
        """The configured model folder."""
        return PreparedModel.open(self.config.model.path, weights=False)

    @cached_property
    def lease(self) -> PartitionLease:
        """The operator's partition, for this process alone."""
        lease = PartitionLease(self.config.instance.run_dir, self.config.operator_partition)
        self._stack.callback(lease.release)
        return lease

    @cached_property
    def observer(self) -> Observer:
        """A look at the ring."""
        seen = observer(self.config)
        self._stack.callback(seen.close)
        return seen

    @cached_property
    def operator(self) -> Operator:
        """A ring client on the operator's partition, of a ring that exists."""
        _ = self.observer
        operator = Operator(self.config, self.lease)
        self._stack.callback(operator.close)
        return operator

    @cached_property
    def http(self) -> httpx.Client:
        """A client of the frontend."""
        return self._stack.enter_context(httpx.Client(**client_options(self.config.frontend)))

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
