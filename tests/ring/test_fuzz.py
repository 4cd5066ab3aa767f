"""A hostile or broken scheduler: whatever stands in G, the client stays bounded and fails requests one by one."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blink.ring import words
from blink.ring.client import RingClient, RingFull, RingUnavailable, SamplingParams, SubmitRequest
from blink.ring.layout import G_HEAD, HEADER, PAGE, STATUS, Geometry, Reason, State
from blink.ring.transport import Channel, LinkState, Region
from tests.depth import examples
from tests.ring.adversarial import AdversarialTransport, RingMemory
from tests.ring.world import SMALL


class WatchedTransport(AdversarialTransport):
    """Checks every arena read against the extents of requests in flight."""

    client: RingClient

    def post_read(self, region: Region, offset: int, length: int, channel: Channel = Channel.STATUS) -> int:
        if region is Region.G and offset >= self.memory.geometry.out_off:
            partition = self.client._session and self.client._session.partition
            assert partition is not None
            assert any(
                s.request is not None and s.out_off <= offset and offset + length <= s.out_off + s.request.output_bytes
                for s in partition.streams.values()
            ), "8: an arena read outside the extents of the worker's requests"
        return super().post_read(region, offset, length, channel)


def attached(seed: int, geometry: Geometry = SMALL) -> tuple[RingMemory, WatchedTransport, RingClient]:
    memory = RingMemory(geometry)
    net = WatchedTransport(memory, 0, random.Random(seed))
    net.client = client = RingClient(net)
    for step in range(12):
        client.poll(step)
        net.settle()
    assert client.health().link_up
    return memory, net, client


def near(rng: random.Random, gen: int, limit: int) -> int:
    """A status word that is wrong in an interesting way, or not at all."""
    return words.W0.pack(
        gen=rng.choice((gen, gen, gen, gen + 1, gen - 1, rng.getrandbits(16))),
        state=rng.choice((*State, 6, 255)),
        reason=rng.choice((*Reason, 7, 255)),
        count=rng.choice((0, 1, 2, limit // 2, limit, limit + 1, rng.getrandbits(32))),
    )


@examples(150)
@given(st.integers(0, 2**32), st.sampled_from((3, 997, (1 << 32) - 1)))
def test_random_statuses_and_tokens(seed: int, below: int) -> None:
    memory, net, client = attached(seed)
    rng = random.Random(seed)
    g = memory.region(Region.G, 0)
    limits: dict[Any, int] = {}
    got: dict[Any, int] = {}
    ended: set[Any] = set()
    for step in range(40):
        if rng.random() < 0.3:
            request = SubmitRequest(
                np.arange(1, 4, dtype=np.uint32), rng.choice((1, 7, 60)), SamplingParams(seed=1),
                logprobs=rng.choice((None, 2)),
            )  # fmt: skip
            with suppress(RingFull, RingUnavailable):
                limits[client.submit(request)] = request.max_tokens
        for handle, limit in limits.items():
            at = memory.geometry.status_off + STATUS.size * handle.slot
            status = g[at : at + STATUS.size].view(np.uint64)
            status[0] = near(rng, handle.gen, limit)
            hint = words.W1.pack(
                gen=handle.gen, count=words.W0(status[0]).count, last=rng.getrandbits(20), prev=rng.randrange(9)
            )
            status[1] = rng.choice((hint, rng.getrandbits(64)))
            status[2] = rng.getrandbits(64)
        arena = g[memory.geometry.out_off :].view(np.uint32)
        arena[:] = np.frombuffer(rng.randbytes(arena.nbytes), np.uint32)
        arena[:] = arena % np.uint32(below)
        net.settle()
        for update in client.poll(20.0 + step / 1000):
            assert update.handle not in ended, "6: an update after the last one"
            got[update.handle] = got.get(update.handle, 0) + len(update.tokens)
            assert got[update.handle] <= limits[update.handle], "6: more tokens than were asked for"
            assert all(t < memory.header.vocab for t in update.tokens)
            for record in update.logprobs or ():
                assert len(record.top) <= 2
                assert all(t < memory.header.vocab for t, _ in record.top)
            if update.times is not None:
                assert update.reason is not None
                assert 0 <= update.times.first_us <= update.times.last_us < 1 << 31
            if update.reason is not None or update.error is not None:
                ended.add(update.handle)
    assert client.health().outstanding <= SMALL.slots


@examples(150)
@given(st.integers(0, 2**32), st.sampled_from(("noise", "fields", "heads", "commands")))
def test_random_header_heads_and_commands(seed: int, kind: str) -> None:
    """Attaching to nonsense: refused or taken over, and never a crash, a hang or a large allocation."""
    rng = random.Random(seed)
    memory = RingMemory(SMALL)
    if kind == "noise":
        memory.g[:] = np.frombuffer(rng.randbytes(len(memory.g)), np.uint8)
    elif kind == "fields":
        header = memory.g[:PAGE].view(HEADER.dtype())
        for _ in range(rng.randint(1, 3)):
            field = rng.choice([f for f in HEADER.fields if f.count == 1])
            header[field.name][0] = rng.choice((0, 1, 2**31, rng.getrandbits(32), header[field.name][0] + 1))
    elif kind == "heads":
        at = SMALL.g_off
        memory.g[at : at + G_HEAD.size] = np.frombuffer(rng.randbytes(G_HEAD.size), np.uint8)
        memory.g[at : at + 8].view(np.uint64)[0] = memory.header.epoch
    else:
        memory.f[:] = np.frombuffer(rng.randbytes(len(memory.f)), np.uint8)
    net = WatchedTransport(memory, 0, rng)
    net.client = client = RingClient(net)
    for step in range(30):
        assert client.poll(step) == []
        health = client.health()
        assert health.link_up or health.down
        if net.state is LinkState.UP:
            net.settle()
    if kind == "commands":
        assert client.health().outstanding <= SMALL.slots
        try:
            client.submit(SubmitRequest(np.ones(1, np.uint32), 1, SamplingParams(seed=0)))
        except RingUnavailable:
            return
        raise AssertionError("admitted over slots that never ended")


def test_an_epoch_that_changes_underneath_delivers_nothing() -> None:
    """12: a slab of another epoch is discarded, and so is everything after it."""
    memory, net, client = attached(1)
    handle = client.submit(SubmitRequest(np.ones(3, np.uint32), 4, SamplingParams(seed=0)))
    for step in range(4):
        net.settle()
        assert client.poll(20 + step) == []
    g = memory.region(Region.G, 0)
    status = g[memory.geometry.status_off + STATUS.size * handle.slot :][: STATUS.size].view(np.uint64)
    status[1] = words.W1.pack(gen=handle.gen, count=1, last=5, prev=0)
    status[0] = words.W0.pack(gen=handle.gen, state=State.DECODE_PROCESSING, reason=0, count=1)
    g[:8].view(np.uint64)[0] = 8
    updates = []
    for step in range(40):
        net.settle()
        updates += client.poll(30 + step)
    (update,) = updates
    assert update.tokens == []
    assert update.error == "the link was down for 30 s (the ring in place has another epoch than its header)"
