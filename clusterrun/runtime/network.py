"""Find the address and interface by which other machines reach this one, and reserve a port for rank 0."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress

_SIOCGIFADDR = 0x8915
_LOOPBACK = "127.0.0.1"
# An address that exists nowhere (RFC 5737). A query for its route sends no packet.
_ELSEWHERE = "192.0.2.1"


def reachable(names: tuple[str, ...]) -> str:
    """Return the address by which other machines reach this one: that of its name, else of its default route.

    A name that resolves to a loopback address, or to another machine, is skipped.
    """
    for name in names:
        for address in addresses(name):
            if not address.startswith(("127.", "::1", "fe80:")) and _is_mine(address):
                return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_ELSEWHERE, 9))
            return str(probe.getsockname()[0]) or _LOOPBACK
        except OSError:
            return _LOOPBACK


def addresses(name: str) -> list[str]:
    """Return the addresses of ``name``; empty if it does not resolve."""
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    # IPv4 first, because every tool of the ranks supports it.
    entries.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return [str(entry[4][0]) for entry in entries]


def _is_mine(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        _bound(family, address, 0, socket.SOCK_STREAM, reuse=False).close()
    except OSError:
        return False
    return True


def interface_of(address: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                query = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, query)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


def held_port() -> socket.socket:
    """Return a socket that is bound to a free port on every address and does not listen.

    No other process gets the port by chance while it is bound. Only a program that sets SO_REUSEADDR, as
    rank 0's store does, can listen on it. Close the socket to release the port. Raise ``OSError``.
    """
    return bound(0, reuse=True)


def bound(port: int, kind: int = socket.SOCK_STREAM, reuse: bool = False) -> socket.socket:
    """Return a socket on every address, of IPv6 too if it is available. Raise ``OSError``."""
    try:
        return _bound(socket.AF_INET6, "::", port, kind, reuse)
    except OSError:  # IPv6 is missing or disabled, or the port is in use
        return _bound(socket.AF_INET, "0.0.0.0", port, kind, reuse)


def _bound(family: int, address: str, port: int, kind: int, reuse: bool) -> socket.socket:
    bound_socket = socket.socket(family, kind)
    try:
        bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        if family == socket.AF_INET6:
            bound_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound_socket.bind((address, port))
    except OSError:
        bound_socket.close()
        raise
    return bound_socket
