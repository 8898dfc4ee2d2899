"""Start the agent below its shim, with the bootstrap from its standard input."""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
from collections.abc import Callable, Mapping
from functools import partial

from clusterrun.agent.agent import Agent
from clusterrun.agent.rank_environment import AgentPlace, hidden_gpus
from clusterrun.agent.rank_processes import RankProcesses
from clusterrun.agent.service import AgentService, ShimLink
from clusterrun.agent.sidecar_processes import SidecarProcesses
from clusterrun.model import contract
from clusterrun.model.orders import Orders
from clusterrun.model.paths import RunPaths
from clusterrun.protocol.bootstrap import Bootstrap, read_bootstrap
from clusterrun.protocol.client import Joined, OutOfReach, join
from clusterrun.protocol.messages import Hello
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.processes import (
    USUAL_OPEN_FILES,
    become_subreaper,
    on_parents_death,
    raise_open_files,
    set_process_name,
)
from clusterrun.runtime.run_files import check_run_directory, patiently, read_orders

_LONGEST_LINE = 64 * 1024
_NAME = b"clusterrun node"
# From the start of an agent to its bootstrap. srun may hold it back if a node does not answer.
_INVITATION_SECONDS = 2 * contract.JOIN_SECONDS


def serve(
    paths: RunPaths, node: int, name: str, environment: Mapping[str, str], lease: int, shim: int
) -> int:
    """Join the coordinator, obey it, and return the exit code. Raise ``ClusterrunError``."""
    link = ShimLink(lease, shim)
    on_parents_death(os.getppid(), signal.SIGTERM)  # until the event loop watches the shim
    for number in contract.USERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # these signals are for ranks, and none runs yet
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] == USUAL_OPEN_FILES:
        raise_open_files()  # ranks inherit it
    patiently(lambda: check_run_directory(paths.run_dir))
    orders = patiently(lambda: read_orders(paths))
    environment = _with_gpu_variables(environment, orders)
    try:
        joined, bootstrap = _joined(node, name, link)
    except OutOfReach as error:
        # The first node may have died before any agent joined. Its job would continue without a coordinator.
        if orders.launch:
            _watch_orphaned_job(orders, paths, AgentPlace(node, name, environment), link, error.places)
        raise
    orders, timeouts = orders.using(bootstrap.python, bootstrap.cwd), bootstrap.timeouts
    on_parents_death(os.getppid(), signal.SIGCONT)  # a stopped agent must notice the end of its shim too
    # Detach from Slurm's step, so that this process cleans up after the ranks if Slurm kills the shim.
    os.setsid()  # proctrack/pgid; proctrack/cgroup leaves nothing anyway
    set_process_name(_NAME)  # with a space, for proctrack/linuxproc
    place = AgentPlace(node, name, environment, joined.connection.getsockname()[0])
    coordinator = joined.connection.getpeername()[:2]
    loop = EventLoop()
    rank_processes = _ranks(orders, paths, place, loop)
    gc.freeze()  # loaded modules stay: collecting them takes as long as the start of two ranks
    gc.enable()
    processes = 1 if orders.per_node else orders.ranks_per_node
    machine = Agent(node, processes, orders.grace, timeouts, orders.watch.on, orders.kill_wait)
    sidecars = SidecarProcesses(orders, paths, place, loop)
    served = AgentService(loop, joined, machine, rank_processes, sidecars, link)
    code = served.run()
    if machine.orphaned and orders.launch:
        _watch_orphaned_job(orders, paths, place, link, (coordinator,), served.got_end_signal)
    return code


def _with_gpu_variables(environment: Mapping[str, str], orders: Orders) -> Mapping[str, str]:
    if orders.hide_gpus:
        environment = {**environment, **hidden_gpus(os.path.exists)}
    if orders.node_gpus:
        from clusterrun.model.visible_gpus import with_node_gpus  # only if Slurm counts no GPUs

        environment = with_node_gpus(environment, orders.gpus_per_node)
    if orders.gpus_per_node:
        from clusterrun.runtime.nccl_conf import nccl_conf  # only if ranks have GPUs

        environment = {**nccl_conf(environment), **environment}
    return environment


def _joined(node: int, name: str, shim: ShimLink) -> tuple[Joined, Bootstrap]:
    until = steady() + _INVITATION_SECONDS
    shim.tell(f"until {until + contract.LEASE_SECONDS!r}")
    line = b""
    heard = select.poll()
    heard.register(0, select.POLLIN)
    while not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
        if not heard.poll(max(0, int(1000 * (until - steady())))):
            raise OutOfReach(
                "the launcher that started this agent sent no order in time",
                "check that the first node of the job is up: sinfo -N",
            )
        data = os.read(0, _LONGEST_LINE)
        if not data:
            break
        line += data
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    bootstrap = read_bootstrap(line)
    timeouts = bootstrap.timeouts
    longest = (1 + contract.OVERLOAD_FACTOR) * timeouts.join
    shim.tell(f"until {steady() + longest + timeouts.lease!r}")
    return join(bootstrap, lambda address: Hello(node, name, address, os.getpid())), bootstrap


def _ranks(orders: Orders, paths: RunPaths, place: AgentPlace, loop: EventLoop) -> RankProcesses:
    instrumented: Callable[[Mapping[str, str]], dict[str, str]] = dict
    if orders.watch.on:
        from clusterrun.monitor import rank_instrumentation

        instrumented = partial(rank_instrumentation.instrumented, folder=paths.prelude)
    arguments = (orders, paths, place, become_subreaper(), instrumented)
    if not orders.container.is_prefix:
        return RankProcesses(*arguments)
    from clusterrun.agent.contained_ranks import ContainedRanks

    return ContainedRanks(*arguments, loop=loop)


def _watch_orphaned_job(
    orders: Orders,
    paths: RunPaths,
    place: AgentPlace,
    shim: ShimLink,
    coordinator: tuple[tuple[str, int], ...],
    got_end_signal: bool = False,
) -> None:
    from clusterrun.agent import orphaned_job

    orphan = orphaned_job.orphaned_node(orders, paths.run_dir, place, coordinator)
    if orphan is None:
        return
    shim.tell("run ")  # its ranks have ended, and another agent may start ranks on this node
    renew = lambda until: shim.tell(f"until {until!r}")  # noqa: E731
    detector = orphaned_job.OrphanedJob(orphan, place.environment, shim.ended, renew)
    if got_end_signal:
        detector.skip_turn()
    detector.run()
