"""Read the statement of a batch script whose command trains: its command, launch and options."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from clusterrun.model.frozen import replace
from clusterrun.script.batch_reading import (
    END_IS_REPORTED,
    KNOWN_FILES,
    PREPARES,
    SCRIPT_ENDS,
    Candidate,
    Reading,
    Scope,
    TrainingKind,
    calls,
    is_condition,
    variables_read,
    variables_set,
)
from clusterrun.script.batch_scripts import IN_LOGS, Part, PartOutcome
from clusterrun.script.directives import OF_PLACE
from clusterrun.script.interpreter_calls import NEEDLESS_BEFORE, interpreter_call, shell_script
from clusterrun.script.launch_commands import (
    ACTIVATORS,
    OF_PATH,
    PLACEHOLDER,
    WRAPPERS,
    LaunchCommand,
    joined,
    launch_in,
)
from clusterrun.script.launcher_options import launcher_options
from clusterrun.script.program_table import TRAITS, changes_shell
from clusterrun.script.quoting import plain_text
from clusterrun.script.sbatch_table import CONTAINER_FOLDER, PLACES_TASKS, SRUN_REFUSED
from clusterrun.script.shell_source import PRINTS, Command, Constant, ShellSource, Statement, is_launcher_text
from clusterrun.script.statement_rules import IS_BEHIND, IS_COMPUTED, IS_LOCK, IS_OTHER_RUN

# Values that differ between ranks, or each time a shell evaluates them.
_OF_RANK = re.compile(rf"\$\((?!\()|`|\$\$|\$\{{?(?:{'|'.join(OF_PLACE)})\b")
# Output that a program writes to a file that is no log.
_RESULT = re.compile(
    r"1?>>?\s*(?!\S*(?:log|out|err|txt|/dev/\w+|\$\{?\w+\}?)[\"']?$)\S*\.\w+[\"']?$", re.IGNORECASE
)
# Launchers of some sites and frameworks that no rule of convert translates.
_OTHER_LAUNCHERS = (
    *("jsrun", "aprun", "lrun", "prun", "flux"),
    *("mpirun_rsh", "charmrun", "torchx", "fabric"),
)
_WRAPPERS_OF_DISPLAYS = ("xvfb-run", "dbus-run-session", "vglrun")
_LOOPS = ("for_statement", "c_style_for_statement", "while_statement")
_STARTER = re.compile(r"(?<![\w./-])(?:srun|mpirun|mpiexec|ibrun|torchrun|sbatch)(?![\w.-])")
# A command, and no test, that ends the loop if it succeeds.
_RETRIES = re.compile(
    r"\A(?:until|while\s+!)\s+(?![\[(!])|[^\s\])]\s*&&\s*(?:\{\s*)?(?:break|exit)\b"
    r"|\$\?.*\bbreak\b|\bif\s+(?![\[(!])[^;\n]*(?:;|\n)\s*then\s+break\b",
    re.DOTALL,
)
# The end of a command in the background.
_STARTS_BESIDE = re.compile(r"[^&>|]&[ \t]*(?:$|[#)};]|done\b)", re.MULTILINE)
_IS_RETRY = "it repeats a run that failed: --max-restarts N does so"
# A variable that a statement counts or extends.
_EXTENDS = re.compile(r"\b([A-Za-z_]\w*)(?:\[[^\]]*\])?(?:\+=|\+\+|--(?!\w))", re.ASCII)
_NODE_NAMES = ("-w", "--nodelist")
_RUNS_OF_A_LOOP = "each is a run of its own, and no other one ends if it fails: --at-most limits how many run"
_REASONS_OF_STEPS = {
    **dict.fromkeys(("bind-to", "map-by", "rank-by", "cpu-set"), PLACES_TASKS["cpu-bind"]),
    **PLACES_TASKS,
    **SRUN_REFUSED,
    "container-workdir": CONTAINER_FOLDER,
}
_OF_STEP = "clusterrun starts the ranks itself"
_OF_EACH_NODE = "each node runs it, and a --setup line runs once, on the first node: --setup 'srun …'"
_OF_EACH_CONTAINER = (
    "each container runs it, and a --setup line runs once, on the first host: put it into COMMAND"
)
_RUNS_AT_ONCE = "each is a run of its own, and asks for all CPUs and memory of the line"
_READ_LATER = "a later line reads it: clusterrun logs --raw RUN > FILE"


def block_reading(candidate: Candidate, inner: Reading) -> Reading:
    """Return what the block ``inner`` asks for, in a loop, a condition or a group."""
    statement = candidate.statement
    title = statement.text.partition("\n")[0]
    placeholder = f"{{{statement.loop}}}"
    sweeps = inner.sweeps
    outcome, reason = (
        PartOutcome.UNTRANSLATED,
        f"the command is in {_kind(statement)}, which is not in the line",
    )
    reads = variables_read((*inner.command, *inner.setup))
    if statement.loop_values and (problem := reason_against_sweep(statement)):
        reason = problem
    elif statement.loop_values and (
        statement.loop in reads or any(placeholder in word for word in inner.command)
    ):
        sweeps = ((statement.loop, ",".join(statement.loop_values)), *sweeps)
        outcome, reason = PartOutcome.OPTION, _RUNS_AT_ONCE if inner.in_background else _RUNS_OF_A_LOOP
    elif _is_of_every_node(candidate, placeholder):
        outcome, reason = PartOutcome.NEEDLESS, "clusterrun starts the ranks of every node"
        # The step of each turn has one of them.
        launch = replace((inner.training or candidate.training).launch, step_nodes=0)
        inner = replace(inner, training=replace(inner.training or candidate.training, launch=launch))
        names = [name for name, value in launch.environment if variables_read([value]) & statement.sets]
        names += [f"${name}" for name in sorted(statement.sets & variables_read(inner.command))]
        if names:
            outcome = PartOutcome.UNTRANSLATED
            reason = f"{', '.join(names)} differs on each node: let the program read NODE_RANK"
    elif statement.block_kind in _LOOPS and _RETRIES.search(statement.text):
        reason = _IS_RETRY
    elif statement.block_kind == "subshell" and re.search(r"\)\s*[3-9]>", statement.text):
        reason = IS_LOCK
    elif statement.block_kind in ("compound_statement", "subshell"):
        outcome, reason = PartOutcome.NEEDLESS, "" if statement.kind == statement.block_kind else IN_LOGS
    if statement.reads_input and outcome is not PartOutcome.UNTRANSLATED:
        outcome, reason = (
            PartOutcome.UNTRANSLATED,
            "its input is not in the line: the program can open the file",
        )
    parts = _around(statement, inner)
    if reason:
        parts += (Part(statement.line, title, outcome, reason),)
    if sweeps != inner.sweeps:
        parts += literal_placeholders(statement.loop, statement)
    is_partial = inner.is_partial or outcome is PartOutcome.UNTRANSLATED
    if is_partial and statement.block_kind in _LOOPS and inner.training:
        launch = inner.training.launch
        lost = [pair for pair in launch.environment if variables_read(pair[1:]) & statement.sets]
        others = tuple(pair for pair in launch.environment if pair not in lost)
        inner = replace(inner, training=replace(inner.training, launch=replace(launch, environment=others)))
        reason = "the loop sets its value, and is not in the line"
        parts += tuple(Part(statement.line, name, PartOutcome.UNTRANSLATED, reason) for name, _ in lost)
        set_inside = {name for other in ShellSource("\n".join(inner.setup)).statements for name in other.sets}
        if absent := sorted((statement.sets & reads) - set_inside):
            reason = f"without the loop it lacks {', '.join(absent)}: submit it for each value"
            in_line = (PartOutcome.COMMAND, PartOutcome.SETUP)
            parts = tuple(part for part in parts if part.outcome is not PartOutcome.SETUP)
            parts += tuple(
                replace(part, outcome=PartOutcome.UNTRANSLATED, reason=reason)
                for part in inner.parts
                if part.outcome in in_line
            )
            inner = replace(inner, command=(), text="", text_in_ranks="", setup=())
    in_background = inner.in_background or statement.in_background
    return replace(inner, sweeps=sweeps, in_background=in_background, is_partial=is_partial, parts=parts)


def kept_whole(scope: Scope, candidate: Candidate) -> Reading | None:
    """Return COMMAND as a shell with the whole statement, as the script has it.

    None: a launcher in it starts other processes than this one.
    """
    statement = candidate.statement
    code, functions = statement.text, [s for s in scope.source.statements if s.kind == "function_definition"]
    for function in reversed(functions):
        if calls(code, function):
            code = f"{function.text}\n{code}"
    values = [scope.source.constants.get(name, "") for name in variables_read((code,))]
    is_launched = candidate.training.kind is TrainingKind.LAUNCHED or _STARTER.search(code)
    if (
        is_launched
        or statement.in_background
        or scope.in_ranks
        or any(map(is_launcher_text, (code, *values)))
    ):
        return None
    before = scope.source.statements[: scope.source.statements.index(statement)]
    settings = [other.text for other in before if re.match(r"(?:set\s+-(?!-)|shopt\s|IFS=)", other.text)]
    if exported := statement.sets & {name for other in before for name in other.exports}:
        settings.append(f"export {' '.join(sorted(exported))}")
    # A new shell lacks the functions of the files that the script sources.
    if any(
        name not in TRAITS or name in ACTIVATORS for name in {part.program for part in statement.commands}
    ):
        sources = [other.text for other in before if other.commands and other.is_plain]
        sources = [text for text in sources if re.match(r"(?:source|\.|eval)\s", text)]
        # The ranks have what such a file exports. A second time, it may activate another environment.
        activates = any(part.program in ACTIVATORS for part in statement.commands)
        settings[:0] = [text for text in sources if activates or not KNOWN_FILES.search(text)]
    behind = scope.source.statements[len(before) + 1 :]
    is_awaited = _STARTS_BESIDE.search(code) is not None and any(other.waits for other in behind)
    if is_awaited or (candidate.inner and candidate.inner.in_background):
        code += "\nwait"
    if statement.kind == "list" and is_condition(statement) and "||" not in code:
        # A test that fails is no failure.
        settings, code = [*settings, "set -e"], f"{code}\n:"
    if statement.kind == "pipeline" and statement.commands[-1].program == "tee":
        settings.append("set -o pipefail")
    # The exit code that the statement leaves in a variable is that of the run.
    ends = [
        other for other in behind if other.is_plain and re.match(r"exit\s+[\"']?\$\{?[A-Za-z_]", other.text)
    ]
    code += "".join(f"\n{other.text}" for other in ends[:1] if other.reads & statement.sets)
    code = "\n".join((*settings, code))
    arguments = scope.words_for(code)
    if any("$" in word for word in arguments):
        return None  # the shell of a rank would read them as they are
    command = ("bash", "-c", code, *map(plain_text, arguments))
    training = replace(candidate.training, launch=LaunchCommand("", command=command))
    parts = [Part(statement.line, statement.text, PartOutcome.COMMAND)]
    if statement.block_kind in _LOOPS and _RETRIES.search(statement.text):
        parts.append(Part(statement.line, statement.text, PartOutcome.OPTION, _IS_RETRY))
    return Reading(training=training, command=command, is_kept=True, parts=tuple(parts))


def literal_placeholders(name: str, statement: Statement) -> tuple[Part, ...]:
    """Return the part that says that ``statement`` has the text ``{name}``, which a sweep replaces."""
    if not re.search(rf"(?<!\$)\{{{name}\}}", statement.text):
        return ()
    reason = "a sweep puts a value in its place: use another name in the script"
    return (Part(statement.line, f"{{{name}}}", PartOutcome.UNTRANSLATED, reason),)


def reason_against_sweep(statement: Statement) -> str:
    """Return why the runs of a loop depend on each other; '' if they do not."""
    if _RETRIES.search(statement.text):
        return _IS_RETRY
    if match := re.search(r"(?<![\w$-])(?:break|continue|(?<!\|\| )exit)\b", statement.text):
        return f"{match[0]} decides in the loop which runs start: give the others as --set, or to a run each"
    if carried := sorted(_read_before_set(statement) & (statement.sets - {statement.loop})):
        return f"a run of the loop reads {', '.join(carried)} as the run before it leaves it"
    return ""


def _read_before_set(statement: Statement) -> set[str]:
    """Return the variables that a statement reads before it sets them."""
    head, names = statement.text, set()
    for body in statement.bodies:
        head = head.replace(body.text, "")
        is_set: set[str] = set()
        for inner in ShellSource(body.text).statements:
            names |= _read_before_set(inner) - is_set
            is_set |= inner.sets
    names |= set(_EXTENDS.findall(head)) | (statement.reads & variables_read([head]))
    return names - {statement.loop}


def _is_of_every_node(candidate: Candidate, placeholder: str) -> bool:
    """Return whether the launcher in a loop reads the number, or the name, of a node."""
    shell_words = candidate.training.command.names
    numbers = re.findall(r"--(?:node|machine)[-_]rank[ =]\S*", " ".join(shell_words))
    if candidate.statement.loop_values and placeholder in " ".join(numbers):
        return True
    name = next(
        (shell_words[index + 1] for index, word in enumerate(shell_words[:-1]) if word in _NODE_NAMES), ""
    )
    name = next((word for word in shell_words if word.startswith(("--nodelist=$", "-w$"))), name)
    if shell_words[0] == "ssh":
        return "$" in " ".join(shell_words[1:-1])
    return bool(candidate.training.launch.rank_launcher) and "$" in name


def _around(statement: Statement, inner: Reading | None) -> tuple[Part, ...]:
    """Return the part of a statement with the command, and those of what it contains or runs."""
    inner_parts = inner.parts if inner else ()
    others = [part for part in inner_parts if part.outcome is not PartOutcome.COMMAND]
    return (Part(statement.line, statement.text, PartOutcome.COMMAND), *others)


def command_reading(scope: Scope, candidate: Candidate) -> Reading:
    """Return what a statement asks for whose command trains."""
    statement, training, launch = candidate.statement, candidate.training, candidate.training.launch
    line = statement.line
    inner = candidate.inner
    of_task = scope.source.constants.get("SRUN_CPUS_PER_TASK", "")
    if launch.program == "srun" and isinstance(of_task, str) and of_task.isdecimal():
        launch = replace(launch, options=(("cpus-per-rank", of_task), *launch.options))
    program = "".join(launch.command[:1])
    if launch.program == "srun" and "/" not in program and program.endswith(SCRIPT_ENDS):
        # srun looks for a program in its own folder before PATH.
        script = f"./{program}" if scope.text_of(program, line) else program
        launch = replace(launch, command=(script, *launch.command[1:]))
    is_function = bool(launch.command) and launch.command[0] in scope.source.functions
    is_followed = inner and inner.training and (inner.training.kind is TrainingKind.LAUNCHED or is_function)
    if is_followed and inner and launch.per_node <= 1 and launch.program == "srun":
        # Each node evaluates these statements, and setup lines run once.
        is_followed = variables_read(inner.setup).isdisjoint(OF_PLACE)
    parts = [*_launcher_parts(launch, line), *_unseen_parts(scope, candidate)]
    if inner and inner.training and is_followed:
        # A command without a launcher adds its variables alone.
        environment = (*launch.environment, *inner.training.launch.environment)
        launch = (
            joined(launch, inner.training.launch)
            if launch.program
            else replace(inner.training.launch, environment=environment)
        )
        reading = replace(inner, parts=(*_around(statement, inner), *parts))
        if training.launch.program:
            is_inside = "container" in dict(launch.options)
            of_nodes = [
                replace(part, reason=_OF_EACH_CONTAINER if is_inside else _OF_EACH_NODE)
                if part.outcome is PartOutcome.SETUP and (is_inside or not _changes_shell_alone(part.text))
                else part
                for part in reading.parts
            ]
            reading = replace(reading, parts=tuple(of_nodes))
    else:
        command, text, text_in_ranks = _command(scope, launch, training.command)
        is_script = command[:1] == ("-m",) or "".join(command[:1]).endswith(".py")
        python = launch.python
        if "/" in python and re.match(r"[\w.]", python):
            python = os.path.join(scope.folder_at(line), python)
            if "$" in python:
                parts.append(Part(line, python, PartOutcome.UNTRANSLATED, IS_COMPUTED.format("python")))
        reading = Reading(
            command=command,
            text=text,
            text_in_ranks=text_in_ranks,
            options=(("python", python),) if python not in OF_PATH and is_script else (),
            parts=(*_around(statement, None), *parts),
        )
    parts, setup = list(reading.parts), list(reading.setup)
    own = variables_set(scope.source)
    is_partial = not statement.is_plain and (statement.kind != "list" or is_condition(statement))
    if is_partial:
        is_retry = statement.block_kind in _LOOPS and _RETRIES.search(statement.text)
        reason = _IS_RETRY if is_retry else f"the command is in {_kind(statement)}, which is not in the line"
        parts.append(Part(line, statement.text.partition("\n")[0], PartOutcome.UNTRANSLATED, reason))
    behind = _read_behind(scope, line)
    for part in _other_commands(statement, training.command, behind):
        parts.append(part)
        is_partial = is_partial or part.outcome is PartOutcome.UNTRANSLATED
        if part.outcome is PartOutcome.SETUP:
            setup.append(part.text)
    reading = replace(
        reading,
        training=replace(training, launch=launch),
        in_background=reading.in_background or statement.in_background,
        is_partial=reading.is_partial or is_partial,
        setup=tuple(setup),
        parts=tuple(parts),
    )
    return _with_files(scope, candidate, reading, own, behind)


def _changes_shell_alone(code: str) -> bool:
    """Return whether shell code sets variables or changes its shell, and starts no program."""
    commands = [command for statement in ShellSource(code).statements for command in statement.commands]
    return all(changes_shell(command.program) for command in commands if command.names)


def _launcher_parts(launch: LaunchCommand, line: int) -> Iterator[Part]:
    """Yield what becomes of the options of a launcher that are not in the line."""
    for option in launch.untranslated:
        if launch.keeps_accelerate and not option.startswith("$"):
            continue
        name = re.split("[ =]", option.lstrip("'-"))[0]
        is_of_step = name in launcher_options(launch.program)
        owner = launch.program if is_of_step else launch.rank_launcher or launch.program
        reason = _REASONS_OF_STEPS.get(name, f"nothing in clusterrun does what this option of {owner} does")
        if owner == "srun" and not is_of_step and option.startswith("--"):
            reason = "srun has it only by a plugin of Slurm: --srun NAME=VALUE passes it on"
        if option.startswith("$"):
            reason = f"options of {launch.program} that only running the script shows"
        yield Part(line, option, PartOutcome.UNTRANSLATED, reason)
    for remark in launch.remarks:
        yield Part(line, launch.program or "".join(launch.command[:1]), PartOutcome.OPTION, remark)
    for option in launch.outputs:
        yield Part(line, option, PartOutcome.NEEDLESS, IN_LOGS)
    if launch.needless:
        yield Part(line, " ".join(launch.needless), PartOutcome.NEEDLESS, _OF_STEP)


def _unseen_parts(scope: Scope, candidate: Candidate) -> Iterator[Part]:
    """Yield what the command may start without a word of it in the script."""
    statement, launch, inner = candidate.statement, candidate.training.launch, candidate.inner
    line = statement.line
    program = "".join(launch.command[:1])
    if not launch.program and re.match(r"\$(?!.*(?i:python|py\b))", program):
        reason = "it is known only when the script runs: if it is a launcher, give what that starts"
        yield Part(line, program, PartOutcome.OPTION, reason)
    elif not (inner or launch.program) and _is_unknown_launcher(launch.command):
        reason = "convert does not know it: if it starts several processes, give what each of them is"
        yield Part(line, program, PartOutcome.OPTION, reason)
    script = shell_script(launch.command) if launch.command else ""
    is_shell = script != program or script.endswith(SCRIPT_ENDS)
    if inner is None and script and is_shell and not scope.text_of(script, line):
        reason = "it cannot be read: if it calls srun or torchrun, give what that starts"
        yield Part(line, script, PartOutcome.OPTION, reason)
    is_program = candidate.training.kind <= TrainingKind.PROGRAM or _is_unknown_launcher(launch.command)
    text = re.sub(r"\$\{[^}]*\}", "", " ".join(launch.command))
    match = _STARTER.search(text) if is_program else None
    # One process of the line starts torchrun, as in the script.
    if match and match[0] != "torchrun":
        reason = f"it starts {match[0]}, and each rank would: clusterrun sweep starts several runs"
        yield Part(line, statement.text, PartOutcome.UNTRANSLATED, reason)


def _is_unknown_launcher(command: Sequence[str]) -> bool:
    """Return whether a program starts the Python behind it, and may start it in several processes."""
    name = os.path.basename(command[0]) if command else ""
    is_known = name in (*WRAPPERS, *NEEDLESS_BEFORE, *_WRAPPERS_OF_DISPLAYS) or name.startswith("$")
    if is_known or interpreter_call(command[:1]) or name.endswith(".py"):
        return False
    ends = (command[place:] for place in range(1, len(command)))
    return name in _OTHER_LAUNCHERS or any(map(interpreter_call, ends))


def _read_behind(scope: Scope, line: int) -> str:
    """Return the text of the statements after ``line`` that do more than print."""
    others = [other for other in scope.source.statements if other.line > line]
    names = [{command.program for command in other.commands} for other in others]
    return "\n".join(other.text for other, programs in zip(others, names) if not programs <= {*PRINTS})


def _with_files(scope: Scope, candidate: Candidate, reading: Reading, own: set[str], behind: str) -> Reading:
    """Return ``reading`` with the input and the output of its command.

    ``own``: variables of the script. ``behind``: the statements after it, as `_read_behind` returns them.
    """
    statement, redirections = candidate.statement, candidate.training.command.redirections
    line, launch = statement.line, reading.training.launch if reading.training else LaunchCommand("")
    parts, options = list(reading.parts), list(reading.options)
    results: list[str] = []
    for text in redirections:
        document = re.match(r"<<-?\s*([\"'\\]?\w+[\"']?)[ \t]*\n", text)
        if document and (launch.program in ("", "srun") and not launch.rank_launcher):
            # The shell of each rank expands its variables.
            results.append(text)
        elif text.startswith("<<"):
            reason = "put it into a file and give --input FILE"
            parts.append(Part(line, text.partition("\n")[0], PartOutcome.UNTRANSLATED, reason))
        elif text.startswith("<") and text[1:].strip() == os.devnull:
            parts.append(Part(line, text, PartOutcome.NEEDLESS, "ranks have no input"))
        elif text.startswith("<"):
            file = ("input", shlex.split(text[1:])[0] if text[1:].strip() else "")
            options += [file] if file not in launch.options else []
            parts.append(Part(line, text, PartOutcome.OPTION))
        elif ">&" not in text and text.lstrip("&12>").strip("\"' ") in behind:
            parts.append(Part(line, text, PartOutcome.UNTRANSLATED, _READ_LATER))
        elif _RESULT.match(text) and "2>&1" not in redirections and not launch.program:
            results.append(text)
        else:
            parts.append(Part(line, text, PartOutcome.NEEDLESS, IN_LOGS))
    command = reading.command
    if results:
        command = in_shell(command, launch, " ".join(results))
    of_script = "\n".join(other.text for other in scope.source.statements if other is not statement)
    for name, input_file in (*launch.options, *options):
        reads = variables_read([input_file])
        is_of_job = bool(own & reads) or any(variable.startswith("SLURM_") for variable in reads)
        if name == "input" and (is_of_job or os.path.basename(input_file) in of_script):
            # submit would read the file before the script writes it, or before the job has its variables.
            source = f'"{input_file}"' if "$" in input_file else shlex.quote(input_file)
            command = in_shell(command, launch, f"< {source}")
            launch = replace(launch, options=tuple(pair for pair in launch.options if pair[0] != "input"))
            options = [pair for pair in options if pair[0] != "input"]
    training = replace(reading.training, launch=launch) if reading.training else None
    return replace(reading, command=command, training=training, options=tuple(options), parts=tuple(parts))


def in_shell(
    command: tuple[str, ...], launch: LaunchCommand, redirection: str = "", folder: str = ""
) -> tuple[str, ...]:
    """Return COMMAND as a shell that redirects its input or output, or changes to ``folder`` first."""
    is_script = command[0] == "-m" or command[0].endswith(".py")
    python = (launch.python or "python",) if is_script else ()
    is_shell = command[:2] == ("bash", "-c")
    code = command[2] if is_shell else f"exec {shlex.join((*python, *command))}"
    code = code if code.startswith("exec ") else f"{{ {code}\n}}"
    code = f"cd {shlex.quote(plain_text(folder))} && {code}" if folder else f"{code} {redirection}"
    return ("bash", "-c", code, *(command[3:] if is_shell else ()))


def _command(scope: Scope, launch: LaunchCommand, command: Command) -> tuple[tuple[str, ...], str, str]:
    """Return COMMAND, and the texts of its words for the script's shell and for that of each rank.

    A shell expands the words that only running the script shows.
    """
    shell_words = [word for word in launch.command if word not in ("$@", "$*") or scope.arguments]
    sources, launcher = command.open_words, ""
    if launch.keeps_accelerate:
        # A wrapper starts accelerate.
        place = shell_words.index("accelerate") if "accelerate" in shell_words else -1
        wrapper = [sources.get(word) or shlex.quote(word) for word in shell_words[: max(place, 0)]]
        launcher, shell_words = " ".join((*wrapper, _accelerate(launch))), shell_words[place + 1 :]
    # A shell finds a program without a folder on PATH alone, and submit finds a script in its folder.
    is_of_path = not launch.program and "/" not in command.program and shell_words[:1] == [command.program]
    is_script = bool(shell_words) and (shell_words[0] == "-m" or shell_words[0].endswith(".py"))
    if not launcher and not any(word in sources for word in (launch.python, *shell_words)):
        if is_script and is_of_path:
            return ("bash", "-c", f"exec {shlex.join(shell_words)}"), "", ""
        return tuple(shell_words), "", ""
    # They are the last words of the statement. Only one of two with the same value may be quoted.
    by_place = [*zip(reversed(command.names), reversed(command.open_texts))]
    of_words = [sources.get(word, "") for word in shell_words]
    for index, (word, (name, text)) in enumerate(zip(reversed(shell_words), by_place), 1):
        if word != name:
            break
        of_words[-index] = text
    texts = [text or shlex.quote(word) for word, text in zip(shell_words, of_words)]
    evaluated = [
        text or _with_loops(word, scope.source.constants) for word, text in zip(shell_words, of_words)
    ]
    if any(name == "setup" and line.startswith("cd ") for name, line in launch.options):
        # The script's shell expands it before srun changes the directory.
        texts = [re.sub(r"\$PWD\b|\$\{PWD\}", "$SLURM_SUBMIT_DIR", text) for text in texts]
    # A launcher of ranks starts a Python script, whatever its name.
    is_script = (is_script and not is_of_path) or bool(launch.rank_launcher and shell_words[0] in sources)
    if is_script and not launcher:
        launcher = shlex.quote(launch.python or "python")
        if launch.python in sources:
            texts, evaluated = [[sources[launch.python], *words] for words in (texts, evaluated)]
            launcher = ""
    text = " ".join(texts)
    code = f"exec {launcher} {text}" if launcher else f"exec {text}"
    arguments = scope.words_for(code)
    is_of_ranks = scope.in_ranks and (bool(arguments) or _OF_RANK.search(text) is not None)
    # The file of ``<(…)`` exists as long as the shell that opened it.
    is_of_ranks = is_of_ranks or re.search(r"[<>]\(", text) is not None
    return ("bash", "-c", code, *map(plain_text, arguments)), "" if is_of_ranks else " ".join(evaluated), text


def _with_loops(word: str, constants: Mapping[str, Constant]) -> str:
    """Return a word of the command for a setup line, which does not expand the ``{name}`` of a sweep."""
    names = [name for name in PLACEHOLDER.findall(word) if constants.get(name) == f"{{{name}}}"]
    if not names:
        return shlex.quote(word)
    text = re.sub(r'(["\\$`])', r"\\\1", word)
    for name in names:
        text = text.replace(f"{{{name}}}", f"${{{name}}}")
    return f'"{text}"'


def _accelerate(launch: LaunchCommand) -> str:
    """Return the shell's text that starts accelerate once per node, with the options that only it knows."""
    shell_words = [word for option in launch.untranslated for word in shlex.split(option)]
    # It sets these variables itself, by its options.
    for variable, value in launch.environment:
        prefix, _, name = variable.lower().partition("_")
        if prefix == "accelerate" and name.replace("_", "-") in launcher_options("accelerate"):
            shell_words += [f"--{name}", value if "$" in value else value.lower()]
    texts = [
        word if word.startswith("$") else f'"{word}"' if "$" in word else shlex.quote(word)
        for word in shell_words
    ]
    own_options = " ".join(texts)
    multi = "" if re.search(r"--(use|config)[_-]", own_options) else " --multi_gpu"
    program = os.path.join(os.path.dirname(launch.python), "accelerate")
    return (
        f"{program} launch {own_options}{multi} --num_machines $NNODES --num_processes "
        "$((NNODES * NPROC_PER_NODE)) --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR "
        "--main_process_port $MASTER_PORT"
    )


def _other_commands(statement: Statement, training: Command, behind: str) -> Iterator[Part]:
    """Yield what becomes of the other commands of the statement that trains. ``behind``: what follows."""
    is_behind = False
    head = statement.text.partition(training.words[0].text)[0]
    for command in statement.commands:
        text = " ".join(word.text for word in command.words)
        name = command.names[0] if command.names else ""
        if command is training:
            is_behind = True
        elif is_behind and name == "tee" and command.words[-1].text.strip("\"'") in behind:
            yield Part(statement.line, text, PartOutcome.UNTRANSLATED, _READ_LATER)
        elif statement.kind in ("pipeline", "list") and is_behind and name in ("tee", "cat", "ts", "stdbuf"):
            yield Part(statement.line, text, PartOutcome.NEEDLESS, IN_LOGS)
        elif is_behind and name in ("exit", "break", "wait", "sleep", *PRINTS):
            yield Part(statement.line, text, PartOutcome.NEEDLESS, END_IS_REPORTED)
        elif not is_behind and launch_in(command.names) and not is_condition(statement):
            yield Part(statement.line, text, PartOutcome.UNTRANSLATED, IS_OTHER_RUN)
        elif not is_behind and (name in PREPARES or statement.kind == "list") and "||" not in head:
            yield Part(statement.line, text, PartOutcome.SETUP)
        elif is_behind and not (statement.is_plain or statement.kind == "list"):
            yield Part(statement.line, text, PartOutcome.UNTRANSLATED, IS_BEHIND)
        elif statement.is_plain or statement.kind == "list":
            yield Part(statement.line, text, PartOutcome.UNTRANSLATED, "it is another command of that line")


def _kind(statement: Statement) -> str:
    """Return the kind of a statement in words."""
    if is_condition(statement):
        return "a condition"
    if statement.block_kind in _LOOPS:
        return "a loop"
    return f"a {statement.block_kind.replace('_', ' ')}"
