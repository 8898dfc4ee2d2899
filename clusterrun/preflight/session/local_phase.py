"""Run the first rounds: local checks, control round and torch worker of every node, all at once."""

from __future__ import annotations

from clusterrun.model.frozen import replace
from clusterrun.preflight import registry, tasks
from clusterrun.preflight.session import absent_nodes, loss_phase, network_phase, port_sweep
from clusterrun.preflight.session.requests import AskExaminer, Waits
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import ListenTask, LocalTask, StartTorch
from clusterrun.preflight.thresholds import ANSWER_SECONDS, PATIENCE, START_SECONDS

# After half of the answers, the other nodes get this long, or ``PATIENCE`` times the time of that half.
LEAST_PATIENCE = {ListenTask: ANSWER_SECONDS, LocalTask: START_SECONDS, StartTorch: START_SECONDS}
# Replaces these limits on nodes with GPUs, and extends the budget of the first rounds if all of them load
# their drivers slowly. Without persistence mode each program loads the driver again.
DRIVER_SECONDS = 45.0


def rounds(state: SessionState) -> Waits:
    """Run everything that needs no collective.

    The time to import torch depends on the file system. A node is blamed only if most others were faster.
    Slow GPU drivers do not shorten the time of the tests.
    """
    extra = DRIVER_SECONDS if state.needs.gpus else 0.0
    state.clock.end_at += extra
    listen = ListenTask(state.nonce, port_sweep.rendezvous_port(state))
    for node in state.present():
        state.ask(node.node, listen, START_SECONDS)
        start_local_checks(state, node.node)
        if state.orders.preflight.python:
            start_torch_worker(state, node.node)
    yield (ListenTask,)
    yield from network_phase.rounds(state)
    yield from absent_nodes.rounds(state)
    yield from port_sweep.hold_ring(state)
    yield from port_sweep.dial_rendezvous(state)
    yield from loss_phase.begin(state)
    state.label = "local round"
    yield (LocalTask,)
    state.label = "torch is being imported"
    yield (StartTorch,)
    state.clock.end_at -= extra - min(extra, max(0.0, state.clock.now - state.clock.began - START_SECONDS))
    # The first test loads driver and libraries once more.
    if state.needs.gpus and state.load_seconds > START_SECONDS:
        state.clock.end_at += min(DRIVER_SECONDS, state.load_seconds)
    choose_backend(state)


def start_local_checks(state: SessionState, node: int) -> None:
    checks = registry.check_names(state.needs)
    state.ask(
        node,
        LocalTask(state.needs, checks),
        max(registry.probe_seconds(checks), default=0.0) + ANSWER_SECONDS,
    )


def start_torch_worker(state: SessionState, node: int) -> None:
    state.ask(node, state.torch_task, state.clock.seconds_left)


def hurry(state: SessionState) -> None:
    """Shorten the limits of the other nodes once, after half of the nodes that are not lost answered."""
    for task_type in state.requests.half_answered(LEAST_PATIENCE):
        least = LEAST_PATIENCE[task_type]
        loads_driver = state.needs.gpus and task_type is not ListenTask
        for request in state.requests.of_type(task_type):
            longest = PATIENCE * (state.clock.now - request.asked_at)
            patience = max(DRIVER_SECONDS if loads_driver else least, longest)
            if isinstance(request.task, LocalTask):
                if patience >= request.seconds - ANSWER_SECONDS:
                    continue  # Each check has a limit of its own.
                sooner = tasks.message_text(replace(request.task, limit=patience))
                state.asks.append(AskExaminer(request.node, request.number, sooner))
                patience += ANSWER_SECONDS
            state.requests.hurry(request, request.asked_at + patience)


def choose_backend(state: SessionState) -> None:
    """Choose the backend of most torch workers for the collectives, and note why it is not NCCL."""
    orders, present = state.orders, state.present()
    if not orders.preflight.python:
        state.notice("no collective was tested: the ranks are not a Python program")
        return
    workers = {node.name: node.torch_worker for node in present if node.torch_worker is not None}
    ready = [worker for worker in workers.values() if worker.up]
    if not ready:
        reasons = [node.first_torch_worker.why for node in present if node.first_torch_worker is not None]
        reason = reasons[0] if reasons else "no answer"
        state.notice(f"no collective was tested: no node can import torch ({reason})")
        return
    backends = [worker.backend for worker in ready]
    state.backend = max(sorted(set(backends)), key=backends.count)
    # NCCL needs one GPU per rank. Fewer GPUs than ranks are no fault if the user requested no number.
    fewest = min(workers, key=lambda name: workers[name].devices)
    devices = workers[fewest].devices
    if state.backend == "nccl" and not orders.gpus_per_node and devices < orders.ranks_per_node:
        state.backend = "gloo"
        gpus = f"{fewest} has {devices} GPUs for {orders.ranks_per_node} ranks"
        state.notice(f"collectives were tested with gloo: {gpus}")
    reason = next((worker.why for worker in ready if worker.why), "")
    if state.backend == "gloo" and orders.gpus_per_node and reason:
        state.notice(f"collectives were tested with gloo: {reason}")
