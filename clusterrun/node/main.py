"""The program that runs on nodes, with one entry for each kind of process. Only it reads os.environ."""

from __future__ import annotations

import os

from clusterrun.model import contract
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.paths import RunPaths
from clusterrun.runtime.stderr import say
from clusterrun.slurm_text.job_row import own_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterrun.coordinator.io.supervisor import SupervisorNews
    from clusterrun.protocol.bootstrap import Timeouts

# Slurm's programs wait 10 s for an answer (MessageTimeout).
_ANSWER_SECONDS = 12.0
_USAGE = """\
usage: agent.pyz coordinate RUN_DIR | agent RUN_DIR
beside an agent: examine RUN_DIR NAME | observe RUN_DIR NODE NAME | warm 0|1
in a container: fork-ranks | within FOLDER -- COMMAND...
beside a coordinator: launcher-links PROCESS NODES | notify
beside a job: beside RUN_DIR NODE RANK -- [COMMAND...]
in a step of a job that clusterrun did not start: look JOB SECONDS PATH | use JOB SECONDS PATH
    | beside-job JOB PROCESS -- [COMMAND...]"""


def main(argv: list[str]) -> int:
    """Run the subcommand and return its exit code. Print errors with a remedy."""
    word, *others = argv or [""]
    entry, argument_count = _ENTRIES.get(word, (agent, -1))
    open_ended = entry in (exec_beside_ranks, exec_beside_job, exec_in_container) and others[
        argument_count : argument_count + 1
    ] == ["--"]
    if len(others) != argument_count and not open_ended:
        say(_USAGE)
        return contract.ExitCode.USAGE
    return _reported("", lambda: entry(*others))


def _reported(name: str, work: Callable[[], int]) -> int:
    """Return the result of ``work``. Print an error, with ``name`` before it, and return FAILED."""
    try:
        return work()
    except ClusterrunError as error:
        say(f"clusterrun: {name}{error}")
        return contract.ExitCode.FAILED


def coordinate_supervised(run_dir: str) -> int:
    """Coordinate the job of ``run_dir`` from this machine, in a child that this process supervises.

    A batch script ends by SIGTERM if Slurm would queue the job again for its exit code.
    """
    from clusterrun.coordinator.io.supervisor import under_supervisor

    code = under_supervisor(lambda news: _reported("", lambda: coordinate(run_dir, None, news)))
    if code == contract.ExitCode.DONE or os.environ.get("SLURM_TASK_PID") != str(os.getpid()):
        return code
    import signal

    from clusterrun.preflight.probes import run_program
    from clusterrun.slurm_text.requeue_exit import may_requeue

    # Slurm may queue a job again for the exit code of its batch script, some releases even with --no-requeue.
    # The job of a script that a signal ends is FAILED and stays so. Without an answer every code is listed.
    answer = run_program.answer("scontrol", "show", "config", seconds=_ANSWER_SECONDS)
    if may_requeue(answer.out, code):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
        os.kill(os.getpid(), signal.SIGTERM)
    return code


def coordinate(
    run_dir: str, timeouts: Timeouts | None = None, supervisor: SupervisorNews | None = None
) -> int:
    """Run the job of ``run_dir`` from this machine, in this process. Raise ``ClusterrunError``."""
    from clusterrun.coordinator.io.start_coordinator import opened
    from clusterrun.node.rank_interpreter import settled
    from clusterrun.protocol.bootstrap import timeouts_for
    from clusterrun.runtime import run_files
    from clusterrun.runtime.overload import is_overloaded

    run_dir = os.path.abspath(run_dir)
    paths = RunPaths(run_dir)
    run_files.patiently(lambda: run_files.check_run_directory(run_dir))
    orders = run_files.patiently(lambda: run_files.read_orders(paths))
    follows = orders.survival.requeue or orders.min_nodes
    earlier = run_files.patiently(lambda: run_files.read_state(paths)) if follows else None
    if orders.survival.requeue:
        from clusterrun.coordinator.recovery import is_over

        if is_over(earlier, own_id(os.environ)):
            say("clusterrun: the run has ended before this job began; nothing is left to do")
            return contract.ExitCode.DONE
    if orders.min_nodes:
        from clusterrun.coordinator.job_size import orders_for

        allocated = int(os.environ.get("SLURM_JOB_NUM_NODES") or 1)
        orders = orders_for(orders, allocated, earlier)
    orders = settled(orders, os.environ)
    if orders.interpreter.path:
        say(f"clusterrun: ranks run in {orders.interpreter}")
    names = tuple(name for name in (os.environ.get("SLURMD_NODENAME"), os.uname().nodename) if name)
    timeouts = timeouts or timeouts_for(orders.allocated, is_overloaded())
    return opened(orders, paths, names, dict(os.environ), timeouts, supervisor).run()


def agent(run_dir: str) -> int:
    """Run the agent of this node under its shim. Raise ``ClusterrunError``."""
    from clusterrun.agent.shim import under_shim

    run_dir = os.path.abspath(run_dir)
    name = os.environ.get(contract.NODE_NAME_VARIABLE) or os.environ.get("SLURMD_NODENAME")
    name = name or os.uname().nodename
    node = _number(name)

    def guarded(lease: int, shim: int) -> int:
        # Import it in the child only, so that the shim stays small.
        from clusterrun.agent.start import serve

        paths, environ = RunPaths(run_dir), dict(os.environ)
        return _reported(f"{name}: ", lambda: serve(paths, node, name, environ, lease, shim))

    return under_shim(name, guarded)


def _number(name: str) -> int:
    """Return the number of this node in the allocation."""
    whole = os.environ.get(contract.NODES_VARIABLE)
    if whole:
        from clusterrun.model.hostlist import expand

        return expand(whole).index(name)
    return int(os.environ.get(contract.NODE_VARIABLE) or os.environ.get("SLURM_NODEID") or 0)


def examine(run_dir: str, name: str) -> int:
    from clusterrun.preflight.node import examiner

    return examiner.main(os.path.abspath(run_dir), name, dict(os.environ))


def observe(run_dir: str, node: str, name: str) -> int:
    from clusterrun.monitor import observer

    return observer.main(os.path.abspath(run_dir), int(node), name, dict(os.environ))


def launcher_links(process: str, names: str) -> int:
    """Print which of these nodes (a host list) hold a connection to the launcher."""
    from clusterrun.coordinator.io import launcher_links
    from clusterrun.model.hostlist import expand

    return launcher_links.main(int(process), expand(names))


def notify() -> int:
    """Send the messages that the standard input holds. Print a line for each that was not delivered."""
    import json

    from clusterrun.notify.deliver import deliver_all

    with open(0, "rb", closefd=False) as file:
        parcel = json.load(file)
    undelivered = deliver_all(parcel["urls"], parcel["event"], dict(os.environ), parcel["seconds"])
    for line in undelivered:
        print(line, flush=True)
    return contract.ExitCode.FAILED if undelivered else contract.ExitCode.DONE


def serve_torch(gpus: str) -> int:
    """Run the torch worker, with torch imported; runs under the ranks' Python, in their environment."""
    from clusterrun.preflight.torch_worker import torch_server

    return torch_server.main(dict(os.environ), gpus == "1")


def exec_beside_ranks(run_dir: str, node: str, rank: str, *command: str) -> int:
    """Execute a command beside the ranks of this node. Raise ``ClusterrunError``."""
    from clusterrun.agent.exec_in_job import become

    become(RunPaths(os.path.abspath(run_dir)), node, int(rank), command[1:], dict(os.environ))


def look_at_job(job_id: str, seconds: str, path: str) -> int:
    """Print what this node shows of a job that clusterrun did not start. ``path`` may hold py-spy."""
    from clusterrun.monitor import job_look

    for line in job_look.look_at_job(job_id, float(seconds), _with_path(path), _node_name()):
        print(line)
    return contract.ExitCode.DONE


def use_of_job(job_id: str, seconds: str, path: str) -> int:
    """Print every ``seconds`` how a job that clusterrun did not start uses this node."""
    from clusterrun.monitor import job_look

    for line in job_look.use_of_job(job_id, float(seconds), _with_path(path), _node_name()):
        print(line, flush=True)
    return contract.ExitCode.DONE


def exec_beside_job(job_id: str, process: str, *command: str) -> int:
    """Execute a command beside a rank of a job that clusterrun did not start: ``process``, or any if 0."""
    from clusterrun.agent.exec_in_job import become_beside

    become_beside(job_id, _node_name(), int(process), command[1:], dict(os.environ))


def _with_path(path: str) -> dict[str, str]:
    return {**os.environ, "PATH": os.pathsep.join((os.environ.get("PATH", os.defpath), path))}


def _node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def fork_ranks() -> int:
    """Start the ranks of this node in its container."""
    from clusterrun import container_runtimes
    from clusterrun.agent import rank_forker

    return rank_forker.main(container_runtimes.restored_environment(os.environ))


def exec_in_container(folder: str, *command: str) -> int:
    """Execute a command in a container, with its own variables. Raise ``ClusterrunError``."""
    from clusterrun import container_runtimes

    environment = container_runtimes.restored_environment(os.environ)
    try:
        os.chdir(folder)
        os.execvpe(command[1], command[1:], environment)
    except OSError as error:
        raise ClusterrunError(f"in the container, {command[1]!r} in {folder}: {error.strerror}") from error


# Entry point and argument count of each subcommand.
_ENTRIES: dict[str, tuple[Callable[..., int], int]] = {
    "coordinate": (coordinate_supervised, 1),
    "agent": (agent, 1),
    "examine": (examine, 2),
    "observe": (observe, 3),
    "warm": (serve_torch, 1),
    "launcher-links": (launcher_links, 2),
    "notify": (notify, 0),
    "beside": (exec_beside_ranks, 3),
    "look": (look_at_job, 3),
    "use": (use_of_job, 3),
    "beside-job": (exec_beside_job, 2),
    "fork-ranks": (fork_ranks, 0),
    "within": (exec_in_container, 1),
}
