"""The last steps of a run: farewells, the end of the launcher, the exit code; pure."""

from __future__ import annotations

from clusterrun.coordinator.actions import EndLauncher, Send
from clusterrun.protocol.messages import Farewell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from clusterrun.coordinator.actions import CoordinatorAction
    from clusterrun.coordinator.membership import Membership
    from clusterrun.runtime.machine_events import Now

PART_SECONDS = 5.0
"""For the agents to leave and the launcher to end by themselves, and again for its end by force."""


class Farewells:
    """Begun once no rank lives anywhere; ends in ``left(now, code)`` within twice ``PART_SECONDS``."""

    def __init__(
        self,
        membership: Membership,
        actions: list[CoordinatorAction],
        left: Callable[[Now, int], None],
    ) -> None:
        self.begun = False
        self.launcher_lives = False
        self.due_at: float | None = None
        self._membership = membership
        self._actions = actions
        self._left = left
        self._code = 0
        self._forced = False

    def begin(self, now: Now, code: int) -> None:
        """Say farewell to everyone; who never joined, or fell silent, is ended with the launcher."""
        self.begun = True
        self._code = code
        self.due_at = now.steady + PART_SECONDS
        for member in self._membership.linked():
            self._actions.append(Send(member.link, Farewell()))
        if not self._membership.complete or any(member.silent for member in self._membership.taken()):
            self._force(now)
        self.check(now)

    def check(self, now: Now) -> None:
        """Finish, where nobody is left."""
        if self.begun and not self.launcher_lives and (self._forced or not self._membership.linked()):
            self._finish(now)

    def tick(self, now: Now) -> None:
        """Time is up for those who are left."""
        if self.due_at is None or now.steady < self.due_at:
            return
        if self.launcher_lives and not self._forced:
            self._force(now)
        else:
            self._finish(now)

    def _force(self, now: Now) -> None:
        self._forced = True
        self.due_at = now.steady + PART_SECONDS
        if self.launcher_lives:
            self._actions.append(EndLauncher())

    def _finish(self, now: Now) -> None:
        self.begun = False
        self.due_at = None
        self._left(now, self._code)
