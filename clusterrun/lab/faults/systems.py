"""Faults of one host's system, by mounts that only it sees: wrong name or clock, full or read-only disk."""

from __future__ import annotations

import ipaddress
import re
import signal
from pathlib import Path

from clusterrun.lab import daemons
from clusterrun.lab.faults.kinds import FaultType
from clusterrun.lab.namespaces import LabError, wait_for
from clusterrun.lab.place import Fault
from clusterrun.lab.processes import chosen, processes, send
from clusterrun.lab.site import LabSite
from clusterrun.model.errors import BadInput

OFFSET = re.compile(r"([+-]?\d+(?:\.\d+)?)(s|m|h|d)?")
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DISK = "size=256k,nr_inodes=64,mode=755"
LIBRARY = "libfaketimeMT.so.1"


# --- name -----------------------------------------------------------------------------------------


def wrong_name(site: LabSite, fault: Fault) -> Fault:
    site.host(fault.get("name"))
    try:
        ipaddress.IPv4Address(fault.get("address"))
    except ValueError as error:
        raise BadInput(
            f"{fault.get('address')!r} is not an IPv4 address", "write it as in 10.100.0.9"
        ) from error
    _write_hosts(site, fault.host, fault)
    return fault


def _write_hosts(site: LabSite, host: str, new: Fault | None, but: Fault | None = None) -> None:
    """Write /etc/hosts again, for one host or (no host) for all, with every such fault still in force."""
    layout = site.state.layout
    faults = [f for f in site.state.faults if f.kind == "name" and f.host == host and f != but]
    all_faults = [*faults, new] if new else faults
    wrong = {fault.get("name"): fault.get("address") for fault in all_faults}
    right = {host.address: host.name for host in layout.hosts.values()}
    lines = []
    for line in layout.lines():
        address, name = line.split()
        if address in right:
            address = wrong.get(name, address)
        lines.append(f"{address} {name}")
    text = "\n".join(lines) + "\n"
    target = f"{site.state.root}/etc/hosts"
    if not host:
        site.router_writes(target, text)
        return
    own = _own_file(site, host, "hosts")
    own.write_text(text)
    if not faults and new is None:
        site.on_outside_root(host, "umount", target)
    # The mounts as seen from that host's own root.
    elif " /etc/hosts " not in Path(f"/proc/{site.first(host)}/mounts").read_text():
        site.on_outside_root(host, "mount", "--bind", str(own), target)


def _own_file(site: LabSite, host: str, name: str) -> Path:
    folder = site.place.host(host)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


# --- clock ----------------------------------------------------------------------------------------


def wrong_clock(site: LabSite, fault: Fault) -> Fault:
    match = OFFSET.fullmatch(fault.get("offset"))
    if match is None:
        raise BadInput(f"--offset {fault.get('offset')!r} is not a duration", "write it as in 90s, -10m, +1h")
    seconds = float(match[1]) * SECONDS[match[2] or "s"]
    root = Path(site.state.root or "/")
    folders = ("usr/lib/*/faketime", "usr/lib*/faketime")
    libraries = [path for folder in folders for path in sorted(root.glob(f"{folder}/{LIBRARY}"))]
    if not libraries:
        raise LabError("a host's clock cannot be moved without libfaketime", "apt-get install libfaketime")
    library = libraries[0].relative_to(root)
    contents = {"ld.so.preload": f"/{library}\n", "faketimerc": f"{seconds:+g}\n"}
    for name, text in contents.items():
        own = _own_file(site, fault.host, name)
        own.write_text(text)
        site.on_outside_root(fault.host, "mount", "--bind", str(own), f"{site.state.root}/etc/{name}")
    _restart_slurmd(site, fault.host)
    return fault


def right_clock(site: LabSite, fault: Fault) -> None:
    for name in ("ld.so.preload", "faketimerc"):
        site.on_outside_root(fault.host, "umount", f"{site.state.root}/etc/{name}")
    _restart_slurmd(site, fault.host)


def _restart_slurmd(site: LabSite, host: str) -> None:
    """Let the node's slurmd start under the clock that the host now has; its jobs continue."""
    if host not in site.state.layout.node_names:
        return
    daemons_found = chosen(processes({host: site.first(host)}), "slurmd")
    send(daemons_found, signal.SIGTERM)
    if not wait_for(lambda: not any(Path(f"/proc/{p.process}").exists() for p in daemons_found), 10.0):
        send(daemons_found, signal.SIGKILL)
    daemons.start_slurmd(site.place, site.state, host)


# --- disk -----------------------------------------------------------------------------------------


def fill(site: LabSite, fault: Fault) -> Fault:
    target = fault.get("path")
    _check_folder(site, fault.host, target)
    number = 1 + sum(f.kind == "disk-full" and f.host == fault.host for f in site.state.faults)
    disk = _own_file(site, fault.host, f"disk{number}")
    disk.mkdir(exist_ok=True)
    inside = f"{site.state.root}{target}"
    site.on_outside_root(fault.host, "mount", "-t", "tmpfs", "-o", DISK, "full", str(disk))
    site.on_outside_root(fault.host, "mkdir", f"{disk}/upper", f"{disk}/work")
    site.on_outside_root(fault.host, "chmod", "--reference", inside, f"{disk}/upper")
    site.on_outside_root(fault.host, "chown", "--reference", inside, f"{disk}/upper")
    layers = f"lowerdir={inside},upperdir={disk}/upper,workdir={disk}/work"
    # Existing files stay readable. Every write goes to a disk without free space.
    site.on_outside_root(fault.host, "mount", "-t", "overlay", "-o", layers, "full", inside)
    site.on_outside_root(fault.host, "sh", "-c", f"cat /dev/zero >'{disk}/fill' 2>/dev/null || :")
    return fault.with_details(disk=str(disk))


def _check_folder(site: LabSite, host: str, target: str) -> None:
    try:
        site.on(host, "test", "-d", target)
    except LabError as error:
        raise BadInput(f"{target!r} is not a folder", "name an existing one by its full path") from error
    if not target.startswith("/"):
        raise BadInput(f"{target!r} is not a full path", "begin it with /")


def unmount(site: LabSite, fault: Fault) -> None:
    for target in filter(None, (f"{site.state.root}{fault.get('path')}", fault.get("disk"))):
        site.on_outside_root(fault.host, "umount", "--lazy", target)


# --- read-only ------------------------------------------------------------------------------------


def lock(site: LabSite, fault: Fault) -> Fault:
    _check_folder(site, fault.host, fault.get("path"))
    inside = f"{site.state.root}{fault.get('path')}"
    site.on_outside_root(fault.host, "mount", "--bind", inside, inside)
    site.on_outside_root(fault.host, "mount", "-o", "remount,bind,ro", inside)
    return fault


KINDS = (
    FaultType(
        "name",
        frozenset({"name", "address"}),
        wrong_name,
        lambda site, fault: _write_hosts(site, fault.host, None, but=fault),
        needs_host=False,
        lives_in_host=True,
    ),
    FaultType("clock", frozenset({"offset"}), wrong_clock, right_clock, alone=True, lives_in_host=True),
    FaultType("disk-full", frozenset({"path"}), fill, unmount, lives_in_host=True),
    FaultType("read-only", frozenset({"path"}), lock, unmount, lives_in_host=True),
)
