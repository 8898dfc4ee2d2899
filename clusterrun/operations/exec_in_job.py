"""Find the node for a command inside a live job, and the arguments that run it on that node."""

from __future__ import annotations

import socket

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.hostlist import expand
from clusterrun.model.record import RunRecord
from clusterrun.model.spec import Cluster
from clusterrun.model.states import State
from clusterrun.operations.context import Context, Tell
from clusterrun.operations.live_usage import not_started
from clusterrun.operations.run_files import spec_of
from clusterrun.operations.submit import program_for_nodes
from clusterrun.script.sbatch_options import asks_for_gpus
from clusterrun.slurm.foreign_job import ForeignJob

# Seconds for Slurm to grant the step. The step shares the job's resources, so it waits for no other step.
STEP_SECONDS = 60


@frozen
class ExecTarget:
    """The rank or the node that a command is for."""

    rank: int = -1  # -1: no rank was requested
    node: str = ""  # name or number; '': no node was requested


def exec_argv(
    context: Context, run_id: str, wish: ExecTarget, command: tuple[str, ...], terminal: bool, tell: Tell
) -> tuple[str, ...]:
    """Return the arguments that run ``command`` next to the run; an empty one means a shell.

    ``terminal`` connects it to a terminal. Raise ``BadInput`` if the run has no such node.
    """
    record, node = target_node(context, run_id, wish, tell)
    paths = context.store.paths(run_id)
    program = (record.spec.python, "-I", "-S", paths.agent, "beside", paths.run_dir, node, str(wish.rank))
    return (*to_node(context, record, node, terminal), *program, "--", *command)


def exec_beside_job(
    context: Context, job: ForeignJob, wish: ExecTarget, command: tuple[str, ...], terminal: bool, tell: Tell
) -> tuple[str, ...]:
    """Return the arguments that run ``command`` next to a job that clusterrun did not start.

    Raise ``BadInput`` if the job has no such node or rank, and the errors of ``diagnose_job``.
    """
    from clusterrun.operations import diagnose_job, job_step

    nodes = job_step.check_live(job)
    node, pid = _node(wish, nodes, f"job {job.job_id}"), 0
    if wish.rank >= 0:
        ranks = diagnose_job.ranks_of(context, job, nodes)
        if wish.rank not in ranks:
            listing = ", ".join(map(str, sorted(ranks))) or "none"
            raise BadInput(f"job {job.job_id} has no rank {wish.rank}", f"its ranks are {listing}")
        (node, pid), *others = ranks[wish.rank]
        if others:
            places = ", ".join(f"process {other} on {home}" for home, other in others[:8])
            tell(f"several worlds have a rank {wish.rank}: process {pid} on {node} is chosen, not {places}")
    stream = "--pty" if terminal else "--unbuffered"
    program = job_step.program_argv(program_for_nodes(context), "beside-job", job.number, str(pid))
    return job_step.step_argv(context, job, (node,), (*program, "--", *command), (stream,))


def to_node(context: Context, record: RunRecord, node: str, terminal: bool) -> tuple[str, ...]:
    """Return the arguments before a program that make it run on ``node``; none for this machine."""
    if record.cluster != Cluster.SLURM.value:
        return ()
    array = "_" in record.job_id  # srun does not know the tasks of an array
    job_id = context.client().plain_number(record.job_id) if array else record.job_id
    # Without --overlap the step would wait until the ranks end.
    options = (f"--jobid={job_id}", "--overlap", f"--immediate={STEP_SECONDS}", f"--nodelist={node}")
    alone = asks_for_gpus(record.spec) and not context.client().shares_gpus()
    gpus = ("--gres=gpu:0",) if alone else ()
    plain = ("--nodes=1", "--ntasks=1", *context.client().step_options())
    return ("srun", *options, *gpus, *plain, "--pty" if terminal else "--unbuffered")


def target_node(context: Context, run_id: str, wish: ExecTarget, tell: Tell) -> tuple[RunRecord, str]:
    """Return the run's record and the name of the requested node.

    Raise ``BadInput`` as ``exec_argv`` does.
    """
    (status,) = context.inquiry(tell).statuses([run_id])
    record = context.store.read(run_id)
    if status.state.ended:
        message = f"{run_id} has ended ({status.state.value}): it has no nodes any more"
        raise BadInput(message, f"clusterrun logs {run_id} shows what it printed")
    if status.state is State.PENDING:
        raise not_started(status)
    host = record.host
    if record.cluster == Cluster.LOCAL.value and host not in ("", socket.gethostname()):
        raise BadInput(f"{run_id} runs on {host}, this is another machine", f"type this on {host}")
    if other := context.other_cluster(record):
        message = f"{run_id} runs on the cluster {other}, this is another one"
        raise BadInput(message, f"type this on a login node of {other}")
    record = replace(record, spec=spec_of(record, context.store))
    # In rank order if the coordinator has reported them, otherwise in Slurm's order.
    nodes = expand(status.nodelist)
    state = context.store.state(status.run_id)
    live = state.attempts[-1] if state and state.attempts else None
    if live and live.nodes and live.ended_at is None:
        nodes = live.nodes
    node = nodes[_place(wish, nodes, record)] if nodes else ""
    if not node:
        message = f"it is not known yet which nodes {run_id} runs on"
        raise BadInput(message, "try again in a moment: clusterrun status")
    return record, node


def _place(wish: ExecTarget, nodes: tuple[str, ...], record: RunRecord) -> int:
    """Return the index of the requested node in ``nodes``. Raise ``BadInput`` if it does not exist."""
    spec = record.spec
    if wish.rank >= 0:
        if wish.rank >= spec.world_size:
            message = f"there is no rank {wish.rank} in {record.run_id}"
            raise BadInput(message, f"its ranks are 0 to {spec.world_size - 1}")
        return min(wish.rank // spec.local_size, len(nodes) - 1)
    return nodes.index(_node(wish, nodes, record.run_id))


def _node(wish: ExecTarget, nodes: tuple[str, ...], title: str) -> str:
    """Return the requested node, the first one by default. Raise ``BadInput`` if it does not exist."""
    if not wish.node:
        return nodes[0]
    if wish.node in nodes:
        return wish.node
    if wish.node.isdecimal() and int(wish.node) < len(nodes):
        return nodes[int(wish.node)]
    message = f"there is no node {wish.node!r} in {title}"
    raise BadInput(message, f"its nodes are {', '.join(nodes)}; by number: --node 0")
