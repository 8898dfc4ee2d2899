"""Somebody else's process on the cluster's network: finds, overhears, attacks a port without its key.

stranger.py find                     the port on which a coordinator listens on this host
stranger.py overhear PORT SECONDS    what clients said to that port, in hex, one line for each connection
stranger.py attack HOST PORT SECONDS SAID…    everything a stranger can do, with SAID replayed; counts
"""

import json
import os
import select
import socket
import struct
import sys
import time

MOST = 60


def find() -> int:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    if b"\0coordinate\0" not in file.read():
                        continue
                mine = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
            except OSError:
                continue
            with open("/proc/net/tcp") as table:
                lines = table.read().splitlines()[1:]
            for line in lines:
                tokens = line.split()
                if tokens[3] == "0A" and f"socket:[{tokens[9]}]" in mine:
                    return int(tokens[1].split(":")[1], 16)
        time.sleep(0.01)
    return 0


def overhear(port: int, seconds: float) -> list[str]:
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    print("listening", flush=True)
    messages: dict[int, dict[int, bytes]] = {}
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0 and select.select([wire], [], [], remaining)[0]:
        packet = wire.recv(65536)[14:]
        if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != 6:
            continue
        segment = packet[4 * (packet[0] & 15) : struct.unpack(">H", packet[2:4])[0]]
        source, target, number = struct.unpack(">HHI", segment[:8])
        data = segment[4 * (segment[12] >> 4) :]
        if target == port and data:
            messages.setdefault(source, {})[number] = data
    return [b"".join(data for _, data in sorted(parts.items())).hex() for parts in messages.values()]


OPENINGS = (
    *(b"", b"\xff\xff\xff\xff" * 200, b"\x00\x00\x00\x00", b"\x00\x00\x02\x01", b"\x80\x00\x00\x00"),
    *(
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x02{}",
        b"\x00\x00\x00\x04null",
        b"\x16\x03\x01\x02\x00" * 99,
    ),
    *(b"\x00\x00\x01\x00" + b"[" * 256, b"\x00\x00\x00\x10" + b"\xff" * 16, os.urandom(4096)),
)


def attack(host: str, port: int, seconds: float, message: list[bytes]) -> dict[str, int]:
    """Open as many connections as fast as possible. They stall, drip, babble, mirror and replay."""
    poll = select.poll()
    open_now: dict[int, tuple[socket.socket, bool]] = {}
    counts = {"connections": 0, "closed": 0, "bytes": 0}
    openings = (*OPENINGS, *message)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        while len(open_now) < MOST:
            peer = socket.socket()
            peer.settimeout(1)
            try:
                peer.connect((host, port))
                peer.sendall(openings[counts["connections"] % len(openings)])
            except OSError:
                peer.close()
                break
            peer.setblocking(False)
            open_now[peer.fileno()] = peer, bool(counts["connections"] % 2)
            poll.register(peer, select.POLLIN)
            counts["connections"] += 1
        for fd, _ in poll.poll(20):
            peer, mirrors = open_now[fd]
            try:
                data = peer.recv(65536)
                counts["bytes"] += len(data)
                if data and mirrors:
                    peer.sendall(data)
            except OSError:
                data = b""
            if not data:
                poll.unregister(fd)
                del open_now[fd]
                peer.close()
                counts["closed"] += 1
    return counts


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "find":
        print(find())
    elif what == "overhear":
        print("\n".join(overhear(int(rest[0]), float(rest[1]))))
    else:
        print(json.dumps(attack(rest[0], int(rest[1]), float(rest[2]), list(map(bytes.fromhex, rest[3:])))))
