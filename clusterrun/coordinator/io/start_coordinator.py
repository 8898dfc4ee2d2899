"""Start a coordinator: its secret, its port, its state machine."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping

from clusterrun.coordinator.coordinator import Coordinator
from clusterrun.coordinator.io.coordinator_service import CoordinatorService
from clusterrun.coordinator.io.launcher import Launch
from clusterrun.coordinator.io.supervisor import SupervisorNews
from clusterrun.coordinator.lifecycle import Collaborators
from clusterrun.model import contract
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import Any
from clusterrun.model.hostlist import expand
from clusterrun.model.orders import Level, Orders
from clusterrun.model.paths import RunPaths
from clusterrun.protocol.bootstrap import Bootstrap, Timeouts
from clusterrun.protocol.server import listening
from clusterrun.runtime.machine_events import Now
from clusterrun.runtime.network import reachable
from clusterrun.runtime.processes import raise_open_files
from clusterrun.runtime.run_files import highest_attempt, patiently
from clusterrun.runtime.stderr import say
from clusterrun.slurm_text.job_row import job_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.coordinator.hang_monitor import HangMonitor
    from clusterrun.preflight.session.session import Session

_LOOPBACK = "127.0.0.1"


class CannotOpen(ClusterrunError):
    """The coordinator could not begin to listen."""


def opened(
    orders: Orders,
    paths: RunPaths,
    names: tuple[str, ...],
    environment: Mapping[str, str],
    timeouts: Timeouts,
    supervisor: SupervisorNews | None = None,
) -> CoordinatorService:
    """Return a coordinator that listens. Raise ``CannotOpen`` if it cannot.

    ``names`` are the names of this machine, the best first.
    """
    gc.freeze()  # loaded modules stay
    gc.enable()
    open_files = raise_open_files()
    address = reachable(names) if orders.launch else _LOOPBACK
    try:
        epoch = patiently(lambda: highest_attempt(paths)) + 1
        listener = listening(address, orders.allocated)
    except OSError as error:
        action = f"read {error.filename}" if error.filename else f"listen on {address}"
        raise CannotOpen(f"the coordinator cannot {action}: {error.strerror}") from error
    bootstrap = Bootstrap(
        secret=os.urandom(32).hex(),
        run_id=orders.run_id,
        epoch=epoch,
        addresses=(address,),
        port=listener.getsockname()[1],
        agents=orders.allocated,
        timeouts=timeouts,
        python=orders.interpreter,
        cwd=orders.cwd,
    )
    agent = (sys.executable, "-I", "-S", paths.agent, "agent", paths.run_dir)
    launch = Launch(orders, agent, environment, bootstrap, open_files, supervisor is not None)
    collaborators = collaborators_for(orders, paths, environment)
    machine = Coordinator(orders, os.uname().nodename, os.getpid(), timeouts, collaborators)
    return CoordinatorService(machine, paths, launch, listener, supervisor)


def collaborators_for(orders: Orders, paths: RunPaths, environment: Mapping[str, str]) -> Collaborators:
    """Return the collaborators that these orders need. A run without a pre-flight does not load it."""
    job_id, job_restarts = job_of(environment) if orders.launch else ("", 0)
    return Collaborators(
        make_session=_session_maker(paths) if orders.preflight.level is not Level.OFF else None,
        watch=_watch(orders, paths) if orders.watch.on else None,
        names=_names(orders, environment),
        job_id=job_id,
        job_restarts=job_restarts,
    )


def _session_maker(paths: RunPaths) -> Callable[..., Session]:
    from clusterrun.preflight.session.session import Session

    def begin(orders: Orders, nodes: Any, now: Now, short: Any) -> Session:
        return Session(orders, nodes, now, paths.run_dir, os.urandom(16).hex(), short)

    return begin


def _watch(orders: Orders, paths: RunPaths) -> Callable[..., HangMonitor]:
    from clusterrun.coordinator.hang_monitor import HangMonitor
    from clusterrun.monitor import rank_instrumentation

    try:
        rehearsed = contract.REHEARSAL_VARIABLE in dict(orders.environment)
        rank_instrumentation.write_hooks(paths.prelude, rehearsed)
    except OSError as error:  # ranks run without the hooks; the monitor sees less of them
        say(f"clusterrun: {paths.prelude} cannot be written: {error.strerror}")
    return HangMonitor


def _names(orders: Orders, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of all nodes in the order of their numbers; empty if they are not known beforehand."""
    if not orders.launch:
        return tuple(f"local-{node}" for node in range(orders.allocated))
    try:
        return expand(environment.get("SLURM_JOB_NODELIST", ""))
    except ClusterrunError:
        return ()
