"""Check whether a partition can ever satisfy a job."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.model.errors import BadInput
from clusterrun.model.spec import JobSpec
from clusterrun.script import sbatch_options
from clusterrun.slurm.queries import PartitionOffer
from clusterrun.slurm.submit_once import describe


def target_partition(spec: JobSpec, partitions: Sequence[PartitionOffer]) -> PartitionOffer | None:
    """Return the partition of the job; None if it is unknown, or if the job names several."""
    passed_on = dict(sbatch_options.passed(spec.sbatch, "--sbatch"))
    name = passed_on.get("partition", spec.partition)
    offers = [offer for offer in partitions if (offer.name == name if name else offer.default)]
    return offers[0] if len(offers) == 1 else None


def check(spec: JobSpec, partitions: Sequence[PartitionOffer]) -> None:
    """Refuse more nodes, GPUs or CPUs than the partition is known to have. The job might wait forever."""
    offer = target_partition(spec, partitions)
    if offer is None:
        return
    if 0 < offer.gpus < spec.gpus and not spec.gpus_from_node:
        raise BadInput(f"--gpus {spec.gpus}: a node has at most {offer.gpus} GPUs", describe(offer))
    if 0 < offer.nodes < spec.least_allocated:
        spares = f" --spares {spec.spares}" if spec.spares else ""
        problem = f"--nodes {spec.nodes_asked}{spares}: the partition has {offer.nodes}"
        raise BadInput(problem, describe(offer))
    cpus = sbatch_options.least_cpus(spec)
    if 0 < offer.cpus < cpus and not sbatch_options.asks_for_cpus(spec):
        cpus_text = f"--cpus-per-rank {spec.cpus_per_rank}" if spec.cpus_per_rank else "one CPU each"
        ranks = f" for {spec.local_size} ranks a node" if spec.local_size > 1 else ""
        raise BadInput(f"{cpus_text}{ranks}: a node has at most {offer.cpus} CPUs", describe(offer))


def forgotten_gpus(spec: JobSpec, partitions: Sequence[PartitionOffer]) -> tuple[str, ...]:
    """Return a notice if ranks of ``spec`` get no GPU, or share all GPUs of a node.

    There is no notice if ``gpus`` or ``ranks_per_node`` is set.
    """
    if spec.gpus or spec.ranks_per_node:
        return ()
    if sbatch_options.asks_for_gpus(spec):
        one_rank = "the job asks for GPUs without --gpus: one rank on each node gets all of them"
        return () if spec.per_node else (f"{one_rank}; --gpus N starts one rank per GPU",)
    offer = target_partition(spec, partitions)
    if offer is None or not offer.gpus:
        return ()
    most = "a GPU" if offer.gpus == 1 else f"up to {offer.gpus} GPUs"
    problem = f"nodes of partition {offer.name} have {most}, and this run asks for none: its ranks see no GPU"
    return (f"{problem}; give --gpus N, or --gpus 0 for CPU ranks",)


def cpus_per_gpu(spec: JobSpec, partitions: Sequence[PartitionOffer]) -> int:
    """Return a GPU's share of the CPUs on every kind of node that the job may get; 0 if it is unknown."""
    offer = target_partition(spec, partitions)
    fitting = [(cpus, gpus) for gpus, cpus in offer.kinds if gpus >= spec.gpus > 0] if offer else []
    return min((cpus // gpus for cpus, gpus in fitting), default=0)
