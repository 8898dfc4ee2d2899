"""`submit` warns of a range of ports of Slurm that is too small for the launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterrun.model.spec import JobSpec
from clusterrun.operations.submit import _few_ports


@pytest.mark.parametrize(
    ("nodes", "ports", "needed"),
    [(2, 0, 0), (2, 9, 5), (2, 10, 0), (48, 9, 5), (50, 13, 7), (50, 14, 0), (200, 20, 13), (200, 3000, 0)],
)
def test_a_port_range_without_two_launches_is_reported(nodes: int, ports: int, needed: int) -> None:
    context: Any = SimpleNamespace(client=lambda: SimpleNamespace(srun_ports=lambda: ports))
    notices = _few_ports(JobSpec(("train.py",), "/home/me", nodes=nodes), context)
    assert [bool(notices), f"over {nodes} nodes opens {needed}:" in "".join(notices)] == [bool(needed)] * 2
