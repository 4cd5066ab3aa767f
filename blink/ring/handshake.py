"""How a frontend and blink-ringd prove to each other who they are and agree on queue pairs. Bytes only, no sockets.

Four frames over one TCP connection: HELLO and CHALLENGE carry a nonce each, OFFER the frontend's queue pairs, ANSWER
those of ringd with the ring's addresses and keys. OFFER and ANSWER end with an HMAC-SHA256 of a pre-shared key over
the sender's role and every byte exchanged so far, so nothing of an exchange can be altered, left out or used again in
another one. docs/rdma.md has it byte by byte. Whatever is wrong raises :class:`HandshakeError`.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import ipaddress
import secrets
import struct
from dataclasses import dataclass
from typing import Any, TypeVar

from blink import limits
from blink.ring.keys import Key, KeyRing
from blink.ring.transport import Region

MAGIC = b"BLNKRDMA"
VERSION = 1
MAX_BODY = 1024
NONCE = 32
MAC = 32
MAX_QPS = 3
REGIONS = (Region.H, Region.G, Region.F)
MTUS = (256, 512, 1024, 2048, 4096)

_HEAD = struct.Struct("<BH")  # type, length of the body
_HELLO = struct.Struct(f"<8sHBB8s{NONCE}s")  # magic, version, access, partition, key id, nonce
_CHALLENGE = struct.Struct(f"<H{NONCE}s")  # version, nonce
_IDENTITY = struct.Struct("<16s16s")  # holder, release
_ENDPOINT = struct.Struct("<16sHBBB")  # gid, mtu, reads it starts, reads it serves, queue pairs
_QP = struct.Struct("<II")  # number, first packet sequence number
_EPOCH = struct.Struct("<Q16s")  # epoch, release
_REGION = struct.Struct("<QQI")  # address, length, rkey
_NOTICE = struct.Struct("<BI")  # kind, count

E = TypeVar("E", bound=enum.IntEnum)


class Frame(enum.IntEnum):
    """Type of a frame."""

    HELLO = 1
    CHALLENGE = 2
    OFFER = 3
    ANSWER = 4
    REFUSE = 5
    NOTICE = 6


class Access(enum.IntEnum):
    """What a connection is for: a WORKER drives its partition alone; an OBSERVER reads H and G, beside others."""

    WORKER = 1
    OBSERVER = 2

    @property
    def queue_pairs(self) -> int:
        """How many queue pairs it has."""
        return MAX_QPS if self is Access.WORKER else 1

    @property
    def regions(self) -> int:
        """How many of the answer's regions it may use, in their order."""
        return 3 if self is Access.WORKER else 2


class Ended(enum.IntEnum):
    """Why ringd ends a connection: the RING is gone for good, or the connection was FENCED and may be made again."""

    RING = 1
    FENCED = 2


class HandshakeError(Exception):
    """The other side did not keep to the handshake, or is not who it should be; the text says which."""


@dataclass(frozen=True)
class Endpoint:
    """One side's port and queue pairs. ``initiator`` and ``responder``: RDMA reads that it can start, and serve."""

    gid: bytes
    mtu: int
    initiator: int
    responder: int
    qps: tuple[tuple[int, int], ...]

    @property
    def address(self) -> str:
        """The GID as an address; of an IPv4-mapped one, the IPv4 address."""
        ip = ipaddress.IPv6Address(self.gid)
        return str(ip.ipv4_mapped or ip)

    def encode(self) -> bytes:
        """As on the wire."""
        head = _ENDPOINT.pack(self.gid, self.mtu, self.initiator, self.responder, len(self.qps))
        return head + b"".join(_QP.pack(*qp) for qp in self.qps)

    @classmethod
    def decode(cls, data: bytes, at: int, expected: int) -> tuple[Endpoint, int]:
        """The endpoint at ``at`` of ``data``, which must have ``expected`` queue pairs, and where it ends."""
        gid, mtu, initiator, responder, count = _unpack(_ENDPOINT, data, at)
        if mtu not in MTUS or not initiator or not responder or count != expected:
            raise HandshakeError("an endpoint with impossible values")
        at += _ENDPOINT.size
        qps = []
        for _ in range(count):
            number, psn = _unpack(_QP, data, at)
            if number >= 1 << 24 or psn >= 1 << 24:
                raise HandshakeError("an endpoint with impossible values")
            qps.append((number, psn))
            at += _QP.size
        return cls(gid, mtu, initiator, responder, tuple(qps)), at


@dataclass(frozen=True)
class RemoteRegion:
    """Where a region lies on the ring's host, and the key to it; ``length`` 0 where this connection has none."""

    address: int
    length: int
    rkey: int


@dataclass(frozen=True)
class Hello:
    """Who asks, for what."""

    access: Access
    partition: int


@dataclass(frozen=True)
class Offer:
    """The frontend's half. ``holder``: who claims the partition, 16 bytes; ``release``: its release id, 16 bytes."""

    holder: bytes
    release: bytes
    endpoint: Endpoint


@dataclass(frozen=True)
class Answer:
    """ringd's half, and the ring."""

    epoch: int
    release: bytes
    endpoint: Endpoint
    regions: tuple[RemoteRegion, ...]


def frame(kind: Frame, body: bytes) -> bytes:
    """A frame as on the wire."""
    assert len(body) <= MAX_BODY
    return _HEAD.pack(kind, len(body)) + body


HEAD_SIZE = _HEAD.size


def parse_head(head: bytes, *expected: Frame) -> tuple[Frame, int]:
    """Type and body length of a frame from its first HEAD_SIZE bytes; the type must be one of ``expected``."""
    kind, length = _HEAD.unpack(head)
    if kind not in expected:
        raise HandshakeError(f"a frame of type {kind} where {expected[0].name} belongs")
    if length > MAX_BODY:
        raise HandshakeError(f"a frame of {length} bytes")
    return Frame(kind), length


def refusal(text: str) -> bytes:
    """A REFUSE frame. It is not authenticated: all it can do is what a lost packet can."""
    return frame(Frame.REFUSE, text.encode()[:MAX_BODY])


def read_refusal(body: bytes) -> str:
    """The text of a REFUSE frame, safe to print."""
    return "".join(c if c.isprintable() else "?" for c in body.decode(errors="replace"))


class _Transcript:
    """Every byte of an exchange, and what is derived from them."""

    def __init__(self) -> None:
        self._bytes = b""
        self.key = b""

    def add(self, kind: Frame, body: bytes) -> None:
        self._bytes += _HEAD.pack(kind, len(body)) + body

    def mac(self, role: bytes, body: bytes) -> bytes:
        """The MAC with which ``role`` ends the frame that begins with ``body``."""
        return self._derive(role, self._bytes + body)

    def session(self) -> Session:
        """Keys for what ringd says later, once the whole exchange is in the transcript."""
        return Session(self._derive(b"notice", self._bytes))

    def _derive(self, role: bytes, data: bytes) -> bytes:
        return hmac.new(self.key, b"blink-ringd " + role + b"\0" + data, hashlib.sha256).digest()


class Session:
    """What one side needs to send or to trust NOTICE frames; each side counts for itself."""

    def __init__(self, key: bytes) -> None:
        self._key, self._count = key, 0

    def notice(self, kind: Ended, text: str) -> bytes:
        """A NOTICE frame."""
        body = _NOTICE.pack(kind, self._count) + text.encode()[: MAX_BODY - _NOTICE.size - MAC]
        self._count += 1
        return frame(Frame.NOTICE, body + self._mac(body))

    def read_notice(self, body: bytes) -> tuple[Ended, str]:
        """Why the connection ended. Raises HandshakeError for a notice that ringd did not send."""
        content, mac = body[:-MAC], body[-MAC:]
        if not hmac.compare_digest(mac, self._mac(content)):
            raise HandshakeError("a notice with a wrong MAC")
        kind, count = _unpack(_NOTICE, content, 0)
        if count != self._count:
            raise HandshakeError("a notice out of order")
        self._count += 1
        return _enum(Ended, kind), content[_NOTICE.size :].decode(errors="replace")

    def _mac(self, content: bytes) -> bytes:
        return hmac.new(self._key, content, hashlib.sha256).digest()


class ClientHandshake:
    """The frontend's side of one exchange: :meth:`hello`, :meth:`offer`, :meth:`accept`, in this order."""

    def __init__(self, key: Key, access: Access, partition: int) -> None:
        self._access = access
        self._transcript = _Transcript()
        self._transcript.key = key.secret
        self._hello = _HELLO.pack(MAGIC, VERSION, access, partition, key.id, secrets.token_bytes(NONCE))

    def hello(self) -> bytes:
        """The first frame."""
        self._transcript.add(Frame.HELLO, self._hello)
        return frame(Frame.HELLO, self._hello)

    def offer(self, challenge: bytes, offer: Offer) -> bytes:
        """The frame that answers the body of a CHALLENGE."""
        version, _ = _exactly(_CHALLENGE, challenge)
        if version != VERSION:
            raise HandshakeError(f"blink-ringd speaks version {version} of the handshake, this frontend {VERSION}")
        self._transcript.add(Frame.CHALLENGE, challenge)
        body = _IDENTITY.pack(offer.holder, offer.release) + offer.endpoint.encode()
        body += self._transcript.mac(b"frontend", body)
        self._transcript.add(Frame.OFFER, body)
        return frame(Frame.OFFER, body)

    def accept(self, answer: bytes) -> tuple[Answer, Session]:
        """What the body of an ANSWER says, once it is certain that ringd has the key."""
        content, mac = answer[:-MAC], answer[-MAC:]
        if not hmac.compare_digest(mac, self._transcript.mac(b"ringd", content)):
            raise HandshakeError("the answer's MAC is wrong: what answers there does not have this frontend's key")
        self._transcript.add(Frame.ANSWER, answer)
        epoch, release = _unpack(_EPOCH, content, 0)
        endpoint, at = Endpoint.decode(content, _EPOCH.size, self._access.queue_pairs)
        regions = []
        for _ in REGIONS:
            regions.append(RemoteRegion(*_unpack(_REGION, content, at)))
            at += _REGION.size
        if at != len(content):
            raise HandshakeError("an answer of the wrong length")
        return Answer(epoch, release, endpoint, tuple(regions)), self._transcript.session()


class ServerHandshake:
    """ringd's side of one exchange: :meth:`challenge`, :meth:`offer`, :meth:`answer`, in this order."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys
        self._transcript = _Transcript()
        self._known = True
        self.hello: Hello | None = None

    def challenge(self, hello: bytes) -> bytes:
        """The frame that answers the body of a HELLO."""
        magic, version, access, partition, key_id, _ = _exactly(_HELLO, hello)
        if magic != MAGIC:
            raise HandshakeError("no frontend of this appliance: the first bytes are wrong")
        if version != VERSION:
            raise HandshakeError(f"the frontend speaks version {version} of the handshake, this blink-ringd {VERSION}")
        if partition >= limits.PARTITIONS:
            raise HandshakeError(f"partition {partition} does not exist")
        self.hello = Hello(_enum(Access, access), partition)
        key = self._keys.find(key_id)
        # An unknown key is refused where a wrong MAC is, so that nobody can ask which keys exist.
        self._known, self._transcript.key = key is not None, key.secret if key else secrets.token_bytes(32)
        self._transcript.add(Frame.HELLO, hello)
        body = _CHALLENGE.pack(VERSION, secrets.token_bytes(NONCE))
        self._transcript.add(Frame.CHALLENGE, body)
        return frame(Frame.CHALLENGE, body)

    def offer(self, body: bytes) -> Offer:
        """What the body of an OFFER says, once it is certain that the frontend has the key."""
        assert self.hello is not None
        content, mac = body[:-MAC], body[-MAC:]
        if not hmac.compare_digest(mac, self._transcript.mac(b"frontend", content)) or not self._known:
            raise HandshakeError("the frontend does not have a key of this blink-ringd")
        self._transcript.add(Frame.OFFER, body)
        holder, release = _unpack(_IDENTITY, content, 0)
        endpoint, at = Endpoint.decode(content, _IDENTITY.size, self.hello.access.queue_pairs)
        if at != len(content):
            raise HandshakeError("an offer of the wrong length")
        return Offer(holder, release, endpoint)

    def answer(self, answer: Answer) -> tuple[bytes, Session]:
        """The last frame, and the keys for later notices."""
        body = _EPOCH.pack(answer.epoch, answer.release) + answer.endpoint.encode()
        body += b"".join(_REGION.pack(r.address, r.length, r.rkey) for r in answer.regions)
        body += self._transcript.mac(b"ringd", body)
        self._transcript.add(Frame.ANSWER, body)
        return frame(Frame.ANSWER, body), self._transcript.session()


def _unpack(layout: struct.Struct, data: bytes, at: int) -> tuple[Any, ...]:
    if at + layout.size > len(data):
        raise HandshakeError("a frame that is too short")
    return layout.unpack_from(data, at)


def _exactly(layout: struct.Struct, data: bytes) -> tuple[Any, ...]:
    if len(data) != layout.size:
        raise HandshakeError(f"a frame of {len(data)} bytes instead of {layout.size}")
    return layout.unpack(data)


def _enum(kind: type[E], value: int) -> E:
    try:
        return kind(value)
    except ValueError:
        raise HandshakeError(f"{value} is no {kind.__name__}") from None
