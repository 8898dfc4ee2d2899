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
from clusterrun.script.directives import (
    Directive,
    Translated,
    last_number,
    read_directives,
    task_counts,
    translate,
)
from clusterrun.script.launch_commands import (
    ACTIVATORS,
    PYTHON,
    SETUP_COMMANDS,
    SHELLS,
    LaunchCommand,
    inline_text,
    joined,
    launch_in,
    script_of,
    without_python,
)
from clusterrun.script.shell_source import (
    Body,
    Command,
    Constant,
    ShellSource,
    Statement,
    is_launcher_text,
    plain_text,
)
from clusterrun.script.statement_rules import PRINTS, TASK_COUNTS, Facts, rule_for

ARRAY_VARIABLE = "SLURM_ARRAY_TASK_ID"
_HELPERS = (*PRINTS, "mkdir", "cp", "rsync", "rm", "ls", "tar", "unzip", "touch", "sleep", "sbcast", "true")
# Commands that prepare the shell. The run ends if one of them fails; others may fail, as in the script.
_PREPARES = (*SETUP_COMMANDS, *ACTIVATORS, "spack")
# Commands of a script that are no program to run.
_SHELL_COMMANDS = (
    *("set", "shopt", "trap", "exit", "wait", "kill", "eval", "read", "[", "[[", "test", "local", "return"),
    *("sbatch", "scontrol", "squeue", "sacct", "scancel", "git", "pip", "pip3", "tee", "cat", "grep", "sed"),
    *("awk", "find", "ln", "mv", "chmod", "wget", "curl", "ray", "jupyter", "seff", "nvcc", "make", "cmake"),
)
# Modules that are tools, and no training script.
_TOOLS = ("pip", "venv", "ensurepip", "http.server", "json.tool", "zipfile")
_TASKS = ("nodes", "ntasks", "ntasks-per-node", "tasks-per-node")
# The value of a sweep in a word of the command.
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}", re.ASCII)
# An argument of a script: ``$1``, ``"$@"``. Awk's own stand in single quotes.
_POSITIONAL = re.compile(r"\$(?:\{?[1-9@*]|#)(?![^\n]*'[^']*$)|\bgetopts ")
# ``${NAME:=default}`` sets a variable.
_DEFAULTED = re.compile(r"\$\{([A-Za-z_]\w*):?=", re.ASCII)
_READ = re.compile(r"\$\{?([A-Za-z_]\w*)", re.ASCII)
# Blocks inside of blocks, and scripts that start scripts. A deeper one is a program.
_MOST_DEPTH = 6


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


def convert(
    text: str,
    read_file: Callable[[str], str] = lambda path: "",
    arguments: tuple[str, ...] | None = None,
) -> Conversion:
    """Return the conversion of the batch script ``text``.

    ``read_file`` returns the text of a script that it starts, or ''. ``arguments`` are those of the batch
    script; None if they are not known. Raises ``BadInput`` if ``text`` is no shell script.
    """
    text = text.replace("\r\n", "\n")
    shebang = text.partition("\n")[0]
    if "\0" in text:
        raise BadInput("the file is not a text", "name a batch script")
    if shebang.startswith("#!") and not any(os.path.basename(word) in SHELLS for word in shebang[2:].split()):
        raise BadInput(
            f"the script is written for {shebang[2:].strip()}, not for a shell",
            "submit it as it is: clusterrun submit [OPTIONS] SCRIPT, with its #SBATCH options as options",
        )
    directives = read_directives(text)
    array = {directive.name: directive.value for directive in directives}.get("array", "")
    array = array if _task_list(array) else ""  # reported as not translated
    counts = task_counts(directives)
    counts.update(_array_counts(array))
    constants = {**counts, **({ARRAY_VARIABLE: "{task}"} if array else {})}
    script = _Script(ShellSource(text, constants, arguments), read_file, arguments)
    script.setup = [_with_counts(line, counts) for line in script.setup]
    training = script.training
    launch = training.launch if training else LaunchCommand("")
    translated = translate(directives, launch)
    options, runs_per_node = _sizes(translated, training)
    is_alone = training is not None and not training.is_launched
    parts = [*_directive_parts(directives, translated, array, is_alone), *script.parts]
    reads = set(_READ.findall(" ".join((*script.command, *script.setup))))
    if array:
        options.append(("set", f"task={_task_list(array)}"))
        if at_most := last_number(array.partition("%")[2]):
            options.append(("at-most", str(at_most)))
    if script.requeues:
        # The script's handler of the signal requeues the job, and the ranks have none.
        options = [pair for pair in options if not (pair[0] == "sbatch" and pair[1].startswith("signal="))]
        if ("requeue", "") not in options:
            options.append(("requeue", ""))
    options += [("set", f"{name}={values}") for name, values in script.sweeps.items()]
    in_setup = set(_READ.findall(" ".join(script.setup)))
    # A training script may read the index of an array, whether the batch script does or not.
    variables = [(ARRAY_VARIABLE, "{task}")] if array else []
    scripts = " ".join(read_file(word) for word in script.command if word.endswith(".py"))
    variables += [(name, value) for name, value in _array_counts(array).items() if name in scripts]
    variables += [(name, f"{{{name}}}") for name in script.sweeps if name in reads]
    options += [("env", f"{name}={value}") for name, value in variables if name not in in_setup]
    script.setup[:0] = [f"export {name}={value}" for name, value in variables if name in in_setup]
    if runs_per_node:
        options.append(("per-node", ""))
    options += [option for option in launch.options if option[0] != "setup"]
    if launch.max_restarts:
        options.append(("max-restarts", str(launch.max_restarts)))
    # The script's variables are known in its setup lines, and not where the line is typed.
    options += [("env", f"{name}={value}") for name, value in launch.environment if "$" not in value]
    script.setup += [f'export {name}="{value}"' for name, value in launch.environment if "$" in value]
    options += script.options
    script.setup[:0] = [
        f"cd {shlex.quote(directive.value)}"
        for directive in directives
        if directive.name == "chdir" and directive.value != "."
    ]
    options += [("setup", line) for line in script.setup]
    options += [option for option in launch.options if option[0] == "setup"]
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
    texts = [
        word if word.startswith("$") else f'"{word}"' if "$" in word else shlex.quote(word) for word in words
    ]
    own_options = " ".join(texts)
    multi = "" if re.search(r"--(use|config)[_-]", own_options) else " --multi_gpu"
    return (
        f"accelerate launch {own_options}{multi} --num_machines $NNODES --num_processes "
        "$((NNODES * NPROC_PER_NODE)) --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR "
        "--main_process_port $MASTER_PORT"
    )


def _directive_parts(
    directives: tuple[Directive, ...], translated: Translated, array: str, is_alone: bool
) -> Iterator[Part]:
    """Yield what becomes of each ``#SBATCH`` option."""
    needless, refused = dict(translated.needless), dict(translated.refused)
    for directive in directives:
        is_array = directive.name == "array" and array
        outcome, reason = PartOutcome.OPTION, ""
        if directive in needless:
            outcome, reason = PartOutcome.NEEDLESS, needless[directive]
        elif is_alone and directive.name in _TASKS and last_number(directive.value) > 1:
            outcome = PartOutcome.NEEDLESS
            reason = "without srun the command runs once, on the first node"
        elif directive.name == "chdir" and directive.value == ".":
            outcome, reason = PartOutcome.NEEDLESS, "ranks start where submit is called"
        elif directive.name == "chdir":
            outcome = PartOutcome.SETUP
        elif directive in refused and not is_array:
            outcome, reason = PartOutcome.UNTRANSLATED, refused[directive]
        yield Part(directive.line, directive.text, outcome, reason)


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


def _array_counts(array: str) -> dict[str, str]:
    """Return Slurm's variables about the array. The array of a sweep counts from 0, in steps of 1."""
    task_list = _task_list(array)
    if match := re.fullmatch(r"range\((\d+),(\d+)(?:,(\d+))?\)", task_list):
        tasks = list(range(int(match[1]), int(match[2]), int(match[3] or 1)))
        step = match[3] or "1"
    else:
        tasks = [int(task) for task in task_list.split(",") if task]
        step = "1"
    if not tasks:
        return {}
    values = {"MIN": min(tasks), "MAX": max(tasks), "COUNT": len(tasks), "STEP": step}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


def _with_counts(text: str, counts: Mapping[str, str]) -> str:
    """Return a setup line with the numbers of tasks of the script, which the job has others of."""
    for name, value in counts.items():
        text = re.sub(rf"\$(?:{name}\b|\{{{name}\}})", value, text)
    return text


class _Script:
    """The statements of one script, or of a block in it, sorted by what becomes of them."""

    def __init__(
        self,
        source: ShellSource,
        read_file: Callable[[str], str],
        arguments: tuple[str, ...] | None,
        *,
        depth: int = 0,
        line_of_all: int = 0,
    ) -> None:
        """Sort the statements of ``source``.

        ``arguments``: those of the script before a ``shift``; None if they are known only when it runs.
        ``line_of_all``: the line of the outer script that starts this one; 0 for a block.
        """
        self._source = source
        self._statements = self._source.statements
        self._read_file = read_file
        self._depth = depth
        self._arguments = arguments
        self._line_of_all = line_of_all
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
        needed = set(_READ.findall(" ".join((*self.command, *self.setup))))
        self._read_by_setup |= set(_READ.findall(" ".join(self.setup)))
        before = [tuple(self._before(statement, needed)) for statement in reversed(self._statements[:end])]
        own_setup = [line for lines in reversed(before) for line in lines]
        if arguments and any(_POSITIONAL.search(line) for line in (*own_setup, *self.setup)):
            own_setup.insert(0, f"set -- {' '.join(map(self._setup_word, arguments))}")
        else:
            own_setup = [line for line in own_setup if not re.match(r"shift\b", line)]
        self.setup[:0] = own_setup
        for statement in self._statements[end + 1 :]:
            self._after(statement)
        if arguments is None:
            self._report_arguments()
        if self._source.has_errors and not depth:
            reason = "parts of the script are no shell code: bash -n says which"
            self._report(1, source.first_line, PartOutcome.UNTRANSLATED, reason)

    def _report(self, line: int, text: str, outcome: PartOutcome, reason: str = "") -> None:
        self.parts.append(Part(self._line_of_all or line, text, outcome, reason))

    def _setup_word(self, value: str) -> str:
        """Return a word for a setup line, which does not expand the ``{name}`` of a sweep."""
        for name in _PLACEHOLDER.findall(value):
            if self._source.constants.get(name) == f"{{{name}}}":
                return f'"{value}"'.replace(f"{{{name}}}", f"${name}")
        return shlex.quote(plain_text(value))

    def _report_arguments(self) -> None:
        """Report the statements that read arguments of the batch script: the line has none."""
        for place, statement in enumerate(self._statements):
            is_function = statement.kind == "function_definition"
            is_inner = bool(statement.bodies) and self.training is not None and place == self.training.place
            if not is_function and not is_inner and _POSITIONAL.search(statement.text):
                text = statement.text.partition("\n")[0]
                reason = "it reads an argument of the batch script: clusterrun convert SCRIPT ARGUMENTS"
                self._report(statement.line, text, PartOutcome.UNTRANSLATED, reason)

    def _find_training(self) -> _Training | None:
        """Return the last command that a launcher starts, else the last Python, else the last program."""
        launched = plain = program = None
        for place, statement in enumerate(self._statements):
            if statement.kind == "function_definition":
                continue
            for command in statement.commands:
                names = command.names
                launch = launch_in(names, reads_inline=False)
                if launch and launch.program not in ("sbatch", "salloc"):
                    is_helper = not launch.command or os.path.basename(launch.command[0]) in _HELPERS
                    is_one_task = launch.total == 1 and launched is not None
                    inner = self._inner(launch.command, command, statement.line)
                    if not is_helper and not is_one_task and (inner is None or inner.training):
                        launched = _Training(place, command, launch, True)
                    continue
                inner = self._inner(names, command, statement.line)
                if inner and inner.training and inner.training.is_launched:
                    launched = _Training(place, command, _plain_launch(names), False)
                elif _runs_python(names) or (inner and inner.training):
                    plain = _Training(place, command, _plain_launch(names), False)
                elif (statement.is_plain or statement.bodies) and _is_program(names) and names[0][0] != "$":
                    program = _Training(place, command, _plain_launch(names), False)
        return launched or plain or program

    def _inner(self, words: tuple[str, ...], command: Command, line: int) -> _Script | None:
        """Return the shell script or the function that ``words`` run; None for other programs.

        ``words`` are the last ones of ``command``.
        """
        if not words or self._depth >= _MOST_DEPTH:
            return None
        if function := self._source.functions.get(words[0]):
            # A function that calls itself is not followed.
            others = {name: body for name, body in self._source.functions.items() if name != words[0]}
            return self._block(function, command.last_values(len(words) - 1), functions=others)
        text = inline_text(words)
        place = words.index(text) + 1 if text else 0  # the word behind the text is its name
        if not text:
            name = script_of(words, SHELLS)
            is_shell = name != words[0] or name.endswith((".sh", ".bash", ".slurm", ".sbatch"))
            text = self._read_file(name) if is_shell and name else ""
            place = words.index(name) if text else 0
        if not text:
            return None
        arguments = command.last_values(max(0, len(words) - place - 1))
        source = ShellSource(text, self._source.constants, arguments, self._source.functions)
        line_of_all = self._line_of_all or line
        return _Script(source, self._read_file, arguments, depth=self._depth + 1, line_of_all=line_of_all)

    def _block(
        self,
        body: Body,
        arguments: tuple[str, ...] | None,
        constants: Mapping[str, Constant] | None = None,
        functions: Mapping[str, Body] | None = None,
    ) -> _Script:
        """Return the statements of a function, a loop, a branch or a group."""
        source = ShellSource(
            body.text,
            {**self._source.constants, **(constants or {})},
            arguments,
            self._source.functions if functions is None else functions,
            lines_above=body.line - 1,
        )
        return _Script(
            source, self._read_file, arguments, depth=self._depth + 1, line_of_all=self._line_of_all
        )

    def _read_training(self, training: _Training) -> None:
        statement, launch = self._statements[training.place], training.launch
        self._report(statement.line, statement.text, PartOutcome.COMMAND)
        if self._read_block(statement, training):
            return
        inner = self._inner(launch.command, training.command, statement.line)
        is_function = bool(launch.command) and launch.command[0] in self._source.functions
        if inner and inner.training and (inner.training.is_launched or is_function):
            if is_function and not training.is_launched:
                joined_launch = inner.training.launch
            else:
                joined_launch = joined(launch, inner.training.launch)
            launch = joined_launch
            is_launched = training.is_launched or inner.training.is_launched
            self.training = training = replace(training, launch=launch, is_launched=is_launched)
            self._take(inner)
        else:
            self.command = self._command(launch, training.command)
            for option in launch.untranslated:
                if "accelerate" not in launch.rank_launcher:
                    reason = f"an option of {launch.rank_launcher or launch.program} alone"
                    if option.startswith("$"):
                        reason = f"options of {launch.program} that only running the script shows"
                    self._report(statement.line, option, PartOutcome.UNTRANSLATED, reason)
            for remark in launch.remarks:
                self._report(statement.line, launch.program, PartOutcome.NEEDLESS, remark)
            for option in launch.outputs:
                self._report(statement.line, option, PartOutcome.NEEDLESS, "clusterrun logs shows the output")
        self._report_open_options(statement, launch)
        if not statement.is_plain and statement.kind != "list":
            reason = f"the command stands in {_kind(statement)}, which is not in the line"
            self._report(statement.line, statement.text.partition("\n")[0], PartOutcome.UNTRANSLATED, reason)
        self._beside(statement, training.command)
        for redirection in training.command.redirections:
            self._redirection(statement.line, redirection)

    def _report_open_options(self, statement: Statement, launch: LaunchCommand) -> None:
        """Report options whose value the script computes: the line is typed before it runs."""
        own = {name for other in self._statements for name in (*other.sets, *_DEFAULTED.findall(other.text))}
        for name, value in launch.options:
            if name != "setup" and own & set(_READ.findall(value)):
                reason = f"--{name} reads a variable of the script: write its value into the line"
                self._report(statement.line, value, PartOutcome.UNTRANSLATED, reason)

    def _take(self, inner: _Script) -> None:
        """Take over what another script, or a block, asks for."""
        self.parts += [part for part in inner.parts if part.outcome is not PartOutcome.COMMAND]
        self.setup += inner.setup
        self.options += inner.options
        self.sweeps.update(inner.sweeps)
        self.requeues = self.requeues or inner.requeues
        self.command = inner.command

    def _read_block(self, statement: Statement, training: _Training) -> bool:
        """Read the block of a loop, a condition or a group in which the command stands.

        Return False if it stands in none.
        """
        if not statement.bodies or self._depth >= _MOST_DEPTH:
            return False
        loop = {statement.loop: f"{{{statement.loop}}}"} if statement.loop_values else {}
        blocks = [self._block(body, self._arguments, loop) for body in statement.bodies]
        blocks = [block for block in blocks if block.training]
        if not blocks:
            return False
        launched = [block for block in blocks if block.training and block.training.is_launched]
        inner = (launched or blocks)[-1]
        self._take(inner)
        if inner.training:
            self.training = replace(inner.training, place=training.place)
        title = statement.text.partition("\n")[0]
        launcher_words = " ".join(inner.training.command.names if inner.training else ())
        reads = set(_READ.findall(" ".join((*inner.command, *inner.setup))))
        placeholder = f"{{{statement.loop}}}"
        if loop and (statement.loop in reads or any(placeholder in word for word in inner.command)):
            self.sweeps = {statement.loop: ",".join(statement.loop_values), **self.sweeps}
        elif loop and placeholder in launcher_words:
            reason = "clusterrun starts the ranks of every node"
            self._report(statement.line, title, PartOutcome.NEEDLESS, reason)
        elif statement.kind in ("compound_statement", "subshell"):
            pass
        elif statement.kind in ("redirected_statement", "pipeline") and not statement.loop:
            self._report(statement.line, title, PartOutcome.NEEDLESS, "clusterrun logs shows the output")
        else:
            reason = f"the command stands in {_kind(statement)}, which is not in the line"
            self._report(statement.line, title, PartOutcome.UNTRANSLATED, reason)
        return True

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
        code = "\n".join((*arrays, f"exec {text}"))
        arguments = ("bash", *self._arguments) if self._arguments and _POSITIONAL.search(code) else ()
        return ("bash", "-c", code, *arguments)

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
            elif is_behind and name in ("exit", "wait", *PRINTS):
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
        facts = self._facts(statement, needed)
        rule = rule_for(facts)
        if rule:
            self.requeues = self.requeues or facts.requeues
            self._report(statement.line, statement.text, rule.outcome, rule.reason)
            if facts.name == "shift":
                yield statement.text
            return
        is_function = statement.kind == "function_definition"
        if is_function and self.training and self._is_training_function(statement):
            reason = "its statements stand in the line"
            self._report(statement.line, statement.text, PartOutcome.NEEDLESS, reason)
            return
        is_read = statement.sets & needed
        needed |= statement.reads
        self._read_by_setup |= statement.reads
        counts = ", ".join(sorted((statement.reads & TASK_COUNTS) - {*self._source.constants}))
        reason = f"{counts} has another value: the job has one task per node" if counts else ""
        self._report(statement.line, statement.text, PartOutcome.SETUP, reason)
        text = self._setup_text(statement)
        if statement.kind == "variable_assignment":
            yield f"export {text}" if "=(" not in text else text
        elif statement.kind == "declaration_command" or is_function or facts.name in _PREPARES:
            yield f"export{text[5:]}" if text.startswith("local ") else text
        else:
            yield f"{{ {text}\n}} || :" if "\n" in text else f"{text} || :"
            # The shell of a rank needs what a condition or a loop sets.
            if is_read:
                yield f"export {' '.join(sorted(is_read))}"

    def _facts(self, statement: Statement, needed: set[str]) -> Facts:
        name = statement.commands[0].names[:1] if statement.commands else ()
        is_trap = name == ("trap",) and "requeue" in self._source_text(statement)
        is_handler = statement.kind == "function_definition" and "requeue" in statement.text
        launches = [launch_in(command.names, reads_inline=False) for command in statement.commands]
        return Facts(
            statement,
            is_read=bool(statement.sets & needed),
            is_read_by_setup=bool(statement.sets & self._read_by_setup),
            is_constant=statement.sets <= set(self._source.constants),
            sets_launcher=statement.kind == "declaration_command"
            and any(
                is_launcher_text(self._source.constants[name])
                for name in statement.sets & set(self._source.constants)
            ),
            requeues=is_trap or is_handler,
            launches=statement.kind != "function_definition"
            and any(
                launch.command
                and os.path.basename(launch.command[0]) not in _HELPERS
                and not _is_one_task(launch)
                for launch in launches
                if launch
            ),
        )

    def _is_training_function(self, statement: Statement) -> bool:
        """Return whether a function starts the ranks."""
        name = statement.text.split("(")[0].split()[-1]
        place = self.training.place if self.training else 0
        return any(command.names[:1] == (name,) for command in self._statements[place].commands)

    def _setup_text(self, statement: Statement) -> str:
        """Return the text of a statement. A step of one task needs no srun: setup runs once."""
        launch = launch_in(statement.commands[0].names, reads_inline=False) if statement.commands else None
        if not (statement.kind == "command" and launch and launch.command and _is_one_task(launch)):
            return statement.text
        words, sources = statement.commands[0].names, statement.commands[0].open_words
        command = words[len(words) - len(launch.command) :]
        python = "python " if words[-len(command) - 1 :][:1] and launch.command[0].endswith(".py") else ""
        return python + " ".join(sources.get(word) or shlex.quote(word) for word in command)

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
        if names <= {"wait", "exit", "set", *PRINTS}:
            reason = "clusterrun reports the end of the run"
            self._report(statement.line, statement.text, PartOutcome.NEEDLESS, reason)
        else:
            reason = "it runs after the ranks: a run of its own with --after RUN, or clusterrun wait RUN && …"
            self._report(statement.line, statement.text, PartOutcome.UNTRANSLATED, reason)


def _kind(statement: Statement) -> str:
    """Return the kind of a statement in words."""
    if statement.kind in ("if_statement", "case_statement"):
        return "a condition"
    if statement.loop or statement.kind in ("while_statement", "c_style_for_statement"):
        return "a loop"
    return f"a {statement.kind.replace('_', ' ')}"


def _is_one_task(launch: LaunchCommand) -> bool:
    """Return whether srun starts one task, as its options say."""
    return launch.program == "srun" and launch.total == 1 and launch.per_node <= 1


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
