"""HMAC-SHA256 with a key that is set up once; knows what it is good for as little as the key does.

The same function as ``hmac.digest``, whose import costs an agent a tenth of its start: it loads all
of OpenSSL. A prepared key is quicker too, and every frame needs one.
"""

from __future__ import annotations

from _operator import _compare_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha256
else:
    try:
        from _sha2 import sha256
    except ImportError:  # before Python 3.12
        try:
            from _sha256 import sha256
        except ImportError:  # a Python that was built without hashes of its own
            from hashlib import sha256

SIZE = 32
_BLOCK = 64
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


class Key:
    """A secret of at most 64 bytes, ready for use."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) > _BLOCK:
            raise ValueError("a key has at most 64 bytes")
        padded = secret.ljust(_BLOCK, b"\0")
        self._inner = sha256(padded.translate(_INNER))
        self._outer = sha256(padded.translate(_OUTER))

    def mac(self, message: bytes) -> bytes:
        """The 32 bytes that only a holder of the key can make for ``message``."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.digest()

    def made(self, mac: bytes, message: bytes) -> bool:
        """Whether ``mac`` is that of ``message``; takes as long for every wrong one."""
        return _compare_digest(self.mac(message), mac)
