"""Check that variables for NCCL, gloo and torch are equal on all nodes and name existing interfaces."""

from __future__ import annotations

import os
import re

from clusterrun import proc
from clusterrun.model.phrases import some_of
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.majority import outlier_findings
from clusterrun.preflight.probes.network_interfaces import interfaces
from clusterrun.preflight.probes.process_context import variables
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import entries, strings, text

NAME = "environment"
LIMIT = 10.0
LATE = Finding(NAME, Grade.UNDETERMINED, "the environment could not be read within 10 s", "")
PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "UCX_", "FI_", "RDMAV_", "OMP_")
# These may differ: they hold the node's own name, machine or file.
OF_A_NODE = frozenset(
    {"NCCL_HOSTID", "NCCL_TOPO_FILE", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE"}
)
INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
LOOPBACK = "lo"
_MOST, _LONGEST = 200, 500
_UNSET = "not set"
_SAME = (
    "set the same value on all nodes (--env NAME=VALUE); look at the node's own prolog, profile and modules"
)


def probe(request: RunNeeds) -> object:
    """Return the variables by name, and the network interfaces of this node.

    ``addresses`` holds the first address of each active interface, in kernel order, as gloo and NCCL use it.
    ``machine`` is equal on two nodes only if both are the same machine with the same network stack.
    """
    settings = {name: value[:_LONGEST] for name, value in variables().items() if name.startswith(PREFIXES)}
    addresses: dict[str, str] = {}
    for interface in interfaces():
        addresses.setdefault(interface.name, interface.address)
    boot, network = proc.text("/proc/sys/kernel/random/boot_id").strip(), "/proc/self/ns/net"
    return {
        "variables": dict(sorted(settings.items())[:_MOST]),
        "interfaces": sorted(proc.listed("/sys/class/net")),
        "addresses": addresses,
        "machine": f"{boot} {os.stat(network).st_ino}" if boot and os.path.exists(network) else "",
    }


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Fail if a variable names no interface of its node. Warn if the values of nodes differ.

    Ranks without GPUs do not use NCCL, so its variable is a warning.

    A value that is useless on every node is a mistake of the setting, and no node is blamed for it.
    """
    failed: set[tuple[str, str]] = set()
    for name in INTERFACES:
        values = {node: text(reading, "variables", name) for node, reading in readings.items()}
        useless = {}
        for node, value in values.items():
            interfaces = strings(readings[node], "interfaces")
            chosen = [interface for interface in interfaces if _chooses(name, value, interface)]
            if value and interfaces and not chosen:
                useless[node] = f"lacks this interface (it has {', '.join(interfaces[:8])})"
            elif chosen == [LOOPBACK] and value and len(readings) > 1:
                useless[node] = "selects only the loopback, which reaches no other node"
        is_needed = name.startswith("GLOO_") or request.gpus > 0
        grade = Grade.FAIL if is_needed else Grade.WARN
        is_equal = len(set(values.values())) == 1
        if useless and is_equal and len(useless) == len(readings):
            node, why = next(iter(useless.items()))
            message = f"{name}={values[node]}: every node {why}"
            yield "", Finding(NAME, grade, message, _unset(name))
            continue
        for node, why in useless.items():
            failed.add((node, name))
            message = f"{name}={values[node]}: this node {why}"
            yield node, Finding(NAME, grade, message, _unset(name) if is_equal else _SAME)
        yield from _shared(name, readings, is_needed)
    for name in sorted({name for reading in readings.values() for name in entries(reading, "variables")}):
        values = {node: text(reading, "variables", name) or _UNSET for node, reading in readings.items()}
        if name in OF_A_NODE or (len(readings) > 2 and len(set(values.values())) == len(readings)):
            continue  # A value per node is intended.
        for node, finding in outlier_findings(NAME, name, values, Grade.WARN, _SAME):
            if (node, name) not in failed:
                yield node, finding


def _shared(name: str, readings: Readings, is_needed: bool) -> Findings:
    """Report an interface selected by ``name`` that has the same address on several nodes.

    Ranks exchange this address, and each of them then connects to itself. gloo needs all selected
    interfaces, NCCL only the first. ``is_needed`` means that the ranks use that library.
    """
    nodes_by_place: dict[tuple[str, str], dict[str, str]] = {}
    used: set[tuple[str, str]] = set()
    for node, reading in readings.items():
        value, addresses = text(reading, "variables", name), entries(reading, "addresses")
        selected = [word for word in addresses if value and word != LOOPBACK and _chooses(name, value, word)]
        for index, interface in enumerate(selected):
            place = (interface, text(addresses, interface))
            nodes_by_place.setdefault(place, {})[text(reading, "machine") or node] = node
            if index == 0 or name.startswith("GLOO_"):
                used.add(place)
    remedy = _unset(name)
    # The remedy names an interface with a distinct address on every node, if there is one.
    tables = [entries(reading, "addresses") for reading in readings.values()]
    for interface in tables[0] if tables else ():
        addresses_of_nodes = {text(table, interface) for table in tables if interface in table}
        if interface != LOOPBACK and len(addresses_of_nodes) == len(tables):
            remedy += f"; or set it to one whose address differs on every node: {name}={interface}"
            break
    for (interface, address), nodes in nodes_by_place.items():
        if len(nodes) > 1:
            grade = Grade.FAIL if is_needed and (interface, address) in used else Grade.WARN
            listing = some_of(sorted(nodes.values()), 4)
            message = f"{name} chooses {interface}, which has the same address {address} on {listing}"
            message += ": a rank that connects to it reaches itself"
            yield "", Finding(NAME, grade, message, remedy)


def _unset(name: str) -> str:
    return f"unset {name}: clusterrun then sets the interface on which the nodes reach each other"


def _chooses(name: str, value: str, interface: str) -> bool:
    """Return whether ``value`` selects ``interface``.

    gloo matches whole names. NCCL matches prefixes, or whole names after ``=``. ``^`` excludes names.
    """
    exact = name.startswith("GLOO_") or value.lstrip("^").startswith("=")
    names = [word.strip() for word in re.sub(r"^\^?=?", "", value).split(",") if word.strip()]
    hit = any(interface == word if exact else interface.startswith(word) for word in names)
    return not hit if value.startswith("^") else hit
