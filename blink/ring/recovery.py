"""What to write after a link was cut or a frontend restarted, from a survey of both regions.

A survey is read once the old connection is fenced: nothing posted before can land any more, so what it shows is what
will ever have landed. Both plans are idempotent; a further cut or crash in the middle of one repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blink.ring import words
from blink.ring.header import Header
from blink.ring.layout import COMMAND, F_HEAD, G_HEAD, State
from blink.ring.partition import Partition
from blink.ring.reader import status_words
from blink.ring.request import null_request
from blink.ring.stream import Chain, Life, Stream
from blink.ring.transport import Bytes
from blink.ring.words import W0, Commit

_G_HEAD, _F_HEAD, _COMMAND = G_HEAD.dtype(), F_HEAD.dtype(), COMMAND.dtype()


@dataclass(frozen=True)
class Survey:
    """Statuses and commands as found: ``w0`` u64, ``gens`` and ``seqs`` u32, all of shape [n]; ``db`` 0 if unrung."""

    epoch: int
    db: int
    alive: int
    w0: npt.NDArray[np.uint64]
    gens: npt.NDArray[np.uint32]
    seqs: npt.NDArray[np.uint32]

    @classmethod
    def parse(cls, header: Header, g: Bytes, f: Bytes) -> Survey:
        """From the start of G_p through the statuses, and the start of F_p through the commands."""
        geometry, n = header.geometry, header.geometry.slots_per_part
        g_head = g[: G_HEAD.size].view(_G_HEAD)[0]
        f_head = f[: F_HEAD.size].view(_F_HEAD)[0]
        commits = f[geometry.cmd_off : geometry.cmd_off + n * COMMAND.size].view(_COMMAND)["commit"]
        return cls(
            int(g_head["epoch"]), words.rung(int(f_head["db"])) or 0, int(f_head["alive"]),
            status_words(g, n, geometry.status_off)[:, 0].copy(),
            Commit.gen.of(commits).astype(np.uint32), Commit.seq.of(commits).astype(np.uint32),
        )  # fmt: skip

    @property
    def terminal(self) -> npt.NDArray[np.bool_]:
        """Slots whose committed generation has ended, or that were never used; bool, shape [n]."""
        state = W0.state.of(self.w0)
        ended = (state == State.DECODE_COMPLETED) | (state == State.EMPTY)
        return np.asarray(ended & (W0.gen.of(self.w0) == self.gens & W0.gen.limit), np.bool_)


def reconcile(partition: Partition, survey: Survey) -> list[tuple[Stream, Chain]]:
    """Chains that complete what a cut interrupted, for streams this client still knows."""
    plan: list[tuple[Stream, Chain]] = []
    for stream in partition.streams.values():
        slot = stream.slot
        claimed = W0(survey.w0[slot]).gen == stream.gen & W0.gen.limit
        committed = (int(survey.gens[slot]), int(survey.seqs[slot])) == (stream.gen, stream.seq)
        chain: Chain = ()
        if stream.life is Life.FINISHED or (committed and survey.terminal[slot]):
            continue
        if stream.life is Life.LOST:
            chain = _abandon(partition, stream, committed, survey.db)
        elif not stream.in_ring and not committed:
            chain = stream.chain
        elif not stream.in_ring and not claimed:
            chain = stream.chain[:-1]
        if chain:
            plan.append((stream, chain))
    return plan


def take_over(header: Header, survey: Survey) -> tuple[Partition, list[tuple[Stream, Chain]]]:
    """Bookkeeping for a partition that another process may have used, and the chains that end what it left behind."""
    seq = survey.db
    for q in survey.seqs[survey.seqs != 0].tolist():
        seq = q if words.after(q, seq) else seq
    partition = Partition(header, survey.gens, seq)
    plan: list[tuple[Stream, Chain]] = []
    for slot in np.flatnonzero(~survey.terminal).tolist():
        stream = Stream(slot, int(survey.gens[slot]), int(survey.seqs[slot]))
        partition.add(stream)
        plan.append((stream, _abandon(partition, stream, True, survey.db)))
    return partition, plan


def _abandon(partition: Partition, stream: Stream, committed: bool, db: int) -> Chain:
    """End a stream nobody waits for: cancel it, and make its record whole if the doorbell never covered it.

    Without a commit in the ring there is no cancel either: should the commit then be lost in a crash, the cancel would
    hit the next request of that generation. The null request ends by itself.
    """
    chain = []
    if words.after(stream.seq, db):
        chain.append((partition.request_off(stream.slot), null_request(stream.gen, stream.seq)))
    chain.append(
        partition.cancel_write(stream.slot, stream.gen)
        if committed
        else partition.commit_write(stream.slot, stream.gen, stream.seq)
    )
    return chain
