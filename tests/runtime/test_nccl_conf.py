"""NCCL's configuration files: which of them sets what, and that an agent's ranks get it."""

from __future__ import annotations

from pathlib import Path

from clusterrun.agent.rank_environment import for_rank
from clusterrun.model.world import Lineage
from clusterrun.runtime.nccl_conf import nccl_conf
from tests.agent.test_rank_environment import ORDER, ORDERS, RUN_ID


def test_the_environment_beats_the_users_file_and_that_the_systems(tmp_path: Path) -> None:
    system = tmp_path / "nccl.conf"
    system.write_text(
        "# site\nNCCL_SOCKET_IFNAME=eth\nNCCL_IB_HCA = mlx5 # rails\nNCCL_DEBUG=WARN\nnonsense\n"
    )
    (tmp_path / ".nccl.conf").write_text("NCCL_DEBUG=INFO\n")
    home = {"HOME": str(tmp_path)}
    settings = nccl_conf({**home, "NCCL_IB_HCA": "mlx5_0"}, str(system))
    assert settings == {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth"}
    own = tmp_path / "own"
    own.write_text("NCCL_DEBUG=TRACE\n")
    assert nccl_conf({**home, "NCCL_CONF_FILE": str(own)}, "/nonexistent") == {"NCCL_DEBUG": "TRACE"}


def test_no_file_sets_nothing(tmp_path: Path) -> None:
    assert nccl_conf({}, str(tmp_path / "none")) == {}


def test_a_sites_interface_is_not_replaced_by_ours(tmp_path: Path) -> None:
    system = tmp_path / "nccl.conf"
    system.write_text("NCCL_SOCKET_IFNAME=eth\n")
    base = {"PATH": "/bin"}
    base |= nccl_conf(base, str(system))
    environment = for_rank(base, ORDERS, ORDER, 0, Lineage(RUN_ID, "train", "/runs", 0, 3), "/e", "ib0")
    assert (environment["NCCL_SOCKET_IFNAME"], environment["GLOO_SOCKET_IFNAME"]) == ("eth", "ib0")
