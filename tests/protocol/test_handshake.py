"""The laws of the control port: who does not know the secret changes nothing."""

from __future__ import annotations

import hmac
import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterrun.model.world import Meeting, World
from clusterrun.protocol import messages as m
from clusterrun.protocol.codec import Encoder, WireError, read_to_agent, read_to_coordinator
from clusterrun.protocol.handshake import (
    MOST_AFTER_PROOF,
    MOST_BEFORE_PROOF,
    ClientEnd,
    Refused,
    ServerEnd,
    Stranger,
)

SECRET, OTHER = b"s" * 32, b"o" * 32
HELLO = m.Hello(node=3, name="n0003", address="10.0.0.3", pid=77)
WORLD = World(tuple(f"n{i:04d}" for i in range(4)), 8)
FAILED = m.RankExited(1, 3, -9, 12.5, ("a", "b\udcff\x1b[31m"), "Traceback…")


def ends(key: bytes = SECRET, run: str = "run-a", epoch: int = 2) -> tuple[ClientEnd, ServerEnd]:
    return ClientEnd(key, run, epoch, HELLO, b"c" * 32), ServerEnd(SECRET, "run-a", 2, b"n" * 32)


def shake(client: ClientEnd, server: ServerEnd) -> None:
    for _ in range(2):
        server.receive(client.take_output(), 1000.5)
        client.receive(server.take_output())


def joined() -> tuple[ClientEnd, ServerEnd]:
    client, server = ends()
    shake(client, server)
    return client, server


def from_agent(message: m.ToCoordinator, client: ClientEnd) -> bytes:
    return client.seal(Encoder().body(message))


def test_an_agent_with_the_secret_is_welcomed_and_messages_pass_both_ways() -> None:
    client, server = joined()
    assert (client.proven, server.proven, server.hello, client.wall) == (True, True, HELLO, 1000.5)
    start = m.StartRanks(2, WORLD, 3, Meeting("10.0.0.1", 4000))
    down = [m.Ack(5, 1.25), start, m.Farewell(), start]
    up = [m.Beat(5), FAILED, m.PortReserved(1, 0, "none free"), m.RanksGone(1, ("77 D",))]
    encoder = Encoder()
    assert client.receive(b"".join(server.seal(encoder.body(x)) for x in down)) == down
    assert server.receive(b"".join(client.seal(encoder.body(x)) for x in up), 0.0) == up


def test_a_message_may_arrive_byte_by_byte() -> None:
    client, server = ends()
    for _ in range(2):
        for byte in client.take_output():
            server.receive(bytes([byte]), 0.0)
        for byte in server.take_output():
            client.receive(bytes([byte]))
    frame = from_agent(FAILED, client)
    assert [x for byte in frame for x in server.receive(bytes([byte]), 0.0)] == [FAILED]


@pytest.mark.parametrize("run, epoch, message", [
    ("run-b", 2, "the agent is of another run"),
    ("run-a", 1, "the agent is of start 1, the coordinator of start 2"),
    ("run-a", 3, "the agent is of start 3, the coordinator of start 2"),
])  # fmt: skip
def test_another_run_and_another_start_are_refused_with_a_proof_and_the_reason(
    run: str, epoch: int, message: str
) -> None:
    client, server = ends(run=run, epoch=epoch)
    with pytest.raises(WireError, match=message):
        server.receive(client.take_output(), 0.0)
    with pytest.raises(Refused, match=message):
        client.receive(server.take_output())
    assert not server.proven and not client.proven


def test_a_refusal_without_the_secret_is_not_believed() -> None:
    client, _ = ends()
    with pytest.raises(Stranger):
        client.receive(piece(b"R" + b"\0" * 32 + b"go away"))


def test_a_wrong_key_is_detected_by_the_agent_first_and_by_the_coordinator_second() -> None:
    client, server = ends(key=OTHER)
    server.receive(client.take_output(), 0.0)
    with pytest.raises(Stranger):
        client.receive(server.take_output())
    with pytest.raises(WireError, match="without the secret"):
        server.receive(piece(b"\0" * 32), 0.0)
    assert server.hello is None and not server.proven


def test_the_coordinators_own_proof_sent_back_proves_nothing() -> None:
    client, server = ends()
    server.receive(client.take_output(), 0.0)
    mirrored = server.take_output()
    with pytest.raises(WireError):
        server.receive(piece(mirrored[-32:]), 0.0)
    assert not server.proven


def test_the_agents_own_hello_does_not_pass_for_a_coordinator() -> None:
    client, _ = ends()
    with pytest.raises(WireError):
        client.receive(client.take_output())


def test_a_replayed_session_fails_at_a_fresh_nonce() -> None:
    client, server = ends()
    recorded = client.take_output()
    server.receive(recorded, 0.0)
    client.receive(server.take_output())
    proof = client.take_output()
    again = ServerEnd(SECRET, "run-a", 2, b"N" * 32)
    again.receive(recorded, 0.0)
    with pytest.raises(WireError, match="without the secret"):
        again.receive(proof, 0.0)


@pytest.mark.parametrize(
    "old, new", [(b'"wire":[1]', b'"wire":[1,9]'), (b'"node":3', b'"node":4'), (b"10.0.0.3", b"10.0.0.4")]
)
def test_a_hello_edited_on_the_way_fails_at_both_ends(old: bytes, new: bytes) -> None:
    client, server = ends()
    hello = client.take_output()[4:]
    assert old in hello
    server.receive(piece(hello.replace(old, new)), 0.0)
    with pytest.raises(Stranger):
        client.receive(server.take_output())
    client._nonce = b"n" * 32  # an agent that does not check
    with pytest.raises(WireError, match="without the secret"):
        server.receive(piece(proof_of(client)), 0.0)


def test_a_protocol_that_the_coordinator_does_not_speak_is_refused_naming_both() -> None:
    client, server = ends()
    hello = json.loads(client.take_output()[4:])
    with pytest.raises(WireError, match=r"speaks protocol 1, the agent \(7,\)"):
        server.receive(piece(json.dumps({**hello, "wire": [7]}).encode()), 0.0)


def test_a_repeated_frame_ends_the_connection() -> None:
    client, server = joined()
    frame = from_agent(m.Beat(1), client)
    assert server.receive(frame, 0.0) == [m.Beat(1)]
    with pytest.raises(WireError, match="repeated"):
        server.receive(frame, 0.0)


def test_frames_in_another_order_end_the_connection() -> None:
    client, server = joined()
    first, second = from_agent(m.Beat(1), client), from_agent(m.Beat(2), client)
    with pytest.raises(WireError, match="out of order"):
        server.receive(second + first, 0.0)


def test_a_frame_sent_back_to_its_sender_is_refused() -> None:
    client, _ = joined()
    with pytest.raises(WireError, match="MAC"):
        client.receive(from_agent(m.Beat(1), client))


def test_a_frame_of_another_session_under_the_same_secret_is_refused() -> None:
    client, _ = joined()
    other = ServerEnd(SECRET, "run-a", 2, b"m" * 32)
    fresh = ClientEnd(SECRET, "run-a", 2, HELLO, b"d" * 32)
    shake(fresh, other)
    with pytest.raises(WireError, match="MAC"):
        other.receive(from_agent(m.Beat(1), client), 0.0)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_flipped_bit_anywhere_in_a_frame_gives_no_message(data: st.DataObject) -> None:
    client, server = joined()
    frame = bytearray(from_agent(FAILED, client))
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[bit // 8] ^= 1 << bit % 8
    try:
        assert server.receive(bytes(frame), 0.0) == []  # a longer length: waits for bytes that never come
    except WireError:
        pass


@given(st.integers(1, 60))
def test_a_truncated_frame_gives_no_message_and_later_frames_do_not_repair_it(cut: int) -> None:
    client, server = joined()
    frame, following = from_agent(FAILED, client), from_agent(m.Beat(1), client)
    assert server.receive(frame[:-cut], 0.0) == []
    with pytest.raises(WireError):
        server.receive(following * 20, 0.0)


@pytest.mark.parametrize("length", [MOST_BEFORE_PROOF + 1, 2**31, 2**32 - 1])
def test_a_large_or_negative_length_is_refused_before_anything_is_read(length: int) -> None:
    client, server = ends()
    for end in (lambda data: server.receive(data, 0.0), client.receive):
        with pytest.raises(WireError, match="at most 512"):
            end(struct.pack(">I", length))


def test_a_large_length_is_refused_after_the_proof_too() -> None:
    client, server = joined()
    with pytest.raises(WireError, match="at most"):
        server.receive(struct.pack(">I", MOST_AFTER_PROOF + 1), 0.0)
    with pytest.raises(WireError, match="too large to send"):
        client.seal(b"x" * MOST_AFTER_PROOF)


def test_a_hello_that_would_not_fit_is_refused_by_its_sender() -> None:
    with pytest.raises(WireError, match="512 are allowed"):
        ClientEnd(SECRET, "r" * 400, 2, HELLO, b"c" * 32)


@given(st.lists(st.binary(max_size=700), max_size=4), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_bytes_before_the_proof_give_only_a_wire_error(chunks: list[bytes], framed: bool) -> None:
    client, server = ends()
    for end in (lambda data: server.receive(data, 0.0), client.receive):
        try:
            for chunk in chunks:
                assert end(piece(chunk) if framed else chunk) == []
        except WireError:
            pass
    assert not server.proven and not client.proven


FIELDS = st.sampled_from(["wire", "version", "run_id", "epoch", "role", "nonce", "hello", "node", "name"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner))


@given(JSON)
@settings(max_examples=100, deadline=None)
def test_any_json_as_hello_gives_only_a_wire_error(value: object) -> None:
    _, server = ends()
    with pytest.raises(WireError):
        server.receive(piece(json.dumps(value).encode()), 0.0)


@given(
    st.binary(max_size=300)
    | st.binary(max_size=16).map(lambda x: b"a" + x)
    | st.binary(max_size=9).map(lambda x: b"b" + x)
)
@settings(max_examples=150, deadline=None)
def test_any_body_gives_a_message_or_bad_body(body: bytes) -> None:
    for read in (read_to_agent, read_to_coordinator):
        try:
            assert isinstance(read(body), m.ToAgent if read is read_to_agent else m.ToCoordinator)
        except WireError:
            pass


def test_a_message_of_the_other_direction_is_rejected() -> None:
    body = Encoder().body(m.StopRanks(1, 8.0))
    assert read_to_agent(body) == m.StopRanks(1, 8.0)
    with pytest.raises(WireError, match="no message of this direction"):
        read_to_coordinator(body)


@pytest.mark.parametrize(
    "body", [b"[" * 5000, b'{"StopRanks":{"epoch":1,"grace":NaN}}', b"{}", b'{"StopRanks":{},"Farewell":{}}']
)
def test_json_that_is_deep_not_finite_empty_or_double_is_rejected(body: bytes) -> None:
    with pytest.raises(WireError):
        read_to_agent(body)


def piece(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def proof_of(client: ClientEnd) -> bytes:
    parts = (b"cr1|agent", client._hello_bytes, client._nonce)
    return hmac.digest(SECRET, b"".join(map(piece, parts)), "sha256")
