"""Staging and queue pairs: what waits, what is posted together, what is given back."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.ring.transport import Completion
from blink.ring.verbs.fabric import Rights
from blink.ring.verbs.queue import PIECE, SIGNAL_EVERY, LinkDown, WorkQueuePair, split
from blink.ring.verbs.staging import ALIGN, Staging
from tests.depth import examples
from tests.ringd.simulated import Network, SimDomain, SimFabric, SimQueuePair


@examples(200)
@given(steps=st.lists(st.one_of(st.integers(0, 3000), st.none()), max_size=200))
def test_pieces_never_overlap(steps: list[int | None]) -> None:
    """None gives the oldest piece back, a number takes that many bytes."""
    staging = Staging(SimDomain(Network()), 8192)
    out: deque[tuple[int, int]] = deque()
    for step in steps:
        if step is None:
            if out:
                out.popleft()
                staging.give_back()
            continue
        at = staging.take(step)
        if at is None:
            assert out, "nothing is out, and there is no room"
            continue
        assert 0 <= at <= at + step <= staging.size
        assert at % ALIGN == 0
        assert all(at + step <= other or other + length <= at for other, length in out)
        out.append((at, step))


def test_more_than_staging_never_fits() -> None:
    with pytest.raises(ValueError, match="staging holds 8192"):
        Staging(SimDomain(Network()), 8192).take(8192)


@given(address=st.integers(0, 1 << 40), length=st.integers(0, 3 * PIECE))
@examples(50)
def test_splitting_keeps_bytes_and_words_together(address: int, length: int) -> None:
    data = bytes(length)
    parts = split(address, data)
    assert sum(len(d) for _, d in parts) == length
    at = address
    for where, part in parts:
        assert where == at
        at += len(part)
        assert len(part) <= PIECE
    assert all(where % 8 == 0 for where, _ in parts[1:]), "a part ends in the middle of a word"


class Pair:
    """Two connected queue pairs and memory behind the remote one."""

    def __init__(self, *, read: bool, depth: int = 8, staging: int = 1 << 20, memory: int = 4 << 20) -> None:
        self.network = Network()
        fabrics = [SimFabric(self.network, f"10.0.0.{i}") for i in (1, 2)]
        domains = [f.domain() for f in fabrics]
        self.remote = Staging(domains[0], memory)
        self.region = domains[0].register(self.remote.address, memory, Rights.READ | Rights.WRITE)
        qps = [d.queue_pair(depth, Rights.READ | Rights.WRITE) for d in domains]
        qps[0]._peer, qps[1]._peer, qps[1]._reads, qps[1].initiates = qps[1].number, qps[0].number, 16, True
        self.qp: SimQueuePair = qps[1]
        self.queue = WorkQueuePair(self.qp, Staging(domains[1], staging), depth, read=read)

    def write(self, ticket: int, *parts: tuple[int, bytes]) -> None:
        self.queue.write([(self.remote.address + at, data) for at, data in parts], self.region.rkey, ticket)

    def read(self, ticket: int, at: int, length: int) -> None:
        self.queue.read(self.remote.address + at, self.region.rkey, length, ticket)

    def drain(self) -> list[Completion]:
        done: list[Completion] = []
        while self.queue.outstanding:
            done += self.queue.poll()
        return done + self.queue.poll()


def test_a_chain_is_one_list_with_one_completion() -> None:
    pair = Pair(read=False)
    pair.write(1, (0, b"payload!"), (64, b"request "), (128, b"commit  "))
    assert pair.qp.lists == [3]
    assert [op.signaled for op, _, _ in pair.qp._queue] == [False, False, True]
    assert [c.ticket for c in pair.queue.poll()] == [1]
    assert pair.remote.bytes[128:136].tobytes() == b"commit  "


def test_a_burst_behind_an_outstanding_write_is_one_list() -> None:
    pair = Pair(read=False)
    for ticket in range(1, 5):
        pair.write(ticket, (8 * ticket, bytes((ticket,)) * 8))
    assert [c.ticket for c in pair.drain()] == [1, 2, 3, 4]
    assert pair.qp.lists == [1, 3]


def test_a_chain_longer_than_the_queue_goes_through() -> None:
    pair = Pair(read=False, depth=4)
    pair.write(1, *((8 * i, i.to_bytes(8, "little")) for i in range(100)))
    assert [c.ticket for c in pair.drain()] == [1]
    assert max(pair.qp.lists) <= 4
    assert pair.remote.bytes[:800].view("<u8").tolist() == list(range(100))


def test_long_chains_give_their_entries_back_on_the_way() -> None:
    pair = Pair(read=False, depth=64)
    pair.write(1, *((8 * i, bytes(8)) for i in range(40)))
    signaled = [op.signaled for op, _, _ in pair.qp._queue]
    assert [i for i, s in enumerate(signaled) if s] == [SIGNAL_EVERY - 1, 2 * SIGNAL_EVERY - 1, 39]


def test_a_payload_larger_than_staging_goes_through() -> None:
    pair = Pair(read=False, staging=PIECE * 3)
    data = bytes(range(256)) * (3 << 12)
    pair.write(1, (8, data))
    assert [c.ticket for c in pair.drain()] == [1]
    assert pair.remote.bytes[8 : 8 + len(data)].tobytes() == data


@pytest.mark.parametrize("length", [4, 64 << 10, 512 << 10])
def test_reads_wait_for_queue_and_staging(length: int) -> None:
    """Many more than fit; each brings its bytes, valid until the next poll."""
    pair = Pair(read=True, depth=4)
    for ticket in range(30):
        pair.remote.bytes[ticket * 64] = ticket
        pair.read(ticket, ticket * 64, length)
    seen = []
    while pair.queue.outstanding:
        for done in pair.queue.poll():
            assert done.data is not None
            assert len(done.data) == length
            assert int(done.data[0]) == done.ticket
            seen.append(done.ticket)
    assert seen == list(range(30))
    assert max(pair.qp.lists) <= 4


def test_a_read_that_never_fits_is_refused() -> None:
    pair = Pair(read=True)
    with pytest.raises(ValueError, match="at most 524288 fit"):
        pair.read(1, 0, (1 << 19) + 4)


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda p: setattr(p.network, "up", False), "no answer from the ring host"),
        (lambda p: p.region.close(), "refused access to the ring"),
    ],
    ids=["link", "deregistered"],
)
def test_a_failure_is_told_in_words(break_it, says: str) -> None:  # type: ignore[no-untyped-def]
    pair = Pair(read=False)
    pair.write(1, (0, bytes(8)))
    break_it(pair)
    with pytest.raises(LinkDown, match=says):
        pair.queue.poll()
