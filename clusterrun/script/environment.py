"""What a submission may inherit from the shell it comes from; knows names of variables only."""

from __future__ import annotations

from collections.abc import Mapping

from clusterrun.model import contract


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without what would steer a run from behind: the variables of a job around us.

    ``SBATCH_*`` silently beats the script's own directives, ``SLURM_*`` of an outer job misleads
    sbatch, srun and frameworks, and ``PET_*`` is torchrun's command line.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in contract.KEPT_VARIABLES or not name.startswith(contract.SCRUBBED_PREFIXES)
    }


def dropped(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The names that ``scrubbed`` leaves out, sorted."""
    return tuple(sorted(set(environment) - set(scrubbed(environment))))
