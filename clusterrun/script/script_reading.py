"""Read the statements of a batch script: the command that trains, its setup, what has no translation.

A script, a script that it starts, a function and a block of statements are all read to one ``Reading``.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum

from clusterrun.model.frozen import frozen, replace
from clusterrun.script.batch_scripts import Part, PartOutcome
from clusterrun.script.interpreter_calls import (
    ASSIGNMENT,
    SHELLS,
    inline_text,
    interpreter_call,
    shell_script,
)
from clusterrun.script.launch_commands import (
    ACTIVATORS,
    SETUP_COMMANDS,
    LaunchCommand,
    is_image_command,
    joined,
    launch_in,
    own_python,
    without_python,
)
from clusterrun.script.shell_source import (
    PRINTS,
    Body,
    Command,
    Constant,
    ShellSource,
    Statement,
    evaluated_text,
    is_launcher_text,
    plain_text,
)
from clusterrun.script.statement_rules import (
    ALLEXPORT,
    IS_BEHIND,
    IS_OTHER_RUN,
    QUEUES_JOB,
    READS_RESULT,
    Facts,
    of_tasks,
    rule_for,
)

_HELPERS = (
    *PRINTS,
    *("ts", "mkdir", "cp", "rsync", "rm", "ls", "tar", "unzip", "touch", "sleep", "sbcast", "true", "ldd"),
)
# Commands that prepare the shell. The run ends if one of them fails; others may fail, as in the script.
_PREPARES = (*(set(SETUP_COMMANDS) - {"alias", "ulimit", "umask", "unset"}), *ACTIVATORS, "spack")
_PREPARATIONS = {
    *_PREPARES,
    *PRINTS,
    *("mkdir", "ulimit", "umask", "unset", "eval", "set", "shopt", "[", "[[", "trap"),
}
# Commands whose second run changes nothing.
_REPEATABLE = _PREPARATIONS | {
    *("cp", "rsync", "ln", "tar", "unzip", "chmod", "touch", "sleep", "true", ":", "test", "read", "mapfile"),
    *("wait", "exit", "pip", "pip3", "cat", "ls", "sbcast", "shift", "break", "return"),
}
ERREXIT = re.compile(r"set\s(?:.*\s)?(?:-[A-Za-z]*e|-o\s+errexit\b)")
# A value that a command prints.
_COMPUTED = re.compile(r"\$\((?!\()|`")
_PROFILE = re.compile(r"(?:bashrc|profile)$")
# Commands of a script that are no program to run.
_SHELL_COMMANDS = (
    *("set", "shopt", "trap", "exit", "wait", "kill", "eval", "read", "[", "[[", "test", "local", "return"),
    *("break", "continue", "shift", "clear"),
    *("sbatch", "scontrol", "squeue", "sacct", "scancel", "git", "pip", "pip3", "tee", "cat", "grep", "sed"),
    *("awk", "find", "ln", "mv", "chmod", "wget", "curl", "ray", "jupyter", "seff", "nvcc", "make", "cmake"),
)
# Modules that are tools, and no training script.
_TOOLS = ("pip", "venv", "ensurepip", "http.server", "json.tool", "zipfile")
# The value of a sweep in a word of the command.
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}", re.ASCII)
# An argument of a script: ``$1``, ``"$@"``. Awk's own stand in single quotes.
_POSITIONAL = re.compile(r"\$(?:\{?[1-9@*]|#)(?![^\n]*'[^']*$)|\bgetopts ")
# A document in which the shell expands nothing.
_QUOTED_DOCUMENT = re.compile(r"<<-?\s*['\"\\](\w+).*?^\s*\1\s*$", re.DOTALL | re.MULTILINE)
# ``${NAME:=default}`` sets a variable.
_DEFAULTED = re.compile(r"\$\{([A-Za-z_]\w*):?=", re.ASCII)
_READ = re.compile(r"\$\{?[#!]?([A-Za-z_]\w*)", re.ASCII)
_ARITHMETIC = re.compile(r"\$\(\((.*?)\)\)", re.DOTALL)
# The files that a login shell reads.
LOGIN = (
    "[ ! -r /etc/profile ] || . /etc/profile || :; for file in ~/.bash_profile ~/.bash_login ~/.profile; do "
    "[ ! -r $file ] || { . $file; break; }; done || :"
)
# Values that differ between ranks, or each time a shell evaluates them.
_OF_RANK = re.compile(
    r"\$\((?!\()|`|\$\$|\$\{?(?:RANDOM|HOSTNAME|SLURMD_NODENAME|SLURM_(?:PROCID|LOCALID|NODEID|TASK_PID)"
    r"|RANK|LOCAL_RANK|NODE_RANK|GROUP_RANK)\b"
)
# Variables that differ between the script's shell and a rank.
OF_PLACE = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURMD_NODENAME", "HOSTNAME", "RANDOM")
# Words that each shell expands alike if it has the same variables.
_VALUE = r"\$[A-Za-z_]\w*|\$\{[A-Za-z_]\w*\}|\$\(\([\w\s+*/%-]*\)\)"
ALIKE = re.compile(
    rf"""(?!.*\$\{{?(?:{"|".join(OF_PLACE)})\b)"""
    rf"""(?:[\w@%+=:,./?*\s~\[\]-]|'[^']*'|"(?:[^"$`\\]|{_VALUE})*"|{_VALUE})*""",
    re.DOTALL,
)
# A program that trains, by its name. One behind it evaluates.
_TRAINS = re.compile(r"(?i)train|tun(?:e|ing)")
# Output that a program writes to a file that is no log.
_RESULT = re.compile(
    r"1?>>?\s*(?!\S*(?:log|out|err|txt|/dev/\w+|\$\{?\w+\}?)[\"']?$)\S*\.\w+[\"']?$", re.IGNORECASE
)
# Files that prepare the shell, and define no function that trains.
_KNOWN_FILES = re.compile(
    r"activate|bashrc|profile|conda\.sh|/etc/|/modules?/|/lmod/|env\.sh$|set_?(?:up)?vars"
)
_SENDS_SIGNAL = re.compile(r"\bscancel\s.*(?:-s\b|--signal\b)")
# A loop until something happens.
_WAITS = re.compile(r"(?:while|until)\b.*\bsleep\b", re.DOTALL)
_LOOPS = ("for_statement", "c_style_for_statement", "while_statement")
_STARTER = re.compile(r"(?<![\w./-])(?:srun|mpirun|mpiexec|torchrun|sbatch)(?![\w.-])")
# A command, and no test, that ends the loop if it succeeds.
_RETRIES = re.compile(r"[^\s\])]\s*&&\s*(?:\{\s*)?(?:break|exit)\b")
_IS_RETRY = "it repeats a run that failed: --max-restarts N does so"
# A variable that a statement counts or extends.
_EXTENDS = re.compile(r"\b([A-Za-z_]\w*)(?:\[[^\]]*\])?(?:\+=|\+\+|--(?!\w))", re.ASCII)
# Variables that differ between the tasks of a step.
_PER_NODE = {"SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURMD_NODENAME", "HOSTNAME"}
_OF_SLURM = re.compile(r"\bSLURM_[A-Z_]+\b")
# Blocks inside of blocks, and scripts that start scripts. A deeper one is a program.
_MOST_DEPTH = 6
_SCRIPT_ENDS = (".sh", ".bash", ".slurm", ".sbatch")
_NODE_NAMES = ("-w", "--nodelist")
_RUNS_OF_A_LOOP = "each is a run of its own, one after another; one that fails does not end the others"
_OF_STEP = "clusterrun starts the ranks itself"
_OF_SHARE = "it is of the step alone: the ranks of a node share all that the line asks for"
_RUNS_AT_ONCE = "each is a run of its own, and asks for all CPUs and memory of the line"
_NEEDS_ARGUMENTS = "it reads an argument of the batch script: clusterrun convert SCRIPT ARGUMENTS"
_IS_SKIPPED = "it does not run: its condition is false with the values and resources of this file"
_IN_LOGS = "clusterrun logs shows the output"
_END_IS_REPORTED = "clusterrun reports the end of the run"


# In the place of the line of a command: all commands are in one run.
ONE_RUN = -1


class TrainingKind(IntEnum):
    """How a script starts a command. The last command of the highest kind is the one that trains."""

    PROGRAM = 1
    PYTHON = 2
    # A launcher starts it: it has several processes.
    LAUNCHED = 3


@frozen
class Training:
    """The command of a script that trains."""

    kind: TrainingKind
    command: Command
    launch: LaunchCommand  # a launcher that starts nothing but the command, if there is no other


@frozen
class Reading:
    """The options, setup lines and command that a script, or a part of it, asks for."""

    training: Training | None = None
    command: tuple[str, ...] = ()  # COMMAND of submit; () if nothing trains
    # The shell's text of the words of COMMAND, and as the shell of each rank reads it. '' if the script's
    # shell must not expand them.
    text: str = ""
    text_in_ranks: str = ""
    setup: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()  # options that statements ask for, such as ``--input``
    # (variable, values) of each loop around the command, the outer one first.
    sweeps: tuple[tuple[str, str], ...] = ()
    in_background: bool = False  # whether the script continues while the command runs
    requeues: bool = False  # whether it prepares the requeue of the job
    is_kept: bool = False  # whether COMMAND is the whole statement of the script
    is_partial: bool = False  # whether the statement of the command does more than the line
    parts: tuple[Part, ...] = ()
    # The statements, in their order, with the commands that are runs of their own. () if there is one.
    runs: tuple[Statement, ...] = ()


@frozen
class _Scope:
    """The statements that are read, and what surrounds them."""

    source: ShellSource
    read_file: Callable[[str], str]
    # Those of the script before a ``shift``; None if they are known only when it runs.
    arguments: tuple[str, ...] | None
    depth: int = 0
    in_ranks: bool = False  # whether a launcher starts them, so that each rank or node runs them
    # The line of the command to read; 0: the one that trains, without other runs; ``ONE_RUN``: with them.
    command_line: int = 0


@frozen
class _Candidate:
    """A command that may be the one that trains."""

    statement: Statement
    training: Training
    # The block in which it stands, or the script or function that it runs; None for a program.
    inner: Reading | None
    is_block: bool = False


def variables_read(lines: Sequence[str]) -> set[str]:
    """Return the variables that shell code reads."""
    text = " ".join(lines)
    others = " ".join(_ARITHMETIC.findall(text))
    return {*_READ.findall(text), *re.findall(r"[A-Za-z_]\w*", others)}


def read_script(
    source: ShellSource,
    read_file: Callable[[str], str],
    arguments: tuple[str, ...] | None,
    command_line: int = 0,
) -> Reading:
    """Return what the script ``source`` asks for.

    ``read_file`` returns the text of a script that it starts, or ''. ``arguments``: those of the script; None
    if they are known only when it runs. ``command_line``: the line of the command; 0: the one that trains;
    ``ONE_RUN``: it, and no other command is a run of its own.
    """
    reading = _read(_Scope(source, read_file, arguments, command_line=command_line))
    if not source.has_errors:
        return reading
    reason = "convert cannot read the shell code from here: bash -n SCRIPT says whether bash can"
    part = Part(source.error_line, source.line(source.error_line), PartOutcome.UNTRANSLATED, reason)
    return replace(reading, parts=(*reading.parts, part))


def _read(scope: _Scope) -> Reading:
    statements = scope.source.statements
    training: _Candidate | None = None
    candidates = [*_candidates(scope)]
    # ``if [ "$1" = test ]; then python test.py; exit; fi`` is another use of the script.
    others = [other for other in candidates if not _exits(other)]
    if any(other.training.kind >= TrainingKind.PYTHON for other in others):
        candidates = others
    for candidate in candidates:
        kind, is_one_task = candidate.training.kind, candidate.training.launch.total == 1
        best_kind = training.training.kind if training else TrainingKind.PROGRAM
        if training and kind == best_kind:
            first, second = training.training.launch.command, candidate.training.launch.command
            evaluates = _TRAINS.search(" ".join(first[:2])) and not _TRAINS.search(" ".join(second[:2]))
            if evaluates or _follows(scope, training.statement, candidate.statement):
                continue
        if kind >= best_kind and not (is_one_task and best_kind is TrainingKind.LAUNCHED):
            training = candidate
    has_runs = training is not None and not scope.depth and scope.command_line != ONE_RUN
    runs = _runs(scope, candidates, training) if training and has_runs else ()
    if scope.command_line > 0:
        training = next(other for other in candidates if other.statement.line == scope.command_line)
    if training is None:
        place, of_training = len(statements), Reading()
    elif training.is_block and training.inner:
        place, of_training = statements.index(training.statement), _block_reading(training, training.inner)
    else:
        place, of_training = statements.index(training.statement), _command_reading(scope, training)
    once = [] if of_training.in_background else [s for s in statements[:place] if not _is_repeatable(s)]
    is_shared = bool(of_training.sweeps) and once != []
    kept = _kept(scope, training) if training and (of_training.is_partial or is_shared) else None
    of_training = kept or of_training
    beside = [
        other.statement
        for other in candidates
        if other.training.kind >= TrainingKind.PYTHON and _is_in_background(other)
    ]
    program = training.training.launch.command if training else ()
    program = program[: 1 if "/" in "".join(program[:1]) else 2]  # ``uv run`` is a program
    trainings = [
        other.statement
        for other in candidates
        if other.training.kind >= TrainingKind.PYTHON
        or (program and other.training.launch.command[: len(program)] == program)
    ]
    if training and _is_in_background(training):
        beside += [statement for statement in statements if statement.in_background]
    before = _read_before(scope, statements[:place], training, of_training, beside, runs, trainings)
    setup = (*before.setup, *of_training.setup)
    if scope.arguments and any(_POSITIONAL.search(line) for line in (*setup, of_training.text)):
        shell_words = [_setup_word(value, scope.source.constants) for value in scope.arguments]
        setup = (f"set -- {' '.join(shell_words)}", *setup)
    else:
        own_setup = [line for line in before.setup if not re.match(r"shift\b", line)]
        setup = (*own_setup, *of_training.setup)
    parts = [*of_training.parts, *before.parts, *_parts_after(statements[place + 1 :])]
    for statement in statements if scope.arguments is None else ():
        if any(command.names[:2] == ("set", "--") for command in statement.commands):
            break
        is_inner = (
            bool(statement.bodies) and training is not None and statement is training.statement and not kept
        )
        is_function = statement.kind == "function_definition"
        text = _QUOTED_DOCUMENT.sub("", statement.text)
        if not is_function and not is_inner and _POSITIONAL.search(text):
            text = statement.text.partition("\n")[0]
            parts.append(Part(statement.line, text, PartOutcome.UNTRANSLATED, _NEEDS_ARGUMENTS))
    for skipped in scope.source.skipped:
        outcome, reason = PartOutcome.NEEDLESS, _IS_SKIPPED
        if skipped.reads_arguments:
            outcome, reason = PartOutcome.UNTRANSLATED, _NEEDS_ARGUMENTS
        parts.append(Part(skipped.line, skipped.text, outcome, reason))
    requeues = before.requeues or of_training.requeues
    return replace(of_training, setup=setup, requeues=requeues, parts=tuple(parts), runs=runs)


def with_login_files(reading: Reading, shell: Sequence[str], line: int, text: str) -> Reading:
    """Return ``reading`` with the files that a login shell reads, if ``shell`` starts one at ``line``."""
    if not any(word == "--login" or re.match(r"-[a-z]*l", word) for word in shell):
        return reading
    part = Part(line, text, PartOutcome.SETUP, "a login shell reads the login files, and --setup does so")
    return replace(reading, setup=(LOGIN, *reading.setup), parts=(part, *reading.parts))


# --- which command trains ---


def _exits(candidate: _Candidate) -> bool:
    """Return whether the script ends behind the command, in the branch of a condition."""
    program = "".join(word.text for word in candidate.training.command.words[:1])
    branches = candidate.statement.bodies if candidate.is_block and _is_condition(candidate.statement) else ()
    return any(program in body.text and re.search(r"(?:^|[\n;])\s*exit\s*$", body.text) for body in branches)


def _is_in_background(candidate: _Candidate) -> bool:
    is_inner = candidate.inner is not None and candidate.inner.in_background
    return candidate.statement.in_background or is_inner


def _runs(scope: _Scope, candidates: Sequence[_Candidate], training: _Candidate) -> tuple[Statement, ...]:
    """Return the statements whose commands are runs of their own beside ``training``; () if there are none.

    A program that runs beside another one may serve it: only the same program is a run of its own.
    """
    statements: list[Statement] = []
    command = training.training.launch.command
    program = command[: 1 + (command[:1] == ("-m",))]
    results = {name for other in scope.source.statements if "$?" in other.text for name in other.sets}
    for candidate in candidates:
        statement, launch = candidate.statement, candidate.training.launch
        is_behind = statement.line > training.statement.line
        is_step = _is_small(launch, scope.source.constants)
        is_run = candidate.training.kind is TrainingKind.LAUNCHED and not is_step
        is_beside = statement.in_background or training.statement.in_background
        is_other_program = is_beside and launch.command[: len(program)] != program
        reads_result = bool(statement.reads & results) or "$?" in statement.text
        if statement is training.statement:
            statements.append(statement)
        elif launch.overlaps or reads_result or is_other_program:
            continue
        elif not statement.is_plain:
            is_evaluation = is_behind and candidate.training.kind is TrainingKind.PYTHON
            statements += [statement] if is_evaluation and _kept(scope, candidate) else []
        elif is_run or (
            candidate.training.kind >= TrainingKind.PYTHON
            and (is_behind or launch.command[: len(program)] == program)
        ):
            statements.append(statement)
    # Each is found again by its line. They run one after another, or all at the same time.
    has_own_lines = len({statement.line for statement in statements}) == len(statements)
    first, last = statements[0].line, statements[-1].line
    waits = any(
        first < other.line < last and re.match(r"wait\b", other.text) for other in scope.source.statements
    )
    are_beside = [statement.in_background for statement in statements]
    is_chain = not any(are_beside)
    is_group = all(are_beside[:-1]) and not waits
    return tuple(statements) if len(statements) > 1 and has_own_lines and (is_chain or is_group) else ()


def _follows(scope: _Scope, first: Statement, second: Statement) -> bool:
    """Return whether ``second`` runs at the end of ``first``: ``wait`` or ``$?`` is between."""
    statements = scope.source.statements
    between = statements[statements.index(first) + 1 : statements.index(second)]
    if first is not second and first.in_background:
        return any(re.match(r"wait\b", statement.text) for statement in between)
    if first is second:  # ``srun python train.py || srun python train.py --resume``
        return "||" in first.text
    results = {name for statement in between if "$?" in statement.text for name in statement.sets}
    return (_is_condition(second) and "$?" in second.text) or bool(second.reads & results)


def _candidates(scope: _Scope) -> Iterator[_Candidate]:
    """Yield the commands that may train, in their order."""
    for statement in scope.source.statements:
        if statement.kind == "function_definition":
            continue
        block = _block_that_trains(scope, statement)
        of_block = (
            [_Candidate(statement, block.training, block, is_block=True)] if block and block.training else []
        )
        of_commands: list[_Candidate] = []
        for command in statement.commands:
            names = command.names
            if command.program in (*PRINTS, "set"):
                continue
            launch = launch_in(names, reads_inline=False)
            kind: TrainingKind | None = None
            if launch and launch.program not in ("sbatch", "salloc"):
                in_ranks = replace(scope, in_ranks=True)
                inner = _started(in_ranks, launch.command, command, statement.line)
                is_unknown = inner is None or inline_text(launch.command).startswith("$")
                if not _is_helper(launch) and (is_unknown or (inner and inner.training)):
                    kind = TrainingKind.LAUNCHED
            else:
                launch = _plain_launch(names)
                inner = _started(scope, launch.command, command, statement.line)
                if inner and inner.training:
                    kind = max(inner.training.kind, TrainingKind.PYTHON)
                elif inner and command.program in scope.source.functions:
                    continue
                elif _runs_python(names):
                    kind = TrainingKind.PYTHON
                elif (statement.is_plain or statement.bodies) and _is_program(command):
                    kind = TrainingKind.PROGRAM
            if names[:1] == ("ssh",):
                launch = LaunchCommand("ssh", command=("bash", "-c", _remote_text(names)))
                inner = _started(replace(scope, in_ranks=True), launch.command, command, statement.line)
                kind = inner.training.kind if inner and inner.training else None
            # A command of the block counts there, unless it is in front: ``if srun python t.py; then``.
            if kind and not any(kind <= candidate.training.kind for candidate in of_block):
                of_commands.append(_Candidate(statement, Training(kind, command, launch), inner))
        yield from of_commands or of_block


def _remote_text(names: tuple[str, ...]) -> str:
    """Return the shell text that ``ssh HOST TEXT`` runs."""
    place = 1
    while place < len(names) and names[place].startswith("-"):
        place += 1 + (names[place][1:] in tuple("bcDEeFIiJLlmOopQRSWw"))
    return " ".join(names[place + 1 :])


def _block_that_trains(scope: _Scope, statement: Statement) -> Reading | None:
    """Return the block of a loop, a condition or a group in which a command trains; None if there is none."""
    if scope.depth >= _MOST_DEPTH:
        return None
    is_sweep = bool(statement.loop_values) and not _reason_against_sweep(statement)
    loop = {statement.loop: f"{{{statement.loop}}}"} if is_sweep else {}
    blocks = [_block(scope, body, scope.source.arguments, constants=loop) for body in statement.bodies]
    blocks = [block for block in blocks if block.training]

    def kind_of_training(reading: Reading) -> TrainingKind:
        return reading.training.kind if reading.training else TrainingKind.PROGRAM

    best = max(reversed(blocks), key=kind_of_training, default=None)
    reason = "another branch starts it: submit it as a run of its own"
    others = [
        replace(part, outcome=PartOutcome.UNTRANSLATED, reason=reason)
        for block in blocks
        for part in block.parts
        if block is not best and part.outcome is PartOutcome.COMMAND
    ]
    return replace(best, parts=(*best.parts, *others)) if best else None


def _started(scope: _Scope, shell_words: tuple[str, ...], command: Command, line: int) -> Reading | None:
    """Return what the script or function that ``shell_words`` run asks for; None for other programs.

    ``shell_words`` are the last ones of ``command``. All parts of another script get ``line``.
    """
    if not shell_words or scope.depth >= _MOST_DEPTH:
        return None
    if function := scope.source.functions.get(shell_words[0]):
        # A function that calls itself is not followed.
        others = {name: body for name, body in scope.source.functions.items() if name != shell_words[0]}
        reading = _block(scope, function, command.last_values(len(shell_words) - 1), functions=others)
        for word in command.words:
            if word.text.startswith(("$(", "`")):
                reason = "it may be several arguments of the function: write its value"
                part = Part(line, word.text, PartOutcome.UNTRANSLATED, reason)
                reading = replace(reading, parts=(*reading.parts, part))
        return reading
    text = inline_text(shell_words)
    place = shell_words.index(text) + 1 if text else 0  # the word behind the text is its name
    if not text:
        name = shell_script(shell_words)
        is_shell = name != shell_words[0] or name.endswith(_SCRIPT_ENDS)
        text = scope.read_file(name) if is_shell and name else ""
        place = shell_words.index(name) if text else 0
    if not text:
        return None
    arguments = command.last_values(max(0, len(shell_words) - place - 1))
    source = ShellSource(
        text,
        scope.source.constants,
        arguments,
        scope.source.functions,
        environment=scope.source.environment,
    )
    reading = _read(_inner(scope, source, arguments))
    if shell_words[0] in SHELLS:
        reading = with_login_files(reading, shell_words[:place], line, " ".join(shell_words[:place][:2]))
    return replace(reading, parts=tuple(replace(part, line=line) for part in reading.parts))


def _block(
    scope: _Scope,
    body: Body,
    arguments: tuple[str, ...] | None,
    constants: Mapping[str, Constant] | None = None,
    functions: Mapping[str, Body] | None = None,
) -> Reading:
    """Return what the statements of a function, a loop, a branch or a group ask for."""
    source = ShellSource(
        body.text,
        {**scope.source.constants, **(constants or {})},
        arguments,
        scope.source.functions if functions is None else functions,
        lines_above=body.line - 1,
        environment=scope.source.environment,
    )
    return _read(_inner(scope, source, arguments))


def _inner(scope: _Scope, source: ShellSource, arguments: tuple[str, ...] | None) -> _Scope:
    return replace(scope, source=source, arguments=arguments, depth=scope.depth + 1, command_line=0)


def _plain_launch(names: tuple[str, ...]) -> LaunchCommand:
    """Return a launch of one process by ``names``, without a launcher."""
    environment: list[tuple[str, str]] = []
    shell_words = list(names)
    while shell_words and re.match(r"[A-Za-z_]\w*=", shell_words[0]):
        name, _, value = shell_words.pop(0).partition("=")
        environment.append((name, value))
    while shell_words and shell_words[0] in ("time", "nohup", "exec", "command", "eval"):
        shell_words.pop(0)
    command = tuple(shell_words)
    return LaunchCommand(
        "", command=without_python(command), environment=tuple(environment), python=own_python(command)
    )


def _runs_python(names: tuple[str, ...]) -> bool:
    """Return whether the command runs a Python script or module, possibly behind a wrapper."""
    for index in range(len(names)):
        call = interpreter_call(names[index:])
        if call and call.is_python:
            return call.script.endswith(".py") or (bool(call.module) and call.module not in _TOOLS)
    is_open = bool(names) and names[0].startswith("$") and any(word.endswith(".py") for word in names)
    return is_open or (bool(names) and names[0].endswith(".py"))


def _is_program(command: Command) -> bool:
    name = command.names[0] if command.names else ""
    is_known = bool(name) and not command.program.startswith("$")
    return is_known and name not in (*_HELPERS, *_PREPARES, *_SHELL_COMMANDS)


# --- the statement with the command ---


def _block_reading(candidate: _Candidate, inner: Reading) -> Reading:
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
    if statement.loop_values and (problem := _reason_against_sweep(statement)):
        reason = problem
    elif statement.loop_values and (
        statement.loop in reads or any(placeholder in word for word in inner.command)
    ):
        sweeps = ((statement.loop, ",".join(statement.loop_values)), *sweeps)
        outcome, reason = PartOutcome.OPTION, _RUNS_AT_ONCE if inner.in_background else _RUNS_OF_A_LOOP
    elif _is_of_every_node(candidate, placeholder):
        outcome, reason = PartOutcome.NEEDLESS, "clusterrun starts the ranks of every node"
        launch = inner.training.launch if inner.training else candidate.training.launch
        names = [name for name, value in launch.environment if variables_read([value]) & statement.sets]
        names += [f"${name}" for name in sorted(statement.sets & variables_read(inner.command))]
        if names:
            outcome = PartOutcome.UNTRANSLATED
            reason = f"{', '.join(names)} differs on each node: let the program read NODE_RANK"
    elif statement.block_kind in _LOOPS and _RETRIES.search(statement.text):
        reason = _IS_RETRY
    elif statement.block_kind in ("compound_statement", "subshell"):
        outcome, reason = PartOutcome.NEEDLESS, "" if statement.kind == statement.block_kind else _IN_LOGS
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
    if is_partial and statement.block_kind in _LOOPS:
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
    return replace(inner, sweeps=sweeps, is_partial=is_partial, parts=parts)


def _kept(scope: _Scope, candidate: _Candidate) -> Reading | None:
    """Return COMMAND as a shell with the whole statement, as the script has it.

    None: a launcher in it starts other processes than this one.
    """
    statement = candidate.statement
    code, functions = statement.text, [s for s in scope.source.statements if s.kind == "function_definition"]
    for function in reversed(functions):
        if _calls(code, function):
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
    settings = [other.text for other in before if re.match(r"(?:set\s+-(?!-)|shopt\s)", other.text)]
    code = "\n".join((*settings, code))
    arguments = ("bash", *scope.arguments) if scope.arguments and _POSITIONAL.search(code) else ()
    command = ("bash", "-c", code, *arguments)
    training = replace(candidate.training, launch=LaunchCommand("", command=command))
    parts = [Part(statement.line, statement.text, PartOutcome.COMMAND)]
    if statement.block_kind in _LOOPS and _RETRIES.search(statement.text):
        parts.append(Part(statement.line, statement.text, PartOutcome.OPTION, _IS_RETRY))
    return Reading(training=training, command=command, is_kept=True, parts=tuple(parts))


def _calls(code: str, function: Statement) -> bool:
    name = re.escape(_function_name(function))
    return re.search(rf"(?<![\w./-]){name}(?![\w.-])", code) is not None


def literal_placeholders(name: str, statement: Statement) -> tuple[Part, ...]:
    """Return the part that says that ``statement`` has the text ``{name}``, which a sweep replaces."""
    if not re.search(rf"(?<!\$)\{{{name}\}}", statement.text):
        return ()
    reason = "a sweep puts a value in its place: use another name in the script"
    return (Part(statement.line, f"{{{name}}}", PartOutcome.UNTRANSLATED, reason),)


def _reason_against_sweep(statement: Statement) -> str:
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


def _is_of_every_node(candidate: _Candidate, placeholder: str) -> bool:
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


def _command_reading(scope: _Scope, candidate: _Candidate) -> Reading:
    """Return what a statement asks for whose command trains."""
    statement, training, launch = candidate.statement, candidate.training, candidate.training.launch
    line = statement.line
    inner = candidate.inner
    is_function = bool(launch.command) and launch.command[0] in scope.source.functions
    is_followed = inner and inner.training and (inner.training.kind is TrainingKind.LAUNCHED or is_function)
    if is_followed and inner and launch.per_node <= 1 and launch.program == "srun":
        # Each node evaluates these statements, and setup lines run once.
        is_followed = not _PER_NODE & variables_read(inner.setup)
    parts: list[Part] = []
    for option in launch.untranslated:
        if launch.keeps_accelerate and not option.startswith("$"):
            continue
        reason = f"an option of {launch.rank_launcher or launch.program} alone"
        if option.startswith("$"):
            reason = f"options of {launch.program} that only running the script shows"
        parts.append(Part(line, option, PartOutcome.UNTRANSLATED, reason))
    parts += [Part(line, launch.program, PartOutcome.OPTION, remark) for remark in launch.remarks]
    parts += [Part(line, option, PartOutcome.NEEDLESS, _IN_LOGS) for option in launch.outputs]
    parts += [Part(line, option, PartOutcome.OPTION, _OF_SHARE) for option in launch.shares]
    if not launch.program and re.match(r"\$(?!.*(?i:python|py\b))", "".join(launch.command[:1])):
        reason = "it is known only when the script runs: if it is a launcher, give what that starts"
        parts.append(Part(line, launch.command[0], PartOutcome.OPTION, reason))
    files = [
        other.commands[0].names[1]
        for other in scope.source.statements
        if other.commands and other.commands[0].names[:1] in (("source",), (".",)) and other.line < line
        if len(other.commands[0].names) > 1
    ]
    unread = [file for file in files if not (_KNOWN_FILES.search(file) or scope.read_file(file))]
    program = "".join(launch.command[:1])
    if (
        training.kind is TrainingKind.PROGRAM
        and unread
        and "/" not in program
        and not (inner or program in SHELLS)
    ):
        reason = f"if it is a function of {unread[-1]}, ranks do not have it: give what it starts"
        parts.append(Part(line, program, PartOutcome.OPTION, reason))
    if launch.needless:
        parts.append(Part(line, " ".join(launch.needless), PartOutcome.NEEDLESS, _OF_STEP))
    script = shell_script(launch.command) if launch.command else ""
    is_shell = script != "".join(launch.command[:1]) or script.endswith(_SCRIPT_ENDS)
    if inner is None and script and is_shell and not scope.read_file(script):
        reason = "it cannot be read: if it calls srun or torchrun, give what that starts"
        parts.append(Part(line, script, PartOutcome.OPTION, reason))
    if inner and inner.training and is_followed:
        # A command without a launcher adds its variables alone.
        environment = (*launch.environment, *inner.training.launch.environment)
        launch = (
            joined(launch, inner.training.launch)
            if launch.program
            else replace(inner.training.launch, environment=environment)
        )
        reading = replace(inner, parts=(*_around(statement, inner), *parts))
    else:
        command, text, text_in_ranks = _command(scope, launch, training.command)
        is_script = command[:1] == ("-m",) or "".join(command[:1]).endswith(".py")
        reading = Reading(
            command=command,
            text=text,
            text_in_ranks=text_in_ranks,
            options=(("python", launch.python),) if launch.python and is_script else (),
            parts=(*_around(statement, None), *parts),
        )
    parts, setup, options = list(reading.parts), list(reading.setup), list(reading.options)
    # The line is typed before the script computes its variables.
    own = {
        name for other in scope.source.statements for name in (*other.sets, *_DEFAULTED.findall(other.text))
    }
    for name, value in launch.options:
        is_computed = bool(own & variables_read([value])) or _COMPUTED.search(value)
        if name not in ("setup", "input") and is_computed:
            reason = f"--{name} reads a variable of the script: write its value into the line"
            parts.append(Part(line, value, PartOutcome.UNTRANSLATED, reason))
    is_partial = not statement.is_plain and (statement.kind != "list" or _is_condition(statement))
    if is_partial:
        reason = f"the command is in {_kind(statement)}, which is not in the line"
        parts.append(Part(line, statement.text.partition("\n")[0], PartOutcome.UNTRANSLATED, reason))
    for part in _other_commands(statement, training.command):
        parts.append(part)
        is_partial = is_partial or part.outcome is PartOutcome.UNTRANSLATED
        if part.outcome is PartOutcome.SETUP:
            setup.append(part.text)
    behind = "\n".join(other.text for other in scope.source.statements if other.line > line)
    if training.kind is TrainingKind.PROGRAM and (match := _STARTER.search(" ".join(launch.command))):
        reason = f"it starts {match[0]}, and each rank would: clusterrun sweep starts several runs"
        parts.append(Part(line, statement.text, PartOutcome.UNTRANSLATED, reason))
    results: list[str] = []
    for text in training.command.redirections:
        if text.startswith("<<"):
            reason = "put it into a file and give --input FILE"
            parts.append(Part(line, text.partition("\n")[0], PartOutcome.UNTRANSLATED, reason))
        elif text.startswith("<") and text[1:].strip() == os.devnull:
            parts.append(Part(line, text, PartOutcome.NEEDLESS, "ranks have no input"))
        elif text.startswith("<"):
            file = ("input", shlex.split(text[1:])[0] if text[1:].strip() else "")
            options += [file] if file not in launch.options else []
            parts.append(Part(line, text, PartOutcome.OPTION))
        elif ">&" not in text and text.lstrip("&12>").strip("\"' ") in behind:
            reason = "a later line reads it: clusterrun logs --raw RUN > FILE"
            parts.append(Part(line, text, PartOutcome.UNTRANSLATED, reason))
        elif _RESULT.match(text) and "2>&1" not in training.command.redirections and not launch.program:
            results.append(text)
        else:
            parts.append(Part(line, text, PartOutcome.NEEDLESS, _IN_LOGS))
    command = reading.command
    if results:
        command = _redirected(command, launch, " ".join(results))
    of_script = "\n".join(other.text for other in scope.source.statements if other is not statement)
    for name, input_file in (*launch.options, *options):
        reads = variables_read([input_file])
        is_of_job = bool(own & reads) or any(variable.startswith("SLURM_") for variable in reads)
        if name == "input" and (is_of_job or os.path.basename(input_file) in of_script):
            # submit would read the file before the script writes it, or before the job has its variables.
            source = f'"{input_file}"' if "$" in input_file else shlex.quote(input_file)
            command = _redirected(command, launch, f"< {source}")
            launch = replace(launch, options=tuple(pair for pair in launch.options if pair[0] != "input"))
            options = [pair for pair in options if pair[0] != "input"]
    return replace(
        reading,
        command=command,
        training=replace(training, launch=launch),
        in_background=reading.in_background or statement.in_background,
        is_partial=reading.is_partial or is_partial,
        setup=tuple(setup),
        options=tuple(options),
        parts=tuple(parts),
    )


def _redirected(command: tuple[str, ...], launch: LaunchCommand, redirection: str) -> tuple[str, ...]:
    """Return COMMAND as a shell that redirects its input or output."""
    is_script = command[0] == "-m" or command[0].endswith(".py")
    python = (launch.python or "python",) if is_script else ()
    is_shell = command[:2] == ("bash", "-c")
    code = command[2] if is_shell else f"exec {shlex.join((*python, *command))}"
    code = code if code.startswith("exec ") else f"{{ {code}\n}}"
    return ("bash", "-c", f"{code} {redirection}", *(command[3:] if is_shell else ()))


def _command(scope: _Scope, launch: LaunchCommand, command: Command) -> tuple[tuple[str, ...], str, str]:
    """Return COMMAND, and the texts of its words for the script's shell and for that of each rank.

    A shell expands the words that only running the script shows.
    """
    shell_words = [word for word in launch.command if word not in ("$@", "$*") or scope.arguments]
    launcher = _accelerate(launch) if launch.keeps_accelerate else ""
    sources = command.open_words
    if not launcher and not any(word in sources for word in (launch.python, *shell_words)):
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
    is_script = bool(shell_words) and (shell_words[0] == "-m" or shell_words[0].endswith(".py"))
    # A launcher of ranks starts a Python script, whatever its name.
    is_script = is_script or bool(launch.rank_launcher and shell_words[0] in sources)
    if is_script and not launcher:
        launcher = shlex.quote(launch.python or "python")
        if launch.python in sources:
            texts, evaluated = [[sources[launch.python], *words] for words in (texts, evaluated)]
            launcher = ""
    text = " ".join(texts)
    code = f"exec {launcher} {text}" if launcher else f"exec {text}"
    arguments = ("bash", *scope.arguments) if scope.arguments and _POSITIONAL.search(code) else ()
    is_of_ranks = scope.in_ranks and (bool(arguments) or _OF_RANK.search(text) is not None)
    return ("bash", "-c", code, *arguments), "" if is_of_ranks else " ".join(evaluated), text


def _with_loops(word: str, constants: Mapping[str, Constant]) -> str:
    """Return a word of the command for a setup line, which does not expand the ``{name}`` of a sweep."""
    names = [name for name in _PLACEHOLDER.findall(word) if constants.get(name) == f"{{{name}}}"]
    if not names:
        return shlex.quote(word)
    text = re.sub(r'(["\\$`])', r"\\\1", word)
    for name in names:
        text = text.replace(f"{{{name}}}", f"${{{name}}}")
    return f'"{text}"'


def _accelerate(launch: LaunchCommand) -> str:
    """Return the shell's text that starts accelerate once per node, with the options that only it knows."""
    shell_words = [word for option in launch.untranslated for word in shlex.split(option)]
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


def _other_commands(statement: Statement, training: Command) -> Iterator[Part]:
    """Yield what becomes of the other commands of the statement that trains."""
    is_behind = False
    head = statement.text.partition(training.words[0].text)[0]
    for command in statement.commands:
        text = " ".join(word.text for word in command.words)
        name = command.names[0] if command.names else ""
        if command is training:
            is_behind = True
        elif statement.kind in ("pipeline", "list") and is_behind and name in ("tee", "cat", "ts", "stdbuf"):
            yield Part(statement.line, text, PartOutcome.NEEDLESS, _IN_LOGS)
        elif is_behind and name in ("exit", "wait", *PRINTS):
            yield Part(statement.line, text, PartOutcome.NEEDLESS, _END_IS_REPORTED)
        elif not is_behind and launch_in(command.names) and not _is_condition(statement):
            yield Part(statement.line, text, PartOutcome.UNTRANSLATED, IS_OTHER_RUN)
        elif not is_behind and (name in _PREPARES or statement.kind == "list") and "||" not in head:
            yield Part(statement.line, text, PartOutcome.SETUP)
        elif statement.is_plain or statement.kind == "list":
            yield Part(statement.line, text, PartOutcome.UNTRANSLATED, "it is another command of that line")


def _is_condition(statement: Statement) -> bool:
    """Return whether a statement runs its commands only if a test succeeds."""
    is_test = statement.kind == "list" and statement.text.startswith(("[", "((", "test "))
    return is_test or statement.block_kind in ("if_statement", "case_statement")


def _kind(statement: Statement) -> str:
    """Return the kind of a statement in words."""
    if _is_condition(statement):
        return "a condition"
    if statement.block_kind in _LOOPS:
        return "a loop"
    return f"a {statement.block_kind.replace('_', ' ')}"


# --- the statements before and after it ---


def _read_before(
    scope: _Scope,
    statements: Sequence[Statement],
    training: _Candidate | None,
    of_training: Reading,
    beside: Sequence[Statement],
    runs: Sequence[Statement],
    trainings: Sequence[Statement],
) -> Reading:
    """Return the setup lines of the statements before the command.

    They are read backwards, because a line is needed if a later one reads the variables that it sets.
    ``beside``: statements with a training that runs beside the command. ``runs``: statements that are runs
    of their own. ``trainings``: all with a command that trains.
    """
    # The line sets the launcher's variables behind the setup lines of the script.
    of_launch = of_training.training.launch.environment if of_training.training else ()
    needed = variables_read((*of_training.command, *of_training.setup, *(value for _, value in of_launch)))
    is_expanded_once = of_training.text and not ALIKE.fullmatch(of_training.text)
    texts = (*of_training.setup, of_training.text) if is_expanded_once else of_training.setup
    read_by_setup = variables_read(texts)
    needed |= read_by_setup
    commands = training.statement.commands if training else ()
    code = "\n".join(of_training.command)
    called = {name for command in commands for name in _plain_launch(command.names).command[:1]}
    setup: list[str] = []
    parts: list[Part] = []
    fates: list[tuple[Statement, list[Part], list[str]]] = []
    requeues = False
    # ``set -a`` exports the variables of the statements behind it, until ``set +a``.
    switches = [(other.line, match[1]) for other in statements if (match := ALLEXPORT.match(other.text))]
    exported = [
        statement
        for statement in statements
        if [sign for line, sign in switches if line <= statement.line][-1:] == ["-"]
    ]
    errexit = "e" if any(ERREXIT.match(statement.text) for statement in statements) else ""
    if errexit and any(re.match(r"set\s.*\bpipefail\b", statement.text) for statement in statements):
        errexit = "eo pipefail"
    absent = min((statement.line for statement in beside), default=None)
    is_before_run = False
    for statement, readers in reversed([*_with_readers(statements)]):
        facts = _facts(scope, statement, needed, read_by_setup)
        facts = replace(
            facts,
            is_read=facts.is_read or (training is None and not scope.depth),  # the user's COMMAND may read it
            is_exported=statement in exported,
            launches=facts.launches or statement in runs,
            is_beside=statement in beside,
            waits=bool(_WAITS.match(statement.text)) and absent is not None and absent < statement.line,
            is_of_other_run=is_before_run
            and bool(statement.commands)
            and not {command.program for command in statement.commands if command.names} <= _PREPARATIONS
            and not statement.sets & needed
            and statement.kind != "function_definition",
        )
        is_before_run = is_before_run or facts.launches
        rule = rule_for(facts)
        lines: list[str] = []
        if rule:
            requeues = requeues or facts.requeues
            outcome, reason = rule.outcome, rule.reason
            if facts.name == "shift":
                lines = [statement.text]
        elif statement.kind == "function_definition" and not (
            _calls("\n".join((*setup, *of_training.setup)), statement)
            or (_calls(code, statement) and statement.text not in code)
        ):
            is_followed = _function_name(statement) in called or statement.text in code
            outcome = PartOutcome.NEEDLESS
            reason = (
                "its statements are in the line" if is_followed else "nothing that is in the line calls it"
            )
        else:
            counts = ", ".join(_counts_read(scope, statement))
            steps = [launch_in(command.names, reads_inline=False) for command in statement.commands]
            has_more_tasks = scope.source.constants.get("SLURM_NTASKS_PER_NODE", "1") != "1"
            reason = ""
            if of_training.sweeps and not _is_repeatable(statement):
                reason = "each run of the loop repeats it"
            elif statement in trainings:
                reason = "it runs once, before the ranks: clusterrun watches and restarts only the ranks"
            if counts:
                reason = f"{counts} may have another value: the job has one task per node"
            if any(command.names in (("exit",), ("exit", "0")) for command in statement.commands):
                reason = "if it ends the script here, the run counts as failed"
            for step in steps if has_more_tasks else ():
                if step and step.program == "srun" and not (step.per_node or step.total or step.open_sizes):
                    reason = "this srun starts one task on each node: say how many with --ntasks"
            outcome = PartOutcome.SETUP
            lines = _setup_lines(facts, sorted(statement.sets & needed), errexit)
            reads = statement.reads | variables_read([statement.text])
            needed |= reads
            read_by_setup |= reads
        own = [Part(statement.line, statement.text, outcome, reason)]
        own += [Part(reader.line, reader.text, outcome, reason) for reader in readers]
        if facts.requeues and statement.kind == "function_definition":
            parts += _parts_of_handler(scope, statement)
        fates.insert(0, (statement, own, lines))
        setup[:0] = lines
    # A line that reads a variable of a statement that is not in the line would do something else.
    setup = []
    absent_names: set[str] = set()
    for statement, own, lines in fates:
        if lines and (missing := sorted(statement.reads & absent_names)):
            reason = f"it reads {', '.join(missing)}, and a statement that sets it is not in the line"
            own = [replace(part, outcome=PartOutcome.UNTRANSLATED, reason=reason) for part in own]
            lines = []
        if own[0].outcome is PartOutcome.UNTRANSLATED and not lines:
            absent_names |= statement.sets
        elif statement.kind in ("variable_assignment", "declaration_command"):
            absent_names -= statement.sets
        setup += lines
        parts += own
    return Reading(setup=tuple(setup), requeues=requeues, parts=tuple(parts))


def _with_readers(statements: Sequence[Statement]) -> Iterator[tuple[Statement, tuple[Statement, ...]]]:
    """Yield each statement with those behind it that read its result (``$?``): one setup line."""
    place = 0
    while place < len(statements):
        statement, end = statements[place], place + 1
        is_simple = statement.is_plain or statement.kind in ("variable_assignment", "declaration_command")
        is_run = any(launch_in(command.names, reads_inline=False) for command in statement.commands)
        if is_simple and not (is_run or statement.in_background):
            while end < len(statements) and READS_RESULT.match(statements[end].text):
                end += 1
        whole = statements[place:end]
        if len(whole) > 1:
            statement = replace(
                statement,
                text="\n".join(part.text for part in whole),
                kind="list",
                commands=tuple(command for part in whole for command in part.commands),
                sets=frozenset().union(*(part.sets for part in whole)),
                exports=frozenset().union(*(part.exports for part in whole)),
                reads=frozenset().union(*(part.reads for part in whole)),
            )
        yield statement, tuple(whole[1:])
        place = end


def _parts_of_handler(scope: _Scope, function: Statement) -> Iterator[Part]:
    """Yield what a signal's handler does beside the requeue of the job."""
    body = scope.source.functions.get(_function_name(function))
    source = ShellSource(body.text, lines_above=body.line - 1) if body else None
    for statement in source.statements if source else ():
        names = {command.program for command in statement.commands if command.names}
        # The ranks get the signal of the job, without a handler that passes it on.
        names -= {"scancel"} if _SENDS_SIGNAL.search(statement.text) else set()
        if not names <= {"scontrol", "exit", "wait", "kill", "sleep", "trap", "return", "true", ":", *PRINTS}:
            reason = "the handler of a signal runs it: do it in the training script (clusterrun help signals)"
            yield Part(statement.line, statement.text, PartOutcome.UNTRANSLATED, reason)


def _setup_lines(facts: Facts, read_variables: list[str], errexit: str) -> list[str]:
    """Return the setup lines of a statement.

    ``read_variables``: what it sets and a later line reads. ``errexit``: the script's options of ``set -e``.
    Without them a command may fail.
    """
    statement = facts.statement
    text = statement.text
    if statement.in_background:
        return [f"{text} &"]
    if facts.is_inherited and not facts.is_read:
        return [text]
    if statement.kind == "variable_assignment" or (facts.is_exported and facts.is_assignment):
        if errexit and _COMPUTED.search(text) and "=(" not in text:
            # ``export X=$(f)`` hides that f failed.
            is_pipeline = "|" in text and "pipefail" in errexit
            first = f"set -{errexit}\n{text}\nset +{errexit}" if is_pipeline else text
            return [first, f"export {' '.join(sorted(statement.sets))}"]
        return [f"export {text}" if "=(" not in text else text]
    # The last command of such a file often fails, as in ``[ -f ~/.x ] && . ~/.x``.
    reads_profile = statement.is_plain and facts.name in ("source", ".") and _PROFILE.search(facts.argument)
    is_needed = facts.name in _PREPARES and not reads_profile and not _is_condition(statement)
    is_definition = statement.kind in ("declaration_command", "function_definition")
    if is_definition or is_needed or (errexit and statement.kind == "command" and not read_variables):
        return [f"export{text[5:]}" if text.startswith("local ") else text]
    lines = [f"{{ {text}\n}} || :" if "\n" in text else f"{text} || :"]
    if errexit:
        # The check behind a setup line sees the last command of it alone.
        lines = [f"set -{errexit}\n{text}\nset +{errexit}"]
    # The shell of a rank needs what a condition or a loop sets.
    return [*lines, f"export {' '.join(read_variables)}"] if read_variables else lines


def _counts_read(scope: _Scope, statement: Statement) -> list[str]:
    """Return the variables of Slurm about tasks that a statement, or a file that it runs, reads."""
    names = set() if statement.kind == "unset_command" else set(of_tasks(statement.reads))
    names -= {*scope.source.constants}
    for command in statement.commands:
        call = interpreter_call(command.names)
        is_sourced = command.names[:1] in (("source",), (".",))
        file = call.script if call else "".join(command.names[is_sourced : is_sourced + 1])
        if file and set("./") & set(file):
            of_file = of_tasks(_OF_SLURM.findall(scope.read_file(file)))
            names.update(f"{name} (in {file})" for name in of_file)
    return sorted(names)


def _setup_word(value: str, constants: Mapping[str, Constant]) -> str:
    """Return a word for a setup line, which does not expand the ``{name}`` of a sweep."""
    if "$" in value:  # the script's shell evaluates it
        return evaluated_text(value)
    for name in _PLACEHOLDER.findall(value):
        if constants.get(name) == f"{{{name}}}":
            return f'"{value}"'.replace(f"{{{name}}}", f"${name}")
    return shlex.quote(plain_text(value))


def _facts(scope: _Scope, statement: Statement, needed: set[str], read_by_setup: set[str]) -> Facts:
    constants = scope.source.constants
    is_function = statement.kind == "function_definition"
    names = statement.commands[0].names[:1] if statement.commands else ()
    text = statement.text
    if names == ("trap",):
        # A trap does what the functions do that it calls.
        functions = [other for other in scope.source.statements if other.kind == "function_definition"]
        text += "".join(other.text for other in functions if _function_name(other) in statement.text)
    launches = [launch_in(command.names, reads_inline=False) for command in statement.commands]
    return Facts(
        statement,
        is_read=bool(statement.sets & needed),
        is_read_by_setup=bool(statement.sets & read_by_setup),
        is_constant=statement.sets <= set(constants),
        sets_launcher=statement.kind == "declaration_command"
        and any(is_launcher_text(constants[name]) for name in statement.sets & set(constants)),
        requeues=(names == ("trap",) or is_function) and "requeue" in text,
        launches=not is_function
        and any(not (_is_helper(launch) or _is_small(launch, constants)) for launch in launches if launch),
    )


def _is_helper(launch: LaunchCommand) -> bool:
    """Return whether a launcher starts no program that trains."""
    command = launch.command
    if text := inline_text(command):
        statements = ShellSource(text).statements
        names = {inner.names[0] for statement in statements for inner in statement.commands if inner.names}
        return names <= {*_HELPERS, *_PREPARES, "chmod", "ln", "mv", "find"}
    # ``env`` alone prints, and ``env A=1 PROGRAM`` starts a program.
    is_env = os.path.basename(command[0]) == "env" if command else False
    program = [word for word in command[is_env:] if not ASSIGNMENT.match(word)] or command
    return not program or os.path.basename(program[0]) in _HELPERS or is_image_command(program)


def _function_name(statement: Statement) -> str:
    match = re.match(r"(?:function\s+)?([^\s(){}]+)", statement.text)
    return match[1] if match else ""


def _is_small(launch: LaunchCommand, constants: Mapping[str, Constant]) -> bool:
    """Return whether srun starts one task, or one on each node and no launcher in it."""
    per_node = str(launch.per_node or constants.get("SLURM_NTASKS_PER_NODE", ""))
    is_one_per_node = launch.program == "srun" and not launch.rank_launcher and per_node == "1"
    is_one_task = launch.program == "srun" and launch.total == 1 and launch.per_node <= 1
    return is_one_task or (is_one_per_node and not launch.total)


def _is_repeatable(statement: Statement) -> bool:
    """Return whether a second run of a statement, as before each run of a sweep, changes nothing."""
    programs = {command.program for command in statement.commands if command.names}
    appends = any(text.startswith(">>") for command in statement.commands for text in command.redirections)
    is_definition = statement.kind == "function_definition"
    return is_definition or (programs <= _REPEATABLE and not appends and not statement.in_background)


def _parts_after(statements: Sequence[Statement]) -> Iterator[Part]:
    """Yield what becomes of the statements behind the command, the last one first."""
    needed: set[str] = set()
    with_result = [statement for statement in statements if READS_RESULT.match(statement.text)]
    results = {name for statement in with_result for name in statement.sets}
    for statement in reversed(statements):
        part = _part_after(statement)
        reads_result = "$?" in statement.text or bool(statement.reads & results)
        decides = re.search(r"\bexit [1-9]", statement.text) and not reads_result
        is_needed = bool(statement.sets & needed) and statement not in with_result
        if part.outcome is PartOutcome.NEEDLESS and (decides or is_needed):
            part = replace(part, outcome=PartOutcome.UNTRANSLATED, reason=IS_BEHIND)
        if part.outcome is PartOutcome.UNTRANSLATED:
            needed |= statement.reads
        if statement.text:
            yield part


def _part_after(statement: Statement) -> Part:
    """Return what becomes of a statement behind the command."""
    names = {command.program for command in statement.commands if command.names}
    files = [text for command in statement.commands for text in command.redirections]
    prints_to_file = any(os.devnull not in text and ">&" not in text for text in files)
    exits = [command.names[1:] for command in statement.commands if command.names[:1] == ("exit",)]
    if statement.is_plain and any(code and code[0].isdecimal() and int(code[0]) for code in exits):
        reason = "the script always fails: the run ends as its ranks do"
        return Part(statement.line, statement.text, PartOutcome.UNTRANSLATED, reason)
    is_harmless = names <= {"wait", "exit", "set", "kill", *PRINTS} and statement.only_reads
    if is_harmless and not prints_to_file:
        return Part(statement.line, statement.text, PartOutcome.NEEDLESS, _END_IS_REPORTED)
    reason = QUEUES_JOB if names & {"sbatch", "scontrol"} else IS_BEHIND
    return Part(statement.line, statement.text, PartOutcome.UNTRANSLATED, reason)
