"""How a coordinator opens: its secret, its port, its machine, put together; decides nothing later."""

from __future__ import annotations

import gc
import os
import resource
import sys

from clusterrun.agent.addresses import reachable
from clusterrun.agent.coordinator import Coordinator
from clusterrun.agent.files import highest_attempt, patiently
from clusterrun.agent.invitation import Invitation, written
from clusterrun.agent.launcher import Launch
from clusterrun.agent.rooms import Rooms
from clusterrun.agent.run_loop import RunLoop
from clusterrun.agent.server import Admission, listening
from clusterrun.agent.voice import say
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.hostlist import expand
from clusterrun.model.orders import Level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterrun.agent.examining import Absent, Again, Examination, Examine, Examinee
    from clusterrun.agent.keeper import Kept
    from clusterrun.agent.timings import Timings
    from clusterrun.agent.watching import Watch
    from clusterrun.model.orders import Orders
    from clusterrun.model.paths import RunPaths

_LOOPBACK = "127.0.0.1"


class CannotOpen(ClusterrunError):
    """The coordinator could not begin to listen."""


def opened(
    orders: Orders,
    paths: RunPaths,
    names: tuple[str, ...],
    environment: Mapping[str, str],
    timings: Timings,
    kept: Kept | None = None,
) -> RunLoop:
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
    invitation = Invitation(
        secret=secret.hex(),
        run_id=orders.run_id,
        epoch=epoch,
        addresses=(address,),
        port=listener.getsockname()[1],
        agents=orders.allocated,
        timings=timings,
        python=orders.interpreter,
    )
    agent = (sys.executable, "-I", "-S", paths.agent, "agent", paths.run_dir)
    launch = Launch(orders, agent, environment, written(invitation), open_files, kept is not None)
    admission = Admission(secret, orders.run_id, epoch, orders.allocated, (address, _LOOPBACK))
    rooms = rooms_for(orders, paths, environment)
    machine = Coordinator(orders, os.uname().nodename, os.getpid(), timings, rooms)
    return RunLoop(machine, paths, launch, listener, admission, kept)


def rooms_for(orders: Orders, paths: RunPaths, environment: Mapping[str, str]) -> Rooms:
    """The rooms that these orders need; a run without a pre-flight loads nothing of it."""
    return Rooms(
        examine=_examine(paths) if orders.preflight.level is not Level.OFF else None,
        watch=_watch(paths) if orders.watch.on else None,
        names=_names(orders, environment),
        job_id=environment.get("SLURM_JOB_ID", "") if orders.launch else "",
    )


def _examine(paths: RunPaths) -> Examine:
    from clusterrun.preflight import examination

    def begin(
        orders: Orders,
        here: Sequence[Examinee],
        absent: Sequence[Absent],
        now: float,
        wall: float,
        again: Again | None,
    ) -> Examination:
        nodes = [examination.Examinee(one.node, one.name, one.address) for one in here]
        why = [(node, why) for node, _, why in absent]
        names = [(node, name) for node, name, _ in absent]
        nonce = os.urandom(16).hex()
        known = (orders, nodes, why, now, wall, paths.run_dir, nonce, names)
        if again is None:
            return examination.Examination(*known)
        return examination.Examination(*known, again.suspects, again.after, again.network)

    return begin


def _watch(paths: RunPaths) -> Watch:
    from clusterrun.watch import dressing
    from clusterrun.watch.vigil import Vigil

    try:
        dressing.lay_out(paths.prelude)
    except OSError as error:  # ranks run without it; less can be seen of them
        say(f"clusterrun: {paths.prelude} cannot be written: {error.strerror}")
    return Vigil


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
