"""Filter the environment that a submission inherits from the user's shell."""

from __future__ import annotations

from collections.abc import Mapping

from clusterrun.model import contract
from clusterrun.model.sbatch_variables import (
    KINDS,
    OPTION_BY_VARIABLE,
    PASSED_ON,
    is_overridden,
    passed_on_entry,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.model.spec import JobSpec

_WISHES = {**OPTION_BY_VARIABLE, "SLURM_ACCOUNT": "account"}
MOST_NAMED = 3


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` without the variables of an outer job.

    They would change the submission unnoticed.

    ``SBATCH_*`` overrides the script's directives. ``SLURM_*`` of an outer job misleads sbatch, srun and
    frameworks. ``PET_*`` holds torchrun's command line.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in contract.KEPT_VARIABLES or not name.startswith(contract.SCRUBBED_PREFIXES)
    }


def dropped(environment: Mapping[str, str], spec: JobSpec) -> tuple[str, ...]:
    """Return the names of the variables that ``scrubbed`` leaves out; many of one prefix as ``SLURM_*``.

    Variables whose option ``spec`` sets are not among them.
    """
    options_set = {name for name, option in OPTION_BY_VARIABLE.items() if getattr(spec, option)}
    options_set |= {name for name in PASSED_ON if _is_set(name, environment, spec)}
    dropped_names = sorted(environment.keys() - scrubbed(environment).keys() - options_set)
    names = []
    for name in dropped_names:
        prefix = next(prefix for prefix in contract.SCRUBBED_PREFIXES if name.startswith(prefix))
        several = sum(other.startswith(prefix) for other in dropped_names) > MOST_NAMED
        names.append(f"{prefix}*" if several else name)
    return tuple(dict.fromkeys(names))


def not_obeyed(environment: Mapping[str, str], spec: JobSpec) -> str:
    """Return a line with the options for the sbatch variables of the shell that clusterrun ignores.

    '' if there are none, or if the user has given each option.
    """
    from shlex import quote

    wishes = {
        f"--{option} {quote(environment[name])}": name
        for name, option in _WISHES.items()
        if environment.get(name) and not getattr(spec, option)
    }
    wishes |= {
        f"--sbatch {quote(passed_on_entry(name, environment))}": name
        for name in PASSED_ON
        if environment.get(name) and not _is_set(name, environment, spec)
    }
    if not wishes:
        return ""
    names = ", ".join(wishes.values())
    verb = "is" if len(wishes) == 1 else "are"
    return f"{names} of this shell {verb} not used: {' '.join(wishes)}"


def _is_set(variable: str, environment: Mapping[str, str], spec: JobSpec) -> bool:
    """Return whether ``spec`` sets the option of a variable of ``PASSED_ON``, or one in its place."""
    options = {entry.removeprefix("--").partition("=")[0] for entry in spec.sbatch}
    options |= {name for name in KINDS.values() if getattr(spec, name.replace("-", "_"))}
    return is_overridden(passed_on_entry(variable, environment) or PASSED_ON[variable], options)
