"""Where an answer belongs: takes what nodes say into the case; asks nothing, judges nothing."""

from __future__ import annotations

from clusterrun.model.document import BadDocument
from clusterrun.model.frozen import replace
from clusterrun.preflight import task_codec
from clusterrun.preflight.session import local_phase
from clusterrun.preflight.session.group_tests import PRODUCT
from clusterrun.preflight.tasks import (
    DialAnswer,
    DialTask,
    GroupResult,
    GroupTask,
    ListenAnswer,
    LocalAnswer,
    ThroughAnswer,
    ThroughTask,
    WarmUp,
    WatchAnswer,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from clusterrun.preflight.session.group_tests import GroupTests
    from clusterrun.preflight.session.requests import Request
    from clusterrun.preflight.session.state import SessionState


def take(case: SessionState, trials: GroupTests, question: Request, value: Any) -> None:
    """Take the answer to ``question``."""
    subject = case.subjects[question.node]
    if isinstance(value, LocalAnswer):
        subject.local = value
    elif isinstance(value, ListenAnswer):
        subject.listening = value
        _time(case, question, value.wall)
    elif isinstance(value, DialAnswer):
        subject.resolved.update(value.resolved)
        subject.naming = max(subject.naming, value.naming)
        if isinstance(question.task, DialTask) and question.task.closed:
            for one in value.dialled:
                case.swept[question.node, one.node] = frozenset(one.silent)
        elif isinstance(question.task, DialTask):
            case.crossings.take(question.task, value)
        _time(case, question, value.wall)
    elif isinstance(value, WatchAnswer):
        case.losses.take(question.node, value)
    elif isinstance(value, WarmUp):
        subject.warm_up(value)
    elif isinstance(value, GroupResult):
        _tested(case, trials, question, value)
    elif isinstance(value, ThroughAnswer):
        _through(case, trials, question, value)
    local_phase.hurry(case, type(question.task))


def _time(case: SessionState, question: Request, wall: float) -> None:
    subject = case.subjects[question.node]
    subject.told_time(wall, case.wall_at(question.asked), case.wall_at(case.now))


def _tested(case: SessionState, trials: GroupTests, question: Request, result: GroupResult) -> None:
    subject = case.subjects[question.node]
    if result.stage == "warm":
        subject.grow_cold(result.why)
    elif isinstance(question.task, GroupTask) and question.task.kind == PRODUCT:
        subject.multiplied(result)
    trials.take(question, result)


def _through(case: SessionState, trials: GroupTests, question: Request, value: ThroughAnswer) -> None:
    """It is the answer of the node that was looked at through the one that was asked."""
    if not isinstance(question.task, ThroughTask) or not value.body:
        return
    name, inner = question.task.name, task_codec.task(question.task.body)
    node = next(one.node for one in case.subjects.values() if one.name == name)
    try:
        said = task_codec.answer(inner, value.body)
    except BadDocument:  # the nonsense is not that of the node that passed it on
        return
    take(case, trials, replace(question, node=node, task=inner), said)
