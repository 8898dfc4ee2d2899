"""Where an answer belongs: takes what nodes say into the case; asks nothing, judges nothing."""

from __future__ import annotations

from clusterrun.model.document import BadDocument
from clusterrun.model.frozen import replace
from clusterrun.preflight import preparing, speech
from clusterrun.preflight.tasks import (
    DialAnswer,
    DialTask,
    GroupResult,
    GroupTask,
    Listening,
    LocalAnswer,
    ThroughAnswer,
    ThroughTask,
    WarmUp,
    WatchAnswer,
)
from clusterrun.preflight.trials import PRODUCT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from clusterrun.preflight.case import Case
    from clusterrun.preflight.questions import Question
    from clusterrun.preflight.trials import Trials


def take(case: Case, trials: Trials, question: Question, value: Any) -> None:
    """Take the answer to ``question``."""
    subject = case.subjects[question.node]
    if isinstance(value, LocalAnswer):
        subject.local = value
    elif isinstance(value, Listening):
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
    preparing.hurry(case, type(question.task))


def _time(case: Case, question: Question, wall: float) -> None:
    subject = case.subjects[question.node]
    subject.told_time(wall, case.wall_at(question.asked), case.wall_at(case.now))


def _tested(case: Case, trials: Trials, question: Question, result: GroupResult) -> None:
    subject = case.subjects[question.node]
    if result.stage == "warm":
        subject.grow_cold(result.why)
    elif isinstance(question.task, GroupTask) and question.task.kind == PRODUCT:
        subject.multiplied(result)
    trials.take(question, result)


def _through(case: Case, trials: Trials, question: Question, value: ThroughAnswer) -> None:
    """It is the answer of the node that was looked at through the one that was asked."""
    if not isinstance(question.task, ThroughTask) or not value.body:
        return
    name, inner = question.task.name, speech.task(question.task.body)
    node = next(one.node for one in case.subjects.values() if one.name == name)
    try:
        said = speech.answer(inner, value.body)
    except BadDocument:  # the nonsense is not that of the node that passed it on
        return
    take(case, trials, replace(question, node=node, task=inner), said)
