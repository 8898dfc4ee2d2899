"""Make the namespaces of a lab and its hosts. This is a separate program that knows nothing of Slurm.

It imports nothing of the package, so that `python -I -S boot.py` starts in 20 ms.

A *host* is a set of namespaces (network, mounts, host name, IPC, processes) kept alive by its
process 1, a small shell that reaps orphans. The *keeper* is process 1 of the lab and the router
of its network; every host's processes are a child namespace of its own, so the end of the keeper
is the end of everything the lab ever started. No namespace is pinned in a file system.

Requests come as JSON lines on stdin. Every process 1 reports itself with one datagram on the
socket whose number is the first argument; its process id, as the asker sees it, comes with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

NEW_USER = 0x10000000
NEW_PROCESSES = 0x20000000
# Mounts, host name, IPC, network.
NEW_REST = 0x20000 | 0x4000000 | 0x8000000 | 0x40000000
NO_SUID, NO_DEV, NO_EXEC = 2, 4, 8
BIND, RECURSIVE, PRIVATE = 4096, 16384, 1 << 18
# Hosts that are made together. One `ip -batch` joins their links to the router.
AT_ONCE = 32
# The program of every process 1: it waits, and collects orphans of its namespace.
REAPER = 'trap : TERM INT HUP; while :; do sleep 86400 & wait "$!"; done'
IP_LIMIT_SECONDS = 300.0

_libc = ctypes.CDLL(None, use_errno=True)

Request = dict[str, Any]


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "making namespaces")


def _mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode() or None
    )
    _check(result, f"mounting {kind or source} on {target}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _ip(commands: list[str]) -> None:
    lines, limit = "\n".join(commands) + "\n", IP_LIMIT_SECONDS
    result = subprocess.run(["ip", "-batch", "-"], input=lines, capture_output=True, text=True, timeout=limit)
    if result.returncode != 0:
        raise OSError(0, f"ip: {result.stderr.strip()}")


def _without_ipv6() -> None:
    for scope in ("all", "default"):
        with contextlib.suppress(FileNotFoundError):
            _write(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6", "1")


def _own_proc_and_sys(root: str, cgroups: str) -> None:
    """Let /proc and /sys show this host's processes and links, and keep the cgroup tree in sight."""
    _mount("proc", f"{root}/proc", "proc", NO_SUID | NO_DEV | NO_EXEC)
    try:
        _mount("sysfs", f"{root}/sys", "sysfs", NO_SUID | NO_DEV | NO_EXEC)
    except OSError:
        return  # some containers forbid it: then the machine's own /sys stays in sight
    if os.path.isdir(cgroups):
        _mount(cgroups, f"{root}/sys/fs/cgroup", flags=BIND | RECURSIVE)


def _report(report: int, host: str, error: str = "") -> None:
    with socket.socket(fileno=os.dup(report)) as line:
        line.send(json.dumps({"host": host, "error": error}).encode())


def _become_reaper(state: str, host: str) -> NoReturn:
    _to_null(0, 1, 2)
    os.closerange(3, 4096)
    os.chdir("/")
    os.execve("/bin/sh", ["clusterrun-lab", "-c", REAPER, host, state], {"PATH": "/usr/bin:/bin"})


def _to_null(*descriptors: int) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)


def _child(body: Callable[[], None]) -> int:
    """Fork. The child runs ``body`` and ends; the parent gets the child's id."""
    process = os.fork()
    if process:
        return process
    try:
        body()
    except SystemExit:
        os._exit(1)
    except BaseException:  # noqa: BLE001 (a forked child must never return into its parent's code)
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _serve(service: Request) -> None:
    """Start one daemon of a host, in a session and with a log file of its own."""

    def become() -> None:
        os.setsid()
        log = os.open(service["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        _to_null(0)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.closerange(3, 4096)
        os.execvpe(service["argv"][0], service["argv"], service["environment"])

    _child(become)


def _keep(keeper: Request, report: int, ready: int) -> NoReturn:
    try:
        os.setsid()
        socket.sethostname("router")
        # Mount another Slurm over /usr, or the machine's shared folders into another root.
        if keeper["graft"]:
            _mount("lab", "/usr", "overlay", 0, f"lowerdir={keeper['graft']}/usr:/usr")
        for path in keeper["shared"]:
            target = keeper["root"] + path
            os.makedirs(target, exist_ok=True)
            _mount(path, target, flags=BIND | RECURSIVE)
        # Mount the lab's own hosts, passwd, … over /etc, in the lab's mounts only.
        place = keeper["mounts"]
        _mount("lab", place, "tmpfs", NO_SUID, "mode=755")
        subprocess.run(["cp", "-a", keeper["etc"], f"{place}/etc"], check=True, timeout=60)
        for folder in ("work", "cgroup"):
            os.mkdir(f"{place}/{folder}")
        below = keeper["root"] + "/etc"
        _mount("lab", below, "overlay", 0, f"lowerdir={below},upperdir={place}/etc,workdir={place}/work")
        if os.path.isdir("/sys/fs/cgroup"):
            _mount("/sys/fs/cgroup", f"{keeper['mounts']}/cgroup", flags=BIND | RECURSIVE)
        _own_proc_and_sys("", f"{keeper['mounts']}/cgroup")
        for path in keeper["devices"]:
            _mount("/dev/null", path, flags=BIND)
        _without_ipv6()
        _write("/proc/sys/net/ipv4/ip_forward", "1")
        # Packets to a host that is switched off vanish, as they do on a real network.
        _ip(["link set lo up", f"route add blackhole {keeper['network']}"])
        _report(report, "")
        os.write(ready, b"1")
    except (OSError, subprocess.SubprocessError) as error:
        _report(report, "", f"the lab's router: {error}")
        os._exit(1)
    _become_reaper(keeper["state"], "keeper")


def _link(host: Request, gateway: str) -> None:
    """Join this (new) network namespace to the router, with addresses that need no ARP."""
    _ip(
        [
            "link set lo up",
            f"link add eth0 address {host['mac']} type veth peer name {host['link']}"
            f" address {host['router_mac']} netns 1",
            "link set eth0 up",
            f"addr add {host['address']}/32 dev eth0",
            f"neigh add {gateway} lladdr {host['router_mac']} dev eth0 nud permanent",
            f"route add {gateway} dev eth0",
            f"route add default via {gateway} dev eth0",
        ]
    )


def _start_host(host: Request, lab: Request, report: int, go: tuple[int, int]) -> None:
    try:
        _unshare(NEW_REST)
        socket.sethostname(host["name"])
        _without_ipv6()
        _link(host, lab["gateway"])
        # This comes last: the next child becomes process 1, and that must not be `ip`.
        _unshare(NEW_PROCESSES)
    except (OSError, subprocess.SubprocessError) as error:
        _report(report, host["name"], f"{host['name']}: {error}")
        raise SystemExit(1) from error
    if os.fork() == 0:
        os.close(go[1])
        try:
            os.setsid()
            _own_proc_and_sys(lab["root"], f"{lab['mounts']}/cgroup")
            _mount("shm", f"{lab['root']}/dev/shm", "tmpfs", NO_SUID | NO_DEV, "mode=1777")
            for source, target in host["binds"]:
                if os.path.exists(lab["root"] + target):
                    _mount(source, lab["root"] + target, flags=BIND | RECURSIVE)
            if lab["root"]:
                os.chroot(lab["root"])
            os.read(go[0], 1)
            for service in host["services"]:
                _serve(service)
            _report(report, host["name"])
        except OSError as error:
            _report(report, host["name"], f"{host['name']}: {error}")
            os._exit(1)
        _become_reaper(lab["state"], host["name"])


def _start_hosts(hosts: list[Request], lab: Request, report: int) -> None:
    for first in range(0, len(hosts), AT_ONCE):
        batch = hosts[first : first + AT_ONCE]
        go = os.pipe()
        beginners = [_child(partial(_start_host, host, lab, report, go)) for host in batch]
        codes = [os.waitpid(process, 0)[1] for process in beginners]
        if any(codes):
            raise SystemExit(1)
        lines = []
        for host in batch:
            link, address = host["link"], host["address"]
            lines.append(f"link set {link} up")
            lines.append(f"addr add {lab['gateway']}/32 dev {link}")
            lines.append(f"neigh add {address} lladdr {host['mac']} dev {link} nud permanent")
            lines.append(f"route add {address} dev {link}")
        _ip(lines)
        for end in go:
            os.close(end)


def main() -> None:
    """Answer requests until stdin ends."""
    report = int(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        if "keeper" in request:
            keeper = request["keeper"]
            if keeper["map_user"]:
                inner, user, group = keeper["map_user"]
                _unshare(NEW_USER)
                _write("/proc/self/setgroups", "deny")
                _write("/proc/self/uid_map", f"{inner} {user} 1")
                _write("/proc/self/gid_map", f"{inner} {group} 1")
            _unshare(NEW_REST | NEW_PROCESSES)
            _mount("none", "/", flags=RECURSIVE | PRIVATE)
            end, ready = os.pipe()
            if os.fork() == 0:
                _keep(keeper, report, ready)
            os.close(ready)
            if os.read(end, 1) != b"1":
                raise SystemExit(1)
            os.close(end)
        hosts, lab = request.get("hosts", ()), request.get("lab", {})
        if hosts:
            if request.get("again"):
                # Remove old cables: a cable outlives its host for a moment, and one without a complete host
                # forever.
                # Usually there are none. If a cable cannot be removed, creating it again reports the reason.
                lines = "".join(f"link del {host['link']}\n" for host in hosts)
                command = ["ip", "-force", "-batch", "-"]
                limit = IP_LIMIT_SECONDS
                subprocess.run(command, input=lines, capture_output=True, text=True, timeout=limit)
            worker = _child(partial(_start_hosts, hosts, lab, report))
            if os.waitpid(worker, 0)[1]:
                raise SystemExit(1)


if __name__ == "__main__":
    main()
