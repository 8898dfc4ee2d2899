"""A rehearsal through Slurm: every run starts in the allocation around us, one after the other."""

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

KILL_SECONDS = 90.0
"""For the step that kills a node's processes: Slurm may take a minute to grant it."""
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
"""Runs on the node: what it shares with other nodes of a lab stays. slurmd and slurmstepd are root's.

It prints first: the shim that loses its agent ends every process of the run, this one too.
"""


class AllocationRuns(RehearsedRuns):
    at_once = 1

    def fit(self, nodes: int) -> None:
        """Raises ``BadInput`` if the allocation has too few nodes for the largest run."""
        there = allocation(self._context)
        if len(there.nodes) < nodes:
            raise BadInput(
                f"{nodes} nodes are wanted; job {there.job_id} has {len(there.nodes)}",
                "give a smaller --nodes, or leave the allocation: rehearse asks for one by itself",
            )

    def _launch(self, spec: JobSpec) -> Run:
        return Run(begin(spec, ("nodes", "gpus"), self._context, quiet), self._context)

    def kill_node(self, run: Run, node: int) -> None:
        name = expand(run.record.spec.nodelist)[node]
        command = (self.spec.python or "python3", "-c", KILL, run.run_dir, str(node))
        argv = exec_argv(self._context, run.run_id, ExecTarget(node=name), command, False, quiet)
        done = system.run(argv, KILL_SECONDS, env=dict(self._context.environ))
        if done.out.split()[:1] in ([], ["0"]):
            raise SchedulerError(
                f"the processes on {name} could not be killed: {done.err.strip() or done.out.strip()}",
                "see whether a step starts there: srun --overlap",
            )
