"""Converts a batch script to the submit line that does the same.

Each statement of the script is translated, kept as a ``--setup`` line, or reported with the reason.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen, replace
from clusterrun.script.batch_scripts import Conversion, Part, PartOutcome
from clusterrun.script.directives import Directive, Translated, last_number, read_directives, translate
from clusterrun.script.launch_commands import (
    PYTHON,
    SHELLS,
    LaunchCommand,
    inline_text,
    joined,
    launch_in,
    script_of,
    without_python,
)
from clusterrun.script.shell_source import Command, Constant, ShellSource, Statement

ARRAY_VARIABLE = "SLURM_ARRAY_TASK_ID"
# Variables that clusterrun sets in every rank.
_RENDEZVOUS = {
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "NNODES"),
    *("NPROC_PER_NODE", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
}
# Variables of Slurm that count tasks. A job of clusterrun has one task on each node.
_TASK_COUNTS = {
    *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    *("SLURM_CPUS_PER_TASK", "SLURM_PROCID", "SLURM_LOCALID"),
}
_PRINTS = ("echo", "printf", "date", "hostname", "nvidia-smi", "env", "printenv", "which", "pwd", "whoami")
_HELPERS = (*_PRINTS, "mkdir", "cp", "rsync", "rm", "ls", "tar", "unzip", "touch", "sleep", "sbcast", "true")
# Commands that prepare the shell. The run ends if one of them fails; others may fail, as in the script.
_PREPARES = (
    *("module", "ml", "source", ".", "conda", "mamba", "micromamba", "cd", "pushd", "spack", "ulimit"),
    *("export", "unset", "umask", "alias"),
)
# Commands of a script that are no program to run.
_SHELL_COMMANDS = (
    *("set", "shopt", "trap", "exit", "wait", "kill", "eval", "read", "[", "[[", "test", "local", "return"),
    *("sbatch", "scontrol", "squeue", "sacct", "scancel", "git", "pip", "pip3", "tee", "cat", "grep", "sed"),
    *("awk", "find", "ln", "mv", "chmod", "wget", "curl", "ray", "jupyter", "seff", "nvcc", "make", "cmake"),
)
# Modules that are tools, and no training script.
_TOOLS = ("pip", "venv", "ensurepip", "http.server", "json.tool", "zipfile")
_TASKS = ("nodes", "ntasks", "ntasks-per-node", "tasks-per-node")
_READ = re.compile(r"\$\{?([A-Za-z_]\w*)", re.ASCII)
# Scripts inside scripts. A deeper one is a program.
_MOST_DEPTH = 3


@frozen
class _Training:
    """The command of a script that trains."""

    # Index of its statement.
    place: int
    command: Command
    # A launcher that starts nothing but the command, if there is no other.
    launch: LaunchCommand
    # Whether a launcher starts it: it has several processes.
    is_launched: bool


def convert(text: str, read_file: Callable[[str], str] = lambda path: "") -> Conversion:
    """Return the conversion of the batch script ``text``.

    ``read_file`` returns the text of a script that it starts, or ''. Raises ``BadInput`` if ``text`` is no
    shell script.
    """
    text = text.replace("\r\n", "\n")
    shebang = text.partition("\n")[0]
    if "\0" in text:
        raise BadInput("the file is not a text", "name a batch script")
    if shebang.startswith("#!") and "sh" not in shebang:
        raise BadInput(
            f"the script is written for {shebang[2:].strip()}, not for a shell",
            "submit it as it is: clusterrun submit [OPTIONS] SCRIPT, with its #SBATCH options as options",
        )
    directives = read_directives(text)
    array = {directive.name: directive.value for directive in directives}.get("array", "")
    array = array if _task_list(array) else ""  # reported as not translated
    script = _Script(text, {ARRAY_VARIABLE: "{task}"} if array else {}, read_file)
    training = script.training
    launch = training.launch if training else LaunchCommand("")
    translated = translate(directives, launch)
    options, runs_per_node = _sizes(translated, training)
    is_alone = training is not None and not training.is_launched
    parts = [*_directive_parts(directives, translated, array, is_alone), *script.parts]
    reads = set(_READ.findall(" ".join((*script.command, *script.setup))))
    if array:
        options += _array_options(array, ARRAY_VARIABLE in reads)
        # Points count from 0. An array that does too, in steps of 1, needs no other index.
        if ARRAY_VARIABLE in reads and not re.fullmatch(r"range\(0,\d+\)", _task_list(array)):
            script.setup.insert(0, _array_value(array))
    if script.requeues:
        # The script's handler of the signal requeues the job, and the ranks have none.
        options = [pair for pair in options if not (pair[0] == "sbatch" and pair[1].startswith("signal="))]
        if ("requeue", "") not in options:
            options.append(("requeue", ""))
    options += [("set", f"{name}={values}") for name, values in script.sweeps.items()]
    if runs_per_node:
        options.append(("per-node", ""))
    options += launch.options
    if launch.max_restarts:
        options.append(("max-restarts", str(launch.max_restarts)))
    options += [("env", f"{name}={value}") for name, value in launch.environment]
    options += script.options
    script.setup[:0] = [
        f"cd {shlex.quote(directive.value)}"
        for directive in directives
        if directive.name == "chdir" and directive.value != "."
    ]
    options += [("setup", line) for line in script.setup]
    parts.sort(key=lambda part: part.line)
    verb = "sweep" if array or script.sweeps else "submit"
    return Conversion(verb, tuple(options), script.command, tuple(parts))


def _sizes(translated: Translated, training: _Training | None) -> tuple[list[tuple[str, str]], bool]:
    """Return the options, and whether COMMAND runs once per node.

    A program that a script starts once per node, beside several GPUs, starts its own processes there.
    """
    options = list(translated.options)
    if training is None:
        return options, False
    launch = training.launch
    if launch.untranslated and "accelerate" in launch.rank_launcher:
        return options, True
    is_alone = not training.is_launched
    if launch.per_node or launch.rank_launcher or (launch.total and not launch.is_scheduler):
        return options, False
    tasks = 1 if is_alone else max(translated.tasks_per_node, 1)
    if is_alone:
        options = [(name, "1" if name == "nodes" else value) for name, value in options]
        options = [(name, value) for name, value in options if (name, value) != ("nodes", "1")]
    if tasks == 1 and translated.gpus_per_node > 1:
        return options, True
    if is_alone:
        options = [(name, value) for name, value in options if name != "ranks-per-node"]
    return options, False


def _accelerate(launch: LaunchCommand) -> str:
    """Return the shell's text that starts accelerate once per node, with the options that only it knows."""
    words = [word for option in launch.untranslated for word in shlex.split(option)]
    own_options = " ".join(f'"{word}"' if "$" in word else shlex.quote(word) for word in words)
    multi = "" if re.search(r"--(use|config)[_-]", own_options) else " --multi_gpu"
    return (
        f"accelerate launch {own_options}{multi} --num_machines $NNODES --num_processes "
        "$((NNODES * NPROC_PER_NODE)) --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR "
        "--main_process_port $MASTER_PORT"
    )


def _directive_parts(
    directives: tuple[Directive, ...], translated: Translated, array: str, is_alone: bool
) -> Iterator[Part]:
    needless = dict(translated.needless)
    refused = dict(translated.refused)
    for directive in directives:
        if directive in needless:
            yield Part(directive.line, directive.text, PartOutcome.NEEDLESS, needless[directive])
        elif is_alone and directive.name in _TASKS and last_number(directive.value) > 1:
            reason = "without srun the command runs once, on the first node"
            yield Part(directive.line, directive.text, PartOutcome.NEEDLESS, reason)
        elif directive.name == "chdir" and directive.value == ".":
            yield Part(
                directive.line, directive.text, PartOutcome.NEEDLESS, "ranks start where submit is called"
            )
        elif directive.name == "chdir":
            yield Part(directive.line, directive.text, PartOutcome.SETUP)
        elif directive in refused and not (directive.name == "array" and array):
            yield Part(directive.line, directive.text, PartOutcome.UNTRANSLATED, refused[directive])
        else:
            yield Part(directive.line, directive.text, PartOutcome.OPTION)


def _task_list(array: str) -> str:
    """Return the indices of ``--array`` as the values of a sweep; '' if they are not understood."""
    indices = array.partition("%")[0]
    if match := re.fullmatch(r"(\d+)-(\d+)(?::(\d+))?", indices):
        start, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
        return f"range({start},{last + 1},{step})" if step > 1 else f"range({start},{last + 1})"
    values: list[str] = []
    for text in indices.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
        if not match:
            return ""
        values += map(str, range(int(match[1]), int(match[2] or match[1]) + 1))
    return ",".join(values)


def _array_options(array: str, is_read: bool) -> Iterator[tuple[str, str]]:
    yield ("set", f"task={_task_list(array)}")
    if at_most := last_number(array.partition("%")[2]):
        yield ("at-most", str(at_most))
    if is_read:
        yield ("env", ARRAY_VARIABLE + "={task}")


def _array_value(array: str) -> str:
    """Return the setup line that gives the job the index that the script's array has for it."""
    if match := re.fullmatch(r"range\((\d+),\d+(?:,(\d+))?\)", _task_list(array)):
        step = f" * {match[2]}" if match[2] else ""
        return f"{ARRAY_VARIABLE}=$(({match[1]} + {ARRAY_VARIABLE}{step}))"
    values = _task_list(array).replace(",", " ")
    return f"tasks=({values}); {ARRAY_VARIABLE}=${{tasks[{ARRAY_VARIABLE}]}}"


class _Script:
    """The statements of one script, sorted by what becomes of them."""

    def __init__(
        self,
        text: str,
        constants: Mapping[str, Constant],
        read_file: Callable[[str], str],
        depth: int = 0,
        first_line: int = 0,
    ) -> None:
        self._source = ShellSource(text, constants)
        self._statements = self._source.statements
        self._read_file = read_file
        self._depth = depth
        # Line of the outer script that starts this one; 0 for the outermost.
        self._first_line = first_line
        self.parts: list[Part] = []
        self.setup: list[str] = []
        # Options that statements ask for, such as ``--input``.
        self.options: list[tuple[str, str]] = []
        self.requeues = False
        self._read_by_setup: set[str] = set()
        # Values by the name of each loop around the command.
        self.sweeps: dict[str, str] = {}
        self.training = self._find_training()
        self.command: tuple[str, ...] = ()
        end = len(self._statements)
        if self.training:
            end = self.training.place
            self._read_training(self.training)
        needed = set(_READ.findall(" ".join(self.command)))
        before = [tuple(self._before(statement, needed)) for statement in reversed(self._statements[:end])]
        self.setup[:0] = [line for lines in reversed(before) for line in lines]
        for statement in self._statements[end + 1 :]:
            self._after(statement)
        if self._source.has_errors and not depth:
            reason = "parts of the script are no shell code: bash -n says which"
            self._report(1, text.partition("\n")[0], PartOutcome.UNTRANSLATED, reason)

    def _report(self, line: int, text: str, outcome: PartOutcome, reason: str = "") -> None:
        self.parts.append(Part(self._first_line or line, text, outcome, reason))

    def _find_training(self) -> _Training | None:
        """Return the last command that a launcher starts, else the last Python, else the last program."""
        launched = plain = program = None
        for place, statement in enumerate(self._statements):
            for command in statement.commands:
                names = command.names
                launch = launch_in(names, reads_inline=False)
                if launch and launch.program not in ("sbatch", "salloc"):
                    inner = self._inner_text(launch.command)
                    is_helper = not launch.command or os.path.basename(launch.command[0]) in _HELPERS
                    is_one_task = launch.total == 1 and launched is not None
                    if not is_helper and not is_one_task and (not inner or self._trains(inner)):
                        launched = _Training(place, command, launch, True)
                elif not launch and (_runs_python(names) or self._trains(self._inner_text(names))):
                    plain = _Training(place, command, _plain_launch(names), False)
                elif not launch and statement.is_plain and _is_program(names):
                    program = _Training(place, command, _plain_launch(names), False)
        return launched or plain or program

    def _inner_text(self, command: tuple[str, ...]) -> str:
        """Return the text of the shell script that ``command`` runs; '' for other programs."""
        if not command or self._depth >= _MOST_DEPTH:
            return ""
        text = inline_text(command)
        if text:
            return text
        name = script_of(command, SHELLS)
        is_shell = name != command[0] or name.endswith((".sh", ".bash", ".slurm", ".sbatch"))
        return self._read_file(name) if is_shell and name else ""

    def _trains(self, text: str) -> bool:
        return bool(text) and self._inner(text, 0).training is not None

    def _inner(self, text: str, line: int) -> _Script:
        return _Script(text, self._source.constants, self._read_file, self._depth + 1, line)

    def _read_training(self, training: _Training) -> None:
        statement, launch = self._statements[training.place], training.launch
        inner_text = self._inner_text(launch.command)
        inner = self._inner(inner_text, statement.line) if inner_text else None
        self._report(statement.line, statement.text, PartOutcome.COMMAND)
        if inner and inner.training and inner.training.is_launched:
            launch = joined(launch, inner.training.launch)
            self.training = training = replace(training, launch=launch, is_launched=True)
            self.parts += [part for part in inner.parts if part.outcome is not PartOutcome.COMMAND]
            self.setup += inner.setup
            self.options += inner.options
            self.command = inner.command
        else:
            self.command = self._command(launch, training.command)
        for option in launch.untranslated:
            if "accelerate" not in launch.rank_launcher:
                reason = f"an option of {launch.rank_launcher or launch.program} alone"
                self._report(statement.line, option, PartOutcome.UNTRANSLATED, reason)
        for remark in launch.remarks:
            self._report(statement.line, launch.program, PartOutcome.NEEDLESS, remark)
        loop = next((name for name in statement.sets if name in self._source.loops), "")
        if statement.kind == "for_statement" and loop:
            self.sweeps[loop] = ",".join(self._source.loops[loop])
        elif not statement.is_plain and statement.kind != "list":
            kind = statement.kind.replace("_", " ")
            reason = f"the command stands in a {kind}, which is not in the line"
            self._report(statement.line, statement.text.partition("\n")[0], PartOutcome.UNTRANSLATED, reason)
        self._beside(statement, training.command)
        for redirection in training.command.redirections:
            self._redirection(statement.line, redirection)

    def _command(self, launch: LaunchCommand, command: Command) -> tuple[str, ...]:
        """Return COMMAND. A shell expands the words that only running the script shows."""
        words = [word for word in launch.command if word not in ("$@", "$*")]
        launcher = _accelerate(launch) if launch.untranslated and "accelerate" in launch.rank_launcher else ""
        if not launcher and not any(word in command.open_words for word in words):
            return tuple(words)
        texts = [command.open_words.get(word) or shlex.quote(word) for word in words]
        is_script = bool(words) and (words[0] == "-m" or words[0].endswith(".py"))
        # A launcher of ranks starts a Python script, whatever its name.
        is_script = is_script or bool(launch.rank_launcher and words[0] in command.open_words)
        text = " ".join((launcher or ("python" if is_script else ""), *texts)).strip()
        reads = set(_READ.findall(text))
        arrays = [
            statement.text
            for statement in self._statements
            if "=(" in statement.text and statement.sets & reads
        ]
        return ("bash", "-c", "\n".join((*arrays, f"exec {text}")))

    def _redirection(self, line: int, text: str) -> None:
        if text.startswith("<<"):
            reason = "put it into a file and give --input FILE"
            self._report(line, text.partition("\n")[0], PartOutcome.UNTRANSLATED, reason)
        elif text.startswith("<"):
            self.options.append(("input", shlex.split(text[1:])[0] if text[1:].strip() else ""))
            self._report(line, text, PartOutcome.OPTION)
        else:
            self._report(line, text, PartOutcome.NEEDLESS, "clusterrun logs shows the output")

    def _beside(self, statement: Statement, training: Command) -> None:
        """Report the other commands of the statement that trains."""
        is_behind = False
        for command in statement.commands:
            text = " ".join(word.text for word in command.words)
            name = command.names[0] if command.names else ""
            if command is training:
                is_behind = True
            elif statement.kind == "pipeline" and is_behind and name in ("tee", "cat", "ts", "stdbuf"):
                self._report(statement.line, text, PartOutcome.NEEDLESS, "clusterrun logs shows the output")
            elif is_behind and name in ("exit", "wait", *_PRINTS):
                self._report(
                    statement.line, text, PartOutcome.NEEDLESS, "clusterrun reports the end of the run"
                )
            elif not is_behind and (name in _PREPARES or statement.kind == "list"):
                self.setup.append(text)
                self._report(statement.line, text, PartOutcome.SETUP)
            elif statement.is_plain or statement.kind == "list":
                self._report(statement.line, text, PartOutcome.UNTRANSLATED, "it stands beside the command")

    def _before(self, statement: Statement, needed: set[str]) -> Iterator[str]:
        """Yield the setup lines of a statement before the command. Adds what they read to ``needed``."""
        names = statement.commands[0].names if statement.commands else ()
        name = names[0] if names else ""
        line, text = statement.line, statement.text
        is_export = statement.kind == "declaration_command"
        if statement.is_broken:
            self._report(line, text, PartOutcome.UNTRANSLATED, "it is no complete shell code: see bash -n")
        elif statement.sets and statement.sets <= _RENDEZVOUS - self._read_by_setup:
            self._report(line, text, PartOutcome.NEEDLESS, "clusterrun sets it in every rank")
        elif statement.sets == {"OMP_NUM_THREADS"} and statement.reads & _TASK_COUNTS:
            self._report(line, text, PartOutcome.NEEDLESS, "clusterrun sets it to the CPUs of a rank")
        elif statement.kind == "variable_assignment" and not statement.sets & needed:
            is_constant = statement.sets <= set(self._source.constants)
            reason = "its value stands where it is read" if is_constant else "only the launcher reads it"
            self._report(line, text, PartOutcome.NEEDLESS, reason)
        elif name in ("set", "shopt"):
            self._report(
                line,
                text,
                PartOutcome.NEEDLESS,
                "it is for the script's own shell; a failed --setup line ends the run",
            )
        elif name == "trap" and "requeue" not in self._source_text(statement):
            reason = "a signal to the job reaches the ranks: clusterrun help signals"
            self._report(line, text, PartOutcome.UNTRANSLATED, reason)
        elif name == "trap" or (statement.kind == "function_definition" and "requeue" in text):
            self.requeues = True
            self._report(line, text, PartOutcome.OPTION, "--requeue")
        elif statement.is_plain and name in _PRINTS and not _writes(statement):
            self._report(line, text, PartOutcome.NEEDLESS, "it only prints")
        elif name == "cd" and names[1:2] and names[1].strip('"${}') == "SLURM_SUBMIT_DIR":
            self._report(line, text, PartOutcome.NEEDLESS, "ranks start where submit is called")
        elif name in ("sbatch", "exit") or statement.in_background:
            self._report(line, text, PartOutcome.UNTRANSLATED, _reason_against(name))
        elif self._launches(statement):
            reason = "it trains too: submit it as a run of its own, and this one with --after RUN"
            self._report(line, text, PartOutcome.UNTRANSLATED, reason)
        else:
            needed |= statement.reads
            self._read_by_setup |= statement.reads
            counts = ", ".join(sorted(statement.reads & _TASK_COUNTS))
            reason = f"{counts} has another value: the job has one task per node" if counts else ""
            self._report(line, text, PartOutcome.SETUP, reason)
            if statement.kind == "variable_assignment":
                yield f"export {text}" if "=(" not in text else text
            elif is_export or name in _PREPARES or statement.kind == "function_definition":
                yield text
            else:
                yield f"{{ {text}\n}} || :" if "\n" in text else f"{text} || :"

    def _launches(self, statement: Statement) -> bool:
        launches = [launch_in(command.names, reads_inline=False) for command in statement.commands]
        return any(
            launch.command and os.path.basename(launch.command[0]) not in _HELPERS
            for launch in launches
            if launch
        )

    def _source_text(self, statement: Statement) -> str:
        """Return the text of a trap, with the functions that it calls."""
        functions = [
            other.text
            for other in self._statements
            if other.kind == "function_definition" and other.text.split("(")[0].split()[-1] in statement.text
        ]
        return "\n".join((statement.text, *functions))

    def _after(self, statement: Statement) -> None:
        names = {command.names[0] for command in statement.commands if command.names}
        if names <= {"wait", "exit", "set", *_PRINTS}:
            reason = "clusterrun reports the end of the run"
            self._report(statement.line, statement.text, PartOutcome.NEEDLESS, reason)
        else:
            reason = "it runs after the ranks: a run of its own with --after RUN, or clusterrun wait RUN && …"
            self._report(statement.line, statement.text, PartOutcome.UNTRANSLATED, reason)


def _reason_against(name: str) -> str:
    if name == "sbatch":
        return "it queues another job: --requeue continues a run, --after orders several"
    if name == "exit":
        return "the script ends here"
    return "it runs beside the ranks: start it from the training script, or see clusterrun top"


def _writes(statement: Statement) -> bool:
    return any(command.redirections or "tee" in command.names for command in statement.commands)


def _is_program(names: tuple[str, ...]) -> bool:
    return bool(names) and names[0] not in (*_HELPERS, *_PREPARES, *_SHELL_COMMANDS)


def _runs_python(names: tuple[str, ...]) -> bool:
    """Return whether the command runs a Python script or module, possibly behind a wrapper."""
    for place, name in enumerate(names):
        if PYTHON.fullmatch(os.path.basename(name)):
            script = without_python(names[place:])
            if script[0] == "-m":
                return script[1] not in _TOOLS
            return script[0].endswith(".py")
    return bool(names) and names[0].endswith(".py")


def _plain_launch(names: tuple[str, ...]) -> LaunchCommand:
    """Return a launch of one process by ``names``, without a launcher."""
    environment: list[tuple[str, str]] = []
    words = list(names)
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        name, _, value = words.pop(0).partition("=")
        environment.append((name, value))
    while words and words[0] in ("time", "nohup", "exec", "command", "eval"):
        words.pop(0)
    return LaunchCommand("", command=without_python(tuple(words)), environment=tuple(environment))
