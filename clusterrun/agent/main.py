"""The node-side program: ``coordinate RUN_DIR``, ``agent RUN_DIR``; alone in its tower to read os.environ."""

from __future__ import annotations

import os

from clusterrun.agent.voice import say
from clusterrun.model import contract
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.paths import RunPaths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.agent.timings import Timings

_USAGE = "usage: agent.pyz coordinate RUN_DIR | agent RUN_DIR"


def main(argv: list[str]) -> int:
    """What the process exits with: an error is one line of what was seen and one of what to do."""
    if len(argv) != 2 or argv[0] not in ("coordinate", "agent"):
        say(_USAGE)
        return contract.ExitCode.USAGE
    run_dir = os.path.abspath(argv[1])
    try:
        return coordinate(run_dir) if argv[0] == "coordinate" else agent(run_dir)
    except ClusterrunError as error:
        say(f"clusterrun: {error}")
        return contract.ExitCode.FAILED


def coordinate(run_dir: str, timings: Timings | None = None) -> int:
    """Run the job of ``run_dir`` from this machine. Raises ``ClusterrunError``."""
    from clusterrun.agent.files import check_run_directory, read_orders
    from clusterrun.agent.opening import opened
    from clusterrun.agent.timings import timings_for

    paths = RunPaths(run_dir)
    check_run_directory(run_dir)
    orders = read_orders(paths)
    names = tuple(name for name in (os.environ.get("SLURMD_NODENAME"), os.uname().nodename) if name)
    return opened(orders, paths, names, dict(os.environ), timings or timings_for(orders.nodes)).run()


def agent(run_dir: str) -> int:
    """Be the agent of this node, under its shim. Raises ``ClusterrunError``."""
    from clusterrun.agent.shim import under_shim

    node = os.environ.get(contract.NODE_VARIABLE) or os.environ.get("SLURM_NODEID") or "0"
    name = (
        os.environ.get(contract.NODE_NAME_VARIABLE)
        or os.environ.get("SLURMD_NODENAME")
        or os.uname().nodename
    )

    def guarded(lease: int, shim: int) -> int:
        # Only now, in the child: the shim stays small.
        from clusterrun.agent.guarded import serve

        try:
            return serve(RunPaths(run_dir), int(node), name, dict(os.environ), lease, shim)
        except ClusterrunError as error:
            say(f"clusterrun: {name}: {error}")
            return contract.ExitCode.FAILED

    return under_shim(name, guarded)
