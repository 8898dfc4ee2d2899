"""A look at nodes that the coordinator's own does not reach, through one that reaches them; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterrun.preflight import registry, tasks
from clusterrun.preflight.session.state import NodeState, SessionState
from clusterrun.preflight.tasks import DialTask, ListenTask, LocalTask, Task, ThroughTask
from clusterrun.slurm_text.srun_messages import BESIDE_SECONDS, step_on

HOST = 0
"""The batch script, and with it the coordinator, runs on the first node of the allocation."""
_MOST = 4
_START_SECONDS = 20.0
_LOCAL_SECONDS = 18.0
_DIAL_SECONDS = 5.0
_SLACK_SECONDS = 6.0


def rounds(state: SessionState, nodes: Sequence[NodeState]) -> Iterator[tuple[type, ...]]:
    """Start an examiner on each, ask for its own checks, and let it and the coordinator's node dial."""
    sent = [
        one
        for one in nodes[:_MOST]
        if _relay(state, one) is not None and examiner_on(state.orders.launch, one.name)
    ]
    if not sent or HOST not in [one.node for one in state.present()]:
        return
    state.label = "a look through others at nodes whose agents did not join"
    for one in sent:
        _through(state, one, ListenTask(state.nonce), _START_SECONDS)
    yield (ThroughTask,)
    for one in sent:
        if one.listens:
            _ask(state, one)
    yield (ThroughTask, DialTask)
    for one in sent:
        _through(state, one, None, 0.0)
    yield (ThroughTask,)


def _ask(state: SessionState, node: NodeState) -> None:
    host = state.subjects[HOST]
    _through(state, node, LocalTask(state.asked, registry.names(state.asked)), _LOCAL_SECONDS)
    task = DialTask(state.nonce, node.node, (host.target(host.listening.ports),), (), _DIAL_SECONDS)
    _through(state, node, task, _DIAL_SECONDS + _SLACK_SECONDS)
    led_to = next(iter(state.led_to(node.name)), "")
    task = DialTask(state.nonce, host.node, (node.target(node.listening.ports, led_to),), (), _DIAL_SECONDS)
    state.ask(host.node, task, _DIAL_SECONDS + _SLACK_SECONDS)


def _through(state: SessionState, node: NodeState, task: Task | None, seconds: float) -> None:
    relay = _relay(state, node)
    if relay is not None:
        body = tasks.said(task) if task is not None else ""
        asked = ThroughTask(node.name, examiner_on(state.orders.launch, node.name), body, seconds)
        state.ask(relay, asked, seconds + _SLACK_SECONDS)


def _relay(state: SessionState, one: NodeState) -> int | None:
    """The first other node that heard of it."""
    ways = state.connectivity.ways
    known = ((node, ways.get((node.node, one.node))) for node in state.present() if node.node != HOST)
    return next((node.node for node, way in known if way is not None and (way.good or way.refused)), None)


def examiner_on(launch: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The program that starts agents, turned to start an examiner on one node; () where that is no srun."""
    if len(launch) < 3 or launch[-2] != "agent":
        return ()
    program, *words = launch[:-2]
    own = [word for word in words if not word.startswith("--immediate=")]
    return (program, *step_on(own, [name], BESIDE_SECONDS), "examine", launch[-1], name)
