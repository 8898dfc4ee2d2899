"""Measure what the user asked for besides the check: tables of bandwidth, and GPUs under load."""

from __future__ import annotations

from clusterrun.preflight.session.group_tests import GroupTests
from clusterrun.preflight.session.report import explain
from clusterrun.preflight.session.requests import Waits
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import BURN, DEVICE, PEERS, TABLE


def rounds(state: SessionState, group_tests: GroupTests) -> Waits:
    """Measure the nodes that train: each GPU, each pair of GPUs of a node, all nodes together, long load."""
    preflight = state.orders.preflight
    chosen = explain(state).choice().nodes
    nodes = [node for node in chosen if state.nodes[node].has_torch]
    alone = [(node,) for node in nodes]
    if preflight.table and alone:
        yield from group_tests.run("bandwidth of each device", DEVICE, alone)
        if state.backend == "nccl" and state.ranks > 1:
            yield from group_tests.run("copies between the GPUs of a node", PEERS, alone)
        if len(nodes) * state.ranks < 2:
            state.notice("no table of collectives was measured: one rank has no other to exchange data with")
        elif tuple(nodes) == chosen:
            yield from group_tests.run("a table of collectives", TABLE, [tuple(nodes)])
    if preflight.burn and alone:
        yield from group_tests.run(f"load for {preflight.burn:g} s", BURN, alone)
