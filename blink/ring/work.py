"""Outstanding work requests of a client and what to do when each completes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blink.ring.transport import Bytes, Channel, LinkState, Region, Transport


class WorkQueue:
    """Posts to a transport and runs a continuation per completed ticket; a broken link voids all of them."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._writes: dict[int, Callable[[], None]] = {}
        self._reads: dict[int, Callable[[Bytes], None]] = {}

    def __len__(self) -> int:
        return len(self._writes) + len(self._reads)

    def write(self, writes: Sequence[tuple[int, bytes]], then: Callable[[], None]) -> None:
        """Post one chain; ``then`` runs once all of it has landed."""
        self._writes[self._transport.post_write(writes)] = then

    def read(
        self, region: Region, offset: int, length: int, then: Callable[[Bytes], None], channel: Channel = Channel.STATUS
    ) -> None:
        """Post one read; ``then`` gets its bytes."""
        self._reads[self._transport.post_read(region, offset, length, channel)] = then

    def progress(self) -> bool:
        """Run the continuations of what has completed; whether there was any. Stops where the link breaks."""
        completions = self._transport.poll()
        if self._transport.state is not LinkState.UP:
            return False
        for c in completions:
            if not c.ok:
                return False
            if c.data is None:
                written = self._writes.pop(c.ticket, None)
                if written:
                    written()
            else:
                arrived = self._reads.pop(c.ticket, None)
                if arrived:
                    arrived(c.data)
        return bool(completions)

    def void(self) -> None:
        """Forget everything outstanding: none of it will be waited for."""
        self._writes.clear()
        self._reads.clear()
