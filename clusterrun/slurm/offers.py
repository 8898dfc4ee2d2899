"""Whether a partition could ever give what is asked; asks nobody."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.model.errors import BadInput
from clusterrun.model.spec import JobSpec
from clusterrun.slurm.queries import Partition
from clusterrun.slurm.sending import describe


def meant(spec: JobSpec, partitions: Sequence[Partition]) -> Partition | None:
    """The partition that the job goes to, where that can be seen."""
    fitting = [
        one for one in partitions if one.name == spec.partition or (not spec.partition and one.default)
    ]
    return fitting[0] if len(fitting) == 1 else None


def check(spec: JobSpec, partitions: Sequence[Partition]) -> None:
    """Refuse more nodes, or more GPUs per node, than the partition has: Slurm might let it wait for ever.

    Silent where that cannot be seen: an unknown partition, several of them, GPUs that Slurm does
    not count. Raises ``BadInput``.
    """
    offer = meant(spec, partitions)
    if offer is None:
        return
    if 0 < offer.gpus < spec.gpus:
        raise BadInput(f"--gpus {spec.gpus}: a node has at most {offer.gpus} GPUs", describe(offer))
    if 0 < offer.nodes < spec.allocated:
        spares = f" --spares {spec.spares}" if spec.spares else ""
        raise BadInput(f"--nodes {spec.nodes}{spares}: there are {offer.nodes}", describe(offer))
