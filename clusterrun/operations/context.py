"""The resources of every operation: runs on disk, Slurm, a clock, the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from clusterrun import system
from clusterrun.config import settings
from clusterrun.model import option_table
from clusterrun.model.errors import ClusterrunError, SchedulerError
from clusterrun.model.record import RunRecord
from clusterrun.runs.store import Store
from clusterrun.slurm.client import SlurmClient
from clusterrun.slurm.job_cache import SharedJobs
from clusterrun.slurm.queries import JobRow

if TYPE_CHECKING:
    from clusterrun.operations.job_matching import Jobs
    from clusterrun.operations.status import StatusQuery

# Prints a sentence for the user who waits.
Tell = Callable[[str], None]


def quiet(sentence: str) -> None:
    """Discard ``sentence``."""


class Context:
    """The resources of an operation. Each is the real one unless the caller passes another.

    ``tell`` gets the notices about ignored settings.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        clock: system.Clock | None = None,
        client: SlurmClient | None = None,
        tell: Tell = quiet,
    ) -> None:
        self.environ = dict(os.environ if environ is None else environ)
        self.clock = clock or system.RealClock()
        self.store = Store(settings.home(self.environ), self.other_cluster)
        self._client = client
        self._tell = tell
        self._jobs: SharedJobs | None = None

    def client(self) -> SlurmClient:
        self._client = self._client or SlurmClient(self.environ, clock=self.clock)
        return self._client

    def slurm(self) -> SlurmClient:
        """Return the client of Slurm. Raise ``SchedulerError`` if Slurm cannot be used here."""
        if why := self.client().why_not():
            raise SchedulerError(f"Slurm cannot be used here: {why}", "run this where Slurm is")
        return self.client()

    def jobs(self) -> SharedJobs:
        """Return this user's jobs. Commands that run at about the same time share one query."""
        if self._jobs is None:
            ask = self.client().jobs
            self._jobs = SharedJobs(self.store.cache, self.environ, ask, self.clock, self._floor())
        return self._jobs

    def other_cluster(self, record: RunRecord) -> str:
        """Return the name of the cluster that holds the run's jobs; '' if it is this cluster."""
        if not record.slurm:
            return ""
        identity = self.client().identity()
        return "" if identity in ("", record.slurm) else record.slurm.partition("@")[0]

    def matching(self, rows: Iterable[JobRow]) -> Jobs:
        """Return ``rows`` of Slurm, ready to be matched with runs."""
        from clusterrun.operations.job_matching import Jobs  # a submission does not need it

        return Jobs(rows, self.other_cluster, self.store.newest_of_job)

    def _floor(self) -> float:
        """Return the least seconds between two queries to Slurm. An unreadable configuration is ignored."""
        from clusterrun.config import profiles

        try:
            read = profiles.load(os.getcwd(), self.environ)
            sources = [*settings.from_environment(self.environ), *profiles.sources(read, "")]
            value = settings.settle(sources)["slurm-every"].value
        except (ClusterrunError, OSError) as error:
            # A working directory that was removed has no configuration, and its error has no path.
            if isinstance(error, ClusterrunError) or error.filename:
                message = error.seen if isinstance(error, ClusterrunError) else str(error)
                self._tell(f"{message}; it is ignored here, and submit will refuse it")
            value = option_table.CONFIGURABLE["slurm-every"].default
        return max(1.0, float(value) if isinstance(value, int) else 0.0)

    def inquiry(self, tell: Tell = quiet) -> StatusQuery:
        """Return a query for the statuses of runs. ``tell`` gets a notice if the wait is long."""
        from clusterrun.operations.status import StatusQuery  # a submission does not need it

        return StatusQuery(self.store, self.client, self.jobs, self.clock, tell, self.other_cluster)
