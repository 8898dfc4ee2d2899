"""The network interfaces of this machine that are up, with addresses, MTU, speed and kind; judges none."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from clusterrun import proc
from clusterrun.preflight.tasks import Interface

_SIOCGIFCONF, _SIOCGIFMTU = 0x8912, 0x8921
_ENTRY = 40
"""sizeof(struct ifreq) where pointers have 64 bits."""
_MOST = 256
_INFINIBAND = "32"


def interfaces() -> tuple[Interface, ...]:
    """One entry for every address of every interface that is up, loopback included."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = [*_version_4(probe), *_version_6()]
        return tuple(
            Interface(name, address, _mtu(probe, name), *_speed_and_kind(name)) for name, address in found
        )


def _version_4(probe: socket.socket) -> list[tuple[str, str]]:
    import array

    room = array.array("B", bytes(_MOST * _ENTRY))
    asked = struct.pack("iL", len(room), room.buffer_info()[0])
    size = struct.unpack("iL", fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, asked))[0]
    data = room.tobytes()[:size]
    entries = (data[at : at + _ENTRY] for at in range(0, size, _ENTRY))
    return [(entry[:16].split(b"\0")[0].decode(), socket.inet_ntoa(entry[20:24])) for entry in entries]


def _version_6() -> list[tuple[str, str]]:
    found = []
    for line in proc.text("/proc/net/if_inet6").splitlines():
        words = line.split()
        if len(words) == 6 and words[3] != "20":  # link-local addresses need their interface's number
            found.append((words[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))))
    return found


def _mtu(probe: socket.socket, name: str) -> int:
    try:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFMTU, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return 0
    return int(struct.unpack("i", answer[16:20])[0])


def _speed_and_kind(name: str) -> tuple[int, str]:
    folder = f"/sys/class/net/{name}"
    word = proc.text(f"{folder}/speed").strip()
    kind = "device" if os.path.exists(f"{folder}/device") else "virtual"
    if name == "lo":
        kind = "loopback"
    elif proc.text(f"{folder}/type").strip() == _INFINIBAND:
        kind = "infiniband"
    elif os.path.isdir(f"{folder}/bridge"):
        kind = "bridge"
    return int(word) if word.isdigit() else 0, kind
