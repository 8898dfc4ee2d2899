"""Compute the place of each rank and its environment.

Names and values are those of torchrun, with the aliases that Lightning, Accelerate, DeepSpeed, the HF
Trainer and Composer read (see the rank environment in the README).
"""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import fold


@frozen
class World:
    """The nodes that train, in rank order, and how many ranks each one runs."""

    nodes: tuple[str, ...]  # in rank order
    ranks_per_node: int

    def __post_init__(self) -> None:
        if not self.nodes or self.ranks_per_node < 1:
            raise ValueError("a world has at least one node and one rank")

    @property
    def size(self) -> int:
        return len(self.nodes) * self.ranks_per_node


def ring_share(ranks: int) -> float:
    """Return how much of the data each of ``ranks`` ranks sends and receives in an all-reduce."""
    return 2 * (ranks - 1) / ranks


@frozen
class Meeting:
    """The meeting point of the ranks of one epoch: rank 0's address and port."""

    address: str
    port: int


@frozen
class Lineage:
    """A run and one start of its ranks.

    Every start has its own epoch, and processes obey only the highest one.
    """

    run_id: str
    run_name: str
    run_dir: str
    epoch: int  # number of the attempt, from 0
    last_epoch: int  # number of the last attempt, if all fail

    @property
    def marker(self) -> str:
        """Return the value of ``contract.MARKER_VARIABLE`` in every process of this epoch."""
        return f"{self.run_id}.{self.epoch}"


def run_environment(lineage: Lineage) -> dict[str, str]:
    """Return the variables of every process of an epoch."""
    return {
        contract.RUN_ID_VARIABLE: lineage.run_id,
        contract.RUN_NAME_VARIABLE: lineage.run_name,
        contract.RUN_DIR_VARIABLE: lineage.run_dir,
        contract.ATTEMPT_VARIABLE: str(lineage.epoch),
        contract.MARKER_VARIABLE: lineage.marker,
    }


def rank_environment(
    world: World, rank: int, meeting: Meeting, lineage: Lineage, error_file: str
) -> dict[str, str]:
    """Return all variables that clusterrun sets for ``rank``. They overwrite inherited ones.

    The entry point of an image may set wrong values for the same names, as enroot's PyTorch hook does.
    """
    node, local = divmod(rank, world.ranks_per_node)
    return {
        **node_environment(world, node, meeting, lineage),
        **dict.fromkeys(("RANK", "ROLE_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), str(world.size)),
        **dict.fromkeys(("LOCAL_WORLD_SIZE", "LOCAL_SIZE"), str(world.ranks_per_node)),
        **dict.fromkeys(("GROUP_WORLD_SIZE", "CROSS_SIZE"), str(len(world.nodes))),
        "LOCAL_RANK": str(local),
        "CROSS_RANK": str(node),
        "ROLE_NAME": "default",
        # Equal to torchrun's: their difference is the number of remaining restarts. The second one is
        # computed, because the budget covers all jobs of a run and is full again after progress.
        "TORCHELASTIC_RESTART_COUNT": str(lineage.epoch),
        "TORCHELASTIC_MAX_RESTARTS": str(lineage.last_epoch),
        "TORCHELASTIC_RUN_ID": f"{lineage.run_id}.{lineage.epoch}",
        # "True" makes every rank a client of a store that another process holds. There is none.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": error_file,
    }


def own_variables() -> frozenset[str]:
    """Return the names of ``rank_environment``, which no ``--env`` can set."""
    lineage = Lineage("", "", "", 0, 0)
    return frozenset(rank_environment(World(("",), 1), 0, Meeting("", 0), lineage, ""))


def node_environment(world: World, node: int, meeting: Meeting, lineage: Lineage) -> dict[str, str]:
    """Return the variables of a launcher that starts the ranks of a node itself (``--per-node``)."""
    return {
        **run_environment(lineage),
        "NNODES": str(len(world.nodes)),
        "NODE_RANK": str(node),
        "GROUP_RANK": str(node),
        "NPROC_PER_NODE": str(world.ranks_per_node),
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": str(meeting.port),
    }


def slurm_environment(world: World, task: int, tasks_per_node: int) -> dict[str, str]:
    """Return the variables that ``srun`` would set for ``task`` of a step with the ranks as its tasks.

    clusterrun's own step has one task on each allocated node, spares included. Scripts for srun form their
    world from these names.
    """
    node, local = divmod(task, tasks_per_node)
    nodes, tasks, first = len(world.nodes), len(world.nodes) * tasks_per_node, node * tasks_per_node
    per_node = f"{tasks_per_node}(x{nodes})" if nodes > 1 else str(tasks_per_node)
    return {
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURM_GTIDS": ",".join(map(str, range(first, first + tasks_per_node))),
        "SLURM_NTASKS_PER_NODE": str(tasks_per_node),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), str(tasks)),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), per_node),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), str(nodes)),
        **dict.fromkeys(("SLURM_NODELIST", "SLURM_STEP_NODELIST"), fold(world.nodes)),
    }


def default_environment(ranks_per_node: int, cpus_per_rank: int, interface: str) -> dict[str, str]:
    """Return the defaults of a rank for variables that its user did not set.

    They set threads, error handling, interfaces and unbuffered output. torch 2.6 and 2.7.0 use NCCL without
    blocking if ``device_id`` is set, and hang (pytorch#153960).
    """
    chosen = {
        "PYTHONUNBUFFERED": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_NCCL_USE_COMM_NONBLOCKING": "0",
    }
    if ranks_per_node > 1 or cpus_per_rank > 1:
        chosen["OMP_NUM_THREADS"] = str(max(cpus_per_rank, 1))
    if interface:
        chosen["GLOO_SOCKET_IFNAME"] = interface
        chosen["NCCL_SOCKET_IFNAME"] = exactly(interface)
    return chosen


def exactly(interface: str) -> str:
    """Return an interface in NCCL's exact form. A name without ``=`` also matches longer names."""
    return f"={interface}"


def framework_environment(world: World, gpus_per_node: int) -> dict[str, str]:
    """Return variables that let further frameworks join one world, if the user did not set them.

    Without them Lightning's ``Trainer()``, Fabric, or Accelerate and the HF Trainer on CPU ranks train one
    copy per rank, and exit 0. They do so under torchrun too: see the page frameworks.
    """
    nodes, devices = str(len(world.nodes)), str(world.ranks_per_node)
    lightning = {"NUM_NODES": nodes, "DEVICES": devices}
    chosen = {}
    if gpus_per_node == 0:
        lightning["ACCELERATOR"] = "cpu"
        chosen["ACCELERATE_USE_CPU"] = "true"
    for prefix in ("PL_TRAINER_", "LT_"):
        chosen.update({prefix + name: value for name, value in lightning.items()})
    return chosen
