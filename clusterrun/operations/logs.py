"""What the ranks of one run printed: finds the files, the node names and the end."""

from __future__ import annotations

from collections.abc import Iterator

from clusterrun.logs.attempt_logs import STREAMS, LogSelection
from clusterrun.logs.format import Headings
from clusterrun.logs.log_reader import following, newest_attempt, so_far
from clusterrun.logs.merge import Piece
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.model.record import RunState
from clusterrun.operations.context import Context, Tell, quiet
from clusterrun.operations.run_files import spec_of
from clusterrun.operations.wait import RunWait

NAMES_SECONDS = 2.0


@frozen
class LogRequest:
    """What is to be shown; ``tail`` counts lines of each stream of each rank."""

    ranks: frozenset[int] | None = None
    stream: str = "both"
    tail: int | None = None
    attempt: int | None = None
    begin: float = 0.0

    def selection(self) -> LogSelection:
        return LogSelection(self.ranks, STREAMS if self.stream == "both" else (self.stream,), self.begin)


class RunLogs:
    def __init__(self, context: Context, run_id: str, wanted: LogRequest, tell: Tell = quiet) -> None:
        self._context = context
        self._run_id = run_id
        self._wanted = wanted
        self._tell = tell
        self._paths = context.store.paths(run_id)
        self.watch = RunWait(context, run_id, tell, logs_are_shown=True)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of nodes, and of log-writing processes on each."""
        spec = spec_of(self._context.store.read(self._run_id), self._context.store)
        return spec.nodes, 1 if spec.per_node else spec.local_size

    def headings(self, colours: bool = False) -> Headings:
        """What stands before the lines; names of nodes come from the newest attempt."""
        nodes, each = self.shape
        return Headings(self._names, each, nodes * each, colours)

    def _names(self) -> tuple[str, ...]:
        state = self._state()
        return state.attempts[-1].nodes if state and state.attempts else ()

    def _state(self) -> RunState | None:
        """What the coordinator said; a state that is damaged keeps nobody from the logs."""
        try:
            return self._context.store.state(self._run_id)
        except ClusterrunError:
            return None

    def so_far(self, exact: bool = False) -> Iterator[Piece]:
        """What there is now; with ``exact`` the very bytes."""
        attempt = newest_attempt(self._paths, self._wanted.attempt)
        if attempt is None:
            return iter(())
        return so_far(self._paths, attempt, self._wanted.selection(), self._wanted.tail, exact)

    def following(self, exact: bool = False) -> Iterator[Piece]:
        if self._wanted.attempt is not None:
            raise BadInput("--attempt and --follow do not go together", "following shows every new attempt")
        wanted, over, clock = self._wanted, self.watch.over, self._context.clock
        return following(self._paths, wanted.selection(), wanted.tail, over, clock, self._began, exact)

    def _began(self, attempt: int) -> None:
        """Say why, once the coordinator has said so and named the nodes, which head the lines."""
        clock, found = self._context.clock, None
        until = clock.monotonic() + NAMES_SECONDS
        while found is None and clock.monotonic() < until:
            state = self._state()
            known = [one for one in (state.attempts if state else ()) if one.epoch == attempt and one.nodes]
            if not known:
                clock.sleep(0.05)
            found = known[0] if known else None
        if attempt:
            reason = found.reason if found else ""
            self._tell(f"attempt {attempt} begins{': ' if reason else ''}{reason}")
