"""List the variables of the shell that set an option of every sbatch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

# Variables of a user or site that set an option of every sbatch, each with clusterrun's option.
OPTION_BY_VARIABLE = {
    "SBATCH_PARTITION": "partition",
    "SBATCH_ACCOUNT": "account",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_JOB_NAME": "name",
    "SBATCH_MEM_PER_NODE": "mem",
}
# Options of every sbatch that clusterrun lacks, and that a variable of the same name sets. They are passed on
# as ``--sbatch`` is, or refused as ``--sbatch`` refuses them.
_NAMES = (
    *("acctg-freq", "batch", "clusters", "container", "container-id", "core-spec", "cpus-per-gpu"),
    *("delay-boot", "dependency", "exclusive", "export", "get-user-env", "gpu-freq", "gpus"),
    *("gpus-per-node", "gpus-per-task", "gres", "gres-flags", "hint", "mem-per-cpu", "mem-per-gpu"),
    *("network", "no-requeue", "overcommit", "power", "profile", "requeue", "signal", "spread-job"),
    *("threads-per-core", "thread-spec", "use-min-nodes", "wait-all-nodes", "wckey"),
)
PASSED_ON = {f"SBATCH_{name.upper().replace('-', '_')}": name for name in _NAMES}
PASSED_ON["SBATCH_REQ_SWITCH"] = "switches"
# Variables whose option is not used. A notice gives the reason: the ranks run as without the variable.
UNUSED = {
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_ERROR": "error",
    "SBATCH_INPUT": "input",
    "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_OUTPUT": "output",
    "SBATCH_WAIT": "wait",
}
# sbatch sets these if their variable exists, with any value or none.
SWITCHES = frozenset({"no-requeue", "overcommit", "requeue", "spread-job", "use-min-nodes"})
# Options by kind. The user's shell sets no option of a kind if a stronger source sets one.
KINDS = {
    **dict.fromkeys(("gres", "gpus", "gpus-per-node", "gpus-per-task"), "gpus"),
    **dict.fromkeys(("mem-per-cpu", "mem-per-gpu"), "mem"),
    "cpus-per-gpu": "cpus-per-rank",
    "no-requeue": "requeue",
}


def passed_on_entry(variable: str, environ: Mapping[str, str]) -> str:
    """Return the ``--sbatch`` entry for a variable of ``PASSED_ON``; '' if the shell does not set it."""
    name, text = PASSED_ON[variable], environ.get(variable)
    if text is None or (not text and name not in {*SWITCHES, "exclusive"}):
        return ""
    if name == "switches" and environ.get("SBATCH_WAIT4SWITCH"):
        text = f"{text}@{environ['SBATCH_WAIT4SWITCH']}"
    return name if not text or name in SWITCHES else f"{name}={text}"


def is_overridden(entry: str, options: Collection[str]) -> bool:
    """Return whether one of ``options`` takes the place of a ``--sbatch`` entry that the shell sets."""
    name = entry.partition("=")[0]
    if name in options:
        return True
    kinds = {KINDS.get(option, option) for option in options}
    is_other_gres = name == "gres" and "gpu" not in entry
    return KINDS.get(name, name) in kinds and not is_other_gres
