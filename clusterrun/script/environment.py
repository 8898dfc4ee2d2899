"""What a submission may inherit from the shell it comes from; knows names of variables only."""

from __future__ import annotations

from collections.abc import Mapping

from clusterrun.model import contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.model.spec import JobSpec

_WISHES = {
    "SBATCH_PARTITION": "partition",
    "SBATCH_ACCOUNT": "account",
    "SLURM_ACCOUNT": "account",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_TIMELIMIT": "time",
}
"""What sites and people set for every sbatch of theirs, and the option by which we are told it."""


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
    return tuple(sorted(set(environment) - set(scrubbed(environment))))


def not_obeyed(environment: Mapping[str, str], spec: JobSpec) -> str:
    """What the shell asks of sbatch and no option says, as a line for a refused job; '' for nothing."""
    from shlex import quote

    wishes = {
        f"--{option} {quote(environment[name])}": name
        for name, option in _WISHES.items()
        if environment.get(name) and not getattr(spec, option)
    }
    if not wishes:
        return ""
    names = ", ".join(wishes.values())
    return f"{names} of this shell {'is' if len(wishes) == 1 else 'are'} not used: {' '.join(wishes)}"
