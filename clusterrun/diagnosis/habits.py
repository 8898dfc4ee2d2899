"""Learn from records what a rank usually does after each call, and detect departures; pure.

A rank that departs from its habit where the others keep theirs has skipped a call, or made one too many.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.diagnosis.calls import Call, CallTable
from clusterrun.model.frozen import frozen

# How often a rank must have come to a point before what it does there is a habit.
HABIT = 2
# How many calls back from where it waits a departure is looked for.
LATELY = 4
_START = ("", "")


@frozen
class _Turn:
    """A collective that a rank has begun."""

    # before, call: group and operation of the collective before it, and of this one
    before: tuple[str, str]
    call: tuple[str, str]
    sends: int  # sends and receives begun between both; -1: unknown


@frozen
class Departure:
    """A rank called ``call`` after ``before``, where it had always called one of ``usual``.

    Each is a group and an operation.
    """

    before: tuple[str, str]
    call: tuple[str, str]
    usual: tuple[tuple[str, str], ...]


def departs(table: CallTable, wait: Call) -> bool | None:
    """Return whether a rank waits in a call that it never made at this point; None if it was here too rarely.

    A call that it has never made anywhere begins something new, and is no departure.
    """
    history = table.history[wait.rank]
    turns = _turns(history)
    if wait.sequence:
        index = next(
            (index for index, call in enumerate(history) if (call.key, call.at) == (wait.key, wait.at)), 0
        )
        now, turns = turns[index], turns[:index]
        past = _past(turns, now.before)
        if len(past) < HABIT or now.sends < 0 or not any(turn.call == now.call for turn in turns):
            return None
        return (now.call, now.sends) not in [(turn.call, turn.sends) for turn in past]
    last = history[-1] if history else None
    groups = table.of(wait.rank).groups
    group = next((group for group in groups if last and group.name == last.group), None)
    if last is None or group is None or group.backend != "gloo" or not last.begun:
        return None
    counts = [turn.sends for turn in _past(turns, (last.group, last.operation))]
    if len(counts) < HABIT or max(counts) <= 0:
        return None
    return group.sequence - last.begun > max(counts)


def departures(table: CallTable, wait: Call) -> tuple[Departure, ...] | None:
    """Return the newest departure among the last calls of a rank; () if there is none, None if unknown."""
    turns = _turns(table.history[wait.rank])
    if not wait.sequence or len(turns) <= LATELY:
        return None
    for index in range(len(turns) - 1, len(turns) - 1 - LATELY, -1):
        now, past = turns[index], _past(turns[:index], turns[index].before)
        calls = [turn.call for turn in past]
        if len(past) < HABIT or all(turn.call != now.call for turn in turns[:index]):
            return None
        if now.call not in calls:
            return (Departure(now.before, now.call, tuple(dict.fromkeys(calls))),)
    return ()


def _past(turns: list[_Turn], before: tuple[str, str]) -> list[_Turn]:
    """Return the turns after this call. The first turn counts as well in a young loop with one call."""
    past = [turn for turn in turns if turn.before == before and turn.sends >= 0]
    first = [turn for turn in turns if (turn.before, turn.call) == (_START, before) and turn.sends >= 0]
    is_one_call = len(past) < HABIT and all(turn.call == before for turn in past)
    return [*first, *past] if is_one_call else past


def _turns(history: Sequence[Call]) -> list[_Turn]:
    begun: dict[str, tuple[int, int]] = {}
    turns = []
    before = _START
    for call in history:
        number, sequence = begun.get(call.group, (0, 0))
        # Without the record before it, the sends in between are unknown. Old torch counts none.
        count = call.begun - number - 1 if sequence + 1 == call.sequence else -1
        turns.append(_Turn(before, (call.group, call.operation), count if call.begun else 0))
        begun[call.group] = (call.begun, call.sequence)
        before = call.group, call.operation
    return turns
