"""Run a rehearsal through Slurm: every run starts in the current allocation, one after the other."""

from __future__ import annotations

from clusterrun import system
from clusterrun.api import Run
from clusterrun.model.errors import BadInput, SchedulerError
from clusterrun.model.hostlist import expand
from clusterrun.model.spec import JobSpec
from clusterrun.operations.context import quiet
from clusterrun.operations.exec_in_job import ExecTarget, exec_argv
from clusterrun.operations.interactive import allocation, begin
from clusterrun.rehearse.rehearsed_runs import RehearsedRuns

# Seconds for the step that kills a node's processes. Slurm may take a minute to grant it.
KILL_SECONDS = 90.0
# This runs on the node. Processes that the nodes of a lab share stay. slurmd and slurmstepd belong to root.
#
# It prints first, because the shim that loses its agent ends every process of the run, this one too.
KILL = """
import os, signal, sys
run, mine, parent = os.fsencode(sys.argv[1]), set(), os.getpid()
of_node = {b"CLUSTERRUN_RUN_DIR=" + run, b"NODE_RANK=" + os.fsencode(sys.argv[2])}
while parent > 1:
    mine.add(parent)
    parent = int(open(f"/proc/{parent}/stat").read().rpartition(")")[2].split()[1])
agents, ranks = [], []
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    try:
        words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")
        environment = open(f"/proc/{pid}/environ", "rb").read().split(b"\\0")
    except OSError:
        continue
    if pid not in mine and b"agent" in words[:7] and any(word.startswith(run) for word in words):
        agents.append(pid)
    elif pid not in mine and of_node <= set(environment):
        ranks.append(pid)
print(len(agents), len(ranks), flush=True)
for pid in agents + ranks:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class AllocationRuns(RehearsedRuns):
    at_once = 1

    def fit(self, nodes: int) -> None:
        """Raises ``BadInput`` if the allocation has too few nodes for the largest run."""
        own_allocation = allocation(self._context)
        if len(own_allocation.nodes) < nodes:
            raise BadInput(
                f"{nodes} nodes are requested; job {own_allocation.job_id} has {len(own_allocation.nodes)}",
                "give a smaller --nodes, or leave the allocation: rehearse requests an allocation of its own",
            )

    def _launch(self, spec: JobSpec) -> Run:
        return Run(begin(spec, ("nodes", "gpus"), self._context, quiet), self._context)

    def kill_node(self, run: Run, node: int) -> None:
        name = expand(run.record.spec.nodelist)[node]
        command = (self.spec.python or "python3", "-c", KILL, run.run_dir, str(node))
        argv = exec_argv(self._context, run.run_id, ExecTarget(node=name), command, False, quiet)
        answer = system.run(argv, KILL_SECONDS, env=dict(self._context.environ))
        if answer.out.split()[:1] in ([], ["0"]):
            raise SchedulerError(
                f"the processes on {name} could not be killed: {answer.err.strip() or answer.out.strip()}",
                "see whether a step starts there: srun --overlap",
            )
