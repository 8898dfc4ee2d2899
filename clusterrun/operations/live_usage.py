"""Sample how a live run uses its nodes, often while a user watches."""

from __future__ import annotations

import json
import os
import secrets

from clusterrun import atomic_file
from clusterrun.logs.attempt_logs import readable
from clusterrun.model import contract
from clusterrun.model.errors import BadInput
from clusterrun.model.record import RunStatus
from clusterrun.model.states import Phase
from clusterrun.model.usage import NodeUse
from clusterrun.operations.context import Context
from clusterrun.operations.run_files import spec_of
from clusterrun.runs import usage_files
from clusterrun.runs.private_files import private_folder, write_whole

# Seconds for which the observers sample often after a request. Then they sample rarely again.
ASKED_SECONDS = 60.0
AGAIN_SECONDS = 45.0
# Seconds to wait for the first samples, which come a second or two after the request.
FIRST_SECONDS = 10.0


class LiveUsage:
    """The newest usage of a run, or of one ``node``. A context manager: its exit withdraws the request."""

    def __init__(self, context: Context, run_id: str, every: float, node: str = "") -> None:
        self._context, self.run_id, self._every, self._node = context, run_id, every, node
        self._paths = context.store.paths(run_id)
        spec = spec_of(context.store.read(run_id), context.store)
        self._nodes = 1 if node else spec.nodes
        self._allocated = spec.nodes + spec.spares
        self._asked_at = float("-inf")
        self._question = ""
        self.status: RunStatus = self._status()
        self.uses: tuple[NodeUse, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.status.run_id}  {self.status.state.value}, {self.status.phase.value}"

    def __enter__(self) -> LiveUsage:
        return self

    def __exit__(self, *why: object) -> None:
        self._withdraw()

    def look(self) -> bool:
        """Read the newest samples.

        Return False if the run has ended. Raise ``Unreadable`` without permission.
        """
        self.status = self._status()
        self.uses = tuple(use for use in self._newest() if self._node in ("", use.node))
        return not self.status.state.ended

    def look_first(self) -> None:
        """Wait until every node has a sample from after the request, for ``FIRST_SECONDS`` at most."""
        clock = self._context.clock
        end, asked_at = clock.monotonic() + FIRST_SECONDS, clock.now()
        while self.look() and clock.monotonic() < end:
            if len([use for use in self.uses if use.at >= asked_at]) >= self._nodes:
                return
            clock.sleep(0.2)

    def _status(self) -> RunStatus:
        (status,) = self._context.inquiry().statuses([self.run_id])
        return status

    def _newest(self) -> tuple[NodeUse, ...]:
        """Return the newest sample of each node, and renew the request to sample often."""
        now = self._context.clock.monotonic()
        if now - self._asked_at > AGAIN_SECONDS:
            self._asked_at = now
            self._withdraw()
            body = json.dumps({"sample": {"every": self._every, "seconds": ASKED_SECONDS}})
            private_folder(self._paths.asks)
            self._question = os.path.join(self._paths.asks, f"{contract.TOP_ASK}-{secrets.token_hex(6)}")
            write_whole(self._question, body, sync=False)
        state = self._context.store.state(self.run_id)
        if state is None or not state.attempts:
            return ()
        attempt = self._paths.attempt(state.attempts[-1].epoch)
        readable(self._paths.attempts, attempt.folder)
        return usage_files.newest(attempt, self._allocated)

    def _withdraw(self) -> None:
        if self._question:
            atomic_file.remove(self._question)
            self._question = ""


def refuse_absent(status: RunStatus) -> None:
    """Raise ``BadInput`` if the run has not started, or has ended."""
    if status.state.ended:
        message = f"{status.run_id} has ended ({status.state.value})"
        raise BadInput(message, f"clusterrun status {status.run_id} shows its average usage")
    if status.phase is Phase.QUEUED:
        raise not_started(status)


def not_started(status: RunStatus) -> BadInput:
    """Return the error for a command that needs a started run."""
    message = ": ".join(filter(None, (f"{status.run_id} has not started", status.reason)))
    return BadInput(message, f"clusterrun status --watch {status.run_id} shows when it does")
