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
# Variables that set an option of every sbatch that clusterrun lacks. It is passed on as ``--sbatch`` is, or
# refused as ``--sbatch`` refuses it.
PASSED_ON = {
    "SBATCH_ACCTG_FREQ": "acctg-freq",
    "SBATCH_BATCH": "batch",
    "SBATCH_CLUSTERS": "clusters",
    "SBATCH_CONTAINER": "container",
    "SBATCH_CONTAINER_ID": "container-id",
    "SBATCH_CORE_SPEC": "core-spec",
    "SBATCH_CPUS_PER_GPU": "cpus-per-gpu",
    "SBATCH_DELAY_BOOT": "delay-boot",
    "SBATCH_DEPENDENCY": "dependency",
    "SBATCH_EXCLUSIVE": "exclusive",
    "SBATCH_EXPORT": "export",
    "SBATCH_GET_USER_ENV": "get-user-env",
    "SBATCH_GPU_FREQ": "gpu-freq",
    "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node",
    "SBATCH_GPUS_PER_TASK": "gpus-per-task",
    "SBATCH_GRES": "gres",
    "SBATCH_GRES_FLAGS": "gres-flags",
    "SBATCH_HINT": "hint",
    "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_NETWORK": "network",
    "SBATCH_NO_REQUEUE": "no-requeue",
    "SBATCH_OVERCOMMIT": "overcommit",
    "SBATCH_POWER": "power",
    "SBATCH_PROFILE": "profile",
    "SBATCH_REQUEUE": "requeue",
    "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_SIGNAL": "signal",
    "SBATCH_SPREAD_JOB": "spread-job",
    "SBATCH_THREADS_PER_CORE": "threads-per-core",
    "SBATCH_THREAD_SPEC": "thread-spec",
    "SBATCH_USE_MIN_NODES": "use-min-nodes",
    "SBATCH_WAIT_ALL_NODES": "wait-all-nodes",
    "SBATCH_WCKEY": "wckey",
}
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
# Options of which the user's shell sets none if a stronger source sets another of the same kind.
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
