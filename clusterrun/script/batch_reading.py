"""Define what a batch script is read to, and tell kinds of its statements and commands apart."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

from clusterrun.model.frozen import frozen
from clusterrun.script.batch_scripts import Part
from clusterrun.script.interpreter_calls import ASSIGNMENT, inline_text
from clusterrun.script.launch_commands import (
    TIME_IS_REPORTED,
    LaunchCommand,
    is_image_command,
    own_python,
    without_python,
)
from clusterrun.script.program_table import TRAITS, Trait, is_tool, with_trait
from clusterrun.script.shell_source import Command, Constant, ShellSource, Statement

PREPARES = with_trait(Trait.PREPARES)
# Files that prepare the shell, and define no function that trains.
KNOWN_FILES = re.compile(
    r"activate|bashrc|profile|(?i:conda)|/etc/|/modules?/|/lmod/|env\.sh$|set_?(?:up)?vars"
)
# A value that a command prints.
COMPUTED = re.compile(r"\$\((?!\()|`")
# The value of a sweep in a word of the command.
# An argument of a script: ``$1``, ``"$@"``. Awk's own stand in single quotes.
POSITIONAL = re.compile(r"\$(?:\{?[1-9@*]|#)(?![^\n]*'[^']*$)|\bgetopts ")
_READ = re.compile(r"\$\{?[#!]?([A-Za-z_]\w*)", re.ASCII)
_DEFAULTED = re.compile(r"\$\{([A-Za-z_]\w*):?=", re.ASCII)
# Places in which the shell reads a name without a dollar sign, such as an index of an array.
_ARITHMETIC = re.compile(
    r"\(\(.*?\)\)|\$\{\w+\[[^]@*]+\]|\$\{[\w@*[\]]+:(?![-+?=])[^}]*\}|\w\[[^]@*]+\]\+?="
    r"|\blet [^\n]*|\[\[ [^\n]*?\s-(?:eq|ne|[lg][te])\s[^\n]*?\]\]",
    re.DOTALL,
)
# ``set -e``, ``trap '…; exit 1' ERR``, and ``set +e``.
_ERREXIT = re.compile(r"set\s(?:.*\s)?(?:-[A-Za-z]*e|-o\s+errexit\b)|trap\s.*\bexit\b.*\sERR\b", re.DOTALL)
_NO_ERREXIT = re.compile(r"set\s+\+(?:[A-Za-z]*e|o\s+errexit\b)")
SCRIPT_ENDS = (".sh", ".bash", ".slurm", ".sbatch")
END_IS_REPORTED = "no rank needs it: clusterrun waits for the ranks and reports their end"


class TrainingKind(IntEnum):
    """How a script starts a command. The last command of the highest kind is the one that trains."""

    # A program that is no tool. It is the command only if the script starts no other program.
    UNKNOWN = 0
    # A file, or a program behind an interpreter, a container or the like.
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

    @property
    def read_in_ranks(self) -> set[str]:
        """Return the variables that COMMAND reads in a shell that the script does not start itself."""
        is_shell = self.command[:2] == ("bash", "-c")
        launched = self.training.launch.command if self.training else ()
        is_own = self.is_kept or self.text_in_ranks or launched[:2] != ("bash", "-c")
        return variables_read(self.command[2:3]) if is_shell and is_own else set()


@frozen
class Scope:
    """The statements that are read, and what surrounds them."""

    source: ShellSource
    read_file: Callable[[str], str]
    # Those of the script before a ``shift``; None if they are known only when it runs.
    arguments: tuple[str, ...] | None
    depth: int = 0
    in_ranks: bool = False  # whether a launcher starts them, so that each rank or node runs them
    errexit: str = ""  # the options of ``set -e`` with which their shell reaches them

    def words_for(self, code: str) -> tuple[str, ...]:
        """Return the words behind ``bash -c CODE``: arguments behind the shifts, if ``code`` reads them."""
        arguments = self.arguments if self.source.arguments is None else self.source.arguments
        return ("bash", *arguments) if arguments and POSITIONAL.search(code) else ()

    def folder_at(self, line: int) -> str:
        """Return the folder to which the script has changed before ``line``; '' for that of submit."""
        folder = ""
        for statement in self.source.statements:
            names = statement.commands[0].names if len(statement.commands) == 1 else ()
            if names[:1] == ("cd",) and len(names) == 2 and statement.line < line:
                is_of_submit = names[1].strip("${}") == "SLURM_SUBMIT_DIR"
                folder = "" if is_of_submit else os.path.join(folder, names[1])
        return folder

    def errexit_by_line(self) -> dict[int, str]:
        """Return for each line the options of ``set`` that end the script if it fails; '' without any."""
        errexit: dict[int, str] = {}
        is_on, has_pipefail = bool(self.errexit), "pipefail" in self.errexit
        for statement in self.source.statements:
            errexit[statement.line] = ("eo pipefail" if has_pipefail else "e") if is_on else ""
            text = statement.text
            if of_trap := re.match(r"trap\s+(\w+)\s.*\bERR\b", text):
                text += self.source.functions[of_trap[1]].text if of_trap[1] in self.source.functions else ""
                is_on = is_on or re.search(r"\bexit\b", text) is not None
            is_on = is_on or _ERREXIT.match(statement.text) is not None
            is_on = is_on and not _NO_ERREXIT.match(statement.text)
            has_pipefail = has_pipefail or re.match(r"set\s.*\bpipefail\b", statement.text) is not None
        return errexit

    def text_of(self, file: str, line: int) -> str:
        """Return the text of a script that a statement in ``line`` names; '' if it cannot be read."""
        return self.read_file(os.path.join(self.folder_at(line), file)) or self.read_file(file)

    def sources_unread(self, statement: Statement) -> bool:
        """Return whether a statement reads a file of shell code that convert cannot read."""
        names = statement.commands[0].names if statement.commands else ()
        if names[:1] not in (("source",), (".",)) or len(names) < 2 or KNOWN_FILES.search(names[1]):
            return False
        return not self.text_of(names[1], statement.line)


@frozen
class Candidate:
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


def variables_set(source: ShellSource) -> set[str]:
    """Return the variables that a script sets, also by ``${NAME:=default}``."""
    return {name for other in source.statements for name in (*other.sets, *_DEFAULTED.findall(other.text))}


def plain_launch(names: tuple[str, ...]) -> LaunchCommand:
    """Return a launch of one process by ``names``, without a launcher."""
    environment: list[tuple[str, str]] = []
    shell_words = list(names)
    while shell_words and re.match(r"[A-Za-z_]\w*=", shell_words[0]):
        name, _, value = shell_words.pop(0).partition("=")
        environment.append((name, value))
    remarks: tuple[str, ...] = ()
    while shell_words and shell_words[0] in ("time", "nohup", "exec", "command", "eval"):
        remarks = (TIME_IS_REPORTED,) if shell_words.pop(0) == "time" else remarks
    command = tuple(shell_words)
    return LaunchCommand(
        "",
        command=without_python(command),
        environment=tuple(environment),
        remarks=remarks,
        python=own_python(command),
    )


def calls(code: str, function: Statement) -> bool:
    name = re.escape(function_name(function))
    return re.search(rf"(?<![\w./-]){name}(?![\w.-])", code) is not None


def is_condition(statement: Statement) -> bool:
    """Return whether a statement runs its commands only if a test succeeds."""
    is_test = statement.kind == "list" and statement.text.startswith(("[", "((", "test "))
    return is_test or statement.block_kind in ("if_statement", "case_statement")


def is_helper(launch: LaunchCommand) -> bool:
    """Return whether a launcher starts no program that trains."""
    command = launch.command
    if text := inline_text(command):
        statements = ShellSource(text).statements
        names = {inner.names[0] for statement in statements for inner in statement.commands if inner.names}
        return all(map(is_tool, names))
    # ``env`` alone prints, and ``env A=1 PROGRAM`` starts a program.
    is_env = os.path.basename(command[0]) == "env" if command else False
    program = [word for word in command[is_env:] if not ASSIGNMENT.match(word)] or command
    return not program or is_tool(os.path.basename(program[0])) or is_image_command(program)


def function_name(statement: Statement) -> str:
    match = re.match(r"(?:function\s+|export\s+-f\s+)?([^\s(){}]+)", statement.text)
    return match[1] if match else ""


def is_small(launch: LaunchCommand, constants: Mapping[str, Constant]) -> bool:
    """Return whether srun starts one task, or one on each node and no launcher in it."""
    per_node = str(launch.per_node or constants.get("SLURM_NTASKS_PER_NODE", ""))
    is_one_per_node = launch.program == "srun" and not launch.rank_launcher and per_node == "1"
    is_one_task = launch.program == "srun" and launch.total == 1 and launch.per_node <= 1
    return is_one_task or (is_one_per_node and not launch.total)


def is_repeatable(statement: Statement) -> bool:
    """Return whether a second run of a statement, as before each run of a sweep, changes nothing."""
    programs = {command.program for command in statement.commands if command.names}
    are_repeatable = all(Trait.REPEATABLE in TRAITS.get(program, Trait.TOOL) for program in programs)
    appends = any(text.startswith(">>") for command in statement.commands for text in command.redirections)
    is_definition = statement.kind == "function_definition"
    return is_definition or (are_repeatable and not appends and not statement.in_background)
