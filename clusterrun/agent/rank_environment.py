"""Build the environment of a started process from the job's environment and the orders. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.model.orders import Orders
from clusterrun.model.world import (
    Lineage,
    World,
    default_environment,
    framework_environment,
    node_environment,
    rank_environment,
    slurm_environment,
)
from clusterrun.protocol.messages import StartRanks

_MISLEADING_PREFIXES = ("PMIX_", "PMI_", "PET_", "TORCHELASTIC_", "SLURM_STEP_NUM_", "SLURM_STEP_TASKS_")
# These variables describe our own step of one task per node. ``slurm_environment`` describes the ranks'
# step.
_MISLEADING = frozenset(
    {
        *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID"),
        contract.NODE_VARIABLE,
        contract.NODES_VARIABLE,
        contract.PATH_BEFORE_VARIABLE,
        contract.SETUP_CWD_VARIABLE,
        contract.SUBMIT_DIR_VARIABLE,
    }
)


# NCCL's RAS service listens on each node. NCCL's default port is shared (SO_REUSEPORT), so another run on the
# node may answer. These ports are below the usual range of ephemeral ports. Their number is prime,
# so that each byte of a run id counts.
FIRST_RAS_PORT, RAS_PORTS = 20000, 7919
_WANDB = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID")


@frozen
class AgentPlace:
    """The node of an agent, and the environment it was started with."""

    node: int  # number in the allocation
    name: str
    environment: Mapping[str, str]
    address: str = ""  # local address of the link to the coordinator; '' if it never connected


def inherited(base: Mapping[str, str], orders: Orders, step: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the job's environment without misleading variables, with those of ``step`` and the user."""
    environment = {
        name: value
        for name, value in base.items()
        if name not in _MISLEADING and not name.startswith(_MISLEADING_PREFIXES)
    }
    return {**environment, **step, **dict(orders.environment)}


def wandb_environment(
    environment: Mapping[str, str], orders: Orders, lineage: Lineage, rank: int
) -> dict[str, str]:
    """Return the variables that keep one run at Weights & Biases for a rank over all attempts.

    They are left out if there is only one attempt, if the user has set one of them, or in a sweep of W&B,
    which numbers its runs itself. Each rank has a separate id: W&B loses data if several processes log to one
    id.
    """
    restarts = orders.max_restarts or orders.survival.requeue or lineage.epoch
    programs = [word.rpartition("/")[2] for word in orders.command]
    sweep = "wandb" in programs and "agent" in programs
    if not restarts or sweep or any(name in environment for name in _WANDB):
        return {}
    wandb_id = lineage.run_id + (f"-r{rank}" if rank else "")
    return {"WANDB_RUN_ID": wandb_id, "WANDB_RESUME": "allow"}


def _step(
    base: Mapping[str, str], world: World, task: int, tasks_per_node: int, cpus_per_rank: int
) -> dict[str, str]:
    """Return Slurm's variables for one process; {} if Slurm did not start this agent."""
    if "SLURM_JOB_ID" not in base:
        return {}
    step = slurm_environment(world, task, tasks_per_node)
    if submit_dir := base.get(contract.SUBMIT_DIR_VARIABLE):
        step["SLURM_SUBMIT_DIR"] = submit_dir
    cpus = base.get("SLURM_CPUS_PER_TASK", "")
    if cpus_per_rank:  # the batch script unsets Slurm's own
        step["SLURM_CPUS_PER_TASK"] = str(cpus_per_rank * world.ranks_per_node // tasks_per_node)
    elif cpus.isdecimal():  # counted for our single task, which contains all ranks of a node
        step["SLURM_CPUS_PER_TASK"] = str(max(1, int(cpus) // tasks_per_node))
    return step


def hidden_gpus(exists: Callable[[str], bool]) -> dict[str, str]:
    """Return the variables that hide the GPUs of a machine. ``exists`` tests for a device file.

    HIP ignores an empty list. Level Zero uses no device if the list names only missing devices. Variables of
    absent makers are not set, because Ray refuses some of them.
    """
    of_makers = {"/dev/kfd": ("HIP_VISIBLE_DEVICES", "-1"), "/dev/dri": ("ZE_AFFINITY_MASK", "1024")}
    return {"CUDA_VISIBLE_DEVICES": "", **dict(of_makers[path] for path in of_makers if exists(path))}


def for_rank(
    base: Mapping[str, str],
    orders: Orders,
    message: StartRanks,
    rank: int,
    lineage: Lineage,
    error_file: str,
    interface: str,
) -> dict[str, str]:
    world, own_base = message.world, base
    # A rank of another run, from which this run was submitted, has a W&B id of its own.
    submitter = base.get(contract.RUN_ID_VARIABLE, "")
    if submitter and base.get("WANDB_RUN_ID", "").startswith(submitter):
        own_base = {name: value for name, value in base.items() if name not in _WANDB}
    variables = rank_environment(world, rank, message.meeting, lineage, error_file)
    defaults = default_environment(world.ranks_per_node, orders.cpus_per_rank, interface)
    if orders.gpus_per_node:
        port = FIRST_RAS_PORT + int.from_bytes(lineage.run_id.encode(), "big") % RAS_PORTS
        defaults["NCCL_RAS_ADDR"] = f"localhost:{port}"
    frameworks = framework_environment(world, orders.gpus_per_node)
    job_environment = inherited(
        own_base, orders, _step(own_base, world, rank, world.ranks_per_node, orders.cpus_per_rank)
    )
    wandb = wandb_environment(job_environment, orders, lineage, rank)
    devices = job_environment.get("CUDA_VISIBLE_DEVICES", "")
    if "MIG-" in devices:
        from clusterrun.model.visible_gpus import instance_of  # few machines divide their GPUs

        variables = {**variables, **instance_of(devices, world.ranks_per_node, variables["LOCAL_RANK"])}
    return {
        **defaults,
        **frameworks,
        **wandb,
        **job_environment,
        **variables,
        **_chosen(base, orders, message),
    }


def for_node(
    base: Mapping[str, str], orders: Orders, message: StartRanks, lineage: Lineage, interface: str
) -> dict[str, str]:
    """Return the environment of a launcher that is started once per node, without the variables of a rank."""
    variables = node_environment(message.world, message.node, message.meeting, lineage)
    foreign = rank_environment(message.world, 0, message.meeting, lineage, "").keys() - variables.keys()
    step = _step(base, message.world, message.node, 1, orders.cpus_per_rank)
    job_environment = {
        name: value for name, value in inherited(base, orders, step).items() if name not in foreign
    }
    defaults = default_environment(1, orders.cpus_per_rank, interface)
    return {**defaults, **job_environment, **variables, **_chosen(base, orders, message)}


def _chosen(base: Mapping[str, str], orders: Orders, message: StartRanks) -> dict[str, str]:
    """Return the settings that the pre-flight chose for all nodes, except those that the user has set."""
    user_environment = inherited(base, orders)
    return {name: value for name, value in message.environment if name not in user_environment}
