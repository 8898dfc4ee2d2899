"""Map clusterrun's options to options of sbatch and srun."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from clusterrun.model import duration, node_range, option_table
from clusterrun.model.contract import EXCLUDED_PLACE
from clusterrun.model.errors import BadInput
from clusterrun.model.hostlist import expand, fold
from clusterrun.model.option_table import CONFIGURABLE, DURATIONS
from clusterrun.model.paths import RunPaths
from clusterrun.model.spec import JobSpec, OnUnfit
from clusterrun.model.visible import job_name
from clusterrun.script import quoting
from clusterrun.script.job_array import instead_of_array
from clusterrun.script.sbatch_table import OPTIONS, SRUN_REFUSED, SbatchOption, full_name

# A key without dashes, and its value ('' for a flag).
Option = tuple[str, str]
# It counts alone: sbatch ignores every value that follows it in one list.
_NO_MAIL = ("mail-type", "NONE")
_KEY = re.compile(r"[a-z][a-z0-9]+([-_][a-z0-9]+)*", re.ASCII)
# A value that another option follows.
_SEVERAL = re.compile(r"\s--?[a-zA-Z]")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


def passed(entries: Sequence[str], option: str) -> tuple[Option, ...]:
    """Return the options in ``--sbatch`` or ``--srun`` entries (``KEY`` or ``KEY=VALUE``), each setting once.

    Values of a key that the table joins are joined. For any other setting the last entry counts, as with
    sbatch and srun. Raises ``BadInput`` for an entry that is not an option, or that clusterrun refuses.
    """
    return tuple(_by_setting(entries, option).values())


def check_entries(sbatch: Sequence[str], srun: Sequence[str]) -> None:
    """Raise one ``BadInput`` for all entries of ``--sbatch`` and ``--srun`` that ``passed`` would refuse."""
    refusals: dict[str, list[str]] = {}  # by remedy
    for entries, option in ((sbatch, "--sbatch"), (srun, "--srun")):
        for entry in entries:
            try:
                _read_entry(entry, option)
            except BadInput as refusal:
                refusals.setdefault(refusal.remedy, []).append(refusal.seen)
    if refusals:
        *others, (remedy, problems) = refusals.items()
        earlier = ["; ".join(problems_before) + f"\n{advice}" for advice, problems_before in others]
        raise BadInput("\n".join((*earlier, "; ".join(problems))), remedy)


def _by_setting(entries: Sequence[str], option: str) -> dict[str, Option]:
    check_entries(*((entries, ()) if option == "--sbatch" else ((), entries)))
    by_setting: dict[str, Option] = {}
    for key, value in (_read_entry(entry, option) for entry in entries):
        row = _row(key, option)
        before = by_setting.get(row.setting, (key, ""))[1]
        separator = "" if _NO_MAIL in ((key, before), (key, value)) else row.joined
        by_setting[row.setting] = (key, f"{before}{separator}{value}" if separator and before else value)
    return by_setting


def _row(key: str, option: str) -> SbatchOption:
    is_known = option == "--sbatch" and key in OPTIONS
    return OPTIONS[key] if is_known else SbatchOption(key, setting=key)


def _read_entry(entry: str, option: str) -> Option:
    key, _, value = entry.removeprefix("--").partition("=")
    if not _KEY.fullmatch(key) or _SEVERAL.search(value):
        from clusterrun.script.sbatch_lines import in_words  # only for a refusal

        read = list(in_words(0, entry if entry.startswith("-") else f"--{entry}"))
        if all(directive.name in OPTIONS for directive in read):
            entries = [word((directive.name, directive.value)).removeprefix("--") for directive in read]
            remedy = "write " + " ".join(f"{option} {shlex.quote(entry)}" for entry in entries)
            raise BadInput(f"{option} {entry!r} is not KEY or KEY=VALUE", remedy)
    if not _KEY.fullmatch(key):
        remedy = f"write the long name, dashes in front left out: {option} exclusive, {option} mail-type=END"
        raise BadInput(f"{option} {entry!r}: {key!r} is not the name of an option", remedy)
    if _UNPRINTABLE.search(value):
        raise BadInput(f"{option} {entry!r} has a control character", "leave it out")
    if option == "--sbatch":
        key = refused = full_name(key)
        remedy = OPTIONS[key].refused if key in OPTIONS else ""
        if key == "array":
            remedy = instead_of_array(value)
    else:
        # The table refuses an option, or one value of it.
        refused = f"{key}={value}" if f"{key}={value}" in SRUN_REFUSED else key
        remedy = SRUN_REFUSED.get(refused, "")
    if remedy:
        raise BadInput(f"{option} {refused} cannot be passed on", remedy)
    return key, value


def _overridden(entries: Sequence[str], option: str) -> list[str]:
    """Return a notice for each entry that a later entry of the same setting replaces."""
    last = _by_setting(entries, option)
    notices = []
    for entry in dict.fromkeys(entries):
        key, value = _read_entry(entry, option)
        row = _row(key, option)
        winner = last[row.setting]
        is_joined = bool(row.joined) and set(value.split(row.joined)) <= set(winner[1].split(row.joined))
        if (key, value) != winner and not is_joined:
            later = word(winner).removeprefix("--")
            notices.append(
                f"{option} {entry} has no effect: {option} {later} comes later, and the last one counts"
            )
    return notices


def job_options(
    spec: JobSpec, comment: str, paths: RunPaths, ending: Sequence[Option], cpus_per_gpu: int
) -> tuple[Option, ...]:
    """Return all options of sbatch in the order of the script. The user's own options come last.

    ``ending`` holds the options for the end of the job. ``cpus_per_gpu`` applies if ``shares_cpus``. A key
    that the user passes on replaces clusterrun's. Dependencies and comments are joined.
    """
    user_options = dict(passed(spec.sbatch, "--sbatch"))
    shared = spec.gpus * cpus_per_gpu if shares_cpus(spec) else 0
    own_options = [
        ("job-name", job_name(spec.name)),
        ("comment", " ".join(filter(None, (comment, user_options.pop("comment", ""))))),
        ("chdir", spec.cwd),
        ("output", output_pattern(paths.job_output)),
        ("open-mode", "append"),
        # Training nodes and their spares, ``4`` or ``2-5``.
        ("nodes", node_range.as_text(spec.allocated, spec.least_allocated if spec.min_nodes else 0)),
        # Slurm gives only the least of a range with this option.
        *(() if spec.min_nodes else (("ntasks-per-node", "1"),)),
        ("cpus-per-task", str(shared or least_cpus(spec))),
        *ending,
    ]
    own_options += [("no-kill", "")] if spec.allocated > 1 else []  # the coordinator handles a lost node
    own_options += options_by_name(spec)
    own_options += (
        [("exclusive", "")] if spec.gpus_from_node else []
    )  # otherwise other jobs could use its GPUs
    after = [f"afterok:{':'.join(spec.after)}"] if spec.after else []
    waits = after + ([user_options.pop("dependency")] if "dependency" in user_options else [])
    own_options += [("dependency", ",".join(waits)), ("kill-on-invalid-dep", "yes")] if waits else []
    overridden = {key for name, value in user_options.items() for key in _overridden_by(name, value)}
    return (*(option for option in own_options if option[0] not in overridden), *user_options.items())


def replaced(spec: JobSpec) -> tuple[str, ...]:
    """Return notices for options that an option of the user overrides."""
    own_options = {"job-name", "cpus-per-task"}
    own_options |= {"signal"} if spec.goes_on else set()
    own_options |= {"exclusive"} if spec.gpus_from_node else set()
    own_options |= {key for key, _ in options_by_name(spec)}
    notices = [
        f"--sbatch {key} takes the place of --{ours_key}"
        for key, value in passed(spec.sbatch, "--sbatch")
        for ours_key in _overridden_by(key, value)
        if ours_key in own_options
    ]
    return (*notices, *_overridden(spec.sbatch, "--sbatch"), *_overridden(spec.srun, "--srun"))


def options_by_name(spec: JobSpec) -> list[Option]:
    """Return the options that sbatch knows by the same name, and the GPUs."""
    table = [option for option in CONFIGURABLE.values() if option.sbatch]
    options = [(o.name, _as_sbatch_writes(o, value)) for o in table if (value := getattr(spec, o.field))]
    return options + ([("gpus-per-node", spec.gpus_asked)] if spec.gpus and not spec.gpus_from_node else [])


def _as_sbatch_writes(option: option_table.Option, value: Any) -> str:
    if option.kind == "switch":
        return ""
    if option.kind == "list":
        return ",".join(value)
    return duration.slurm_form(value) if option.kind in DURATIONS else str(value)


def _overridden_by(key: str, value: str) -> tuple[str, ...]:
    """Return the options of clusterrun that the user's ``key`` overrides; none for a gres without GPUs."""
    if key in _OF_ANYTHING and "gpu" not in value:
        return (key,)
    alike = {
        "gres": ("gpus-per-node",),
        "gpus": ("gpus-per-node",),
        "tres-per-node": ("gpus-per-node",),
        "nodefile": ("nodelist",),
        "requeue": ("no-requeue", "requeue"),
        "no-requeue": ("no-requeue", "requeue"),
        "mem-per-cpu": ("mem",),
        "mem-per-gpu": ("mem",),
        "cpus-per-gpu": ("cpus-per-task",),
        "oversubscribe": ("exclusive",),
    }
    return alike.get(key, (key,))


_OF_GPUS = ("gpus", "gpus-per-node", "gpus-per-socket")
AFFECTS_CPUS = (
    *("cpus-per-task", "cpus-per-gpu", "mem-per-cpu", "hint", "cores-per-socket", "threads-per-core"),
    *("ntasks-per-core", "tres-per-task"),
)
_OF_ANYTHING = ("gres", "tres-per-node", "tres-per-task", "tres-per-job")


def asks_for_gpus(spec: JobSpec) -> bool:
    """Return whether the job requests GPUs by ``--gpus`` or by an option that is passed on to Slurm."""
    user_options = (*passed(spec.sbatch, "--sbatch"), *passed(spec.srun, "--srun"))
    requests = (key in _OF_GPUS or (key in _OF_ANYTHING and "gpu" in value) for key, value in user_options)
    return bool(spec.gpus) or any(requests)


def asks_for_cpus(spec: JobSpec) -> bool:
    """Return whether an option that is passed on to sbatch affects the number of CPUs."""
    return any(key in AFFECTS_CPUS for key, _ in passed(spec.sbatch, "--sbatch"))


def least_cpus(spec: JobSpec) -> int:
    """Return the CPUs that the ranks of a node need: the number set by the user, or one for each rank."""
    return spec.local_size * (spec.cpus_per_rank or 1)


def shares_cpus(spec: JobSpec) -> bool:
    """Return whether a rank gets its GPU's share of the node's CPUs, because no option sets the number.

    A check asks for the same share as a run. The result would differ with one CPU per rank.
    """
    has_whole_node = spec.gpus_from_node
    return bool(spec.gpus) and not (has_whole_node or spec.cpus_per_rank or asks_for_cpus(spec))


def affected_options(spec: JobSpec, *effects: str) -> list[str]:
    """Return the options that the user set and that have one of ``effects`` without a scheduler."""
    plain = JobSpec(spec.command, spec.cwd)
    options = [option for option in CONFIGURABLE.values() if option.here in effects]
    return [f"--{o.name}" for o in options if getattr(spec, o.field) != getattr(plain, o.field)]


def resubmit_argv(spec: JobSpec, argv: Sequence[str]) -> tuple[str, ...]:
    """Return ``argv`` (sbatch and the script) for the coordinator; ``{excluded}`` stands for unfit nodes.

    Its dependencies are dropped, because they were satisfied when the first job started. Slurm forgets
    jobs, and would treat a dependency on one of them as an error.
    """
    if spec.on_unfit is not OnUnfit.RESUBMIT:
        return ()
    exclude_option = excluding(spec, "--on-unfit resubmit")
    waits = any(key == "dependency" for key, _ in passed(spec.sbatch, "--sbatch")) or spec.after
    return (*argv[:-1], exclude_option, *(["--dependency="] if waits else []), argv[-1])


def excluding(spec: JobSpec, option: str) -> str:
    """Return the option that also excludes bad nodes from the next job.

    Raises ``BadInput`` as ``excluded`` does, and if a job without a bad node could never start.
    """
    if spec.nodelist:
        raise BadInput(f"{option} cannot exclude nodes that --nodelist asks for", "leave one of them out")
    return f"--exclude={','.join(filter(None, (fold(excluded(spec, option)), EXCLUDED_PLACE)))}"


def excluded(spec: JobSpec, option: str) -> tuple[str, ...]:
    """Return the nodes that ``spec`` excludes. Raises ``BadInput`` if ``option`` cannot extend the list."""
    if any(key == "exclude" for key, _ in passed(spec.sbatch, "--sbatch")):
        raise BadInput(f"{option} cannot add to --sbatch exclude", "say --exclude instead")
    if "/" in spec.exclude:
        raise BadInput(f"{option} cannot add to the file {spec.exclude}", "name the nodes: --exclude n[1-4]")
    return expand(spec.exclude) if spec.exclude else ()


def output_pattern(path: str) -> str:
    """Return ``path`` as a file name pattern of Slurm, with escaped ``%``.

    The result is /dev/null if no pattern can hold the path.
    """
    pattern = path.replace("%", "%%")
    return pattern if "\\" not in path and quoting.carries(pattern) else "/dev/null"


def word(option: Option) -> str:
    key, value = option
    return f"--{key}={value}" if value else f"--{key}"


def launch_argv(spec: JobSpec, paths: RunPaths, more: Sequence[Option]) -> tuple[str, ...]:
    """Return the srun command that starts one agent on each node, with the secret on its standard input.

    The coordinator handles the loss of a node or task. No option limits CPUs, memory or GPUs: the step has
    everything that the job has on each node. ``more`` are further options, for example of a container.
    """
    user_options = dict(passed(spec.srun, "--srun"))
    own_options = {
        "nodes": str(spec.allocated),
        "ntasks": str(spec.allocated),
        "ntasks-per-node": "1",
        "cpu-bind": "none",
        "mpi": "none",
        "export": "ALL",
        "input": "all",
        "kill-on-bad-exit": "0",
        "wait": "0",
        "no-kill": "",
        "unbuffered": "",
        "quiet": "",
        **dict(more),
    }
    options = [word(option) for option in {**own_options, **user_options}.items()]
    return ("srun", *options, spec.python, "-I", "-S", paths.agent, "agent", paths.run_dir)
