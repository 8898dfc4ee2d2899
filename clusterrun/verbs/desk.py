"""What the verbs need of the world: runs on disk, Slurm, a clock, an environment; does nothing by itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from clusterrun import system
from clusterrun.config import settings
from clusterrun.runs.store import Store
from clusterrun.slurm.client import SlurmClient
from clusterrun.verbs.inquiry import Inquiry

Tell = Callable[[str], None]
"""Hears sentences for the person who waits."""


def quiet(sentence: str) -> None:
    """Tell nobody."""


class Desk:
    """The world as one argument; each part is the real one unless given."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        clock: system.Clock | None = None,
        client: SlurmClient | None = None,
    ) -> None:
        self.environ = dict(os.environ if environ is None else environ)
        self.clock = clock or system.RealClock()
        self.store = Store(settings.home(self.environ))
        self._client = client

    def client(self) -> SlurmClient:
        """Slurm, as seen from here."""
        self._client = self._client or SlurmClient(self.environ, clock=self.clock)
        return self._client

    def inquiry(self, tell: Tell = quiet) -> Inquiry:
        """One round of questions about runs; ``tell`` hears of a wait that gets long."""
        return Inquiry(self.store, self.client, self.clock, tell)
