"""Read the output of the ranks of a run: its files, the names of its nodes, and its end."""

from __future__ import annotations

from collections.abc import Iterator

from clusterrun.logs.attempt_logs import LogSelection
from clusterrun.logs.format import Headings
from clusterrun.logs.log_reader import following, newest_attempt, newest_with_output, so_far
from clusterrun.logs.merge import Piece
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.record import RunState
from clusterrun.operations.context import Context, Tell, quiet
from clusterrun.operations.run_files import spec_of
from clusterrun.operations.wait import RunWait

NAMES_SECONDS = 2.0


class RunLogs:
    def __init__(
        self, context: Context, run_id: str, selection: LogSelection | None = None, tell: Tell = quiet
    ) -> None:
        self._context = context
        self._run_id = run_id
        self._selection = selection or LogSelection()
        self._tell = tell
        self._paths = context.store.paths(run_id)
        self._shown = self._selection.attempt  # the attempt whose output is shown; None: the newest
        self.watch = RunWait(context, run_id, tell, logs_are_shown=True)

    @property
    def shape(self) -> tuple[int, int]:
        """Return the number of nodes, and the number of processes on each that write logs."""
        spec = spec_of(self._context.store.read(self._run_id), self._context.store)
        return spec.nodes, 1 if spec.per_node else spec.local_size

    def headings(self, colours: bool = False) -> Headings:
        """Return the prefixes of the lines, with the names of the nodes of the attempt."""
        nodes, ranks_per_node = self.shape
        return Headings(self._names, ranks_per_node, nodes * ranks_per_node, colours)

    def _names(self) -> tuple[str, ...]:
        state = self._state()
        attempts = [
            attempt for attempt in (state.attempts if state else ()) if self._shown in (None, attempt.epoch)
        ]
        return attempts[-1].nodes if attempts else ()

    def _state(self) -> RunState | None:
        """Return the coordinator's state; None if it cannot be read, since the logs do not depend on it."""
        try:
            return self._context.store.state(self._run_id)
        except ClusterrunError:
            return None

    def so_far(self) -> Iterator[Piece]:
        """Return the output so far."""
        self._shown = newest_attempt(self._paths, self._selection.attempt)
        if self._shown is None:
            return iter(())
        if self._selection.attempt is None:
            newest, self._shown = self._shown, newest_with_output(self._paths)
            if self._shown != newest:
                self._tell(f"attempt {newest} has no output; these lines are of attempt {self._shown}")
        return so_far(self._paths, self._shown, self._selection)

    def following(self) -> Iterator[Piece]:
        if self._selection.attempt is not None:
            raise BadInput("--attempt and --follow do not go together", "following shows every new attempt")
        return following(self._paths, self._selection, self.watch.over, self._context.clock, self._began)

    def _began(self, attempt: int) -> None:
        """Report the start of an attempt with its reason, once the coordinator has named the nodes."""
        clock, newest = self._context.clock, None
        until = clock.monotonic() + NAMES_SECONDS
        while newest is None and clock.monotonic() < until:
            state = self._state()
            for candidate in state.attempts if state else ():
                if candidate.epoch == attempt and candidate.nodes:
                    newest = candidate
            if newest is None:
                clock.sleep(0.05)
        if attempt:
            reason = newest.reason if newest else ""
            self._tell(": ".join(filter(None, (f"attempt {attempt} begins", reason))))
