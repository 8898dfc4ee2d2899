"""Compare state, rate and number of InfiniBand and RoCE ports between nodes, and check link errors."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping

from clusterrun import proc
from clusterrun.model.frozen import replace
from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.majority import outlier_findings, vote
from clusterrun.preflight.probes.process_context import variables
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import entries, number, text

NAME = "infiniband"
LIMIT = 10.0
LATE = Finding(
    NAME,
    Grade.FAIL,
    f"the network adapters' state could not be read within {LIMIT:g} s",
    "an adapter or its driver hangs: ibstat on the node, then reboot it",
)
CLASS = "/sys/class/infiniband"
COUNTERS = (
    *("link_downed", "link_error_recovery", "symbol_error"),
    *("local_link_integrity_errors", "port_rcv_errors"),
)
# Counters of the adapter: of InfiniBand and RoCE, and of EFA.
HW_COUNTERS = (
    *("local_ack_timeout_err", "packet_seq_err", "rnr_nak_retry_err"),
    *("retrans_timeout_events", "unresponsive_remote_events"),
)
# Too many of these since boot indicate a bad link.
_TELLING = ("link_downed", "symbol_error", *HW_COUNTERS)
# Time between two reads of the counters. Errors that grow while the link is idle indicate a bad link.
SAMPLE_SECONDS = 0.3
_CABLE = "look at the cable and both its ends: ibstat, mlxlink -d DEVICE"
_WORDS = ("state", "phys_state", "rate", "link_layer")
# The name ``device/number`` and the link layer.
Port = tuple[str, str]


def probe(request: RunNeeds, folder: str = CLASS) -> object:
    """Return the reading of ``ports`` with a second read of the error counters (``later``)."""
    reading = ports(folder)
    if reading:
        time.sleep(SAMPLE_SECONDS)
    for name, path in _paths(folder):
        if name in reading:
            reading[name]["later"] = _counters(path)
    return reading


def ports(folder: str) -> dict[str, dict[str, object]]:
    """Return state, rate, link layer, NCCL use and error counters of every port, by ``device/port``."""
    port_readings: dict[str, dict[str, object]] = {}
    for name, path in _paths(folder):
        port_readings[name] = {word: proc.text(f"{path}/{word}").strip() for word in _WORDS}
        port_readings[name].update(first=_counters(path), used=may_use(name, variables()))
    return port_readings


def may_use(port: str, environment: Mapping[str, str]) -> bool:
    """Return whether NCCL's variables allow the port ``device/number``.

    ``NCCL_IB_HCA`` lists device names or prefixes, each with or without a port number (``mlx5_0:1``).
    A leading ``=`` matches whole names. A leading ``^`` excludes the listed ports.
    """
    if environment.get("NCCL_IB_DISABLE", "0") != "0" or environment.get("NCCL_NET", "IB") == "Socket":
        return False
    wish = environment.get("NCCL_IB_HCA", "").strip()
    patterns = [pattern for pattern in wish.lstrip("^=").split(",") if pattern]
    device, _, place = port.partition("/")
    exact, named = wish.startswith(("=", "^=")), False
    for pattern in patterns:
        name, _, port_number = pattern.partition(":")
        named = named or (
            port_number in ("", place) and (device == name if exact else device.startswith(name))
        )
    return not patterns or named != wish.startswith("^")


def used(reading: object) -> list[str]:
    """Return the active ports that NCCL may use, or all active ports if the reading does not tell."""
    return [name for name in _up(reading) if entries(reading, name).get("used") is not False]


def active(reading: object) -> list[float]:
    return [_gigabits(text(reading, name, "rate")) for name in _up(reading)]


def _paths(folder: str) -> list[tuple[str, str]]:
    return [
        (f"{device}/{port}", f"{folder}/{device}/ports/{port}")
        for device in sorted(proc.listed(folder))
        for port in sorted(proc.listed(f"{folder}/{device}/ports"))
    ]


def _counters(path: str) -> dict[str, int]:
    read = {name: proc.text(f"{path}/counters/{name}").strip() for name in COUNTERS}
    read.update((name, proc.text(f"{path}/hw_counters/{name}").strip()) for name in HW_COUNTERS)
    return {name: int(value) for name, value in read.items() if value.isdigit()}


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Fail if a port is down that is up on most other nodes. Warn of slow ports and of links with errors.

    Ports are the same if they have the same name and link layer. A node with other adapters than most numbers
    them differently: its down ports are a warning. A node whose cable is in another port of the same rate has
    all that it needs.
    A port that ranks do not use is a warning at most. Ranks on CPUs use none, ``NCCL_IB_HCA`` may exclude a
    port, and ports for storage are slower than the other ports of their node.
    """
    ports_by_node = {
        node: [_port(reading, name) for name in entries(reading)] for node, reading in readings.items()
    }
    count_by_port = Counter(port for ports in ports_by_node.values() for port in ports)
    # The rates of the active ports.
    rates_by_node: dict[str, dict[Port, float]] = {}
    compute_ports: set[Port] = set()
    for node, reading in readings.items():
        rates = {_port(reading, name): _gigabits(text(reading, name, "rate")) for name in _up(reading)}
        rates_by_node[node] = rates
        # NCCL uses the ports that are among the fastest of their node on any node.
        used_ports = [_port(reading, name) for name in used(reading)]
        fastest = max((rates[port] for port in used_ports), default=0.0)
        compute_ports.update(port for port in used_ports if rates[port] == fastest)
    layouts = vote({node: str(sorted(ports)) for node, ports in ports_by_node.items()})
    nodes_with_port_down = set()
    for port, count in count_by_port.items():
        name, layer = port
        rates_of_port = [rates[port] for rates in rates_by_node.values() if port in rates]
        if count == 1 or 2 * len(rates_of_port) < count:
            continue
        # Each active port with the same link layer and at least this rate can replace it.
        counts = {}
        for node, rates in rates_by_node.items():
            counts[node] = sum(
                other[1] == layer and rate >= min(rates_of_port) for other, rate in rates.items()
            )
        usual_count = statistics.median_high(counts.values())
        for node, reading in readings.items():
            is_down = port in ports_by_node[node] and port not in rates_by_node[node]
            if not is_down or counts[node] >= usual_count:
                continue
            is_needed = port in compute_ports and entries(reading, name).get("used") is not False
            if is_needed and node not in layouts.outliers:
                nodes_with_port_down.add(node)
            # If the port is up on half the nodes, those may have an additional cable.
            is_usual = 2 * len(rates_of_port) > count
            has_failed = node in nodes_with_port_down and is_needed and is_usual and request.gpus
            state = text(reading, name, "state").partition(": ")[2] or "in an unknown state"
            message = f"port {name} is {state}, and active on the other nodes"
            yield node, Finding(NAME, Grade.FAIL if has_failed else Grade.WARN, message, _CABLE)
    yield from _few_ports(request, readings, compute_ports, nodes_with_port_down)
    yield from _slow(readings)
    yield from _link_errors(readings, chosen(request.limits)["link_errors"])


def _few_ports(
    request: RunNeeds, readings: Readings, compute_ports: set[Port], nodes_with_port_down: set[str]
) -> Findings:
    """Report nodes with fewer active compute ports than usual, unless a port of theirs is already reported.

    A node with more ports than the others is healthy. Storage ports do not count, nor do ports that NCCL's
    variables exclude. A node with ports of another rate or link layer is another kind of node: a warning.
    """
    counts = {
        node: str(len(compute_ports.intersection(_port(reading, name) for name in used(reading))))
        for node, reading in readings.items()
    }
    usual_count = vote(counts).majority
    kinds = vote({node: _kind(reading) for node, reading in readings.items()})
    subject = "the number of active InfiniBand or RoCE ports"
    remedy = "an adapter is missing: lspci and ibstat on the node"
    grade = Grade.FAIL if request.gpus else Grade.WARN
    for node, finding in outlier_findings(NAME, subject, counts, grade, remedy):
        if not usual_count:
            # Without a majority the finding is about all nodes, also about those that are reported already.
            if not nodes_with_port_down:
                yield node, replace(finding, verdict=Grade.WARN)
        elif int(counts[node]) < int(usual_count) and node not in nodes_with_port_down:
            is_of_other_kind = node in kinds.outliers and active(readings[node])
            yield node, replace(finding, verdict=Grade.WARN) if is_of_other_kind else finding


def _port(reading: object, name: str) -> Port:
    return name, text(reading, name, "link_layer")


def _kind(reading: object) -> str:
    """Return the fastest rate of a node's active ports and their link layers: ``400.0 InfiniBand``."""
    layers = sorted({text(reading, name, "link_layer") for name in _up(reading)})
    return f"{max(active(reading), default=0.0)} {' '.join(layers)}"


def _up(reading: object) -> list[str]:
    return [name for name in entries(reading) if "ACTIVE" in text(reading, name, "state")]


def _slow(readings: Readings) -> Findings:
    for name in sorted({name for reading in readings.values() for name in _up(reading)}):
        rates = {n: text(r, name, "rate") for n, r in readings.items() if name in _up(r)}
        result = vote({node: rate for node, rate in rates.items() if rate})
        for node in result.outliers:
            if _gigabits(rates[node]) < _gigabits(result.majority):
                message = f"port {name} runs at {rates[node]} here, at {result.majority} on the other nodes"
                yield node, Finding(NAME, Grade.WARN, message, _CABLE)


def _gigabits(rate: str) -> float:
    try:
        return number(float(rate.split()[0])) or 0.0
    except (ValueError, IndexError):
        return 0.0


def _link_errors(readings: Readings, most: float) -> Findings:
    """Warn of counters that grew between two reads, and of counters far above the median of all ports."""
    for counter in (*COUNTERS, *HW_COUNTERS):
        values = {
            (node, name): number(reading, name, "first", counter) or 0.0
            for node, reading in readings.items()
            for name in _up(reading)
        }
        median = statistics.median(values.values()) if values else 0.0
        for (node, name), value in values.items():
            grown = (number(readings[node], name, "later", counter) or 0.0) - value
            # Adapters count retransmissions of other traffic too.
            if grown > 0 and counter != "port_rcv_errors" and counter not in HW_COUNTERS:
                message = f"port {name}: {counter} grew by {grown:.0f} in {SAMPLE_SECONDS:g} s (limit 0)"
                yield node, Finding(NAME, Grade.WARN, message, _CABLE)
            elif value > median + most and value > 10 * median and counter in _TELLING:
                message = (
                    f"port {name}: {counter} is {value:.0f}, the median {median:.0f} (limit +{most:.0f})"
                )
                yield node, Finding(NAME, Grade.WARN, message, _CABLE)
