"""What steers NCCL, gloo and torch in the environment: equal on all nodes, and of interfaces that exist."""

from __future__ import annotations

import os
import re

from clusterrun.model.report import Finding, Grade
from clusterrun.preflight.majority import unlike
from clusterrun.preflight.parts import entries, text, words
from clusterrun.preflight.surroundings import variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from clusterrun.preflight.tasks import Asked

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


def probe(asked: Asked) -> object:
    """The variables by name, and the network interfaces of this node."""
    found = {name: value[:_LONGEST] for name, value in variables().items() if name.startswith(PREFIXES)}
    return {"variables": dict(sorted(found.items())[:_MOST]), "interfaces": _interfaces()}


def _interfaces() -> list[str]:
    try:
        return sorted(os.listdir("/sys/class/net"))
    except OSError:
        return []


def judge(asked: Asked, readings: Mapping[str, Any]) -> Iterator[tuple[str, Finding]]:
    """Fail where a variable names no interface of its node; warn where nodes have different values."""
    failed: set[tuple[str, str]] = set()
    for node, reading in readings.items():
        for name in INTERFACES:
            why = _useless(
                name, text(reading, "variables", name), words(reading, "interfaces"), len(readings)
            )
            if why:
                failed.add((node, name))
                said = f"{name}={text(reading, 'variables', name)}: {why}"
                yield node, Finding(NAME, Grade.FAIL, said, _SAME)
    for name in sorted({name for reading in readings.values() for name in entries(reading, "variables")}):
        values = {node: text(reading, "variables", name) or _UNSET for node, reading in readings.items()}
        if name in OF_A_NODE or (len(readings) > 2 and len(set(values.values())) == len(readings)):
            continue  # one for each node: it is meant so
        unequal = unlike(NAME, name, values, Grade.WARN, _SAME)
        yield from (one for one in unequal if (one[0], name) not in failed)


def _useless(name: str, value: str, interfaces: list[str], nodes: int) -> str:
    """Why ranks could not meet on the interfaces that ``value`` chooses; empty where they may."""
    if not value or not interfaces:
        return ""
    chosen = [interface for interface in interfaces if _chooses(name, value, interface)]
    if not chosen:
        shown = ", ".join(interfaces[:8])
        return f"this node has no such interface (it has {shown})"
    if chosen == [LOOPBACK] and nodes > 1:
        return "the loopback reaches no other node"
    return ""


def _chooses(name: str, value: str, interface: str) -> bool:
    """NCCL's rules: ``^`` excludes, ``=`` is exact, else names are beginnings; gloo's names are exact."""
    exact = name.startswith("GLOO_") or value.lstrip("^").startswith("=")
    names = [word.strip() for word in re.sub(r"^\^?=?", "", value).split(",") if word.strip()]
    hit = any(interface == word if exact else interface.startswith(word) for word in names)
    return not hit if value.startswith("^") else hit
