"""Explain a sweep of ports: a range that a firewall drops, or a limit on the number of connections.

A comb of ports is dialled on which nothing listens. A closed port refuses the connection, so only dropped
packets leave a port silent. A refused connection ends at once. A limit on open connections shows only if as
many are held open as a job opens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from clusterrun.model.frozen import frozen
from clusterrun.preflight.causes.cover import excess, sure
from clusterrun.preflight.causes.ways import Way, WayTest, find_causes
from clusterrun.preflight.thresholds import Thresholds

# The dialled ports: every 64th one of the usual range of ephemeral ports.
COMB = range(32768, 61000, 64)
# A node has about a thousand descriptors for all connections that others hold to it.
MOST_CONNECTIONS = 128

# The ports of the comb that never answered, by (dialling, dialled) node.
Silent = Mapping[Way, frozenset[int]]


@frozen
class Blocked:
    nodes: tuple[int, ...]  # the node, or a link (from, to)
    first: int  # first and last silent port; (0, 0): a limit on connections
    last: int
    inward: bool  # the ports of the node itself; False: the ports that it dials elsewhere
    others: tuple[int, ...] = ()  # the nodes that met it
    share: float = 1.0  # of the ports that were dialled, how many are silent
    unheld: int = 0  # of the connections that were held open at once, how many got no answer


def needed_connections(ranks: int) -> int:
    """Return how many connections a job may hold open from one node to another, with ``ranks`` per node.

    Each rank has one to the store of rank 0. gloo connects each rank with all ranks of the other node. Chance
    decides which side opens a connection. NCCL opens fewer.
    """
    return min(ranks + ranks * ranks, MOST_CONNECTIONS)


def silent_range(ports: frozenset[int], thresholds: Thresholds) -> tuple[int, int] | None:
    """Return the range that explains the silent ports of a comb better than chance; None if none does.

    If every port is silent with the same chance ``p``, a run of ``n`` silent ports has the chance ``p ** n``.
    So the range saves ``n * log(1 / p)`` nats. If a limit drops most connections, long runs are usual. A
    way is swept only if some connection passed, so silence on the whole comb is a limit too.
    """
    runs: list[list[int]] = []
    for port in sorted(ports):
        if runs and port - runs[-1][-1] == COMB.step:
            runs[-1].append(port)
        else:
            runs.append([port])
    longest = max(runs, key=len, default=[])
    if not longest:
        return None
    # A range may begin and end at any port of the comb.
    price = math.log(len(COMB) * (len(COMB) + 1) / 2)
    saving = len(longest) * math.log(len(COMB) / len(ports)) - price
    return (longest[0], longest[-1]) if saving >= sure(thresholds) else None


def blocked(
    silent: Silent, thresholds: Thresholds, unheld: Mapping[Way, int] = MappingProxyType({})
) -> list[Blocked]:
    """Return the blocked ranges and the limits on connections: nodes first, then links.

    ``unheld``: by way, how many of the connections that were held open at once got no answer.
    """
    ranges = {ends: silent_range(ports, thresholds) for ends, ports in silent.items()}
    tests, limited = [], []
    for (a, b), ports in silent.items():
        span = ranges[a, b]
        members = frozenset(port for port in ports if span and span[0] <= port <= span[1])
        tests.append(WayTest(a, b, frozenset(COMB), members))
        # Scattered silent ports are a limit if chance does not explain them.
        is_no_chance = excess(len(COMB), len(ports), thresholds.noise, thresholds.noise) >= sure(thresholds)
        is_limited = span is None and (is_no_chance or unheld.get((a, b), 0) > 0)
        limited.append(WayTest(a, b, frozenset({1}), frozenset({1} if is_limited else ())))
    return _causes(tests, silent, ranges) + _causes(limited, silent, {}, unheld)


def _causes(
    tests: list[WayTest],
    silent: Silent,
    ranges: Mapping[Way, tuple[int, int] | None],
    unheld: Mapping[Way, int] = MappingProxyType({}),
) -> list[Blocked]:
    """Return the causes of failed ways. ``ranges`` is empty if the failures are limits on connections."""
    causes, _ = find_causes(tests)
    failed = {test.ends: test.failed for test in tests}
    nodes, links = [], []
    for cause in causes:
        share = sum(len(silent[ends]) for ends in cause.ways) / (len(cause.ways) * len(COMB))
        if len(cause.nodes) == 1:
            (node,) = cause.nodes
            others = {end for ends in cause.ways for end in ends if end != node}
            shut = cause.items or frozenset().union(*(failed[ends] for ends in cause.ways))
            first, last = (min(shut), max(shut)) if ranges else (0, 0)
            inward = cause.fault != "out"
            most = max(unheld.get(ends, 0) for ends in cause.ways)
            nodes.append(Blocked(cause.nodes, first, last, inward, tuple(sorted(others)), share, most))
        else:
            for ends in cause.ways:
                first, last = ranges.get(ends) or (0, 0)
                links.append(Blocked(ends, first, last, True, share=share, unheld=unheld.get(ends, 0)))
    return nodes + links
