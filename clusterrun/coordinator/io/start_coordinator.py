"""Starts a coordinator: its secret, its port, its state machine."""

from __future__ import annotations

import gc
import os
import resource
import sys

from clusterrun.coordinator.collaborators import Collaborators
from clusterrun.coordinator.coordinator import Coordinator
from clusterrun.coordinator.io.coordinator_service import CoordinatorService
from clusterrun.coordinator.io.launcher import Launch
from clusterrun.model import contract
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.hostlist import expand
from clusterrun.model.orders import Level
from clusterrun.protocol.bootstrap import Bootstrap, written
from clusterrun.protocol.server import Admission, listening
from clusterrun.runtime.network import reachable
from clusterrun.runtime.run_files import highest_attempt, patiently
from clusterrun.runtime.stderr import say
from clusterrun.slurm_text.job_row import own_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterrun.coordinator.hang_monitor import Watch
    from clusterrun.coordinator.io.supervisor import SupervisorNews
    from clusterrun.coordinator.preflight_gate import Absent, Again, Examine, Examinee
    from clusterrun.model.orders import Orders
    from clusterrun.model.paths import RunPaths
    from clusterrun.protocol.timeouts import Timeouts

_LOOPBACK = "127.0.0.1"


class CannotOpen(ClusterrunError):
    """The coordinator could not begin to listen."""


def opened(
    orders: Orders,
    paths: RunPaths,
    names: tuple[str, ...],
    environment: Mapping[str, str],
    timeouts: Timeouts,
    kept: SupervisorNews | None = None,
) -> CoordinatorService:
    """A coordinator that listens; ``names`` are this machine's, the best first. Raises ``CannotOpen``."""
    gc.freeze()  # what is loaded stays
    gc.enable()
    open_files = _raise_open_files()
    address = reachable(names) if orders.launch else _LOOPBACK
    try:
        epoch = patiently(lambda: highest_attempt(paths)) + 1
        listener = listening(address, orders.allocated)
    except OSError as error:
        what = f"read {error.filename}" if error.filename else f"listen on {address}"
        raise CannotOpen(f"the coordinator cannot {what}: {error.strerror}") from error
    secret = os.urandom(32)
    bootstrap = Bootstrap(
        secret=secret.hex(),
        run_id=orders.run_id,
        epoch=epoch,
        addresses=(address,),
        port=listener.getsockname()[1],
        agents=orders.allocated,
        timeouts=timeouts,
        python=orders.interpreter,
    )
    agent = (sys.executable, "-I", "-S", paths.agent, "agent", paths.run_dir)
    launch = Launch(orders, agent, environment, written(bootstrap), open_files, kept is not None)
    admission = Admission(secret, orders.run_id, epoch, orders.allocated, (address, _LOOPBACK))
    collaborators = collaborators_for(orders, paths, environment)
    machine = Coordinator(orders, os.uname().nodename, os.getpid(), timeouts, collaborators)
    return CoordinatorService(machine, paths, launch, listener, admission, kept)


def collaborators_for(orders: Orders, paths: RunPaths, environment: Mapping[str, str]) -> Collaborators:
    """What these orders need of the packages below; a run without a pre-flight loads nothing of it."""
    return Collaborators(
        examine=_examine(paths) if orders.preflight.level is not Level.OFF else None,
        watch=_watch(orders, paths) if orders.watch.on else None,
        names=_names(orders, environment),
        job_id=own_id(environment) if orders.launch else "",
    )


def _examine(paths: RunPaths) -> Examine:
    from clusterrun.preflight.session import session

    def begin(
        orders: Orders,
        here: Sequence[Examinee],
        absent: Sequence[Absent],
        now: float,
        wall: float,
        again: Again | None,
    ) -> session.Session:
        nodes = [session.SessionNode(one.node, one.name, one.address) for one in here]
        nodes += [session.SessionNode(node, name, absent=why) for node, name, why in absent]
        place = session.SessionPlace(paths.run_dir, os.urandom(16).hex())
        short = session.ShortCheck(again.suspects, again.after, again.network) if again else None
        return session.Session(orders, nodes, now, wall, place, short)

    return begin


def _watch(orders: Orders, paths: RunPaths) -> Watch:
    from clusterrun.monitor import rank_instrumentation
    from clusterrun.monitor.hang_detector import HangDetector

    try:
        rehearsed = contract.REHEARSAL_VARIABLE in dict(orders.environment)
        rank_instrumentation.lay_out(paths.prelude, rehearsed)
    except OSError as error:  # ranks run without it; less can be seen of them
        say(f"clusterrun: {paths.prelude} cannot be written: {error.strerror}")
    return HangDetector


def _names(orders: Orders, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The names of all nodes in the order of their numbers, as far as they are known beforehand."""
    if not orders.launch:
        return tuple(f"local-{node}" for node in range(orders.allocated))
    try:
        return expand(environment.get("SLURM_JOB_NODELIST", ""))
    except ClusterrunError:
        return ()


def _raise_open_files() -> int:
    """As many descriptors as allowed: there may be 1,250 agents; returns the soft limit as it was."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        pass
    return soft
