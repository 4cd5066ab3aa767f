"""The handshake: who has the key gets an answer, and nothing else does."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.errors import BlinkError
from blink.ring import handshake as hs
from blink.ring.keys import Key, KeyRing, read_key
from tests.depth import examples
from tests.ringd.host import write_key

GID = bytes(10) + b"\xff\xff" + bytes((10, 0, 0, 2))
QPS = ((17, 1), (18, 2), (0xFFFFFF, 0xFFFFFF))
ENDPOINT = hs.Endpoint(GID, 4096, 16, 16, QPS)
OFFER = hs.Offer(bytes(range(16)), b"0123456789abcdef", ENDPOINT)
REGIONS = tuple(hs.RemoteRegion(0x7F00_0000_0000 + i, 4096, 0xFFFF_FFFF - i) for i in range(3))
ANSWER = hs.Answer(0xFEDC_BA98_7654_3210, b"0123456789abcdef", ENDPOINT, REGIONS)


class _Keys(KeyRing):
    """A key ring without files."""

    def __init__(self, *keys: Key) -> None:
        self._keys = list(keys)


KEY, OTHER = Key(secrets.token_bytes(32)), Key(secrets.token_bytes(32))


def body(data: bytes, kind: hs.Frame) -> bytes:
    """The body of a frame that must be of that kind."""
    found, length = hs.parse_head(data[: hs.HEAD_SIZE], kind)
    assert found is kind
    assert len(data) == hs.HEAD_SIZE + length
    return data[hs.HEAD_SIZE :]


Tamper = Callable[[int, bytes], bytes]


def exchange(
    client: Key = KEY, keys: KeyRing | None = None, *, tamper: Tamper = lambda _, b: b,
    access: hs.Access = hs.Access.WORKER, offer: hs.Offer = OFFER, answer: hs.Answer = ANSWER,
) -> tuple[hs.Offer, hs.Answer, hs.Session, hs.Session]:  # fmt: skip
    """One whole exchange; ``tamper`` may change the body of each of the four frames on its way."""
    c, s = hs.ClientHandshake(client, access, 1), hs.ServerHandshake(keys or _Keys(KEY))
    hello = tamper(0, body(c.hello(), hs.Frame.HELLO))
    challenge = tamper(1, body(s.challenge(hello), hs.Frame.CHALLENGE))
    offered = s.offer(tamper(2, body(c.offer(challenge, offer), hs.Frame.OFFER)))
    data, ours = s.answer(answer)
    got, theirs = c.accept(tamper(3, body(data, hs.Frame.ANSWER)))
    return offered, got, ours, theirs


def test_both_sides_learn_what_the_other_said() -> None:
    offered, got, _, _ = exchange()
    assert (offered, got) == (OFFER, ANSWER)
    assert OFFER.endpoint.address == "10.0.0.2"


def test_an_observer_has_one_queue_pair() -> None:
    one = replace(ENDPOINT, qps=QPS[:1])
    offered, _, _, _ = exchange(
        access=hs.Access.OBSERVER, offer=replace(OFFER, endpoint=one), answer=replace(ANSWER, endpoint=one)
    )
    assert offered.endpoint == one
    with pytest.raises(hs.HandshakeError, match="impossible"):
        exchange(access=hs.Access.OBSERVER, answer=replace(ANSWER, endpoint=one))


@pytest.mark.parametrize(
    ("client", "server"), [(OTHER, (KEY,)), (KEY, (OTHER,)), (Key(bytes(32)), (KEY, OTHER))], ids=str
)
def test_a_wrong_key_is_refused(client: Key, server: tuple[Key, ...]) -> None:
    with pytest.raises(hs.HandshakeError, match="does not have a key"):
        exchange(client, _Keys(*server))


def test_keys_rotate() -> None:
    exchange(KEY, _Keys(OTHER, KEY))
    exchange(OTHER, _Keys(OTHER, KEY))


def test_a_server_without_the_key_cannot_answer() -> None:
    """Whoever guesses the key id, which is no secret, still lacks the key."""
    c = hs.ClientHandshake(KEY, hs.Access.WORKER, 0)
    c.hello()
    c.offer(body(hs.ServerHandshake(_Keys(KEY)).challenge(body(c.hello(), hs.Frame.HELLO)), hs.Frame.CHALLENGE), OFFER)
    forged = hs.ServerHandshake(_Keys(OTHER))
    forged._transcript.key = OTHER.secret
    data, _ = forged.answer(ANSWER)
    with pytest.raises(hs.HandshakeError, match="does not have this frontend's key"):
        c.accept(body(data, hs.Frame.ANSWER))


@examples(300)
@given(frame=st.integers(0, 3), bit=st.integers(0, 8 * hs.MAX_BODY))
def test_a_flipped_bit_anywhere_ends_it(frame: int, bit: int) -> None:
    def flip(index: int, data: bytes) -> bytes:
        if index != frame:
            return data
        at = bit % (8 * len(data))
        changed = bytearray(data)
        changed[at // 8] ^= 1 << at % 8
        return bytes(changed)

    with pytest.raises(hs.HandshakeError):
        exchange(tamper=flip)


@examples(200)
@given(frame=st.integers(0, 3), keep=st.integers(0, hs.MAX_BODY), more=st.binary(max_size=8))
def test_a_frame_of_another_length_ends_it(frame: int, keep: int, more: bytes) -> None:
    def cut(index: int, data: bytes) -> bytes:
        if index != frame:
            return data
        changed = data[: keep % len(data)] + more
        return changed if changed != data else data[:-1]

    with pytest.raises(hs.HandshakeError):
        exchange(tamper=cut)


@examples(300)
@given(frame=st.integers(0, 3), data=st.binary(max_size=300))
def test_any_bytes_end_it(frame: int, data: bytes) -> None:
    with pytest.raises(hs.HandshakeError):
        exchange(tamper=lambda index, good: data if index == frame and data != good else good)


@given(head=st.binary(min_size=hs.HEAD_SIZE, max_size=hs.HEAD_SIZE))
def test_no_head_asks_for_more_than_the_bound(head: bytes) -> None:
    try:
        kind, length = hs.parse_head(head, hs.Frame.HELLO, hs.Frame.REFUSE)
    except hs.HandshakeError:
        return
    assert kind in (hs.Frame.HELLO, hs.Frame.REFUSE)
    assert length <= hs.MAX_BODY


@pytest.mark.parametrize("frame", [0, 1, 2, 3])
def test_a_recorded_exchange_cannot_be_replayed(frame: int) -> None:
    """A frame of an earlier exchange in the place of this one's."""
    recorded: list[bytes] = []
    exchange(tamper=lambda _, data: recorded.append(data) or data)
    with pytest.raises(hs.HandshakeError):
        exchange(tamper=lambda index, data: recorded[frame] if index == frame else data)


def test_a_frontend_cannot_be_answered_with_its_own_proof() -> None:
    """Reflection: the MAC of one role is never that of the other."""
    c, s = hs.ClientHandshake(KEY, hs.Access.WORKER, 1), hs.ServerHandshake(_Keys(KEY))
    offer = body(c.offer(body(s.challenge(body(c.hello(), hs.Frame.HELLO)), hs.Frame.CHALLENGE), OFFER), hs.Frame.OFFER)
    with pytest.raises(hs.HandshakeError):
        c.accept(offer)


def test_the_partition_cannot_be_changed_on_the_way() -> None:
    def change(index: int, data: bytes) -> bytes:
        return data[:11] + bytes((0,)) + data[12:] if index == 0 else data

    c = hs.ClientHandshake(KEY, hs.Access.WORKER, 1)
    assert body(c.hello(), hs.Frame.HELLO)[11] == 1
    with pytest.raises(hs.HandshakeError, match="does not have a key"):
        exchange(tamper=change)


def test_another_version_says_so() -> None:
    def older(index: int, data: bytes) -> bytes:
        return data[:8] + b"\x00\x00" + data[10:] if index == 0 else data

    with pytest.raises(hs.HandshakeError, match="speaks version 0"):
        exchange(tamper=older)


# Notices


def test_a_notice_is_believed_once_and_only_from_ringd() -> None:
    _, _, ours, theirs = exchange()
    notice = body(ours.notice(hs.Ended.RING, "the backend has ended"), hs.Frame.NOTICE)
    for bad in (notice[:-1] + bytes((notice[-1] ^ 1,)), b"\2" + notice[1:], notice[:40], b""):
        with pytest.raises(hs.HandshakeError):
            theirs.read_notice(bad)
    assert theirs.read_notice(notice) == (hs.Ended.RING, "the backend has ended")
    with pytest.raises(hs.HandshakeError, match="out of order"):
        theirs.read_notice(notice)


def test_a_notice_of_another_connection_is_not_believed() -> None:
    _, _, ours, _ = exchange()
    _, _, _, theirs = exchange()
    with pytest.raises(hs.HandshakeError, match="wrong MAC"):
        theirs.read_notice(body(ours.notice(hs.Ended.RING, "gone"), hs.Frame.NOTICE))


def test_a_refusal_is_printed_safely() -> None:
    assert hs.read_refusal(b"no\x1b[2J\nway\xff") == "no?[2J?way\ufffd"
    assert len(hs.refusal("x" * 5000)) == hs.HEAD_SIZE + hs.MAX_BODY


# Key files


@dataclass
class Bad:
    content: str
    mode: int
    says: str


@pytest.mark.parametrize(
    "bad",
    [
        Bad("00" * 32, 0o640, "may be read by others"),
        Bad("00" * 32, 0o604, "may be read by others"),
        Bad("00" * 31, 0o600, "does not hold a key"),
        Bad("zz" * 32, 0o600, "does not hold a key"),
        Bad("", 0o600, "does not hold a key"),
    ],
    ids=lambda b: f"{b.mode:o}-{len(b.content)}",
)
def test_a_bad_key_file_is_refused(tmp_path: Path, bad: Bad) -> None:
    path = tmp_path / "key"
    path.write_text(bad.content)
    path.chmod(bad.mode)
    with pytest.raises(BlinkError, match=bad.says):
        read_key(path)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BlinkError, match=r"key file .*key: No such file"):
        KeyRing(tmp_path / "key")


def test_the_next_key_comes_and_goes(tmp_path: Path) -> None:
    secret = write_key(tmp_path / "key")
    assert KeyRing(tmp_path / "key", tmp_path / "next").find(Key(secret).id) == Key(secret)
    following = Key(write_key(tmp_path / "next"))
    assert KeyRing(tmp_path / "key", tmp_path / "next").find(following.id) == following
    assert repr(following) == "Key()", "a key never gets into a log"
