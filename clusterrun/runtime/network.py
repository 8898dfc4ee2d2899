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
        for address in _resolved(name):
            if not address.startswith(("127.", "::1", "fe80:")) and _is_mine(address):
                return address
    return _way_out() or _LOOPBACK


def _resolved(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    # IPv4 first: every tool that ranks use can take it.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return [str(entry[4][0]) for entry in found]


def _is_mine(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    probe = socket.socket(family, socket.SOCK_STREAM)
    try:
        probe.bind((address, 0))
    except OSError:
        return False
    finally:
        probe.close()
    return True


def _way_out() -> str:
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        probe.connect((_ELSEWHERE, 9))
        return str(probe.getsockname()[0])
    except OSError:
        return ""
    finally:
        probe.close()


def interface_of(address: str) -> str:
    """The name of the interface that has ``address``; '' where none is found."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        return next((name for _, name in socket.if_nameindex() if _has(probe, name, address)), "")
    finally:
        probe.close()


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
    try:
        holder = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return _bound(socket.socket(socket.AF_INET, socket.SOCK_STREAM), "0.0.0.0")
    try:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return _bound(holder, "::")
    except OSError:  # IPv6 is compiled in but switched off
        holder.close()
        return _bound(socket.socket(socket.AF_INET, socket.SOCK_STREAM), "0.0.0.0")


def _bound(holder: socket.socket, address: str) -> socket.socket:
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((address, 0))
    return holder
