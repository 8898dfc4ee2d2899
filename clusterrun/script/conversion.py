"""Convert a batch script to the submit line that does the same.

Each statement of the script is translated, kept as a ``--setup`` line, or reported with the reason.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.nearest import nearest
from clusterrun.model.world import own_variables
from clusterrun.script import audit
from clusterrun.script.batch_reading import Reading, variables_read
from clusterrun.script.batch_scripts import DOS_LINES, NO_SHEBANG, Conversion, Part, PartOutcome
from clusterrun.script.directives import (
    Translated,
    conversion_of,
    job_variables,
    last_number,
    runs_per_node,
    task_counts,
    translate,
)
from clusterrun.script.interpreter_calls import SHELLS
from clusterrun.script.job_array import JobArray, read_array
from clusterrun.script.launch_commands import OF_JOB, LaunchCommand
from clusterrun.script.quoting import evaluated_text, literal
from clusterrun.script.sbatch_lines import SEPARATE, Directive, read_directives
from clusterrun.script.sbatch_options import AFFECTS_CPUS
from clusterrun.script.script_reading import read_script, with_login_files
from clusterrun.script.shell_source import SOURCED, Body, ShellSource
from clusterrun.script.training_statement import in_shell, literal_placeholders

# The arguments of a batch script that has none.
_NO_ARGUMENTS = {**dict.fromkeys("123456789@*", ""), "#": "0"}
_SAYS_CPUS = {*AFFECTS_CPUS, "exclusive"}
# A statement that does nothing else. In front of a program, it is that program's.
_SETS_VISIBLE = re.compile(
    r"(?:export\s+)?CUDA_VISIBLE_DEVICES=((?:\"[^\"]*\"|'[^']*'|\$\([^()]*\)|[^\s;&|<>()])*)(?: \|\| :)?\s*\Z"
    r"|unset CUDA_VISIBLE_DEVICES(?: \|\| :)?\Z"
)
# A variable that clusterrun sets in ranks, and not with --per-node.
_OF_RANKS = {"WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
_SETS_OF_RANKS = re.compile(rf"export (?:{'|'.join(sorted(_OF_RANKS))})=")
_HAS_LAUNCHER = re.compile(
    r"(?m)^[^#\n]*\b(?:srun|mpirun|mpiexec|ibrun|torchrun|torch\.distributed|accelerate)\b"
)
# Launchers that set OMP_NUM_THREADS=1 for several ranks, unless it is set.
_SETS_THREADS = re.compile(r"torchrun|python -m torch|accelerate")
_THREADS = re.compile(r"\bOMP_NUM_THREADS\b")
# A number of processes that is the number of GPUs of the node.
_COUNTS_GPUS = re.compile(r"\bSLURM_GPUS_ON_NODE\b|nvidia-smi|device_count|[= ](?:auto|gpu)$")
# The script, or the node that it has alone, may have GPUs that Slurm does not count.
_USES_GPUS = re.compile(r"(?i)#SBATCH.*(?:exclusive|gpu|shard|mps)|cuda|nvidia|\s--nv\b")
# A name in a module, an environment, a path or a variable of a script whose program may call MPI.
_MAY_CALL_MPI = re.compile(r"(?i)mpi4py|horovod|(?<![a-z])hvd|openmpi|mpich|cudampi")
# Setup lines that may put a Python on PATH.
_CHOOSES_PYTHON = re.compile(
    r"(?m)\bPATH=|(?:^|[;&|({]\s*)(?:module|ml|conda|\w*mamba|spack|source|\.|eval)\s"
)
# Directives that may lead to nodes with such GPUs.
_PLACES = ("partition", "constraint", "nodelist")
# A backslash with a blank behind it does not continue a command in the next line.
_BROKEN_END = re.compile(r"(?<!\\)\\[ \t]+(?:#.*)?$")
# ``--container-image=nvcr.io#nvidia/pytorch``
_CUT_VALUE = re.compile(r"#SBATCH[^\"'#]*[^\s\\\"'#]#")
# ``#SBTACH --time=1``
_MISSPELT = re.compile(r"#\s*(?!SBATCH\b)([A-Z]{5,7})\s+-")
# Text that is printed, and what replaces a variable that Slurm sets.
# ``$0`` in single quotes is that of awk or of another shell.
_UNUSED = re.compile(r"(?m)^\s*(?:echo|printf)\b.*$|'[^'\n]*\$0[^'\n]*'|\$\{(?:SLURM_\w+:?-|\w+:?\?).*$")
# A value that each job, or each call of a program, has of its own.
_OF_ONE_JOB = re.compile(
    r"\$\{?(?:SLURM_(?:ARRAY_)?JOB_?ID|SLURM_TMPDIR|RANDOM)\b|\$\$(?!\()|\$\((?:date|mktemp|uuidgen)\b"
)
# The path of the script that runs, as a script finds it.
_OWN_PATH = re.compile(r"\$\{?(?:0|BASH_SOURCE)\b|\bscontrol\s+show\s+job(?!\w)[^\n]*Command")


@frozen
class _Script:
    """A batch script, as it was read."""

    text: str
    directives: tuple[Directive, ...]
    array: JobArray
    reading: Reading
    launch: LaunchCommand  # empty if no command trains
    translated: Translated


def convert(
    text: str,
    read_file: Callable[[str], str] = lambda path: "",
    arguments: tuple[str, ...] | None = None,
    path: str = "SCRIPT",
) -> Conversion:
    """Return the conversion of the batch script ``text``.

    ``read_file`` returns the text of a script that it starts, or ''. ``arguments`` are those of the batch
    script; None if they are not known. Raises ``BadInput`` if ``text`` is no shell script.
    """
    # The shell that typed them has expanded them.
    arguments = None if arguments is None else tuple(map(literal, arguments))
    shebang = text.partition("\n")[0]  # with the CR of DOS line ends
    text = text.replace("\r\n", "\n")
    text = re.sub(r"\\\n*\Z", "", text)  # it continues nothing
    if "\0" in text:
        raise BadInput("the file is not a text", "name a batch script")
    interpreter = shebang[2:].split() if shebang.startswith("#!") else ["sh"]
    names = set(map(os.path.basename, interpreter))
    if "zsh" in names or not set(SHELLS) & names:
        return _of_other_language(text, [word for word in interpreter if word[:1] != "-"], path)

    script = _with_visible_gpus(_read(text, read_file, arguments, path))
    reading = with_login_files(script.reading, interpreter, 1, shebang.rstrip())
    return _conversion(replace(script, reading=reading), shebang)


def _conversion(script: _Script, shebang: str) -> Conversion:
    """Return the conversion of ``script``, whose first line is ``shebang``, for its command."""
    variables = _variables(script)
    own = {f"{name}=" for name in own_variables()}
    typed = _options(script, variables)
    needless = [value for name, value in typed if name == "env" and value[: value.find("=") + 1] in own]
    options = (
        *(pair for pair in typed if pair[0] != "env" or pair[1] not in needless),
        *(("setup", line) for line in _setup(script, variables)),
    )
    command_line = next(
        (part.line for part in script.reading.parts if part.outcome is PartOutcome.COMMAND), 1
    )
    reason = "clusterrun sets it in every rank"
    set_by_us = [Part(command_line, text, PartOutcome.NEEDLESS, reason) for text in needless]
    parts_of_script = [*script.reading.parts]
    for place, part in enumerate(parts_of_script):
        if (
            ("per-node", "") in typed
            and part.outcome is PartOutcome.NEEDLESS
            and _SETS_OF_RANKS.match(part.text)
        ):
            parts_of_script[place] = replace(part, outcome=PartOutcome.SETUP, reason="")
            options = (*options, ("setup", part.text))
    others = {"chdir"}
    others |= {"array"} if script.array.values else set()
    others |= {"container-workdir"} if script.launch.image_folder else set()
    of_directives = script.translated.parts(script.directives, others)
    all_parts = [*of_directives, *parts_of_script, *set_by_us]
    if ("per-node", "") in typed:
        shell_texts = (*script.reading.command, *(value for _, value in options))
        absent = _OF_RANKS & variables_read(script.reading.command)
        reason = "--per-node sets it in no process: write its value"
        all_parts += [
            Part(command_line, f"${name}", PartOutcome.UNTRANSLATED, reason)
            for name in sorted(absent)
            if not any(f"{name}=" in text for text in shell_texts)
        ]
    of_job = dict(script.translated.options)
    for name, value in script.launch.options:
        is_size = name == "cpus-per-rank" and last_number(value)
        is_same = (name, value) in typed or of_job.get(name) == value or (name, value) == ("mem", "0")
        if name in OF_JOB and not (is_size or is_same):
            reason = f"the run has what the line asks for: --{name} {value} is of the step alone"
            all_parts.append(Part(command_line, f"--{name} {value}", PartOutcome.OPTION, reason))
    for option in script.launch.open_sizes:
        names = "|".join(variables_read([option]))
        assignments = re.findall(rf"(?m)^.*\b(?:{names})=.*$", script.text) if names else []
        if any(f"{{{name}}}" in option for name, _ in script.reading.sweeps):
            reason = "all runs of a sweep have one size: submit each size as a run of its own"
            all_parts.append(Part(command_line, option, PartOutcome.UNTRANSLATED, reason))
        elif not (script.launch.rank_launcher and script.translated.gpus_per_node):
            size = "gpus" if script.launch.rank_launcher or "gpus" in dict(typed) else "ranks-per-node"
            reason = f"it is known only when the script runs: say --nodes N and --{size} N"
            all_parts.append(Part(command_line, option, PartOutcome.UNTRANSLATED, reason))
        elif not any(map(_COUNTS_GPUS.search, (option, *assignments))):
            reason = "it is known only when the script runs: the line starts a rank for each GPU"
            all_parts.append(Part(command_line, option, PartOutcome.OPTION, reason))
    per_node = dict(typed).get("gpus", "") or dict(typed).get("ranks-per-node", "1")
    world = last_number(dict(typed).get("nodes", "1")) * last_number(per_node)
    total = script.launch.total
    if total not in (0, world) and ("per-node", "") not in typed:
        reason = f"it starts {total} processes, and the line {world}"
        all_parts.append(Part(command_line, script.launch.program, PartOutcome.UNTRANSLATED, reason))
    all_parts += [
        Part(
            command_line,
            script.launch.program or "".join(script.launch.command[:1]) or "COMMAND",
            PartOutcome.OPTION,
            reason,
        )
        for reason in _differences_in_size(script, dict(typed))
    ]
    is_of_ranks = script.reading.command[:1] == ("-m",) or "".join(script.reading.command[:1]).endswith(".py")
    chooses_python = _CHOOSES_PYTHON.search("\n".join(value for name, value in options if name == "setup"))
    if is_of_ranks and not (chooses_python or {"python", "container"} & {name for name, _ in options}):
        reason = (
            "no line of the script chooses a Python: ranks use that of the active environment, else "
            "clusterrun's own; --python python3 takes the first one on PATH"
        )
        all_parts.append(Part(command_line, script.reading.command[0], PartOutcome.OPTION, reason))
    if not shebang.startswith("#!"):
        all_parts.append(Part(1, shebang.rstrip(), PartOutcome.OPTION, NO_SHEBANG))
    if "ksh" in set(map(os.path.basename, shebang[2:].split())) and script.reading.setup:
        all_parts.append(Part(1, shebang.rstrip(), PartOutcome.OPTION, "--setup lines run in bash"))
    if shebang.endswith("\r"):
        all_parts.append(Part(1, shebang.rstrip(), PartOutcome.OPTION, DOS_LINES))
    texts = [part.text for part in script.reading.parts]
    sets_index = re.search(r"(?m)^(?!\s*(?:#|echo|printf)).*\bSLURM_ARRAY_TASK_ID=", script.text)
    if not (script.array.values or sets_index) and "SLURM_ARRAY_TASK_ID" in variables_read(texts):
        reason = (
            "no #SBATCH line sets it: clusterrun sweep --set task=range(N) --env SLURM_ARRAY_TASK_ID={task}"
        )
        all_parts.append(Part(command_line, "$SLURM_ARRAY_TASK_ID", PartOutcome.UNTRANSLATED, reason))
    reason = "the script that the job runs is not this file: write the path into the line"
    for part in script.reading.parts:
        is_in_line = part.outcome in (PartOutcome.SETUP, PartOutcome.COMMAND)
        if is_in_line and (match := _OWN_PATH.search(_UNUSED.sub("", part.text))):
            all_parts.append(Part(part.line, match[0], PartOutcome.UNTRANSLATED, reason))
    verb = "sweep" if script.array.values or script.reading.sweeps else "submit"
    conversion = Conversion(verb, options, script.reading.command, ())
    if script.reading.sweeps:
        values = {value.replace("{", "") for value in _OF_ONE_JOB.findall("\n".join(conversion.words()))}
        reason = "each run is a job, with a value of its own: give a fixed name to what several runs share"
        all_parts += [Part(command_line, value, PartOutcome.OPTION, reason) for value in sorted(values)]
    return replace(conversion, parts=tuple(sorted(all_parts, key=lambda part: part.line)))


def _of_other_language(text: str, interpreter: list[str], path: str) -> Conversion:
    """Return the conversion of a script for ``interpreter``: its options, and itself as COMMAND.

    Raises ``BadInput`` for a shell whose language ``convert`` does not read.
    """
    program = interpreter[-1]
    directives = read_directives(text)
    is_shell = program.endswith(("csh", "fish", "zsh"))
    command = () if is_shell else (program, path)
    conversion = conversion_of(directives, LaunchCommand("", command=command))
    if is_shell:  # what it starts is not known
        options = tuple(pair for pair in conversion.options if pair != ("per-node", ""))
        conversion = replace(conversion, options=options)
    reason = "each rank runs it: if it calls srun, give what that starts"
    part = Part(1, f"#!{program}", PartOutcome.OPTION, reason)
    conversion = replace(conversion, parts=(part, *conversion.parts))
    if is_shell:
        line = " ".join(conversion.words())
        raise BadInput(
            f"the script is written for {program}, and convert reads the language of bash and sh",
            f"write it for bash, or give its program and setup lines to: {line}",
        )
    return conversion


def _read(
    text: str, read_file: Callable[[str], str], arguments: tuple[str, ...] | None, path: str
) -> _Script:
    """Read the directives and the statements. Raises ``BadInput`` for a job of several programs."""
    directives = read_directives(text)
    array = read_array({directive.name: directive.value for directive in directives}.get("array", ""))
    counts = {**task_counts(directives), **dict(array.counts)}
    folder = "".join([directive.value for directive in directives if directive.name == "chdir"][-1:])

    def read_at(name: str) -> str:
        return read_file(os.path.join(folder, name)) or read_file(name)

    functions: dict[str, Body] = {}
    files = {name: ShellSource(read_at(name)) for name in SOURCED.findall(text)}
    for file in files.values():
        functions.update(file.functions)
    # ``#!/bin/bash -e`` is the option that ``set -e`` sets.
    code = re.sub(r"\A#!.*\s-[a-z]*e[a-z]*$", "set -e", text, count=1, flags=re.MULTILINE)
    source = ShellSource(
        code,
        {**counts, **array.index},
        arguments,
        functions,
        environment={**job_variables(directives), **(_NO_ARGUMENTS if arguments is None else {})},
        sourced={name: file.names_set for name, file in files.items()},
    )
    reading = read_script(source, read_at, arguments)

    # The job has other numbers of tasks than the script.
    def with_counts(line: str) -> str:
        for name, value in counts.items():
            # ``${NAME:-default}`` too: the variable is set.
            line = re.sub(rf"(?<!\\)\$(?:{name}\b|\{{{name}(?::?[-?=][^{{}}]*)?\}})", value, line)
            line = re.sub(rf"(\$\(\([^()]*?)\b{name}\b", rf"\g<1>{value}", line)
        return line

    setup = tuple(map(with_counts, reading.setup))
    reading = replace(reading, setup=setup, text=with_counts(reading.text))
    late = [*_odd_lines(text, source, {directive.line for directive in directives})]
    reading = audit.evaluated(source, reading)
    late += audit.differences(source, reading)
    for statement in source.statements if array.values else ():
        late += literal_placeholders("task", statement)
    # Slurm names a job after its script.
    is_named = any(directive.name == "job-name" for directive in directives)
    reads_name = "SLURM_JOB_NAME" in variables_read((*reading.command, *reading.setup))
    names = (("name", literal(os.path.basename(path))),) if reads_name and not is_named else ()
    reading = replace(reading, options=(*names, *reading.options), parts=(*reading.parts, *late))
    if reading.training:
        launch = reading.training.launch
        folders = [directive.value for directive in directives if directive.name == "container-workdir"]
        launch = replace(launch, image_folder=launch.image_folder or "".join(folders[-1:]))
        if launch.image_folder and reading.command:
            reading = replace(reading, command=in_shell(reading.command, launch, folder=launch.image_folder))
    else:
        # A script without a launcher starts one process, also if COMMAND is open.
        launch = LaunchCommand("", command=() if _HAS_LAUNCHER.search(text) else ("COMMAND",))
    separate = {directive.name: directive.line for directive in directives if directive.name in SEPARATE}
    if separate or ":" in launch.command or any("multi-prog" in option for option in launch.untranslated):
        where = "".join(f" (line {line}: #SBATCH {name})" for name, line in separate.items())
        raise BadInput(
            f"the script starts several programs as one job{where}",
            "clusterrun starts one program in all ranks: let it choose its part by RANK, or submit each part",
        )
    for statement in source.statements:
        if re.search(r"\bray start\b", statement.text):
            raise BadInput(
                f"the script starts a cluster of Ray (line {statement.line}), and one program that uses it",
                "clusterrun starts one program in all ranks: keep sbatch for it; "
                "clusterrun diagnose JOB and top JOB read such a job",
            )
    return _Script(text, directives, array, reading, launch, translate(directives, launch))


def _odd_lines(text: str, source: ShellSource, directives: set[int]) -> Iterator[Part]:
    """Yield the lines that sbatch or the shell read as something else than they seem.

    ``directives``: the lines of which sbatch reads options.
    """
    comments = dict(source.comments)
    for number, line in enumerate(text.splitlines(), 1):
        comment = comments.get(number, "")
        outcome = PartOutcome.OPTION
        if number in directives:
            reason = r"sbatch takes # and what is behind it for a comment: write \#"
            is_odd = _CUT_VALUE.match(line) is not None
        elif comment.startswith("#SBATCH"):
            outcome, reason = (
                PartOutcome.NEEDLESS,
                "sbatch does not read it, because it is behind the first command",
            )
            is_odd = True
        elif match := _MISSPELT.match(comment):
            reason = "sbatch reads #SBATCH alone"
            is_odd = nearest(match[1], ["SBATCH"], alike=0.8) != []
        else:
            outcome = PartOutcome.UNTRANSLATED
            reason = (
                "a blank is behind the backslash: the command ends here, and the next line is another one"
            )
            is_odd = _BROKEN_END.search(line) is not None and not line.lstrip().startswith("#")
        if is_odd:
            yield Part(number, line.strip(), outcome, reason)


def _with_visible_gpus(script: _Script) -> _Script:
    """Return ``script`` with its ``CUDA_VISIBLE_DEVICES`` as a variable of ranks, or as GPUs of the line.

    Slurm sets it in each task of a step, whatever a setup line says. So it does in a step of the script. A
    loop that starts processes at the same time gives each its own GPUs of the node.
    """
    reading, launch, translated = script.reading, script.launch, script.translated
    is_of_loop = bool(reading.sweeps) and reading.in_background and reading.training is not None
    if not (is_of_loop or translated.gpus_per_node):
        return script
    environment = dict(launch.environment)
    texts = [line for line in reading.setup if _SETS_VISIBLE.match(line)]
    if is_of_loop and "CUDA_VISIBLE_DEVICES" in environment:
        texts.append(f"CUDA_VISIBLE_DEVICES={environment.pop('CUDA_VISIBLE_DEVICES')}")
    parts = list(reading.parts)
    for place, part in enumerate(parts):
        sets = {name for statement in ShellSource(part.text).statements for name in statement.sets}
        if part.outcome is PartOutcome.SETUP and "CUDA_VISIBLE_DEVICES" in sets:
            reason = "Slurm sets CUDA_VISIBLE_DEVICES again in each rank: say it by --env"
            parts[place] = replace(part, reason=reason)
    for text in texts:
        value = text.removesuffix(" || :").partition("=")[2].strip("\"'")
        gpus = value.count(",") + 1
        outcome, reason = PartOutcome.OPTION, ""
        if is_of_loop:
            outcome, reason = PartOutcome.NEEDLESS, "each run has GPUs of its own"
            translated = _with_gpus(translated, gpus)
        elif launch.program == "srun":
            outcome, reason = PartOutcome.NEEDLESS, "Slurm sets it in each task of a step"
        elif not value or "$" in value:
            outcome, reason = PartOutcome.UNTRANSLATED, "ranks see the GPUs of the job: say it by --env"
        elif launch.open_sizes and gpus < translated.gpus_per_node:
            reason = f"{launch.program} starts a process for each: the line asks for no other GPUs"
            translated = _with_gpus(translated, gpus)
        else:
            environment.setdefault("CUDA_VISIBLE_DEVICES", value)
        own = [part for part in parts if _SETS_VISIBLE.match(part.text)]
        line = next(part.line for part in (*own, *parts) if own or part.outcome is PartOutcome.COMMAND)
        parts = [part for part in parts if part not in own]
        parts += [
            replace(part, outcome=outcome, reason=reason) for part in own or [Part(line, text, outcome)]
        ]
    reading = replace(
        reading, setup=tuple(line for line in reading.setup if line not in texts), parts=tuple(parts)
    )
    launch = replace(launch, environment=tuple(environment.items()))
    return replace(script, reading=reading, launch=launch, translated=translated)


def _with_gpus(translated: Translated, gpus: int) -> Translated:
    """Return ``translated`` with this number of GPUs for each node."""
    options = []
    for name, value in translated.options:
        kind, colon, _ = value.rpartition(":")
        options.append((name, f"{kind}{colon}{gpus}" if name == "gpus" else value))
    return replace(translated, options=tuple(options), gpus_per_node=gpus)


def _differences_in_size(script: _Script, options: dict[str, str]) -> Iterator[str]:
    """Yield the differences between what the script and the line ask for that no directive shows."""
    launch, translated = script.launch, script.translated
    nodes = max(last_number(options.get("nodes", "")), 1)
    launchers = launch.step_per_node or launch.step_total // nodes or translated.tasks_per_node
    if launch.program == "srun" and launch.rank_launcher and launchers > 1:
        yield f"{launchers} tasks on each node would each start {launch.rank_launcher}: the line starts one"
    if nodes > 1 and launch.program == launch.rank_launcher and _SETS_THREADS.match(launch.program):
        yield f"without srun {launch.program} starts on the first node, and the line starts all {nodes}"
    if launch.program == "srun" and launch.has_several_worlds and nodes > 1 and not launch.keeps_accelerate:
        yield f"each node's {launch.rank_launcher} is a world of its own: the line has one world"
    ranks = last_number(options.get("gpus", "").rpartition(":")[2])
    command = "\n".join((*script.reading.command, *launch.command))
    is_python = re.search(r"python|\.py\b|\.(?:ba)?sh\b|^-m$", command, re.MULTILINE)
    is_python = is_python if "mpi4py" not in command else None
    passed_on = " ".join(value for name, value in translated.options if name == "sbatch")
    is_placed = any(directive.name in _PLACES for directive in script.directives)
    uses_gpus = _USES_GPUS.search(script.text) or (is_placed and is_python)
    if not (ranks or "gpu" in passed_on) and uses_gpus and script.reading.command:
        yield "the line asks for no GPUs, so that ranks see none: --gpus N, or --gpus-from node"
    is_step = launch.program == "srun" and not launch.rank_launcher and "per-node" not in options
    world = nodes * max(ranks, last_number(options.get("ranks-per-node", "")), 1)
    if is_step and world > 1 and (not is_python or _MAY_CALL_MPI.search(script.text)):
        yield "each process is a rank: a program that calls MPI sees one process, and none is bound to CPUs"
    has_size = not (launch.rank_launcher or launch.open_sizes)
    if has_size and script.reading.command and world == 1 and "per-node" not in options:
        yield "the line sets RANK=0 and WORLD_SIZE=1, and the script does not: --per-node sets none of them"
    if ranks and not translated.gpus_per_node:
        yield f"the script asks for no GPUs: --ranks-per-node {ranks} in the place of --gpus asks for none"
    elif ranks != translated.gpus_per_node and "gpus" in options:
        yield f"the script asks for {translated.gpus_per_node} GPUs on each node, and the line for {ranks}"
    pairs = [value.partition("=") for name, value in translated.options if name == "sbatch"]
    # A node may have other jobs of the user beside one with ``--exclusive=user``.
    passed = {name: value for name, _, value in pairs if name != "exclusive" or not value}
    requested_cpus = translated.cpus_per_node
    if (
        translated.gpus_per_node
        and ranks
        and "cpus-per-rank" not in options
        and not passed.keys() & _SAYS_CPUS
    ):
        yield (
            "the script names no number of CPUs, and Slurm gives one to each task; the line takes a GPU's "
            "share of its node's: --cpus-per-rank N asks for another number"
        )
        return
    ranks = ranks or last_number(options.get("ranks-per-node", "1"))
    cpus = last_number(passed.get("cpus-per-task", "")) or ranks * last_number(
        options.get("cpus-per-rank", "1")
    )
    if requested_cpus not in (0, cpus):
        remedy = f"--sbatch cpus-per-task={requested_cpus} asks for as many"
        yield f"the script asks for {requested_cpus} CPUs on each node, and the line for {cpus}: {remedy}"
    threads = last_number(options.get("cpus-per-rank", ""))
    says_threads = _THREADS.search(script.text) or "OMP_NUM_THREADS" in dict(launch.environment)
    if _SETS_THREADS.match(launch.rank_launcher) and threads > 1 and not says_threads:
        yield f"OMP_NUM_THREADS is {threads} in each rank. The launcher sets 1: --env OMP_NUM_THREADS=1"


def _variables(script: _Script) -> list[tuple[str, str]]:
    """Return the variables of a sweep or an array that the ranks or the setup lines read."""
    reading = script.reading
    names = variables_read((*reading.command, *reading.setup))
    # A training script, or a module of it, may read the index and the bounds of the array. Slurm's own bounds
    # are those of the sweep.
    return [
        *script.array.index.items(),
        *script.array.counts,
        *((name, f"{{{name}}}") for name, _ in reading.sweeps if name in names),
    ]


def _options(script: _Script, variables: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the options of the line, without the setup lines."""
    array, reading, launch = script.array, script.reading, script.launch
    options = [*script.translated.options]
    if array.values:
        options.append(("set", f"task={array.values}"))
    if array.limit:
        options.append(("at-most", str(array.limit)))
    # ``--signal`` remains: the script's handler may pass the signal on to ranks that save when they get it.
    if reading.requeues and ("requeue", "") not in options:
        options.append(("requeue", ""))
    options += [("set", f"{name}={values}") for name, values in reading.sweeps]
    if reading.sweeps and not array.values and not reading.in_background:
        options.append(("at-most", "1"))
    in_setup = variables_read(reading.setup)
    options += [("env", f"{name}={value}") for name, value in variables if name not in in_setup]
    if (reading.training or launch.runs_once) and runs_per_node(launch, script.translated):
        options.append(("per-node", ""))
    return [*options, *launch.options_beside(dict(options)), *reading.options]


def _setup(script: _Script, variables: list[tuple[str, str]]) -> list[str]:
    """Return the setup lines in their order."""
    launch, setup = script.launch, script.reading.setup
    in_setup = variables_read(setup)
    folders = [directive.value for directive in script.directives if directive.name == "chdir"]
    return [
        *(f"cd {shlex.quote(folder)}" for folder in folders if folder != "."),
        *(f"export {name}={value}" for name, value in variables if name in in_setup),
        *setup,
        *(f"export {name}={evaluated_text(value)}" for name, value in launch.environment if "$" in value),
        *(value for name, value in launch.options if name == "setup"),
    ]
