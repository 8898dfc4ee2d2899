"""Find the error that ended a run among all that its ranks printed; pure.

An error is not the first one if it is the consequence of another, if its rank continued for long after it, or
if its rank had ended well. Among the rest, the earliest wins. Log times are known to about a second: within
``SAME_MOMENT`` a rank's own error wins over a lost connection, and a known error over an unknown one.
"""

from __future__ import annotations

import signal
from functools import lru_cache

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.printed_errors import SURVIVED_SECONDS, Error
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.verdict import unfolded
from clusterrun.diagnosis.watchdog_lines import is_timeout

SAME_MOMENT = 1.0
# Seconds before the first failure. An error that was survived for longer did not end the run.
BEFORE = 60.0
# Seconds more from a collective's time-out to the abort: NCCL's watchdog first writes its records.
DUMPING = 540.0
# Signals that follow a message of the process itself, or that end the other ranks.
_AFTER_WORDS = (signal.SIGTERM, signal.SIGINT, signal.SIGABRT)


@lru_cache(maxsize=1)
def first_error(table: CallTable) -> Error | None:
    """Return the error that ended the run; None if no rank printed one."""
    run = table.end
    if run is None or was_killed(run):
        return None
    failed = run.failure
    since = failed.at - BEFORE if failed else 0.0
    ended_well = unfolded(failed.ended) if failed else ()
    errors = []
    for error in run.errors:
        limit = since - (DUMPING if is_timeout(error) else 0.0)
        if not error.is_consequence and error.rank not in ended_well and (not error.at or error.at >= limit):
            errors.append(error)
    if not errors:
        return None
    errors = [error for error in errors if not error.survived] or errors
    errors = _without_logged(run, _without_overcome(run, errors))
    earliest = min(error.at for error in errors)
    first = failed.rank if failed else -1
    # An exception may be what others' collectives waited for when they timed out, never the other way round.
    error = min(
        (error for error in errors if error.at <= earliest + SAME_MOMENT),
        key=lambda error: (
            is_timeout(error),
            error.lost_peer,
            error.row is None,
            error.rank != first,
            error.at,
            error.rank,
        ),
    )
    return None if error.lost_peer and _exited_before(run, error) else error


def failure_of(table: CallTable) -> tuple[Remains, Error]:
    """Return what a run left, and the error that ended it. The rule has found that both exist."""
    error = first_error(table)
    assert table.end and error
    return table.end, error


def _exited_before(run: Remains, error: Error) -> bool:
    """Return whether the first failed rank had exited without a traceback, as with ``os._exit``."""
    failure = run.failure
    if failure is None or run.per_node or not 0 < failure.code < 128:
        return False
    is_later = error.at > failure.at - SAME_MOMENT
    return is_later and all(other.rank != failure.rank for other in run.errors)


def was_killed(run: Remains) -> bool:
    """Return whether a signal ended the first rank: it prints nothing, and other errors follow from it."""
    failure = run.failure
    if failure is None or failure.rank < 0:
        return False
    number = -failure.code if failure.code < 0 else failure.code - 128
    if number <= 0 or number in _AFTER_WORDS:
        return False
    if number != signal.SIGKILL and any(error.rank == failure.rank for error in run.errors):
        return False
    return not any(
        error.at and error.at < failure.at - SAME_MOMENT for error in run.errors if not error.is_consequence
    )


def _without_overcome(run: Remains, errors: list[Error]) -> list[Error]:
    """Leave out what several ranks printed, if the rank that failed first printed another error after it."""
    first = run.failure.rank if run.failure else -1
    own_errors = [error for error in errors if error.rank == first]
    if run.per_node or len(own_errors) < 2:
        return errors
    last = max(own_errors, key=lambda error: error.at)
    others = {error.text for error in errors if error.rank != first}
    overcome = {error.text for error in own_errors if error.text in others and error.text != last.text}
    return [error for error in errors if error.text not in overcome]


def _without_logged(run: Remains, errors: list[Error]) -> list[Error]:
    """Leave out what other ranks logged long before the first rank ended of an error of its own.

    An error that ends several ranks may be the consequence of what one of them printed before.
    """
    failure = run.failure
    if failure is None or run.per_node:
        return errors
    several = {error.text for error in errors if error.rank != failure.rank}
    own_errors = [
        error
        for error in errors
        if error.rank == failure.rank
        and not is_timeout(error)
        and error.text not in several
        and (error.ends or failure.at - error.at <= SURVIVED_SECONDS)
    ]
    if not own_errors:
        return errors
    since = max(error.at for error in own_errors) - SURVIVED_SECONDS
    return [error for error in errors if error.rank == failure.rank or error.ends or error.at > since]
