"""Which device carries what ranks agree on; torch's GPUs are fake, since no machine of the tests has one."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from clusterrun.training import agreement


@pytest.mark.parametrize(
    ("backends", "bound", "current", "local_rank", "device"),
    [
        ("cpu:gloo,cuda:nccl", None, 0, "3", ("cpu",)),
        ("cuda:nccl", "the device of init_process_group", 0, "3", "the device of init_process_group"),
        ("cuda:nccl", None, 2, "3", ("cuda", 2)),  # the script called set_device
        ("cuda:nccl", None, 0, "3", ("cuda", 3)),  # it did not
        ("cuda:nccl", None, 0, "9", ("cuda", 0)),  # the rank sees one GPU of its own
        ("xpu:xccl", None, 0, "1", ("xpu", 1)),
    ],
)
def test_ranks_agree_on_the_cpu_or_on_their_own_fake_gpu(
    monkeypatch, backends, bound, current, local_rank, device
) -> None:
    gpus = SimpleNamespace(current_device=lambda: current, device_count=lambda: 4)
    torch = SimpleNamespace(device=lambda *arguments: arguments, cuda=gpus, xpu=gpus)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    world = SimpleNamespace(bound_device_id=bound)
    distributed = SimpleNamespace(get_backend_config=lambda: backends, group=SimpleNamespace(WORLD=world))
    assert agreement.device(distributed) == device
