"""The variables that set up NCCL, gloo and torch: equal on all nodes, and naming interfaces that exist."""

from __future__ import annotations

import os
import re

from clusterrun import proc
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.majority import outlier_findings, some_of
from clusterrun.preflight.node.network_interfaces import interfaces
from clusterrun.preflight.probes.process_context import variables
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import entries, text, words

NAME = "environment"
LIMIT = 10.0
LATE = Finding(NAME, Grade.UNDETERMINED, "the environment could not be read within 10 s", "")
PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "UCX_", "FI_", "RDMAV_", "OMP_")
OF_A_NODE = frozenset(
    {"NCCL_HOSTID", "NCCL_TOPO_FILE", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE"}
)
"""These may well differ: they tell a node's own name, machine or file."""
INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
LOOPBACK = "lo"
_MOST, _LONGEST = 200, 500
_UNSET = "not set"
_SAME = "set it for all nodes alike (--env NAME=VALUE); look at the node's own prolog, profile and modules"


def probe(request: RunNeeds) -> object:
    """The variables by name, and the network interfaces of this node.

    ``addresses``: the first of each interface that is up, in the kernel's order, as gloo and NCCL use it.
    ``machine``: equal on two nodes only where both are the same machine and the same network stack.
    """
    found = {name: value[:_LONGEST] for name, value in variables().items() if name.startswith(PREFIXES)}
    addresses: dict[str, str] = {}
    for one in interfaces():
        addresses.setdefault(one.name, one.address)
    boot, network = proc.text("/proc/sys/kernel/random/boot_id").strip(), "/proc/self/ns/net"
    return {
        "variables": dict(sorted(found.items())[:_MOST]),
        "interfaces": sorted(proc.listed("/sys/class/net")),
        "addresses": addresses,
        "machine": f"{boot} {os.stat(network).st_ino}" if boot and os.path.exists(network) else "",
    }


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Fail where a variable names no interface of its node; warn where nodes have different values."""
    failed: set[tuple[str, str]] = set()
    for node, reading in readings.items():
        for name in INTERFACES:
            value = text(reading, "variables", name)
            why = _useless(name, value, words(reading, "interfaces"), len(readings))
            if why:
                failed.add((node, name))
                yield node, Finding(NAME, Grade.FAIL, f"{name}={value}: {why}", _SAME)
    for name in INTERFACES:
        yield from _shared(name, readings, needed=name.startswith("GLOO_") or request.gpus > 0)
    for name in sorted({name for reading in readings.values() for name in entries(reading, "variables")}):
        values = {node: text(reading, "variables", name) or _UNSET for node, reading in readings.items()}
        if name in OF_A_NODE or (len(readings) > 2 and len(set(values.values())) == len(readings)):
            continue  # one for each node: it is meant so
        unequal = outlier_findings(NAME, name, values, Grade.WARN, _SAME)
        yield from (one for one in unequal if (one[0], name) not in failed)


def _useless(name: str, value: str, interfaces: list[str], nodes: int) -> str:
    """Why ranks could not meet on the interfaces that ``value`` chooses; empty if they may."""
    if not value or not interfaces:
        return ""
    chosen = [interface for interface in interfaces if _chooses(name, value, interface)]
    if not chosen:
        return f"this node has no such interface (it has {', '.join(interfaces[:8])})"
    return "the loopback reaches no other node" if chosen == [LOOPBACK] and nodes > 1 else ""


def _shared(name: str, readings: Readings, needed: bool) -> Findings:
    """Fail all together where ``name`` chooses an interface that has one address on several nodes.

    Ranks tell each other this address, and each of them then connects to itself. Of several interfaces gloo
    needs all, NCCL the first; ``needed``: the ranks use that library.
    """
    holders: dict[tuple[str, str], dict[str, str]] = {}
    first: set[tuple[str, str]] = set()
    for node, reading in readings.items():
        value = text(reading, "variables", name)
        known = entries(reading, "addresses")
        chosen = [one for one in known if value and one != LOOPBACK and _chooses(name, value, one)]
        for place, one in enumerate(chosen):
            key = (one, text(known, one))
            holders.setdefault(key, {})[text(reading, "machine") or node] = node
            first |= {key} if place == 0 or name.startswith("GLOO_") else set()
    for (interface, address), nodes in holders.items():
        if len(nodes) > 1:
            grade = Grade.FAIL if needed and (interface, address) in first else Grade.WARN
            shown = some_of(sorted(nodes.values()), 4)
            said = f"{name} chooses {interface}, which has the same address {address} on {shown}"
            said += ": a rank that connects to it reaches itself"
            yield "", Finding(NAME, grade, said, _own(name, readings))


def _own(name: str, readings: Readings) -> str:
    """Which interfaces have an address of its own on every node, and how to choose one."""
    tables = [entries(reading, "addresses") for reading in readings.values()]
    common = [one for one in tables[0] if one != LOOPBACK and all(one in table for table in tables)]
    own = [one for one in common if len({text(table, one) for table in tables}) == len(tables)]
    leave = f"unset {name}: clusterrun then sets the interface on which the nodes reach each other"
    choose = f"; or set it to one whose address differs on every node: {name}={own[0]}" if own else ""
    return leave + choose


def _chooses(name: str, value: str, interface: str) -> bool:
    """NCCL's rules: ``^`` excludes, ``=`` is exact, else names are beginnings; gloo's names are exact."""
    exact = name.startswith("GLOO_") or value.lstrip("^").startswith("=")
    names = [word.strip() for word in re.sub(r"^\^?=?", "", value).split(",") if word.strip()]
    hit = any(interface == word if exact else interface.startswith(word) for word in names)
    return not hit if value.startswith("^") else hit
