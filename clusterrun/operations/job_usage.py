"""Sample how a Slurm job that clusterrun did not start uses its nodes, from a step beside its ranks."""

from __future__ import annotations

import os
import select

from clusterrun.model.errors import BadInput
from clusterrun.model.hostlist import fold
from clusterrun.model.usage import NodeUse
from clusterrun.operations.context import Context
from clusterrun.operations.diagnose_job import spy_folder
from clusterrun.operations.job_step import check_live, looks_in, program_argv, step_argv, step_environment
from clusterrun.operations.live_usage import FIRST_SECONDS
from clusterrun.operations.submit import program_for_nodes
from clusterrun.slurm.foreign_job import ForeignJob
from clusterrun.system import Piped

END_SECONDS = 5.0
_MOST_BYTES = 4 << 20


class JobUsage:
    """The newest usage of a job, or of one ``node``. A context manager: its exit ends the step.

    It has the interface of ``LiveUsage``.
    """

    def __init__(self, context: Context, job: ForeignJob, every: float, node: str = "") -> None:
        self._context, self.run_id = context, job.job_id
        nodes = check_live(job)
        if node and node not in nodes:
            raise BadInput(f"job {job.job_id} has no node {node!r}", f"it has {fold(nodes)}")
        self._nodes = (node,) if node else nodes
        program = program_argv(
            program_for_nodes(context), "use", job.number, f"{every:g}", spy_folder(context)
        )
        argv = step_argv(context, job, self._nodes, program)
        self._step = Piped(argv, env=step_environment(context))
        self._text = ""
        self._has_ended = False
        self._newest: dict[str, NodeUse] = {}
        self.title = f"job {job.job_id} {job.name!r}  {job.word}"

    def __enter__(self) -> JobUsage:
        return self

    def __exit__(self, *why: object) -> None:
        self._step.end(END_SECONDS)  # the end of its input ends the tasks

    @property
    def uses(self) -> tuple[NodeUse, ...]:
        return tuple(self._newest[node] for node in self._nodes if node in self._newest)

    def look(self, seconds: float = 0.0) -> bool:
        """Read new samples, for which it waits at most ``seconds``. Return False if the step has ended."""
        while not self._has_ended and select.select([self._step.incoming], [], [], seconds)[0]:
            data = os.read(self._step.incoming, 1 << 16)
            self._has_ended = not data
            self._text += data.decode("ascii", "replace")
            seconds = 0.0
        whole_lines, _, self._text = self._text.rpartition("\n")
        for use in looks_in(whole_lines, NodeUse):
            self._newest[use.node] = use
        self._text = self._text[-_MOST_BYTES:]
        return not self._has_ended

    def look_first(self) -> None:
        """Wait until every node has a sample, ``FIRST_SECONDS`` at most. Raise ``BadInput`` without any."""
        clock = self._context.clock
        end = clock.monotonic() + FIRST_SECONDS
        while self.look(0.2) and clock.monotonic() < end:
            if len(self.uses) == len(self._nodes):
                return
        if not self.uses:
            message = f"no node of job {self.run_id} has sent a sample"
            raise BadInput(message, f"clusterrun diagnose {self.run_id} says why no step can be placed")
