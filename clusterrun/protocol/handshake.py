"""The mutual handshake and the frames between coordinator and agents: bytes in, bytes out; pure.

Both ends prove that they know the secret of this start of the coordinator, over the whole hello and a fresh
nonce of each side. Each proof names its role, so no proof can be mirrored. Afterwards every frame carries its
number and a MAC under a key of its direction. An attacker cannot inject, replay, reorder or drop a frame
unseen. Frames are not encrypted, so no secret may travel in a message.

    agent        length, hello (JSON, at most 512 bytes: versions, run, epoch, who, nonce)
    coordinator  length, "S", nonce, proof        or   length, "R", proof, reason in words
    agent        length, proof
    coordinator  length, proof, its clock
    then         length, number (8 bytes), body, MAC (32 bytes)      in both directions
"""

from __future__ import annotations

import hmac
import json
import struct
from collections.abc import Iterator

from clusterrun.model import contract
from clusterrun.model.document import encode
from clusterrun.model.frozen import frozen
from clusterrun.protocol.codec import WireError, read_document, read_to_agent, read_to_coordinator
from clusterrun.protocol.messages import Hello, ToAgent, ToCoordinator

MOST_BEFORE_PROOF = 512
# Bytes in one piece. The last output of a rank and a world of 10,000 nodes fit in.
MOST_AFTER_PROOF = 1024 * 1024
NONCE = 32
MAC = 32
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_CLOCK = struct.Struct(">d")


class Refused(WireError):
    """The coordinator proved that it knows the secret, and refuses the agent. A retry is pointless."""


class Stranger(WireError):
    """The peer does not know the secret of this run."""


@frozen
class Greeting:
    """The first message of an agent. Both proofs cover it, so both sides agree on it."""

    wire: tuple[int, ...]  # protocol versions that the agent speaks
    version: str
    run_id: str
    epoch: int
    role: str
    nonce: str  # hexadecimal
    hello: Hello


def _piece(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _framed(*parts: bytes) -> bytes:
    """Return the parts in an unambiguous encoding."""
    return b"".join(map(_piece, parts))


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _is_mac(key: bytes, mac: bytes, message: bytes) -> bool:
    return hmac.compare_digest(_mac(key, message), mac)


class _End:
    """The common part of both ends of a connection. ``proven`` is set when the proofs are exchanged."""

    def __init__(self, secret: bytes) -> None:
        self.proven = False
        self._secret, self._most = secret, MOST_BEFORE_PROOF
        self._buffer = bytearray()
        self._sent = self._received = 0
        self._key_out = self._key_in = self._secret
        self._output = b""

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the pieces that ``data`` completes. Raise ``WireError`` if a length is beyond ``_most``."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self._most:
                raise WireError(f"a piece of {length} bytes where at most {self._most} are allowed")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            piece = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield piece

    def take_output(self) -> bytes:
        output, self._output = self._output, b""
        return output

    def _begin(self, mine: bytes, theirs: bytes, hello: bytes, nonce: bytes) -> None:
        self._key_out = _mac(self._secret, _framed(b"cr1|frames of " + mine, hello, nonce))
        self._key_in = _mac(self._secret, _framed(b"cr1|frames of " + theirs, hello, nonce))
        self._most = MOST_AFTER_PROOF
        self.proven = True

    def seal(self, body: bytes) -> bytes:
        """Return the next frame, with ``body``. Raise ``WireError`` if it is too large for the reader."""
        number = _NUMBER.pack(self._sent)
        length = len(number) + len(body) + MAC
        if length > MOST_AFTER_PROOF:
            raise WireError(f"a message of {len(body)} bytes is too large to send")
        self._sent += 1
        signed = number + body
        return _LENGTH.pack(length) + signed + _mac(self._key_out, signed)

    def _open(self, piece: bytes) -> bytes:
        if len(piece) <= _NUMBER.size + MAC:
            raise WireError("a frame without a body")
        signed, mac = piece[:-MAC], piece[-MAC:]
        if not _is_mac(self._key_in, mac, signed):
            raise WireError("a frame whose MAC is wrong")
        if _NUMBER.unpack_from(signed)[0] != self._received:
            raise WireError("a frame that is repeated, missing or out of order")
        self._received += 1
        return signed[_NUMBER.size :]


class ServerEnd(_End):
    """The coordinator's end of one connection.

    ``receive`` takes bytes and returns messages. ``hello`` is set when the agent has proved itself
    (``proven``). ``take_output`` returns the data to send during the handshake.
    """

    def __init__(self, secret: bytes, run_id: str, epoch: int, nonce: bytes) -> None:
        super().__init__(secret)
        self.hello: Hello | None = None
        self._run_id, self._epoch, self._nonce = run_id, epoch, nonce
        self._hello_bytes = b""
        self._greeting: Greeting | None = None

    def receive(self, data: bytes, wall: float) -> list[ToCoordinator]:
        """Return the messages in ``data``.

        Raise ``WireError`` for invalid data. ``wall`` is for the welcome.
        """
        messages: list[ToCoordinator] = []
        for piece in self._pieces(data):
            if self.proven:
                messages.append(read_to_coordinator(self._open(piece)))
            elif self._greeting is None:
                greeting: Greeting = read_document(Greeting, piece)
                reason = self._objection(greeting)
                if reason:
                    proof = _mac(self._secret, _framed(b"cr1|refusal", piece, reason.encode()))
                    self._output = _piece(b"R" + proof + reason.encode())
                    raise WireError(reason)
                self._hello_bytes, self._greeting = piece, greeting
                proof = _mac(self._secret, _framed(b"cr1|coordinator", piece, self._nonce))
                self._output = _piece(b"S" + self._nonce + proof)
            else:
                if not _is_mac(self._secret, piece, _framed(b"cr1|agent", self._hello_bytes, self._nonce)):
                    raise WireError("an agent without the secret")
                clock = _CLOCK.pack(wall)
                welcome = _mac(self._secret, _framed(b"cr1|welcome", self._hello_bytes, self._nonce, clock))
                self._output = _piece(welcome + clock)
                self._begin(b"coordinator", b"agent", self._hello_bytes, self._nonce)
                self.hello = self._greeting.hello if self._greeting else None
        return messages

    def _objection(self, greeting: Greeting) -> str:
        if contract.WIRE not in greeting.wire:
            return f"the coordinator speaks protocol {contract.WIRE}, the agent {greeting.wire[:4]}"
        if greeting.run_id != self._run_id:
            return "the agent is of another run"
        if greeting.epoch != self._epoch:
            return f"the agent is of start {greeting.epoch}, the coordinator of start {self._epoch}"
        if greeting.role != "agent" or len(greeting.nonce) != 2 * NONCE:
            return "the agent's hello is malformed"
        return ""


class ClientEnd(_End):
    """An agent's end of its connection; ``take_output`` holds the hello from the start."""

    def __init__(self, secret: bytes, run_id: str, epoch: int, hello: Hello, nonce: bytes) -> None:
        super().__init__(secret)
        # The coordinator's clock, in seconds, when it sent its welcome.
        self.wall = 0.0
        greeting = Greeting((contract.WIRE,), contract.VERSION, run_id, epoch, "agent", nonce.hex(), hello)
        self._hello_bytes = json.dumps(encode(greeting), separators=(",", ":")).encode()
        if len(self._hello_bytes) > MOST_BEFORE_PROOF:
            raise WireError(f"the hello has {len(self._hello_bytes)} bytes; {MOST_BEFORE_PROOF} are allowed")
        self._nonce = b""
        self._output = _piece(self._hello_bytes)

    def receive(self, data: bytes) -> list[ToAgent]:
        """Return the messages in ``data``. Raise ``Refused``, ``Stranger`` or ``WireError``."""
        messages: list[ToAgent] = []
        for piece in self._pieces(data):
            if self.proven:
                messages.append(read_to_agent(self._open(piece)))
            elif not self._nonce:
                kind, proof = piece[:1], piece[-MAC:]
                if kind == b"R" and len(piece) > MAC:
                    proof, reason = piece[1 : 1 + MAC], piece[1 + MAC :]
                    if _is_mac(self._secret, proof, _framed(b"cr1|refusal", self._hello_bytes, reason)):
                        raise Refused(reason.decode("utf-8", "replace"))
                    raise Stranger("a refusal by somebody who does not know the secret")
                nonce = piece[1:-MAC]
                if kind != b"S" or len(nonce) != NONCE:
                    raise Stranger("an answer that is not of this protocol")
                if not _is_mac(self._secret, proof, _framed(b"cr1|coordinator", self._hello_bytes, nonce)):
                    raise Stranger("an answer by somebody who does not know the secret")
                self._nonce = nonce
                self._output = _piece(_mac(self._secret, _framed(b"cr1|agent", self._hello_bytes, nonce)))
            else:
                proof, clock = piece[:MAC], piece[MAC:]
                welcome = _framed(b"cr1|welcome", self._hello_bytes, self._nonce, clock)
                if len(clock) != _CLOCK.size or not _is_mac(self._secret, proof, welcome):
                    raise Stranger("a welcome by somebody who does not know the secret")
                (self.wall,) = _CLOCK.unpack(clock)
                self._begin(b"agent", b"coordinator", self._hello_bytes, self._nonce)
        return messages
