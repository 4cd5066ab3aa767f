"""The side of ringd that faces the network: handshakes with frontends, and their connections."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from blink.config import RdmaConfig
from blink.errors import BlinkError
from blink.release import running_release
from blink.ring import handshake as hs
from blink.ring.keys import KeyRing
from blink.ring.verbs.connection import keep_alive
from blink.ring.verbs.fabric import FabricError
from blink.ringd.leases import Lease, LeaseHeld, Leases
from blink.ringd.registration import RegisteredRing, Responder

STRANGERS = 32  # connections that may be in the middle of a handshake
CLOSE_S = 2.0
REPEAT_S = 60.0  # the same refusal of the same host is logged no more often

log = logging.getLogger("blink.ringd")


class Refused(Exception):  # noqa: N818 - an answer
    """An authenticated frontend cannot be served; the text says why."""


class Session:
    """One connected frontend."""

    def __init__(self, writer: asyncio.StreamWriter, peer: str) -> None:
        self.peer = peer
        self._writer = writer
        self._responder: Responder | None = None
        self._keys: hs.Session | None = None

    def open(self, responder: Responder, answer: bytes, keys: hs.Session) -> None:
        """Answer the handshake."""
        self._responder, self._keys = responder, keys
        self._writer.write(answer)

    def say(self, kind: hs.Ended, text: str) -> None:
        """Tell the frontend why its connection ends."""
        if self._keys is not None and not self._writer.is_closing():
            self._writer.write(self._keys.notice(kind, text))

    def fence(self, why: str) -> None:
        """Destroy the queue pairs, then say so."""
        log.info("%s: fenced: %s", self.peer, why)
        self._destroy()
        self.say(hs.Ended.FENCED, why)
        self.close()

    def _destroy(self) -> None:
        responder, self._responder = self._responder, None
        if responder is not None:
            responder.close()

    def close(self) -> None:
        """Destroy the queue pairs and hang up. Idempotent."""
        self._destroy()
        self._writer.close()


class Frontends:
    """Serves handshakes for the ring that ``ring`` gives, which may be None."""

    def __init__(self, config: RdmaConfig, ring: Callable[[], RegisteredRing | None]) -> None:
        self._config, self._ring = config, ring
        self._leases = Leases()
        self._sessions: dict[Lease, Session] = {}
        self._strangers = 0
        self._logged: dict[tuple[str, str], float] = {}
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def listen(self) -> None:
        """Begin to accept. Raises BlinkError where the address cannot be had, or a key file is bad."""
        c = self._config
        KeyRing(c.key_file, c.next_key_file)
        running_release()  # takes a while, the first time
        try:
            self._server = await asyncio.start_server(self._accept, str(c.ringd_address), c.ringd_port, limit=4096)
        except OSError as e:
            raise BlinkError(
                f"rdma.ringd_address {c.ringd_address} port {c.ringd_port}: {e.strerror}",
                "name an address of this machine that nothing else uses (`ss -ltnp`)",
            ) from None

    @property
    def sessions(self) -> int:
        """Connected frontends."""
        return len(self._sessions)

    def end_ring(self, why: str) -> None:
        """Tell every frontend that its ring is gone; their queue pairs stay until they hang up or :meth:`drop`."""
        for session in self._sessions.values():
            session.say(hs.Ended.RING, why)

    def drop(self) -> None:
        """Destroy every queue pair and hang up."""
        for lease, session in list(self._sessions.items()):
            session.close()
            self._forget(lease)

    async def close(self) -> None:
        """Stop listening and drop everything."""
        if self._server is not None:
            self._server.close()
        self.drop()
        for writer in self._connections.values():
            writer.close()  # which ends what its task waits for
        if self._connections:
            await asyncio.wait(self._connections, timeout=CLOSE_S)
        await asyncio.sleep(0)  # let the loop drop the connections

    def _forget(self, lease: Lease) -> None:
        self._leases.release(lease)
        self._sessions.pop(lease, None)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)
        # Who is gone again already has no address.
        host, port = (writer.get_extra_info("peername") or ("somebody", 0))[:2]
        peer = f"{host} port {port}"
        lease: Lease | None = None
        try:
            keep_alive(writer.get_extra_info("socket"))
            lease = await self._greet(reader, writer, host, peer)
            if lease is not None:
                # A frontend has nothing more to say: whatever comes is the end.
                await reader.read(1)
                log.info("%s: partition %d: disconnected", peer, lease.partition)
        except OSError as e:
            log.info("%s: %s", peer, e.strerror or "connection lost")
        except Exception:  # a defect must not reach other frontends
            log.exception("%s: serving it failed", peer)
        finally:
            if lease is not None:
                session = self._sessions.get(lease)
                self._forget(lease)
                if session is not None:
                    session.close()
            writer.close()

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, peer: str
    ) -> Lease | None:
        """Shake hands; the lease, or None where the peer was turned away."""
        if self._strangers >= STRANGERS:
            self._complain(host, peer, f"{STRANGERS} other handshakes are going on")
            return None
        self._strangers += 1
        exchange: hs.ServerHandshake | None = None
        try:
            async with asyncio.timeout(self._config.handshake_timeout_s):
                exchange = hs.ServerHandshake(KeyRing(self._config.key_file, self._config.next_key_file))
                writer.write(exchange.challenge(await _receive(reader, hs.Frame.HELLO)))
                offer = exchange.offer(await _receive(reader, hs.Frame.OFFER))
            return self._admit(exchange, offer, writer, peer)
        except (hs.HandshakeError, Refused, LeaseHeld, BlinkError) as e:
            self._complain(host, peer, str(e))
            if exchange is not None and exchange.hello is not None:  # silence for whatever else scans ports
                writer.write(hs.refusal(str(e)))
        except TimeoutError:
            self._complain(host, peer, f"no handshake within {self._config.handshake_timeout_s:g} s")
        except asyncio.IncompleteReadError as e:
            self._complain(host, peer, f"hung up in the middle of the handshake, after {len(e.partial)} bytes")
        finally:
            self._strangers -= 1
        return None

    def _admit(self, exchange: hs.ServerHandshake, offer: hs.Offer, writer: asyncio.StreamWriter, peer: str) -> Lease:
        """Give an authenticated frontend its queue pairs. Old ones of its partition are gone before it is answered."""
        hello, ring = exchange.hello, self._ring()
        assert hello is not None
        if ring is None:
            raise Refused("backend not up: it has announced no ring")
        if hello.partition >= ring.header.geometry.parts:
            raise Refused(f"partition {hello.partition} of a ring with {ring.header.geometry.parts} partitions")
        release = running_release().encode()
        if offer.release != release:
            theirs = offer.release.decode("ascii", "replace")
            raise Refused(
                f"the frontend runs release {theirs}, this blink-ringd {release.decode()}: deploy one release to both"
            )
        session = Session(writer, peer)
        lease = Lease(hello.partition, offer.holder, peer, session.fence)
        worker = hello.access is hs.Access.WORKER
        (self._leases.claim if worker else self._leases.observe)(lease)
        try:
            responder = ring.respond(hello.access, hello.partition, offer.endpoint)
        except BaseException as e:
            self._leases.release(lease)
            if isinstance(e, FabricError):
                raise Refused(f"on the ring host: {e}") from None
            raise
        regions = ring.regions(hello.access, hello.partition)
        answer = hs.Answer(ring.header.epoch, release, responder.endpoint, regions)
        session.open(responder, *exchange.answer(answer))
        self._sessions[lease] = session
        log.info(
            "%s: partition %d: %s connected over %s", peer, hello.partition, hello.access.name.lower(),
            offer.endpoint.address,
        )  # fmt: skip
        return lease

    def _complain(self, host: str, peer: str, what: str) -> None:
        now = time.monotonic()
        if now - self._logged.get((host, what), -REPEAT_S) >= REPEAT_S:
            if len(self._logged) > 1000:
                self._logged.clear()
            self._logged[host, what] = now
            log.warning("%s: turned away: %s", peer, what)


async def _receive(reader: asyncio.StreamReader, expected: hs.Frame) -> bytes:
    _, length = hs.parse_head(await reader.readexactly(hs.HEAD_SIZE), expected)
    return await reader.readexactly(length)
