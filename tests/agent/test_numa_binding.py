"""Which processors a rank gets near its GPU, with the values of torchrun --numa-binding."""

from __future__ import annotations

import os

import pytest

from clusterrun.agent import numa_binding
from clusterrun.agent.numa_binding import Cpu, NotBound, cpus_of_ranks

# Two sockets with two NUMA nodes each. A node has 4 cores of 2 threads, and 2 cores share a cache.
CPUS = [
    Cpu(
        number=thread * 16 + core,
        node=core // 4,
        socket=core // 8,
        core=(core, 16 + core),
        cache=tuple(sorted([core // 2 * 2, core // 2 * 2 + 1, core // 2 * 2 + 16, core // 2 * 2 + 17])),
    )
    for thread in (0, 1)
    for core in range(16)
]


@pytest.mark.parametrize(
    ("kind", "gpu_nodes", "cpus"),
    [
        ("node", [0, 3], [{0, 1, 2, 3, 16, 17, 18, 19}, {12, 13, 14, 15, 28, 29, 30, 31}]),
        ("node", [1, 1], [{4, 5, 6, 7, 20, 21, 22, 23}] * 2),
        ("socket", [1, 2], [{*range(8), *range(16, 24)}, {*range(8, 16), *range(24, 32)}]),
        ("exclusive", [0, 0], [{0, 1, 16, 17}, {2, 3, 18, 19}]),
        ("exclusive", [0, 0, 0], [{0, 1, 16, 17}, {2, 18}, {3, 19}]),
        ("core-complex", [0, 0], [{0, 1, 16, 17}, {2, 3, 18, 19}]),
        ("core-complex", [0, 0, 0], [{0, 1, 16, 17}, {2, 3, 18, 19}, {0, 1, 16, 17}]),
    ],
)
def test_ranks_are_bound_near_their_gpus(kind, gpu_nodes, cpus) -> None:
    assert cpus_of_ranks(kind, gpu_nodes, CPUS) == cpus


def test_only_processors_of_the_job_are_used() -> None:
    job = [cpu for cpu in CPUS if cpu.number in (0, 1, 4, 16)]
    assert cpus_of_ranks("node", [0, 1], job) == [{0, 1, 16}, {4}]
    assert cpus_of_ranks("exclusive", [0, 0], job) == [{0, 16}, {1}]


@pytest.mark.parametrize(("kind", "gpu_nodes"), [("node", [3]), ("socket", [2]), ("exclusive", [0, 0, 0])])
def test_a_rank_without_a_processor_near_its_gpu_is_refused(kind, gpu_nodes) -> None:
    job = [cpu for cpu in CPUS if cpu.number in (0, 1, 16, 17)]
    with pytest.raises(NotBound, match="no processor near the GPU"):
        cpus_of_ranks(kind, gpu_nodes, job)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Make a machine of four NVIDIA GPUs, two on each NUMA node."""
    nvidia, pci = tmp_path / "nvidia", tmp_path / "pci"
    for number, node in enumerate((0, 0, 1, 1)):
        address = f"0000:{number + 1}a:00.0"
        for folder in (nvidia / address, pci / address):
            folder.mkdir(parents=True)
        (nvidia / address / "information").write_text(f"Model: \t\t H100\nGPU UUID: \t GPU-{number}f-1\n")
        (pci / address / "numa_node").write_text(f"{node}\n")
    monkeypatch.setattr(numa_binding, "_NVIDIA", str(nvidia))
    monkeypatch.setattr(numa_binding, "_PCI", str(pci))
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "nodes"),
    [(None, [0, 0]), ("0,1,2,3", [0, 0]), ("2,3", [1, 1]), ("GPU-1f,GPU-3f-1", [0, 1]), ("3,0", [1, 0])],
)
def test_the_numa_node_of_each_rank_is_that_of_its_gpu(machine, visible, nodes) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert numa_binding.gpu_nodes(environment, 2) == nodes


def test_a_machine_with_one_numa_node_reports_minus_one(machine) -> None:
    for path in (machine / "pci").glob("*/numa_node"):
        path.write_text("-1\n")
    assert numa_binding.gpu_nodes({}, 4) == [0] * 4


def test_gpus_with_an_unknown_numa_node_are_refused(machine) -> None:
    with pytest.raises(NotBound, match="of 1 of 2 GPUs are known"):
        numa_binding.gpu_nodes({"CUDA_VISIBLE_DEVICES": "1"}, 2)


def test_the_processors_of_this_machine_are_read() -> None:
    usable = os.sched_getaffinity(0)
    cpus = numa_binding.read_cpus(usable)
    assert {cpu.number for cpu in cpus} == usable
    assert all(cpu.number in cpu.core and cpu.number in cpu.cache for cpu in cpus)
    assert numa_binding.numbers("0-2,8\n") == (0, 1, 2, 8)
