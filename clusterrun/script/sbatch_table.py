"""List the options of sbatch from Slurm 20.11 to 26.05.

Each row says how clusterrun handles the option, and the alternative to type.
"""

from __future__ import annotations

from collections.abc import Iterator

from clusterrun.model.frozen import frozen, replace
from clusterrun.script.job_array import instead_of_array


@frozen
class SbatchOption:
    """One option of sbatch."""

    name: str  # name without dashes
    short: str = ""  # one-letter name, '' if there is none
    takes: str = "required"  # whether it takes a value: 'none', 'optional' or 'required'
    refused: str = ""  # reason why ``--sbatch NAME`` is refused, with the alternative; '' if it is passed on
    # Replacement for ``--NAME`` among the options of submit, if ``--sbatch NAME`` is not the best one.
    instead: str = ""
    # Separator that joins the values of several ``--sbatch NAME``; '' if the last value counts, as in
    # sbatch.
    joined: str = ""
    setting: str = ""  # the setting that it writes: the last option that writes it counts


def _passed_on(names: str, takes: str) -> Iterator[SbatchOption]:
    for word in names.split():
        name, _, short = word.partition(":")
        yield SbatchOption(name, short, takes)


_ONE_TASK = "each node has one task, which starts the ranks"
_LOGS = "use clusterrun logs: the ranks' output is kept in the run directory (clusterrun logs RUN > FILE)"
_OTHER_CLUSTER = "the job would be queued where `clusterrun status` does not look"
_OTHER_USER = "the run directory belongs to the submitting user: submit as that user"
_MANUAL = "see man sbatch"
_OWN_CONTAINER = "use --container: the job's own processes need the host"

_ROWS = (
    *_passed_on(
        "acctg-freq batch bb bbf begin:b constraint:C core-spec:S cores-per-socket cpu-freq deadline "
        "delay-boot distribution:m exclude:x export-file extra extra-node-info:B gpu-bind gpu-freq "
        "gres-flags hint kill-on-invalid-dep licenses:L mail-user mcs-label mem mem-bind mem-update mincpus "
        "network nodefile:F nodelist:w ntasks-per-core partition:p power prefer priority profile "
        "account:A qos:q reservation resources segment signal sockets-per-node switches thread-spec "
        "threads-per-core time:t time-min tmp tres-bind wait-all-nodes wckey",
        "required",
    ),
    *_passed_on(
        "exclusive get-user-env nice no-kill:k oom-kill-step propagate requeue resv-ports", "optional"
    ),
    *_passed_on(
        "consolidate-segments contiguous hold:H ignore-pbs no-requeue overcommit:O oversubscribe:s reboot "
        "spread-job spread-segments stepmgr use-min-nodes",
        "none",
    ),
    SbatchOption("mail-type", joined=","),
    SbatchOption("comment"),
    SbatchOption("cpus-per-gpu", instead="use --cpus-per-rank: every GPU has one rank"),
    SbatchOption("cpus-per-task", "c", instead="did you mean --cpus-per-rank?"),
    SbatchOption("dependency", "d", instead="use --after RUN, or pass it on: --sbatch dependency=…"),
    SbatchOption("export", instead="use --env KEY=VALUE: all other variables are exported anyway"),
    SbatchOption("gpus", "G", instead="use --gpus, which counts the GPUs of one node"),
    SbatchOption("gpus-per-node"),
    SbatchOption("gpus-per-socket", instead="use --gpus, which counts the GPUs of one node"),
    SbatchOption("gres"),
    SbatchOption("job-name", "J"),
    SbatchOption("mem-per-cpu", instead="use --mem, or pass it on: --sbatch mem-per-cpu=SIZE"),
    SbatchOption("mem-per-gpu", instead="use --mem, or pass it on: --sbatch mem-per-gpu=SIZE"),
    SbatchOption("array", "a", refused=instead_of_array()),
    SbatchOption("autocomplete", refused="use clusterrun completion"),
    SbatchOption("chdir", "D", refused="use cd: ranks start where submit is called"),
    SbatchOption("clusters", "M", refused=_OTHER_CLUSTER),
    SbatchOption("cluster", refused=_OTHER_CLUSTER),
    SbatchOption("cluster-constraint", refused=_OTHER_CLUSTER),
    SbatchOption("container", refused=_OWN_CONTAINER),
    SbatchOption("container-id", refused=_OWN_CONTAINER),
    SbatchOption("container-type", refused=_OWN_CONTAINER),
    SbatchOption("context", refused="no batch script of clusterrun runs in another security context"),
    SbatchOption("error", "e", refused=_LOGS),
    SbatchOption("external", takes="none", refused="an external job runs nothing: leave it out"),
    SbatchOption("gid", refused=_OTHER_USER),
    SbatchOption("gpus-per-task", refused=f"use --gpus: every GPU has one rank ({_ONE_TASK})"),
    SbatchOption("help", "h", "none", refused=_MANUAL),
    SbatchOption("input", "i", refused="the launch of the agents needs it: let COMMAND open the file"),
    SbatchOption("nodes", "N", refused="use --nodes"),
    SbatchOption("ntasks", "n", refused=f"use --nodes and --gpus (or --ranks-per-node): {_ONE_TASK}"),
    SbatchOption("ntasks-per-gpu", refused="use --gpus: every GPU has one rank"),
    SbatchOption("ntasks-per-node", refused=f"use --gpus (or --ranks-per-node for CPU ranks): {_ONE_TASK}"),
    SbatchOption("ntasks-per-socket", refused=f"use --gpus (or --ranks-per-node): {_ONE_TASK}"),
    SbatchOption("ntasks-per-tres", refused="use --gpus: every GPU has one rank"),
    SbatchOption("open-mode", refused=_LOGS),
    SbatchOption("output", "o", refused=_LOGS),
    SbatchOption(
        "parsable", takes="none", refused="it is always on: stdout has the run id alone, or use --json"
    ),
    SbatchOption("quiet", "Q", "none", refused="only warnings of sbatch are shown: leave it out"),
    SbatchOption("tasks-per-node", refused=f"use --gpus (or --ranks-per-node for CPU ranks): {_ONE_TASK}"),
    SbatchOption("test-only", takes="none", refused="nothing would be queued: use --dry-run"),
    SbatchOption("tres-per-task", refused=f"use --gpus and --cpus-per-rank: {_ONE_TASK}"),
    SbatchOption("uid", refused=_OTHER_USER),
    SbatchOption("usage", takes="none", refused=_MANUAL),
    SbatchOption("verbose", "v", "none", refused="only warnings of sbatch are shown: leave it out"),
    SbatchOption("version", "V", "none", refused=_MANUAL),
    SbatchOption("wait", "W", "none", refused="use clusterrun submit --wait"),
    SbatchOption("wrap", refused="give the command after the options: clusterrun submit [OPTIONS] COMMAND"),
)
# Options that write the same field of the job: the last of them counts in sbatch. sbatch itself refuses
# other pairs, such as ``--mem`` with ``--mem-per-cpu``, and ``--core-spec`` with ``--thread-spec``.
_SETTING_OF = {"no-requeue": "requeue", "oversubscribe": "exclusive"}
OPTIONS = {row.name: replace(row, setting=_SETTING_OF.get(row.name, row.name)) for row in _ROWS}
_BY_LETTER = {option.short: option for option in _ROWS if option.short}

# Options of srun that would break the launch of the agents, each with its alternative.
SRUN_REFUSED = {
    **{
        name: OPTIONS[name].refused
        for name in (
            *("chdir", "clusters", "error", "gpus-per-task", "help", "input", "nodes", "ntasks", "open-mode"),
            *("ntasks-per-node", "output", "tasks-per-node", "test-only", "usage", "version"),
        )
    },
    "bcast": "a Python is not a single file: copy an environment to the nodes with --setup (sbcast, tar)",
    "export": "use --env KEY=VALUE: all other variables are exported anyway",
    # The value 1 is what clusterrun does.
    "kill-on-bad-exit=0": "a rank that fails ends the others: a command that must not end them exits with 0",
    "label": "clusterrun logs heads each line with its rank",
    "multi-prog": "every node starts the same agent",
    "pty": "a batch job has no terminal: use clusterrun shell",
    "wait": "the end of ranks is the coordinator's to judge: leave it out",
}
# Names in scripts for Slurm 17.11 and older.
_OLD_NAMES = {"workdir": "chdir"}
SRUN_ALONE = (
    *("accel-bind", "compress", "cpu-bind", "disable-status", "epilog", "exact", "het-group", "mpi"),
    *("kill-on-bad-exit", "msg-timeout", "overlap", "preserve-env", "prolog", "quit-on-interrupt"),
    *("relative", "slurmd-debug", "task-epilog", "task-prolog"),
    *("threads", "treewidth", "unbuffered", "whole"),
)


# Why nothing stands for Pyxis' ``--container-workdir``.
CONTAINER_FOLDER = "ranks start where submit is called: let COMMAND change to it, bash -c 'cd DIR && …'"
_OF_SRUN = "it places or binds tasks: clusterrun has one on each node, for all its ranks, and binds none"
# Options that place the tasks of a node, each with the reason why ranks do without.
PLACES_TASKS = {
    **dict.fromkeys(
        ("accel-bind", "cpu-bind", "gpu-bind", "mem-bind", "tres-bind", "ntasks-per-core"), _OF_SRUN
    ),
    "distribution": "ranks are numbered node by node, as with block",
}
# Values of these options with which srun does what clusterrun does.
USUAL_PLACES = ("none", "no", "off", "verbose", "v", "block")


def full_name(key: str) -> str:
    """Return the option that ``key`` abbreviates, as sbatch reads it; ``key`` itself if there is none.

    An old name that sbatch no longer has stands for the present one.
    """
    key = _OLD_NAMES.get(key, key)
    names = [name for name in OPTIONS if name.startswith(key)]
    return names[0] if key not in OPTIONS and len(names) == 1 else key


def option_of_letter(letter: str) -> SbatchOption | None:
    return _BY_LETTER.get(letter)


def takes_value(typed: str) -> bool:
    """Return whether ``typed`` (``--array``, ``-a``) is an option of sbatch that needs a value."""
    option = _option(typed)
    return option is not None and option.takes == "required"


def _option(typed: str) -> SbatchOption | None:
    name = typed.lstrip("-")
    return OPTIONS.get(name) if typed.startswith("--") else _BY_LETTER.get(name)


def instead_of(typed: str, setting: str = "") -> str:
    """Return what to type for ``typed`` (``--array``, ``-a``), an option of sbatch or srun; '' for others.

    ``setting`` is the value of the option, if it is known.
    """
    name = typed.lstrip("-")
    option = _option(typed)
    if option is None:
        if name in SRUN_REFUSED and typed.startswith("--"):
            return _sentence(SRUN_REFUSED[name])
        return f"Pass it on: --srun {name}" if name in SRUN_ALONE and typed.startswith("--") else ""
    if option.name == "array":
        return _sentence(instead_of_array(setting))
    value = {"none": "", "optional": "[=…]", "required": "=…"}[option.takes]
    return _sentence(option.refused or option.instead or f"pass it on: --sbatch {option.name}{value}")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
