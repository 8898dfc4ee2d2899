"""The address and interface by which others reach this machine, and a port kept free for rank 0."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_LOOPBACK = "127.0.0.1"
_ELSEWHERE = "192.0.2.1"
"""An address that exists nowhere (RFC 5737): asking for the way there sends nothing."""


def reachable(names: tuple[str, ...]) -> str:
    """The address by which other machines reach this one: that of its name, else that of its way out.

    A name that resolves to a loopback address, or to another machine, is passed over.
    """
    for name in names:
        for address in addresses(name):
            if not address.startswith(("127.", "::1", "fe80:")) and _is_mine(address):
                return address
    return _way_out() or _LOOPBACK


def addresses(name: str) -> list[str]:
    """To what ``name`` resolves; nothing if it does not."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    # IPv4 first: every tool that ranks use can take it.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return [str(entry[4][0]) for entry in found]


def _is_mine(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        _bound(family, address, 0, socket.SOCK_STREAM, reuse=False).close()
    except OSError:
        return False
    return True


def _way_out() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_ELSEWHERE, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return ""


def interface_of(address: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return next((name for _, name in socket.if_nameindex() if _has(probe, name, address)), "")


def _has(probe: socket.socket, name: str, address: str) -> bool:
    try:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return False
    return socket.inet_ntoa(answer[20:24]) == address


def held_port() -> socket.socket:
    """A socket bound to a free port on every address, not listening; close it to give the port back.

    While it is bound, nobody gets the port by chance, and only a program that sets SO_REUSEADDR,
    as rank 0's store does, can bind and listen on it. Raises ``OSError``.
    """
    return bound(0, reuse=True)


def bound(port: int, kind: int = socket.SOCK_STREAM, reuse: bool = False) -> socket.socket:
    """A socket on every address, of IPv6 too where there is such a thing. Raises ``OSError``."""
    try:
        return _bound(socket.AF_INET6, "::", port, kind, reuse)
    except OSError:  # IPv6 is not there or switched off, or the port is taken
        return _bound(socket.AF_INET, "0.0.0.0", port, kind, reuse)


def _bound(family: int, address: str, port: int, kind: int, reuse: bool) -> socket.socket:
    one = socket.socket(family, kind)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        one.bind((address, port))
    except OSError:
        one.close()
        raise
    return one
