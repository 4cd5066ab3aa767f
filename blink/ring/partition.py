"""A partition of one epoch as its worker sees it: slots, extents, requests in flight."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blink.ring import words
from blink.ring.arena import Arena, ArenaFullError
from blink.ring.header import Header
from blink.ring.layout import COMMAND, REQUEST
from blink.ring.request import SubmitRequest
from blink.ring.slots import SlotTracker
from blink.ring.stream import Handle, Life, Stream


class Partition:
    """Bookkeeping of one partition; touches no memory of the ring.

    ``gens`` (u32, shape [n]) are the generations committed so far and ``seq`` the last sequence number used.
    """

    def __init__(self, header: Header, gens: npt.NDArray[np.uint32], seq: int) -> None:
        geometry = header.geometry
        self.header, self.geometry, self.seq = header, geometry, seq
        self.slots = SlotTracker(gens)
        self.inputs = Arena(geometry.in_off, geometry.input_bytes)
        self.outputs = Arena(geometry.out_off, geometry.output_bytes)
        self.streams: dict[int, Stream] = {}
        self.inherited = 0  # occupied slots of a frontend that is gone

    def commit_off(self, slot: int) -> int:
        """Of a slot's commit word within F_p."""
        return self.geometry.cmd_off + COMMAND.size * slot + COMMAND.offset("commit")

    def cancel_off(self, slot: int) -> int:
        """Of a slot's cancel word within F_p."""
        return self.geometry.cmd_off + COMMAND.size * slot + COMMAND.offset("cancel")

    def request_off(self, slot: int) -> int:
        """Of a slot's request record within F_p."""
        return self.geometry.request_off + REQUEST.size * slot

    def occupy(self, request: SubmitRequest) -> Stream:
        """Take a slot, extents and the next sequence number for ``request``, and lay out its commit chain.

        Raises ArenaFullError with nothing taken.
        """
        slot = self.slots.find()
        if slot is None:
            raise ArenaFullError("no free slot")
        payload = request.words()
        prompt_off = self.inputs.allocate(payload.nbytes)
        try:
            out_off = self.outputs.allocate(request.output_bytes)
        except ArenaFullError:
            self.inputs.free(prompt_off)
            raise
        gen = (int(self.slots.gens[slot]) + 1) & words.MASK32
        self.seq = words.next_seq(self.seq)
        chain = [
            (prompt_off, payload.tobytes()),
            (self.request_off(slot), request.encode(gen, self.seq, payload, prompt_off, out_off)),
            self.commit_write(slot, gen, self.seq),
        ]
        handle = Handle(self.header.epoch, slot, gen)
        stream = Stream(
            slot, gen, self.seq,
            handle=handle, request=request, prompt_off=prompt_off, out_off=out_off, chain=chain,
        )  # fmt: skip
        self.slots.gens[slot] = gen
        self.add(stream)
        return stream

    def commit_write(self, slot: int, gen: int, seq: int) -> tuple[int, bytes]:
        """The write of a commit word."""
        return self.commit_off(slot), words.Commit.pack(gen=gen, seq=seq).to_bytes(8, "little")

    def cancel_write(self, slot: int, gen: int) -> tuple[int, bytes]:
        """The write of a cancel word."""
        return self.cancel_off(slot), words.Cancel.pack(gen=gen).to_bytes(8, "little")

    def add(self, stream: Stream) -> None:
        """Note that ``stream`` occupies its slot."""
        self.slots.take(stream.slot)
        self.streams[stream.slot] = stream
        self.inherited += stream.request is None

    def settle(self, stream: Stream) -> None:
        """Free slot and extents, once, when the stream has finished and no work request can touch them."""
        if stream.life is not Life.FINISHED or stream.tickets or self.streams.get(stream.slot) is not stream:
            return
        del self.streams[stream.slot]
        self.slots.release(stream.slot)
        if stream.request is None:
            self.inherited -= 1
        else:
            self.inputs.free(stream.prompt_off)
            self.outputs.free(stream.out_off)
