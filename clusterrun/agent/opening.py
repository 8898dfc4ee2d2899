"""How a coordinator opens: its secret, its port, its machine, put together; decides nothing later."""

from __future__ import annotations

import gc
import os
import resource
import sys

from clusterrun.agent.addresses import reachable
from clusterrun.agent.coordinator import Coordinator
from clusterrun.agent.files import highest_attempt
from clusterrun.agent.invitation import Invitation, written
from clusterrun.agent.launcher import Launch
from clusterrun.agent.run_loop import RunLoop
from clusterrun.agent.server import Admission, listening
from clusterrun.model.errors import ClusterrunError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterrun.agent.timings import Timings
    from clusterrun.model.orders import Orders
    from clusterrun.model.paths import RunPaths

_LOOPBACK = "127.0.0.1"


class CannotOpen(ClusterrunError):
    """The coordinator could not begin to listen."""


def opened(
    orders: Orders, paths: RunPaths, names: tuple[str, ...], environment: Mapping[str, str], timings: Timings
) -> RunLoop:
    """A coordinator that listens; ``names`` are this machine's, the best first. Raises ``CannotOpen``."""
    gc.enable()
    open_files = _raise_open_files()
    address = reachable(names) if orders.launch else _LOOPBACK
    try:
        epoch = highest_attempt(paths) + 1
        listener = listening(address, orders.nodes)
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
        agents=orders.nodes,
        timings=timings,
    )
    agent = (sys.executable, "-I", "-S", paths.agent, "agent", paths.run_dir)
    launch = Launch(orders, agent, environment, written(invitation), open_files)
    admission = Admission(secret, orders.run_id, epoch, orders.nodes, (address, _LOOPBACK))
    machine = Coordinator(orders, os.uname().nodename, os.getpid(), timings)
    return RunLoop(machine, paths, launch, listener, admission)


def _raise_open_files() -> int:
    """As many descriptors as allowed: there may be 1,250 agents; returns the soft limit as it was."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        pass
    return soft
