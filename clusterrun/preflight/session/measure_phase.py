"""Measure what the user asked for besides the check: tables of bandwidth, and GPUs under load."""

from __future__ import annotations

from collections.abc import Iterator

from clusterrun.model.document import encode
from clusterrun.preflight.session import burn_findings
from clusterrun.preflight.session.group_tests import BURN, DEVICE, PEERS, TABLE, GroupTests
from clusterrun.preflight.session.state import NodeFinding, SessionState


def rounds(state: SessionState, group_tests: GroupTests) -> Iterator[tuple[type, ...]]:
    """Measure the nodes that train: each GPU, each pair of GPUs of a node, all nodes together, long load."""
    preflight = state.orders.preflight
    nodes = [node for node in state.choice().nodes if state.nodes[node].torch_ready]
    alone = [(node,) for node in nodes]
    if preflight.table and alone:
        yield from group_tests.run("bandwidth of each device", DEVICE, alone)
        if state.backend == "nccl" and state.ranks > 1:
            yield from group_tests.run("copies between the GPUs of a node", PEERS, alone)
        if len(nodes) * state.ranks < 2:
            state.notice("no table of collectives was measured: one rank has no other to exchange data with")
        elif tuple(nodes) == state.choice().nodes:
            yield from group_tests.run("a table of collectives", TABLE, [tuple(nodes)])
    if preflight.burn and alone:
        yield from group_tests.run(f"load for {preflight.burn:g} s", BURN, alone)
        readings = {node.name: encode(node.burn) for node in state.nodes.values() if node.burn is not None}
        findings = burn_findings.judge(state.needs, readings)
        state.write("burn", [NodeFinding(state.numbers.get(name), finding) for name, finding in findings])
