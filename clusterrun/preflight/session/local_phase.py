"""The first rounds: local checks, control round and torch worker of every node, all at once; pure."""

from __future__ import annotations

from collections.abc import Iterator

from clusterrun.model.frozen import replace
from clusterrun.preflight import registry, tasks
from clusterrun.preflight.session import absent_nodes, loss_phase, network_phase
from clusterrun.preflight.session.requests import AskWorker
from clusterrun.preflight.session.state import NodeFinding, SessionState
from clusterrun.preflight.tasks import ListenTask, LocalTask, StartTorch

LISTEN_SECONDS = 20.0
LEAST_PATIENCE = {ListenTask: 10.0, LocalTask: 20.0, StartTorch: 20.0}
"""When more than half have answered, the others get this long, or ``PATIENCE`` times what those took."""
DRIVER_PATIENCE = 40.0
"""With GPUs instead: one node may be without persistence mode, and load its driver with each program."""
DRIVER_SECONDS = 45.0
"""What the first rounds may add to the budget where all nodes load their drivers for so long."""
USUAL_SECONDS = 15.0
PATIENCE = 4.0
LOCAL_SLACK_SECONDS = 6.0


def rounds(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Everything that needs no collective.

    How long torch takes depends on the file system: nobody is blamed unless most others were faster. What
    GPU drivers take beyond the usual is not taken from the time of the tests.
    """
    extra = DRIVER_SECONDS if state.asked.gpus else 0.0
    state.end_at += extra
    for one in state.present():
        state.ask(one.node, ListenTask(state.nonce), LISTEN_SECONDS)
        look_at(state, one.node)
        if state.orders.preflight.python:
            warm_up(state, one.node)
    yield (ListenTask,)
    yield from network_phase.rounds(state)
    yield from absent_nodes.rounds(state)
    yield from loss_phase.begin(state)
    state.label = "local round"
    yield (LocalTask,)
    state.label = "torch is being imported"
    yield (StartTorch,)
    state.end_at -= extra - min(extra, max(0.0, state.now - state.began - USUAL_SECONDS))
    write(state)
    choose_backend(state)


def look_at(state: SessionState, node: int) -> None:
    checks = registry.names(state.asked)
    limits = [check.LIMIT for check in map(registry.check_named, checks) if check is not None]
    state.ask(node, LocalTask(state.asked, checks), max(limits, default=0.0) + LOCAL_SLACK_SECONDS)


def warm_up(state: SessionState, node: int) -> None:
    state.ask(node, state.warm_task, state.left)


def hurry(state: SessionState, kind: type) -> None:
    """Once half of them have answered, do not wait for the others as long as for all."""
    left = state.questions.count(kind)
    asked = state.questions.batch(kind)
    if kind not in LEAST_PATIENCE or not asked // 2 - 1 <= left <= asked // 2:
        return
    least = DRIVER_PATIENCE if state.asked.gpus and kind is not ListenTask else LEAST_PATIENCE[kind]
    for question in state.questions.of_kind(kind):
        patience = max(least, PATIENCE * (state.now - question.asked))
        if isinstance(question.task, LocalTask):
            if patience >= question.seconds - LOCAL_SLACK_SECONDS:
                continue  # each check has a limit of its own
            sooner = tasks.message_text(replace(question.task, limit=patience))
            state.asks.append(AskWorker(question.node, question.number, sooner))
            patience += LOCAL_SLACK_SECONDS
        state.questions.hurry(question, question.asked + patience)


def write(state: SessionState) -> None:
    known = {one.name: one for one in state.subjects.values()}
    found = registry.findings(
        state.asked,
        {name: one.local for name, one in known.items() if one.local is not None},
        {name: one.first_torch_worker for name, one in known.items() if one.first_torch_worker is not None},
        {name: one.product for name, one in known.items() if one.product is not None},
    )
    said = ((state.numbers.get(name), finding) for name, findings in found.items() for finding in findings)
    state.write("checks", [NodeFinding(node, finding) for node, finding in said])


def choose_backend(state: SessionState) -> None:
    orders = state.orders
    if not orders.preflight.python:
        state.notice("no collective was tested: the ranks are no Python program")
        return
    ready = {one.name: one.warm for one in state.present() if one.warm is not None and one.warm.up}
    backends = [warm.backend for warm in ready.values()]
    if not backends:
        whys = [one.first_torch_worker.why for one in state.present() if one.first_torch_worker is not None]
        why = whys[0] if whys else "no answer"
        state.notice(f"no collective was tested: no node can import torch ({why})")
        return
    state.backend = max(sorted(set(backends)), key=backends.count)
    # NCCL takes one rank per GPU: where no number of GPUs was asked, fewer than ranks are no fault.
    seen = {one.name: one.warm.devices for one in state.present() if one.warm is not None}
    fewest = min(seen, key=lambda name: seen[name])
    if state.backend == "nccl" and not orders.gpus_per_node and seen[fewest] < orders.ranks_per_node:
        state.backend = "gloo"
        gpus = f"{fewest} has {seen[fewest]} GPUs for {orders.ranks_per_node} ranks"
        state.notice(f"collectives were tested with gloo: {gpus}")
    why = next((warm.why for warm in ready.values() if warm.why), "")
    if state.backend == "gloo" and orders.gpus_per_node and why:
        state.notice(f"collectives were tested with gloo: {why}")
