"""Choose the processors of each rank near its GPU, with the values of ``torchrun --numa-binding``.

A rank on another socket than its GPU copies its batches through the link between the sockets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from clusterrun import proc
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.model.visible_gpus import VISIBLE_VARIABLES, named

NODE, SOCKET, EXCLUSIVE, CORE_COMPLEX = "node", "socket", "exclusive", "core-complex"
_NVIDIA = "/proc/driver/nvidia/gpus"
_PCI = "/sys/bus/pci/devices"
_CPU = "/sys/devices/system/cpu"
_AMD_VENDOR = "0x1002"
# PCI classes of GPUs without and with a display, and of processing accelerators.
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")


class NotBound(ClusterrunError):
    """The processors near a GPU cannot be determined."""


@frozen
class Cpu:
    """A logical processor. The numbers are those of Linux."""

    number: int
    node: int
    socket: int
    core: tuple[int, ...]  # the logical processors of its core
    cache: tuple[int, ...]  # the logical processors that share its last-level cache


def cpus_of_ranks(kind: str, gpu_nodes: Sequence[int], cpus: Sequence[Cpu]) -> list[frozenset[int]]:
    """Return the processors of each rank. ``gpu_nodes`` are the NUMA nodes of the ranks' GPUs.

    ``cpus`` are the processors that the job may use. Raises ``NotBound`` if a rank would get none.
    """
    result = [_near(kind, rank, gpu_nodes, cpus) for rank in range(len(gpu_nodes))]
    for rank, rank_cpus in enumerate(result):
        if not rank_cpus:
            message = f"--numa-binding {kind}: the job has no processor near the GPU of local rank {rank}"
            remedy = "ask for whole nodes or more --cpus-per-rank, or leave --numa-binding out"
            raise NotBound(message, remedy)
    return result


def _near(kind: str, rank: int, gpu_nodes: Sequence[int], cpus: Sequence[Cpu]) -> frozenset[int]:
    node = gpu_nodes[rank]
    if kind == SOCKET:
        sockets = {cpu.socket for cpu in cpus if cpu.node == node}
        return frozenset(cpu.number for cpu in cpus if cpu.socket in sockets)
    cpus_of_node = [cpu for cpu in cpus if cpu.node == node]
    if kind == NODE:
        return frozenset(cpu.number for cpu in cpus_of_node)
    ranks_of_node = [other for other, other_node in enumerate(gpu_nodes) if other_node == node]
    place = ranks_of_node.index(rank)
    if kind == CORE_COMPLEX:
        # The largest complexes first, as torchrun does. Ranks share one if there are more ranks.
        complexes: dict[tuple[int, ...], list[int]] = {}
        for cpu in cpus_of_node:
            complexes.setdefault(cpu.cache, []).append(cpu.number)
        in_order = sorted(complexes.values(), key=lambda numbers: (-len(numbers), numbers))
        return frozenset(in_order[place % len(in_order)]) if in_order else frozenset()
    cores: dict[tuple[int, ...], list[int]] = {}
    for cpu in cpus_of_node:
        cores.setdefault(cpu.core, []).append(cpu.number)
    in_order = sorted(cores.values())
    share, rest = divmod(len(in_order), len(ranks_of_node))
    first = place * share + min(place, rest)
    own_cores = in_order[first : first + share + (place < rest)]
    return frozenset(number for core in own_cores for number in core)


# --- this machine ---


def gpu_nodes(environment: Mapping[str, str], ranks: int) -> list[int]:
    """Return the NUMA nodes of the GPUs of the ranks. Raises ``NotBound`` if they are unknown.

    The GPUs are in the order of their PCI addresses, which is CUDA's order if all are of one model. A machine
    with one NUMA node reports -1.
    """
    addresses = _gpus()
    names = next((named(environment[name]) for name in VISIBLE_VARIABLES if name in environment), None)
    uuids = {_uuid(address): address for address in addresses} if names else {}
    chosen: list[str] = []
    for name in addresses if names is None else names:
        if name in addresses:
            chosen.append(name)
        elif name.isdecimal() and int(name) < len(addresses):
            chosen.append(addresses[int(name)])
        else:
            chosen += [address for uuid, address in uuids.items() if uuid.startswith(name)][:1]
    nodes: list[int] = []
    for address in chosen[:ranks]:
        text = proc.text(f"{_PCI}/{address}/numa_node").strip()
        if text.lstrip("-").isdecimal():
            nodes.append(max(0, int(text)))
    if len(nodes) < ranks:
        message = f"--numa-binding: the NUMA nodes of {len(nodes)} of {ranks} GPUs are known"
        raise NotBound(message, "see cat /sys/bus/pci/devices/*/numa_node, or leave --numa-binding out")
    return nodes


def _gpus() -> list[str]:
    """Return the PCI addresses of NVIDIA's GPUs, else of AMD's."""
    nvidia = sorted(proc.listed(_NVIDIA))
    if nvidia:
        return nvidia
    amd: list[str] = []
    for address in sorted(proc.listed(_PCI)):
        vendor = proc.text(f"{_PCI}/{address}/vendor").strip()
        if vendor == _AMD_VENDOR and proc.text(f"{_PCI}/{address}/class").startswith(_GPU_CLASSES):
            amd.append(address)
    return amd


def _uuid(address: str) -> str:
    for line in proc.text(f"{_NVIDIA}/{address}/information").splitlines():
        if line.startswith("GPU UUID:"):
            return line.partition(":")[2].strip()
    return address


def read_cpus(usable: Set[int]) -> list[Cpu]:
    """Return the processors in ``usable`` with their places."""
    cpus: list[Cpu] = []
    for number in sorted(usable):
        folder = f"{_CPU}/cpu{number}"
        nodes = [name for name in proc.listed(folder) if name.startswith("node") and name[4:].isdecimal()]
        caches = sorted(name for name in proc.listed(f"{folder}/cache") if name.startswith("index"))
        # The cache with the highest index is the last level.
        cache = proc.text(f"{folder}/cache/{caches[-1]}/shared_cpu_list") if caches else ""
        socket = proc.text(f"{folder}/topology/physical_package_id").strip()
        cpus.append(
            Cpu(
                number,
                int(nodes[0][4:]) if nodes else 0,
                int(socket) if socket.isdecimal() else 0,
                numbers(proc.text(f"{folder}/topology/thread_siblings_list")) or (number,),
                numbers(cache) or (number,),
            )
        )
    return cpus


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of Linux's list ``0-3,8``."""
    result: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        result += range(int(first), int(last or first) + 1)
    return tuple(result)
