"""Whether a partition could ever give what is asked; asks nobody."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.model.errors import BadInput
from clusterrun.model.spec import JobSpec
from clusterrun.slurm.queries import Partition
from clusterrun.slurm.sending import describe


def check(spec: JobSpec, partitions: Sequence[Partition]) -> None:
    """Refuse more nodes, or more GPUs per node, than the partition has: Slurm might let it wait for ever.

    Silent where that cannot be seen: an unknown partition, several of them, GPUs that Slurm does
    not count. Raises ``BadInput``.
    """
    meant = [one for one in partitions if one.name == spec.partition or (not spec.partition and one.default)]
    if len(meant) != 1:
        return
    offer = meant[0]
    if 0 < offer.gpus < spec.gpus:
        raise BadInput(f"--gpus {spec.gpus}: a node has at most {offer.gpus} GPUs", describe(offer))
    if 0 < offer.nodes < spec.nodes:
        raise BadInput(f"--nodes {spec.nodes}: there are {offer.nodes}", describe(offer))
