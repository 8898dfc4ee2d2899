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


def take(state: SessionState, trials: GroupTests, question: Request, value: Any) -> None:
    """Take the answer to ``question``."""
    subject = state.subjects[question.node]
    if isinstance(value, LocalAnswer):
        subject.local = value
    elif isinstance(value, ListenAnswer):
        subject.listening = value
        _time(state, question, value.wall)
    elif isinstance(value, DialAnswer):
        subject.resolved.update(value.resolved)
        subject.naming = max(subject.naming, value.naming)
        if isinstance(question.task, DialTask) and question.task.closed:
            for one in value.dialled:
                state.swept[question.node, one.node] = frozenset(one.silent)
        elif isinstance(question.task, DialTask):
            state.crossings.take(question.task, value)
        _time(state, question, value.wall)
    elif isinstance(value, WatchAnswer):
        state.losses.take(question.node, value)
    elif isinstance(value, WarmUp):
        subject.warm_up(value)
    elif isinstance(value, GroupResult):
        _tested(state, trials, question, value)
    elif isinstance(value, ThroughAnswer):
        _through(state, trials, question, value)
    local_phase.hurry(state, type(question.task))


def _time(state: SessionState, question: Request, wall: float) -> None:
    subject = state.subjects[question.node]
    subject.told_time(wall, state.wall_at(question.asked), state.wall_at(state.now))


def _tested(state: SessionState, trials: GroupTests, question: Request, result: GroupResult) -> None:
    subject = state.subjects[question.node]
    if result.stage == "warm":
        subject.grow_cold(result.why)
    elif isinstance(question.task, GroupTask) and question.task.kind == PRODUCT:
        subject.multiplied(result)
    trials.take(question, result)


def _through(state: SessionState, trials: GroupTests, question: Request, value: ThroughAnswer) -> None:
    """It is the answer of the node that was looked at through the one that was asked."""
    if not isinstance(question.task, ThroughTask) or not value.body:
        return
    name, inner = question.task.name, task_codec.task(question.task.body)
    node = next(one.node for one in state.subjects.values() if one.name == name)
    try:
        said = task_codec.answer(inner, value.body)
    except BadDocument:  # the nonsense is not that of the node that passed it on
        return
    take(state, trials, replace(question, node=node, task=inner), said)
