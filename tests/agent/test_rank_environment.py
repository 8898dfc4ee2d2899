"""One run at W&B over all attempts of a rank, unless its user decides otherwise."""

from __future__ import annotations

import re

import pytest

from clusterrun.agent.rank_environment import for_node, for_rank
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Orders, Survival
from clusterrun.model.visible_gpus import with_node_gpus
from clusterrun.model.world import Lineage, Meeting, World
from clusterrun.protocol.messages import StartRanks

RUN_ID = "20261120-074500-k3f9-train"
ORDERS = Orders(RUN_ID, "train", 2, 2, 0, 1, ("python", "-u", "train.py"), "/", max_restarts=3)
ORDER = StartRanks(0, World(("n0", "n1"), 2), 0, Meeting("n0", 1234))


def wandb(
    base: dict[str, str] | None = None, orders: Orders = ORDERS, epoch: int = 0, rank: int = 0
) -> dict[str, str]:
    lineage = Lineage(RUN_ID, "train", "/runs", epoch, 3)
    result = for_rank(base or {}, orders, ORDER, rank, lineage, "", "")
    return {name: value for name, value in result.items() if name.startswith("WANDB_")}


def test_every_attempt_of_a_rank_has_the_same_id_and_every_rank_its_own() -> None:
    attempts = [[wandb(epoch=epoch, rank=rank)["WANDB_RUN_ID"] for rank in range(4)] for epoch in range(3)]
    assert attempts == [[RUN_ID, f"{RUN_ID}-r1", f"{RUN_ID}-r2", f"{RUN_ID}-r3"]] * 3
    assert wandb()["WANDB_RESUME"] == "allow"
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", attempts[0][3])


@pytest.mark.parametrize(
    "provided", ["WANDB_RUN_ID=mine", "WANDB_RESUME=never", "WANDB_RUN_ID=", "WANDB_SWEEP_ID=s"]
)
def test_a_value_of_the_user_is_not_changed(provided: str) -> None:
    name, _, value = provided.partition("=")
    assert wandb({name: value}) == {name: value}
    assert wandb(orders=replace(ORDERS, environment=((name, value),))) == {name: value}


@pytest.mark.parametrize(
    ("changes", "epoch", "some"),
    [
        ({"max_restarts": 0}, 0, False),
        ({"max_restarts": 0}, 1, True),
        ({"max_restarts": 0, "survival": Survival(requeue="chain")}, 0, True),
        ({"command": ("/usr/bin/wandb", "agent", "ada/gpt/s1")}, 0, False),
        ({"command": ("python", "-u", "-m", "wandb", "agent", "ada/gpt/s1")}, 0, False),
        ({"command": ("python", "-u", "agent.py")}, 0, True),
    ],
)
def test_only_restartable_runs_outside_sweeps_get_a_run_id(
    changes: dict[str, object], epoch: int, some: bool
) -> None:
    assert bool(wandb(orders=replace(ORDERS, **changes), epoch=epoch)) is some


def test_a_run_that_a_rank_submits_does_not_continue_that_ranks_run_id() -> None:
    outer = "20261119-000000-aaaa-outer"
    base = {"CLUSTERRUN_RUN_ID": outer, "WANDB_RUN_ID": f"{outer}-r1", "WANDB_RESUME": "allow"}
    assert wandb(base) == {"WANDB_RUN_ID": RUN_ID, "WANDB_RESUME": "allow"}
    assert wandb({**base, "WANDB_RUN_ID": "mine"})["WANDB_RUN_ID"] == "mine"


def test_a_launcher_of_your_own_decides_itself() -> None:
    lineage = Lineage(RUN_ID, "train", "/runs", 1, 3)
    assert "WANDB_RUN_ID" not in for_node({}, ORDERS, ORDER, lineage, "")


def test_ranks_on_instances_of_divided_gpus_each_open_their_own() -> None:
    lineage = Lineage(RUN_ID, "train", "/runs", 0, 3)
    base = {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}
    results = [for_rank(base, ORDERS, ORDER, rank, lineage, "", "") for rank in range(4)]
    observed = [[entry[name] for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "RANK")] for entry in results]
    assert observed == [["MIG-a", "0", "0"], ["MIG-b", "0", "1"], ["MIG-a", "0", "2"], ["MIG-b", "0", "3"]]


def test_the_ranks_of_a_run_with_gpus_share_a_ras_port_that_other_runs_do_not_use() -> None:
    """NCCL's default port may answer for another run on the node."""

    def address(run_id: str, rank: int, gpus: int, **environment: str) -> str | None:
        orders = replace(ORDERS, gpus_per_node=gpus)
        lineage = Lineage(run_id, "train", "/runs", 0, 3)
        return for_rank(environment, orders, ORDER, rank, lineage, "", "").get("NCCL_RAS_ADDR")

    ports = {address(RUN_ID, rank, 2) for rank in range(4)}
    others = {address(f"20261120-074500-{number:04d}-train", 0, 2) for number in range(50)}
    assert len(ports) == 1 and len(others - ports) > 45 and "localhost:28028" not in ports | others
    assert address(RUN_ID, 0, 0) is None
    assert address(RUN_ID, 0, 2, NCCL_RAS_ADDR="localhost:9") == "localhost:9"


@pytest.mark.parametrize(
    ("provided", "retained"),
    [("", False), ("NoDevFiles", False), ("0", False), ("0,1", True), ("GPU-a,GPU-b,GPU-c", True)],
)
def test_gpus_of_the_node_are_not_narrowed_by_the_submitters_shell(provided: str, retained: bool) -> None:
    base = {"CUDA_VISIBLE_DEVICES": provided, "ROCR_VISIBLE_DEVICES": provided, "PATH": "/bin"}
    assert with_node_gpus(base, 2) == (base if retained else {"PATH": "/bin"})
