"""What the ranks of a run printed: one attempt as it is, or all that comes until the run is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from clusterrun.logs.attempt_logs import LogSelection, attempts, in_order, log_files, size_of
from clusterrun.logs.follow import LOOK_EVERY, Follower, spans
from clusterrun.logs.merge import Piece
from clusterrun.model.errors import BadInput
from clusterrun.model.paths import RunPaths
from clusterrun.system import Clock


def newest_attempt(paths: RunPaths, wanted: int | None) -> int | None:
    """The attempt to show: ``wanted``, else the newest; None before the first. Raises ``BadInput``."""
    known = attempts(paths.attempts)
    if wanted is None:
        return known[-1] if known else None
    if wanted not in known:
        there = f"attempts of the run: {', '.join(map(str, known))}"
        raise BadInput(f"there is no attempt {wanted}", there if known else "the run has not started yet")
    return wanted


def so_far(
    paths: RunPaths, attempt: int, selection: LogSelection, tail: int | None, exact: bool = False
) -> Iterator[Piece]:
    """What the ranks of one attempt have printed, by time; ``tail`` lines of each stream at most."""
    folder = paths.attempt(attempt).folder
    files = log_files(folder, selection)
    ends = [size_of(file.path) for file in files]
    return in_order(folder, files, spans(files, ends, tail, selection.begin), exact)


def following(
    paths: RunPaths,
    selection: LogSelection,
    tail: int | None,
    over: Callable[[], bool],
    clock: Clock,
    began: Callable[[int], None],
    exact: bool = False,
) -> Iterator[Piece]:
    """What ranks print, through every new attempt, until ``over``; without data: time has passed."""
    epoch: int | None = None
    follower: Follower | None = None
    while True:
        finished = over()  # asked before reading, so that nothing written before the end is missed
        known = attempts(paths.attempts)
        further = known[-1:] if epoch is None else [number for number in known if number > epoch]
        if further:
            yield from follower.last() if follower else ()
            began(further[0])
            follower = Follower(paths.attempt(further[0]).folder, selection, clock, exact)
            yield from follower.so_far(tail if epoch is None else None)
            epoch = further[0]
            continue
        found = follower.new() if follower else []
        yield from found
        if finished:
            yield from follower.last() if follower else ()
            return
        if not found:
            yield Piece(clock.now(), 0, "out", b"")
            clock.sleep(LOOK_EVERY)
