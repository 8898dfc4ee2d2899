"""What the desk tells the nodes: the one document a queued run carries with it; knows no scheduler."""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.frozen import frozen


@frozen
class Orders:
    """``orders.json``: everything coordinator and agents need beside the files next to it.

    Strings are exact: bytes that are not UTF-8 travel as surrogate escapes. ``command`` is the
    final argument list of a rank (``PYTHON -u script args``), ``environment`` what the user asked
    for on top of what the job inherits.
    ``launch`` is the argument list that starts one agent per node with the secret on its stdin
    (an ``srun``); empty: the coordinator starts the agents itself, all on this machine.
    ``time_limit`` is in seconds, 0 where the scheduler keeps the time.
    """

    run_id: str
    run_name: str
    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    cpus_per_rank: int
    command: tuple[str, ...]
    cwd: str
    environment: tuple[tuple[str, str], ...] = ()
    launch: tuple[str, ...] = ()
    per_node: bool = False
    max_restarts: int = 0
    time_limit: float = 0.0
    grace: float = contract.GRACE_SECONDS
    format: int = contract.FORMAT

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.ranks_per_node < 1 or not self.command:
            raise ValueError("orders need at least one node, one rank and a command")
        if self.format > contract.FORMAT:
            raise ValueError(f"format {self.format} is newer than this program reads ({contract.FORMAT})")
