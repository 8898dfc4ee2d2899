"""Read the command lines of Python and of shells: which program they run, or that they read it as input."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from clusterrun.model.frozen import frozen

PYTHON = re.compile(r"python[\d.]*", re.ASCII)
# ``"$PYTHON" -u -m package.module``: no other program has a module behind ``-m``.
_OPEN_MODULE = re.compile(r"\$[\w{}:=/.-]+ (?:-[uBEIOs]+ )*-m [A-Za-z_]\w*(?:\.\w+)*(?: |$)", re.ASCII)
SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
# Words before a command that every rank can do without.
NEEDLESS_BEFORE = (
    *("env", "time", "nohup", "setsid", "exec", "command", "builtin", "eval"),
    *("if", "then", "else", "elif", "do", "while", "until", "!", "{"),
)
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
# Programs that start the command behind their own options: each rank can start them as well.
LIMITERS = ("nice", "ionice", "numactl", "taskset", "stdbuf", "timeout", "chrt")
# Programs that run a recipe of a file in their folder.
_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
RECIPE_FILES = {"make": _MAKEFILES, "gmake": _MAKEFILES, "just": ("justfile", "Justfile", ".justfile")}
_OTHER = re.compile(r"perl|ruby|node|julia|lua")
# Long options whose value is the next word.
_VALUED = ("--rcfile", "--init-file", "--check-hash-based-pycs")
_INFORMATION = ("-h", "-V", "-VV", "--help", "--version")
_INPUT_FILES = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
# The first letter of a word of options that has a value, or that brings the program.
_PYTHON_LETTER, _SHELL_LETTER = re.compile("[WXcm]"), re.compile("[oOcs]")


@frozen
class InterpreterCall:
    """The program that a Python or a shell runs: at most one of ``code``, ``module`` and ``script``."""

    is_python: bool
    options: tuple[str, ...] = ()  # options before the program, with their values
    code: str = ""
    module: str = ""
    script: str = ""
    arguments: tuple[str, ...] = ()  # words behind the program
    reads_input: bool = False  # whether it takes the program from standard input


def interpreter_call(command: Sequence[str]) -> InterpreterCall | None:
    """Return what ``command`` runs if it is a Python or a shell; None for other commands."""
    command = tuple(command)
    name = os.path.basename(command[0]) if command else ""
    is_python = bool(PYTHON.fullmatch(name) or _OPEN_MODULE.match(" ".join(command[:6])))
    if not is_python and name not in SHELLS:
        return None
    place = 1
    while place < len(command) and command[place][0:1] in ("-", "+") and command[place] not in ("-", "--"):
        word = command[place]
        place += 1
        if word in _INFORMATION:
            return InterpreterCall(is_python, command[1:])
        if word.startswith("--"):
            place += word in _VALUED
            continue
        letter = (_PYTHON_LETTER if is_python else _SHELL_LETTER).search(word)
        if not letter:
            continue
        options = (*command[1 : place - 1], *((word[: letter.start()],) if letter.start() > 1 else ()))
        # A value may follow the letter of a Python directly: ``-mpdb``, ``-Xdev``.
        value = word[letter.end() :] if is_python else ""
        if letter[0] == "s":
            return InterpreterCall(is_python, command[1:place], arguments=command[place:], reads_input=True)
        if not value:
            value = command[place] if place < len(command) else ""
            place += 1
        if letter[0] == "c":
            return InterpreterCall(is_python, options, code=value, arguments=command[place:])
        if letter[0] == "m":
            return InterpreterCall(is_python, options, module=value, arguments=command[place:])
    options = command[1:place]
    place += command[place : place + 1] == ("--",)
    if command[place : place + 1] in ((), ("-",)):
        return InterpreterCall(is_python, options, arguments=command[place + 1 :], reads_input=True)
    return InterpreterCall(is_python, options, script=command[place], arguments=command[place + 1 :])


def unwrapped(command: Sequence[str]) -> tuple[str, ...]:
    """Return ``command`` without ``env``, ``timeout 1h`` and the like; () if its program is unknown."""
    rest = tuple(command)
    while rest and (rest[0] in NEEDLESS_BEFORE or ASSIGNMENT.match(rest[0])):
        rest = rest[1:]
    follows_options = len(rest) < len(command) and bool(rest) and rest[0].startswith("-")
    if not rest or not (follows_options or os.path.basename(rest[0]) in LIMITERS):
        return rest
    for index, word in enumerate(rest[1:], 1):
        name = os.path.basename(word)
        if "/" in word or name in (*SHELLS, *LIMITERS, *RECIPE_FILES) or PYTHON.fullmatch(name):
            return unwrapped(rest[index:])
    return ()


def reads_input(command: Sequence[str]) -> bool:
    """Return whether ``command`` takes its program from standard input, or names that as a file."""
    if any(word in _INPUT_FILES for word in command[1:]):
        return True
    command = unwrapped(command) or command
    call = interpreter_call(command)
    if call:
        return call.reads_input
    return bool(_OTHER.fullmatch(os.path.basename(command[0]))) and tuple(command[1:2]) in ((), ("-",))


def inline_text(command: Sequence[str]) -> str:
    """Return the text of ``bash -c TEXT``; '' for other commands."""
    call = interpreter_call(command)
    return call.code if call and not call.is_python else ""


def shell_script(command: Sequence[str]) -> str:
    """Return the file of ``job.sh`` or ``bash -x job.sh``; '' for ``bash -c`` and ``bash -s``."""
    call = interpreter_call(command)
    if not call and os.path.basename(command[0]) in ("csh", "tcsh", "fish"):
        return next((word for word in command[1:] if not word.startswith("-")), command[0])
    return command[0] if not call or call.is_python else call.script
