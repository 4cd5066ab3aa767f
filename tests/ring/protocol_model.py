"""An explicit-state model of the slot protocol: every interleaving of one worker, the network and the scheduler.

The network lands the writes of a chain in any order before the chain completes; a cut or a crash leaves each write in
flight landed or not. The scheduler's scan is not atomic: it reads the doorbell, later a commit, later the request. The
worker reads a status, later the tokens. :func:`explore` visits all reachable states and reports a violated rule, or a
state from which no quiet state can be reached any more. ``Rules`` are what the protocol prescribes; turning one off
makes a mutant.

Arenas, preemption, epochs and the order of RDMA operations in hardware are not part of the model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import chain, combinations
from typing import NamedTuple, TypeVar

T = TypeVar("T")
Payload = tuple[int, int]  # generation, incarnation of the frontend that wrote it
NOTHING: Payload = (0, 0)


class Phase(IntEnum):
    """Where a slot is in the worker's books."""

    IDLE = 0
    POSTED = 1  # the chain was posted, the doorbell does not cover it
    RUNG = 2
    LOST = 3  # nobody waits for it; only its end is awaited


class Mode(IntEnum):
    """What the worker is doing."""

    UP = 0
    CUT = 1  # reconnected and fenced: about to survey and repair
    BOOT = 2  # a new process, fenced: about to survey and take over
    RING = 3  # repairs are in flight; then the doorbell follows


class Write(NamedTuple):
    """A write in flight. ``slot`` is -1 for the doorbell."""

    word: str  # prompt, request, commit, cancel, doorbell
    slot: int
    value: tuple[int, ...]


class Request(NamedTuple):
    """A request record. Payload NOTHING is a null request, which asks for nothing."""

    gen: int = 0
    seq: int = 0
    payload: Payload = NOTHING


class Status(NamedTuple):
    """A status word."""

    gen: int = 0
    ended: bool = True
    count: int = 0


class Memory(NamedTuple):
    """The ring, per slot but for the doorbell."""

    prompt: tuple[Payload, ...]
    request: tuple[Request, ...]
    commit: tuple[tuple[int, int], ...]  # gen, seq
    cancel: tuple[int, ...]
    doorbell: int
    status: tuple[Status, ...]
    tokens: tuple[tuple[int, ...], ...]  # each token is the generation it belongs to


class Book(NamedTuple):
    """What the worker remembers of a slot. ``read`` is a status whose tokens it has not fetched yet."""

    gen: int = 0
    seq: int = 0
    phase: Phase = Phase.IDLE
    have: int = 0
    read: tuple[int, bool] | None = None  # count, ended
    cancelled: bool = False


class Worker(NamedTuple):
    """The frontend worker."""

    mode: Mode
    books: tuple[Book, ...]
    seq: int
    incarnation: int


class Lane(NamedTuple):
    """What the scheduler remembers of a slot. ``seen`` is a commit whose request it has not read yet."""

    gen: int = 0
    live: bool = False
    count: int = 0
    seen: tuple[int, int] | None = None


class State(NamedTuple):
    """Everything."""

    memory: Memory
    flight: frozenset[Write]
    stale: frozenset[Write]  # of connections that were not fenced
    worker: Worker
    doorbell_seen: int
    lanes: tuple[Lane, ...]
    cuts: int
    crashes: int
    cancels: int


@dataclass(frozen=True)
class Size:
    """Bounds of the exploration."""

    slots: int = 1
    gens: int = 2
    tokens: int = 1
    cuts: int = 0
    crashes: int = 0
    cancels: int = 1


@dataclass(frozen=True)
class Rules:
    """The protocol's rules; all hold."""

    gate: bool = True  # the scheduler looks only at commits that the doorbell covers
    check: bool = True  # the scheduler compares the record with the commit
    fence: bool = True  # reconnecting ends the old connection first
    one_doorbell: bool = True  # one doorbell write in flight
    cumulative: bool = True  # the doorbell waits for the chains of all lower sequence numbers
    monotone: bool = True  # the doorbell is never lowered
    roll_forward: bool = True  # a restart rings commits that it finds
    null_request: bool = True  # ... after making their records whole
    reconcile_lost: bool = True  # a reconnect also repairs slots nobody waits for
    cancel_after_commit: bool = True  # a cancel is posted only once its commit has landed


class ViolationError(Exception):
    """A rule of the protocol that does not hold."""


def put(items: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    """``items`` with one of them replaced."""
    return (*items[:index], value, *items[index + 1 :])


def land(memory: Memory, write: Write) -> Memory:
    """``write`` takes effect."""
    s, v = write.slot, write.value
    match write.word:
        case "prompt":
            return memory._replace(prompt=put(memory.prompt, s, (v[0], v[1])))
        case "request":
            return memory._replace(request=put(memory.request, s, Request(v[0], v[1], (v[2], v[3]))))
        case "commit":
            return memory._replace(commit=put(memory.commit, s, (v[0], v[1])))
        case "cancel":
            return memory._replace(cancel=put(memory.cancel, s, v[0]))
    return memory._replace(doorbell=v[0])


def chain_of(slot: int, gen: int, seq: int, payload: Payload) -> frozenset[Write]:
    """The writes of a submit. A null request has no prompt."""
    writes = {Write("request", slot, (gen, seq, *payload)), Write("commit", slot, (gen, seq))}
    if payload != NOTHING:
        writes.add(Write("prompt", slot, payload))
    return frozenset(writes)


def pending(state: State, slot: int, *kinds: str) -> bool:
    """Whether a write of one of ``kinds`` (all but the doorbell, if none is named) to ``slot`` is in flight."""
    return any(w.slot == slot and (not kinds or w.word in kinds) for w in state.flight)


def network(state: State) -> Iterator[State]:
    """Some write lands."""
    for w in state.flight:
        yield state._replace(memory=land(state.memory, w), flight=state.flight - {w})
    for w in state.stale:
        yield state._replace(memory=land(state.memory, w), stale=state.stale - {w})


def breaks(state: State, rules: Rules) -> Iterator[State]:
    """The link is cut or the frontend dies: any subset of what is in flight has landed."""
    if not state.cuts and not state.crashes:
        return
    worker = state.worker
    for landed in chain.from_iterable(combinations(state.flight, r) for r in range(len(state.flight) + 1)):
        memory = state.memory
        for w in landed:
            memory = land(memory, w)
        left = frozenset() if rules.fence else state.flight - set(landed)
        broken = state._replace(memory=memory, flight=frozenset(), stale=state.stale | left)
        if state.cuts and worker.mode is not Mode.BOOT:
            books = tuple(b._replace(read=None) for b in worker.books)
            for books_after in {books, tuple(_given_up(b) for b in books)}:  # a short and a long cut
                yield broken._replace(worker=worker._replace(mode=Mode.CUT, books=books_after), cuts=state.cuts - 1)
        if state.crashes:
            fresh = Worker(Mode.BOOT, (Book(),) * len(worker.books), 0, worker.incarnation + 1)
            yield broken._replace(worker=fresh, crashes=state.crashes - 1)


def _given_up(book: Book) -> Book:
    return book if book.phase is Phase.IDLE else book._replace(phase=Phase.LOST, cancelled=True)


def submit(state: State, slot: int) -> State:
    """Post a chain."""
    worker, book = state.worker, state.worker.books[slot]
    gen, seq = book.gen + 1, worker.seq + 1
    books = put(worker.books, slot, Book(gen, seq, Phase.POSTED))
    return state._replace(
        flight=state.flight | chain_of(slot, gen, seq, (gen, worker.incarnation)),
        worker=worker._replace(books=books, seq=seq),
    )


def ring(state: State, slot: int, rules: Rules) -> State | None:
    """Post the doorbell up to the request in ``slot``, if the rules allow it."""
    books = state.worker.books
    if pending(state, slot) or (rules.one_doorbell and pending(state, -1)):
        return None
    lower = [i for i, b in enumerate(books) if b.phase is Phase.POSTED and b.seq < books[slot].seq]
    if rules.cumulative and any(pending(state, i) for i in lower):
        return None
    value = books[slot].seq
    if rules.monotone:
        value = max([value, state.memory.doorbell, *(b.seq for b in books if b.phase >= Phase.RUNG)])
    return state._replace(
        flight=state.flight | {Write("doorbell", -1, (value,))},
        worker=state.worker._replace(books=put(books, slot, books[slot]._replace(phase=Phase.RUNG))),
    )


def read(state: State, slot: int) -> State | None:
    """Read the status, or after that the tokens it promises."""
    worker, book, memory = state.worker, state.worker.books[slot], state.memory
    if book.read is None:
        status = memory.status[slot]
        if status.gen != book.gen:
            return None
        after = book._replace(read=(status.count, status.ended))
    else:
        count, ended = book.read
        if book.phase is Phase.RUNG and any(t != book.gen for t in memory.tokens[slot][book.have : count]):
            raise ViolationError("6: delivered a token of another request")
        after = book._replace(read=None, have=max(book.have, count))
        if ended and not pending(state, slot):
            after = after._replace(phase=Phase.IDLE, cancelled=False)
    return state._replace(worker=worker._replace(books=put(worker.books, slot, after)))


def cancel(state: State, slot: int, rules: Rules) -> State | None:
    """Post a cancel."""
    worker, book = state.worker, state.worker.books[slot]
    if book.phase is Phase.IDLE or book.cancelled or (rules.cancel_after_commit and pending(state, slot, "commit")):
        return None
    return state._replace(
        flight=state.flight | {Write("cancel", slot, (book.gen,))},
        worker=worker._replace(books=put(worker.books, slot, book._replace(cancelled=True))),
        cancels=state.cancels - 1,
    )


def abandon(state: State, slot: int, book: Book, rules: Rules) -> frozenset[Write]:
    """Writes that end a slot nobody waits for."""
    writes: set[Write] = set()
    memory = state.memory
    if book.seq > memory.doorbell and rules.null_request:
        writes.add(Write("request", slot, (book.gen, book.seq, *NOTHING)))
    if memory.commit[slot] == (book.gen, book.seq) or not rules.cancel_after_commit:
        writes.add(Write("cancel", slot, (book.gen,)))
    if memory.commit[slot] != (book.gen, book.seq):
        writes.add(Write("commit", slot, (book.gen, book.seq)))
    return frozenset(writes)


def repair(state: State, rules: Rules) -> State:
    """Survey after a cut, and post what completes the interrupted requests."""
    worker, memory = state.worker, state.memory
    writes: set[Write] = set()
    for slot, book in enumerate(worker.books):
        status = memory.status[slot]
        committed = memory.commit[slot] == (book.gen, book.seq)
        if book.phase is Phase.IDLE or (committed and status.gen == book.gen and status.ended):
            continue
        if book.phase is Phase.LOST:
            if rules.reconcile_lost:
                writes |= abandon(state, slot, book, rules)
        elif book.phase is Phase.POSTED:
            whole = chain_of(slot, book.gen, book.seq, (book.gen, worker.incarnation))
            if not committed:
                writes |= whole
            elif status.gen != book.gen:
                writes |= {w for w in whole if w.word != "commit"}
        if book.cancelled and book.phase is not Phase.LOST and committed:
            writes.add(Write("cancel", slot, (book.gen,)))
    return state._replace(flight=frozenset(writes), worker=worker._replace(mode=Mode.RING))


def take_over(state: State, rules: Rules) -> State:
    """Survey in a new process, and post what ends the requests of the old one."""
    worker, memory = state.worker, state.memory
    seq = max([memory.doorbell, *(q for _, q in memory.commit)])
    books: list[Book] = []
    writes: set[Write] = set()
    for slot, (gen, q) in enumerate(memory.commit):
        status = memory.status[slot]
        ended = status.gen == gen and status.ended
        book = Book(gen, q, Phase.IDLE) if ended else Book(gen, q, Phase.LOST, cancelled=True)
        books.append(book)
        if not ended:
            writes |= abandon(state, slot, book, rules)
    mode = Mode.RING if rules.roll_forward else Mode.UP
    return state._replace(flight=frozenset(writes), worker=worker._replace(mode=mode, books=tuple(books), seq=seq))


def after_repair(state: State, rules: Rules) -> State:
    """All repairs have landed: ring everything."""
    worker = state.worker
    books = tuple(b._replace(phase=Phase.RUNG) if b.phase is Phase.POSTED else b for b in worker.books)
    cancels = frozenset(
        Write("cancel", i, (b.gen,)) for i, b in enumerate(books) if b.cancelled and b.phase is Phase.RUNG
    )
    rung = [b.seq for b in books if b.phase is Phase.RUNG or (b.phase is Phase.LOST and rules.reconcile_lost)]
    highest = worker.seq if rules.reconcile_lost else max(rung, default=0)
    doorbell = frozenset({Write("doorbell", -1, (highest,))} if highest > state.memory.doorbell else ())
    return state._replace(flight=cancels | doorbell, worker=worker._replace(mode=Mode.UP, books=books))


def frontend(state: State, size: Size, rules: Rules) -> Iterator[State]:
    """The worker does something."""
    worker = state.worker
    if worker.mode is Mode.CUT:
        yield repair(state, rules)
    elif worker.mode is Mode.BOOT:
        yield take_over(state, rules)
    elif worker.mode is Mode.RING:
        if not state.flight:
            yield after_repair(state, rules)
    else:
        for slot, book in enumerate(worker.books):
            if book.phase is Phase.IDLE:
                if book.gen < size.gens and not pending(state, slot):
                    yield submit(state, slot)
                continue
            moves = [read(state, slot)] if book.phase >= Phase.RUNG else [ring(state, slot, rules)]
            if state.cancels:
                moves.append(cancel(state, slot, rules))
            yield from (m for m in moves if m is not None)


def scheduler(state: State, size: Size, rules: Rules) -> Iterator[State]:
    """The scheduler makes one step of its scan or of its work."""
    memory = state.memory
    if memory.doorbell > state.doorbell_seen and all(lane.seen is None for lane in state.lanes):
        yield state._replace(doorbell_seen=memory.doorbell)
    for slot, lane in enumerate(state.lanes):
        if lane.live:
            yield work(state, slot, size)
        elif lane.seen is None:
            gen, seq = memory.commit[slot]
            if gen == lane.gen + 1 and (not rules.gate or seq <= state.doorbell_seen):
                yield state._replace(lanes=put(state.lanes, slot, lane._replace(seen=(gen, seq))))
        else:
            yield claim(state, slot, rules)


def claim(state: State, slot: int, rules: Rules) -> State:
    """Read the request of a commit seen before, and take it if it is the one."""
    memory, lane = state.memory, state.lanes[slot]
    request, book = memory.request[slot], state.worker.books[slot]
    assert lane.seen is not None
    gen, seq = lane.seen
    if rules.check and (request.gen, request.seq) != (gen, seq):
        return state._replace(lanes=put(state.lanes, slot, lane._replace(seen=None)))
    if (request.gen, request.seq) != (gen, seq):
        raise ViolationError("3: claimed before the record had landed")
    if request.payload != NOTHING and memory.prompt[slot] != request.payload:
        raise ViolationError("3: claimed before the prompt had landed")
    awaited = book.gen == gen and book.phase in (Phase.POSTED, Phase.RUNG) and state.worker.mode is Mode.UP
    if awaited and request.payload != (gen, state.worker.incarnation):
        raise ViolationError("9: claimed a request of an older frontend")
    null = request.payload == NOTHING
    return state._replace(
        memory=memory._replace(status=put(memory.status, slot, Status(gen, null, 0))),
        lanes=put(state.lanes, slot, Lane(gen, not null)),
    )


def work(state: State, slot: int, size: Size) -> State:
    """End a request, or give it one more token."""
    memory, lane, book = state.memory, state.lanes[slot], state.worker.books[slot]
    cancelled = memory.cancel[slot] == lane.gen
    if cancelled and book.gen == lane.gen and book.phase is not Phase.IDLE and not book.cancelled:
        raise ViolationError("11: a cancel hit a request that nobody cancelled")
    if cancelled or lane.count == size.tokens:
        status = Status(lane.gen, True, lane.count)
        lane = lane._replace(live=False)
        tokens = memory.tokens
    else:
        lane = lane._replace(count=lane.count + 1)
        status = Status(lane.gen, False, lane.count)
        tokens = put(memory.tokens, slot, put(memory.tokens[slot], lane.count - 1, lane.gen))
    memory = memory._replace(status=put(memory.status, slot, status), tokens=tokens)
    return state._replace(memory=memory, lanes=put(state.lanes, slot, lane))


def successors(state: State, size: Size, rules: Rules) -> Iterator[State]:
    """Every state that may follow. Raises ViolationError."""
    yield from network(state)
    yield from frontend(state, size, rules)
    yield from breaks(state, rules)
    yield from scheduler(state, size, rules)


def quiet(state: State) -> bool:
    """Nothing is going on and nothing is left behind."""
    memory, worker = state.memory, state.worker
    return (
        not state.flight
        and worker.mode is Mode.UP
        and all(b.phase is Phase.IDLE for b in worker.books)
        and all(s.ended and s.gen == gen for s, (gen, _) in zip(memory.status, memory.commit, strict=True))
    )


@dataclass(frozen=True)
class Result:
    """``violation`` is empty if the protocol holds; ``trace`` leads to it, from the first state."""

    violation: str
    states: int
    trace: tuple[State, ...] = ()


def explore(size: Size, rules: Rules = Rules()) -> Result:
    """Visit every reachable state, then check that a quiet one can be reached from each."""
    n = size.slots
    memory = Memory(
        (NOTHING,) * n, (Request(),) * n, ((0, 0),) * n, (0,) * n, 0, (Status(),) * n, ((0,) * size.tokens,) * n
    )
    first = State(
        memory, frozenset(), frozenset(), Worker(Mode.UP, (Book(),) * n, 0, 1), 0, (Lane(),) * n,
        size.cuts, size.crashes, size.cancels,
    )  # fmt: skip
    # States get numbers, so that edges are small.
    number: dict[State, int] = {first: 0}
    order: list[State] = [first]
    parent = [-1]
    before: list[list[int]] = [[]]
    todo = deque([0])

    def trace(i: int) -> tuple[State, ...]:
        path = []
        while i >= 0:
            path.append(order[i])
            i = parent[i]
        return tuple(reversed(path))

    while todo:
        i = todo.popleft()
        try:
            for following in successors(order[i], size, rules):
                j = number.setdefault(following, len(order))
                if j == len(order):
                    order.append(following)
                    parent.append(i)
                    before.append([])
                    todo.append(j)
                before[j].append(i)
        except ViolationError as v:
            return Result(str(v), len(order), trace(i))
    good = [i for i, state in enumerate(order) if quiet(state)]
    reaches = bytearray(len(order))
    for i in good:
        reaches[i] = 1
    while good:
        for j in before[good.pop()]:
            if not reaches[j]:
                reaches[j] = 1
                good.append(j)
    stuck = reaches.find(0)
    if stuck >= 0:
        return Result("10: stuck, a slot leaked", len(order), trace(stuck))
    return Result("", len(order))


def mutant(name: str) -> Rules:
    """The protocol without the rule ``name``."""
    return replace(Rules(), **{name: False})
