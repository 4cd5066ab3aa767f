"""One connection to a ring: made by a handshake with blink-ringd, closed whole."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass

from blink.errors import BlinkError
from blink.release import running_release
from blink.ring import handshake as hs
from blink.ring.keys import read_key
from blink.ring.layout import PAGE
from blink.ring.transport import Channel, Region
from blink.ring.verbs.fabric import Domain, Fabric, FabricError, QueuePair, Rights
from blink.ring.verbs.queue import WorkQueuePair
from blink.ring.verbs.settings import RdmaSettings
from blink.ring.verbs.staging import Staging

WRITE_STAGING = 4 << 20
READ_STAGING = 4 << 20  # of each channel: a slab of 65536 slots is 1 MiB, 4096 tokens with logprobs 0.7 MiB
WRITE_DEPTH = 128
KEEPALIVE = ((socket.TCP_KEEPIDLE, 3), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3))  # dead within 6 s


@dataclass(frozen=True)
class Request:
    """What a frontend asks of ringd. ``holder`` (16 bytes) is who claims the partition."""

    config: RdmaSettings
    access: hs.Access
    partition: int
    holder: bytes


class Connection:
    """Queue pairs and regions of an established connection, and the TCP connection that is its lease.

    ``writes`` is None for an observer. ``cut`` only drops the lease, without waiting; ``close`` frees everything.
    """

    def __init__(self, request: Request, fabric: Fabric, lease: socket.socket) -> None:
        """Make queue pairs and staging for a handshake over ``lease``. Takes both over, also where it fails."""
        self.request, self.lease = request, lease
        self.local: hs.Endpoint
        self.answer: hs.Answer
        self.session: hs.Session
        self.writes: WorkQueuePair | None = None
        self.reads: dict[Channel, WorkQueuePair] = {}
        self._qps: list[QueuePair] = []
        self._staging: list[Staging] = []
        self._stack = ExitStack()
        self._stack.callback(lease.close)
        self._stack.callback(fabric.close)
        try:
            domain = fabric.domain()
            self._stack.callback(domain.close)
            self._provide(fabric, domain)
        except BaseException:
            self.close()
            raise

    def _provide(self, fabric: Fabric, domain: Domain) -> None:
        worker, limits = self.request.access is hs.Access.WORKER, fabric.limits
        depths = [min(WRITE_DEPTH, limits.max_work)] * worker + [limits.initiator] * (2 if worker else 1)
        sizes = [WRITE_STAGING] * worker + [READ_STAGING] * (2 if worker else 1)
        for depth, size in zip(depths, sizes, strict=True):
            staging = Staging(domain, size)
            self._stack.callback(staging.close)
            self._staging.append(staging)
            qp = domain.queue_pair(depth, Rights.NONE)
            self._stack.callback(qp.close)
            self._qps.append(qp)
        qps = tuple((qp.number, qp.psn) for qp in self._qps)
        self.local = hs.Endpoint(limits.gid, limits.mtu, limits.initiator, limits.responder, qps)
        self._write_depth = depths[0]

    def establish(self, answer: hs.Answer, session: hs.Session) -> None:
        """Connect the queue pairs to those of ``answer``. Raises FabricError, and HandshakeError where it cannot be."""
        if any(region.length < PAGE for region in answer.regions[: self.request.access.regions]):
            raise hs.HandshakeError("an answer with regions that are too short")
        self.answer, self.session = answer, session
        for index, qp in enumerate(self._qps):
            qp.connect(self.local, answer.endpoint, index, initiates=True)
        reads = min(self.local.initiator, answer.endpoint.responder)
        queues = [WorkQueuePair(qp, s, reads, read=True) for qp, s in zip(self._qps, self._staging, strict=True)]
        if self.request.access is hs.Access.WORKER:
            self.writes = WorkQueuePair(self._qps[0], self._staging[0], self._write_depth, read=False)
            self.reads = {Channel.STATUS: queues[1], Channel.TOKENS: queues[2]}
        else:
            self.reads = {Channel.STATUS: queues[0], Channel.TOKENS: queues[0]}

    @property
    def queues(self) -> list[WorkQueuePair]:
        """Every queue pair, once."""
        return list(dict.fromkeys([*([self.writes] if self.writes else []), *self.reads.values()]))

    def region(self, region: Region) -> hs.RemoteRegion:
        """Where ``region`` lies."""
        return self.answer.regions[hs.REGIONS.index(region)]

    def cut(self) -> None:
        """Drop the lease, so that ringd destroys its queue pairs."""
        self.lease.close()

    def close(self) -> None:
        """Drop the lease and free every resource of the device. Idempotent."""
        self.cut()
        self._stack.close()


class Wire:
    """Frames over a blocking socket with a deadline."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        self._sock, self._deadline = sock, time.monotonic() + timeout_s

    def send(self, data: bytes) -> None:
        """Send all of ``data``. Raises OSError."""
        self._arm()
        self._sock.sendall(data)

    def receive(self, expected: hs.Frame) -> bytes:
        """The body of the next frame. Raises HandshakeError where it is a refusal or another frame, and OSError."""
        kind, length = hs.parse_head(self._exactly(hs.HEAD_SIZE), expected, hs.Frame.REFUSE)
        body = self._exactly(length)
        if kind is hs.Frame.REFUSE:
            raise hs.HandshakeError(f"refused: {hs.read_refusal(body)}")
        return body

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            self._arm()
            part = self._sock.recv(count - len(data))
            if not part:
                raise hs.HandshakeError("it closed the connection in the middle of the handshake")
            data += part
        return data

    def _arm(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)


def connect(request: Request, fabric: Fabric, sock: socket.socket) -> Connection:
    """Connect ``sock`` to ringd, shake hands, connect the queue pairs; takes ``fabric`` and ``sock`` over.

    Raises BlinkError naming the hop.
    """
    config = request.config
    address = (str(config.ringd_address), config.ringd_port)
    where = f"blink-ringd at {address[0]} port {address[1]}"
    with ExitStack() as undo:
        undo.callback(sock.close)
        undo.callback(fabric.close)
        key = read_key(config.key_file)
        release = running_release().encode()  # takes a while, the first time
        try:
            sock.settimeout(config.handshake_timeout_s)
            sock.connect(address)
            undo.pop_all()
            connection = Connection(request, fabric, sock)
            undo.callback(connection.close)
            wire = Wire(sock, config.handshake_timeout_s)
            exchange = hs.ClientHandshake(key, request.access, request.partition)
            wire.send(exchange.hello())
            offer = hs.Offer(request.holder, release, connection.local)
            wire.send(exchange.offer(wire.receive(hs.Frame.CHALLENGE), offer))
            connection.establish(*exchange.accept(wire.receive(hs.Frame.ANSWER)))
        except hs.HandshakeError as e:
            raise BlinkError(f"{where}: {e}", "its log names this frontend") from None
        except TimeoutError:
            raise BlinkError(
                f"{where} did not answer for {config.handshake_timeout_s:g} s",
                "check the cable, the address and the firewall, and that the host is up",
            ) from None
        except OSError as e:
            raise BlinkError(f"{where}: {e.strerror}", "start blink-ringd there; check the address") from None
        except FabricError as e:
            raise BlinkError(f"on the frontend: {e}", "see `rdma link` and the kernel log") from None
        keep_alive(sock)
        sock.setblocking(False)
        undo.pop_all()
        return connection


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel notice a peer that is gone, also where neither process runs."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 6000)
