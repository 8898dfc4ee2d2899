"""Encode a message as the body of a frame and decodes it; knows no key and no socket.

Messages are JSON with the name of their kind. Heartbeats and acknowledgements have a fixed binary form,
because nine in ten frames are of these two kinds at 1,250 nodes.
"""

from __future__ import annotations

import json
import struct

from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import Any, fields
from clusterrun.model.world import World
from clusterrun.protocol.messages import Ack, Beat, ToAgent, ToCoordinator

_BEAT = struct.Struct(">cQ")
_ACK = struct.Struct(">cQd")
_MOST = 2**63 - 1
_KINDS_TO_AGENT = {kind.__name__: kind for kind in ToAgent.__subclasses__()}
_KINDS_TO_COORDINATOR = {kind.__name__: kind for kind in ToCoordinator.__subclasses__()}


class WireError(ClusterrunError):
    """The peer broke the protocol. The connection must be closed, with no other effect."""


class Encoder:
    """Encodes messages. It caches the text of the last world, since 1,250 agents get the same world."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._world_text = ""

    def body(self, message: ToAgent | ToCoordinator) -> bytes:
        if isinstance(message, Beat):
            return _BEAT.pack(b"b", message.number)
        if isinstance(message, Ack):
            return _ACK.pack(b"a", message.beat, message.wall)
        texts = [f'"{name}":{self._text(value)}' for name, value in fields(message).items()]
        return f'{{"{type(message).__name__}":{{{",".join(texts)}}}}}'.encode()

    def _text(self, value: Any) -> str:
        if type(value).__name__ != "World":
            return json.dumps(encode(value))
        if value is not self._world:
            self._world, self._world_text = value, json.dumps(encode(value))
        return self._world_text


def read_to_agent(body: bytes) -> ToAgent:
    """Return the message in a body from the coordinator. Raise ``WireError`` if it is invalid."""
    is_ack = body[:1] == b"a"
    return Ack(*_unpacked(_ACK, body, "an acknowledgement")) if is_ack else _read(body, _KINDS_TO_AGENT)


def read_to_coordinator(body: bytes) -> ToCoordinator:
    """Return the message in a body from an agent. Raise ``WireError`` if it is invalid."""
    is_beat = body[:1] == b"b"
    return Beat(*_unpacked(_BEAT, body, "a heartbeat")) if is_beat else _read(body, _KINDS_TO_COORDINATOR)


def _unpacked(form: struct.Struct, body: bytes, what: str) -> tuple[Any, ...]:
    if len(body) != form.size:
        raise WireError(f"{what} of {len(body)} bytes")
    _, number, *values = form.unpack(body)
    if number > _MOST:
        raise WireError(f"the number {number} is beyond any count")
    return number, *values


def read_document(cls: type[Any], data: bytes) -> Any:
    """Return the frozen value in untrusted bytes. Raise only ``WireError``, whatever the bytes are."""
    return _decoded(cls, _json_object(data))


def _read(body: bytes, kinds: dict[str, type[Any]]) -> Any:
    data = _json_object(body)
    if len(data) != 1:
        raise WireError(f"a message with {len(data)} kinds")
    (name, value), *_ = data.items()
    if name not in kinds:
        raise WireError(f"no message of this direction is called {name[:40]!r}")
    return _decoded(kinds[name], value)


def _decoded(cls: type[Any], data: Any) -> Any:
    try:
        return decode(cls, data)
    except (BadDocument, ValueError, OverflowError) as error:
        raise WireError(str(error)) from error


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise WireError("not JSON") from error
    if not isinstance(value, dict):
        raise WireError("not a JSON object")
    return value


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number")
