"""List the active network interfaces of this machine with addresses, MTU, speed and kind."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct

from clusterrun import proc
from clusterrun.preflight.tasks import Interface

_SIOCGIFCONF, _SIOCGIFMTU = 0x8912, 0x8921
# sizeof(struct ifreq) with pointers of 64 bits.
_ENTRY = 40
_MOST = 256
_INFINIBAND = "32"


def interfaces() -> tuple[Interface, ...]:
    """Return one entry per address of each active interface, including the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        room = array.array("B", bytes(_MOST * _ENTRY))
        request = struct.pack("iL", len(room), room.buffer_info()[0])
        size = struct.unpack("iL", fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, request))[0]
        data = room.tobytes()[:size]
        addresses = []
        for index in range(0, size, _ENTRY):
            name_4, address_4 = data[index : index + 16].split(b"\0")[0], data[index + 20 : index + 24]
            addresses.append((name_4.decode(), socket.inet_ntoa(address_4)))
        for line in proc.text("/proc/net/if_inet6").splitlines():
            fields = line.split()
            # A link-local address needs the number of its interface.
            if len(fields) == 6 and fields[3] != "20":
                address_6 = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))
                addresses.append((fields[5], address_6))
        interfaces = []
        for name, address in addresses:
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFMTU, struct.pack("256s", name.encode()[:15]))
                mtu = int(struct.unpack("i", answer[16:20])[0])
            except OSError:
                mtu = 0
            folder = f"/sys/class/net/{name}"
            speed = proc.text(f"{folder}/speed").strip()
            kind = "device" if os.path.exists(f"{folder}/device") else "virtual"
            if name == "lo":
                kind = "loopback"
            elif proc.text(f"{folder}/type").strip() == _INFINIBAND:
                kind = "infiniband"
            elif os.path.isdir(f"{folder}/bridge"):
                kind = "bridge"
            interfaces.append(Interface(name, address, mtu, int(speed) if speed.isdigit() else 0, kind))
        return tuple(interfaces)
