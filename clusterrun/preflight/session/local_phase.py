"""The first rounds: local checks, control round and torch worker of every node, all at once; pure."""

from __future__ import annotations

from clusterrun.model.frozen import replace
from clusterrun.preflight import registry, task_codec
from clusterrun.preflight.session import absent_nodes, loss_phase, network_phase
from clusterrun.preflight.session.consistency import NodeFinding
from clusterrun.preflight.session.requests import AskWorker
from clusterrun.preflight.tasks import ListenTask, LocalTask, WarmTask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterrun.preflight.session.state import SessionState

LISTEN_SECONDS = 20.0
LEAST_PATIENCE = {ListenTask: 10.0, LocalTask: 20.0, WarmTask: 20.0}
"""When more than half have answered, the others get this long, or ``PATIENCE`` times what those took."""
DRIVER_PATIENCE = 40.0
"""With GPUs instead: one node may be without persistence mode, and load its driver with each program."""
DRIVER_SECONDS = 45.0
"""What the first rounds may add to the budget where all nodes load their drivers for so long."""
USUAL_SECONDS = 15.0
PATIENCE = 4.0
LOCAL_SLACK_SECONDS = 6.0


def rounds(case: SessionState, nonce: str) -> Iterator[tuple[type, ...]]:
    """Everything that needs no collective.

    How long torch takes depends on the file system: nobody is blamed unless most others were faster. What
    GPU drivers take beyond the usual is not taken from the time of the tests.
    """
    extra = DRIVER_SECONDS if case.asked.gpus else 0.0
    case.end_at += extra
    for one in case.present():
        case.ask(one.node, ListenTask(nonce), LISTEN_SECONDS)
        look_at(case, one.node)
        if case.orders.preflight.python:
            warm_up(case, one.node)
    yield (ListenTask,)
    yield from network_phase.rounds(case, nonce)
    yield from absent_nodes.rounds(case, nonce)
    yield from loss_phase.begin(case, nonce)
    case.label = "local round"
    yield (LocalTask,)
    case.label = "torch is being imported"
    yield (WarmTask,)
    case.end_at -= extra - min(extra, max(0.0, case.now - case.began - USUAL_SECONDS))
    write(case)
    choose_backend(case)


def look_at(case: SessionState, node: int) -> None:
    """Ask for all local checks of a node."""
    checks = registry.names(case.asked)
    case.ask(node, LocalTask(case.asked, checks), _local_seconds(checks))


def warm_up(case: SessionState, node: int) -> None:
    """Have a node import torch."""
    case.ask(node, case.warm_task, case.left)


def _local_seconds(checks: tuple[str, ...]) -> float:
    limits = [check.LIMIT for check in map(registry.check_named, checks) if check is not None]
    return max(limits, default=0.0) + LOCAL_SLACK_SECONDS


def hurry(case: SessionState, kind: type) -> None:
    """Once half of them have answered, do not wait for the others as long as for all."""
    left = case.questions.count(kind)
    asked = case.questions.batch(kind)
    if kind not in LEAST_PATIENCE or not asked // 2 - 1 <= left <= asked // 2:
        return
    least = DRIVER_PATIENCE if case.asked.gpus and kind is not ListenTask else LEAST_PATIENCE[kind]
    for question in case.questions.of_kind(kind):
        patience = max(least, PATIENCE * (case.now - question.asked))
        if isinstance(question.task, LocalTask):
            if patience >= question.seconds - LOCAL_SLACK_SECONDS:
                continue  # each check has a limit of its own
            sooner = task_codec.said(replace(question.task, limit=patience))
            case.asks.append(AskWorker(question.node, question.number, sooner))
            patience += LOCAL_SLACK_SECONDS
        case.questions.hurry(question, question.asked + patience)


def write(case: SessionState) -> None:
    """Write down what the checks say, with all that is known now."""
    known = {one.name: one for one in case.subjects.values()}
    found = registry.findings(
        case.asked,
        {name: one.local for name, one in known.items() if one.local is not None},
        {name: one.first_warm for name, one in known.items() if one.first_warm is not None},
        {name: one.product for name, one in known.items() if one.product is not None},
    )
    said = []
    for name, findings in found.items():
        node = known[name].node if name in known else None
        said += [NodeFinding(node, finding) for finding in findings]
    case.write("checks", said)


def choose_backend(case: SessionState) -> None:
    """What tests of groups use, where they can be made at all."""
    if not case.orders.preflight.python:
        case.notice("no collective was tested: the ranks are no Python program")
        return
    backends = [one.warm.backend for one in case.present() if one.warm is not None and one.warm.up]
    if backends:
        case.backend = max(sorted(set(backends)), key=backends.count)
        _use_gloo_where_gpus_are_shared(case)
        return
    whys = [one.first_warm.why for one in case.present() if one.first_warm is not None]
    case.notice(f"no collective was tested: no node can import torch ({whys[0] if whys else 'no answer'})")


def _use_gloo_where_gpus_are_shared(case: SessionState) -> None:
    """NCCL takes one rank per GPU: where no number of GPUs was asked, fewer than ranks are no fault."""
    ranks = case.orders.ranks_per_node
    seen = {one.name: one.warm.devices for one in case.present() if one.warm is not None}
    fewest = min(seen, key=lambda name: seen[name])
    if case.backend == "nccl" and not case.orders.gpus_per_node and seen[fewest] < ranks:
        case.backend = "gloo"
        case.notice(f"collectives were tested with gloo: {fewest} has {seen[fewest]} GPUs for {ranks} ranks")
