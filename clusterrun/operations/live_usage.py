"""What a live run uses of its nodes, asked for often while somebody looks."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress

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

ASKED_SECONDS = 60.0
"""For how long one question keeps the observers at it; after that they are light again by themselves."""
AGAIN_SECONDS = 45.0
FIRST_SECONDS = 10.0
"""How long a first sample is waited for: it comes within a second or two of being asked for."""


class LiveUsage:
    """What the last look saw of one run (or one ``node``); used as a context: the question goes with it."""

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

    def __enter__(self) -> LiveUsage:
        return self

    def __exit__(self, *why: object) -> None:
        self._withdraw()

    def look(self) -> bool:
        """Look again; False if the run has ended. Raises ``Unreadable`` if samples may not be read."""
        self.status = self._status()
        self.uses = tuple(use for use in self._newest() if self._node in ("", use.node))
        return not self.status.state.ended

    def look_first(self) -> None:
        """Look until every node has said something new since it was asked, for a limited time."""
        clock = self._context.clock
        end, asked = clock.monotonic() + FIRST_SECONDS, clock.now()
        while self.look() and clock.monotonic() < end:
            if len([use for use in self.uses if use.at >= asked]) >= self._nodes:
                return
            clock.sleep(0.2)

    def _status(self) -> RunStatus:
        (status,) = self._context.inquiry().statuses([self.run_id])
        return status

    def _newest(self) -> tuple[NodeUse, ...]:
        """The newest sample of each node; the observers are asked to take them often."""
        now = self._context.clock.monotonic()
        if now - self._asked_at > AGAIN_SECONDS:
            self._asked_at = now
            self._ask()
        state = self._context.store.state(self.run_id)
        if state is None or not state.attempts:
            return ()
        attempt = self._paths.attempt(state.attempts[-1].epoch)
        readable(self._paths.attempts, attempt.folder)
        return usage_files.newest(attempt, self._allocated)

    def _ask(self) -> None:
        self._withdraw()
        body = json.dumps({"sample": {"every": self._every, "seconds": ASKED_SECONDS}})
        private_folder(self._paths.asks)
        self._question = os.path.join(self._paths.asks, f"{contract.TOP_ASK}-{secrets.token_hex(6)}")
        write_whole(self._question, body, sync=False)

    def _withdraw(self) -> None:
        if self._question:
            with suppress(OSError):
                os.unlink(self._question)
            self._question = ""


def refuse_absent(status: RunStatus) -> None:
    """Raises ``BadInput`` if nothing can be seen: the run has not started, or has ended."""
    if status.state.ended:
        seen = f"{status.run_id} has ended ({status.state.value})"
        raise BadInput(seen, f"clusterrun status {status.run_id} says what it used on average")
    if status.phase is Phase.QUEUED:
        raise not_started(status)


def not_started(status: RunStatus) -> BadInput:
    """The answer to whoever wants something of a run that still waits."""
    seen = f"{status.run_id} has not started{': ' + status.reason if status.reason else ''}"
    return BadInput(seen, f"clusterrun status --watch {status.run_id} shows when it does")
