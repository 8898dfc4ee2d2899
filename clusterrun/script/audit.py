"""Compares a converted line with its batch script: each variable that the line reads has the same value."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterrun.script.batch_scripts import Part, PartOutcome
from clusterrun.script.script_reading import Reading, variables_read
from clusterrun.script.shell_source import ShellSource
from clusterrun.script.statement_rules import RENDEZVOUS, of_tasks

# Variables of every shell.
_OF_SHELL = {
    *("HOME", "USER", "LOGNAME", "PATH", "PWD", "OLDPWD", "SHELL", "HOSTNAME", "TMPDIR", "RANDOM", "SECONDS"),
    *("BASHPID", "EUID", "UID", "ARRAYS"),
}
# Commands of a setup line that may set variables which no statement shows.
_SETS_UNSEEN = re.compile(r"(?m)(?:^|[;&|{(]\s*)(?:source|\.|eval|set -a)\s|\w+\s*\(\)\s*\{|^function\s")
_EXPORTED = re.compile(r"\bexport\b([^\n]*)")


def _code(command: tuple[str, ...]) -> str:
    """Return the shell code of COMMAND; '' if it is no ``bash -c CODE``."""
    return command[2] if command[:2] == ("bash", "-c") else ""


def exports(setup: tuple[str, ...], command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a setup line that exports variables which COMMAND reads, and a file or a function may set."""
    text = "\n".join(setup)
    if not _SETS_UNSEEN.search(text):
        return ()
    exported = set(re.findall(r"\w+", " ".join(_EXPORTED.findall(text))))
    names = variables_read((_code(command),)) - exported - _OF_SHELL - RENDEZVOUS
    names = {name for name in names if not name.startswith(("SLURM_", "CLUSTERRUN_", "ARGUMENT_"))}
    return (f"export {' '.join(sorted(names))}",) if names else ()


def differences(source: ShellSource, reading: Reading) -> Iterator[Part]:
    """Yield the variables that the line reads, and that have another value, or none, in it."""
    code = _code(reading.command)
    in_line = ShellSource("\n".join((*reading.setup, code)))
    launch = reading.training.launch if reading.training else None
    environment = launch.environment if launch else ()
    texts = (*reading.command, *reading.setup, *(value for _, value in environment))
    absent = variables_read(texts) - RENDEZVOUS - {name for name, _ in (*reading.sweeps, *environment)}
    absent = absent.difference(*(statement.sets for statement in in_line.statements))
    named = {part.line for part in reading.parts if part.outcome is PartOutcome.UNTRANSLATED}
    for statement in source.statements:
        if statement.line not in named and (names := statement.sets & absent):
            reason = f"the line reads {', '.join(sorted(names))}, and this statement is not in it"
            yield Part(statement.line, statement.text, PartOutcome.UNTRANSLATED, reason)
    line = next((part.line for part in reading.parts if part.outcome is PartOutcome.COMMAND), 1)
    if not (launch and (launch.rank_launcher or launch.keeps_accelerate)):
        unset = variables_read((code,)) & RENDEZVOUS - source.names_set
        for name in sorted(unset):
            reason = "the script does not set it, and clusterrun does"
            yield Part(line, f"${name}", PartOutcome.OPTION, reason)
    if launch and launch.program == "srun" and not launch.rank_launcher:
        return  # ranks have the values of srun's tasks
    for name in of_tasks(variables_read((code,))):
        reason = "it counts ranks in the line, and other tasks in the script: write the value"
        yield Part(line, f"${name}", PartOutcome.UNTRANSLATED, reason)
