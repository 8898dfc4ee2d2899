"""The names of the nodes: each node must resolve them to their addresses, and soon."""

from __future__ import annotations

import socket
import threading
import time

from clusterrun.model.phrases import some_of
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.probes.network_interfaces import interfaces
from clusterrun.preflight.probes.run_program import document
from clusterrun.preflight.tasks import Findings, ProbeReading, Readings, RunNeeds
from clusterrun.preflight.thresholds import DIAL_SECONDS, MINORITY, SLOW_ANSWER_SECONDS
from clusterrun.preflight.untrusted import entries, number, strings, text

NAME = "names"
BETWEEN_NODES = True
LIMIT = DIAL_SECONDS + 1.0
_RESOLVER = (
    "look at the servers of names in /etc/resolv.conf: one that does not answer costs seconds each time"
)
LATE = Finding(NAME, Grade.WARN, f"no name was resolved within {LIMIT:g} s", _RESOLVER)


def probe(request: RunNeeds) -> object:
    """Resolve the names in a thread, since a resolver may hang beyond any limit.

    ``seconds`` is the mean for a name. A name that is unresolved at the limit counts with its time so far.
    """
    resolved: dict[str, str] = {}
    host = socket.gethostname()

    def resolve() -> None:
        for name in dict.fromkeys([*(peer.name for peer in request.peers), host]):
            try:
                records = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError):
                records = []
            resolved[name] = " ".join(dict.fromkeys(str(record[4][0]) for record in records))

    began = time.monotonic()
    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(DIAL_SECONDS)
    answers = dict(resolved)
    seconds = (time.monotonic() - began) / max(1, len(answers))
    own_addresses = [interface.address for interface in interfaces() if not _is_loopback(interface.address)]
    return {"resolved": answers, "seconds": round(seconds, 3), "own": own_addresses, "host": host}


def resolved(reading: ProbeReading) -> dict[str, str]:
    """Return the addresses of each name, separated by spaces; '' if it is unknown."""
    answers = entries(document(reading.value), "resolved")
    return {name: text(answers, name) for name in answers}


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Report names that resolve to wrong addresses, and nodes that resolve them slowly.

    The entry of a name is at fault if most nodes resolve it wrongly; otherwise those nodes are. Names that no
    node resolves are Slurm's own (NodeName is no host name there), and no connection uses them.
    """
    views = {node: entries(reading, "resolved") for node, reading in readings.items()}
    if any(text(view, peer.name) for view in views.values() for peer in request.peers):
        yield from _wrong(request, readings, views)
    yield from _host_names(request, readings, views)
    late = {
        node: number(readings[node], "seconds") or 0.0 for node in readings if node not in request.overloaded
    }
    late = {node: seconds for node, seconds in late.items() if seconds >= SLOW_ANSWER_SECONDS}
    together = len(readings) > 1 and 2 * len(late) > len(readings)
    for node, seconds in list(late.items())[: 1 if together else None]:
        where = f" on {len(late)} of {len(readings)} nodes" if together else ""
        message = f"it takes {seconds:.1f} s to resolve a name{where}"
        yield "" if together else node, Finding(NAME, Grade.WARN, message, _RESOLVER)


def _wrong(request: RunNeeds, readings: Readings, views: dict[str, dict[str, object]]) -> Findings:
    wrong: dict[str, list[str]] = {}
    lacking: dict[str, list[str]] = {}
    for owner in request.peers:
        # The first address counts.
        answers = {
            viewer: text(view, owner.name).partition(" ")[0]
            for viewer, view in views.items()
            if owner.name in view
        }
        right = {owner.address, *strings(readings.get(owner.name), "own")}
        bad = {viewer: address for viewer, address in answers.items() if address not in right}
        elsewhere = [address for viewer, address in bad.items() if viewer != owner.name]
        if len(answers) >= MINORITY and 2 * len(elsewhere) > len(answers):
            symptom = f"resolves to {elsewhere[0]}" if elsewhere[0] else "cannot be resolved"
            where = f"on {len(elsewhere)} of {len(answers)} nodes; its address is {owner.address}"
            remedy = f"mend the entry of {owner.name} in DNS or /etc/hosts"
            yield owner.name, Finding(NAME, Grade.WARN, f"the name {owner.name} {symptom} {where}", remedy)
            continue
        for viewer, address in bad.items():
            if viewer == owner.name and _is_loopback(address):
                message = f"its own name {viewer} resolves to {address}: "
                message += "what binds to it cannot be reached by others"
                remedy = f"take {viewer} out of the line of {address} in /etc/hosts"
                yield viewer, Finding(NAME, Grade.WARN, message, remedy)
            elif address:
                answer = f"{owner.name} as {address}, which is not its address"
                wrong.setdefault(viewer, []).append(answer)
            else:
                lacking.setdefault(viewer, []).append(owner.name)
    mend, add = "mend /etc/hosts or the resolver of this node", "add them to /etc/hosts or DNS"
    for viewer, messages in wrong.items():
        yield viewer, Finding(NAME, Grade.FAIL, f"resolves {some_of(messages)}", mend)
    for viewer, unresolved in lacking.items():
        yield viewer, Finding(NAME, Grade.WARN, f"cannot resolve {some_of(unresolved)}", add)


def _host_names(request: RunNeeds, readings: Readings, views: dict[str, dict[str, object]]) -> Findings:
    """Report host names that lead to the node itself only, or that several nodes have.

    Slurm's name of a node may be another one. Simulated nodes share the address of their machine.
    """
    nodes_by_host: dict[str, dict[str, str]] = {}
    for owner in request.peers:
        host = text(readings.get(owner.name), "host")
        if host and not _is_loopback(owner.address):
            nodes_by_host.setdefault(host, {})[owner.name] = owner.address
    remedy = "hostnamectl set-hostname gives each node a name of its own, which DNS or /etc/hosts knows"
    for host, addresses in nodes_by_host.items():
        if len(set(addresses.values())) > 1:
            for node in addresses:
                message = (
                    f"its host name {host} is that of {len(addresses)} nodes: NCCL may take them for one"
                )
                yield node, Finding(NAME, Grade.WARN, message, remedy)
        for node in addresses:
            first = (text(views.get(node), host).split() or [""])[0]
            if host != node and _is_loopback(first):
                message = (
                    f"its host name {host} resolves to {first}: what binds to it cannot be reached by others"
                )
                yield node, Finding(NAME, Grade.WARN, message, remedy)


def _is_loopback(address: str) -> bool:
    return address.startswith(("127.", "::1"))
