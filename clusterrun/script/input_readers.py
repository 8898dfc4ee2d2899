"""Finds commands whose ranks read a program or data from their standard input."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

_SHELL = re.compile(r"(?:ba|da|k|z)?sh")
_PYTHON = re.compile(r"python[\d.]*")
_OTHER = re.compile(r"perl|ruby|node|julia|lua")
# Options whose value is the next word.
_SHELL_VALUED = ("-o", "-O", "+o", "+O", "--rcfile", "--init-file")
_PYTHON_VALUED = ("-W", "-X", "--check-hash-based-pycs")
_INFORMATION = ("-h", "-V", "-VV", "--help", "--version")
_INPUT_FILES = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


def reads_input(command: Sequence[str]) -> bool:
    """Return whether ``command`` takes its program from standard input, or names that as a file."""
    program, arguments = os.path.basename(command[0]), command[1:]
    if any(word in _INPUT_FILES for word in arguments):
        return True
    if _SHELL.fullmatch(program):
        return _takes_input(arguments, _SHELL_VALUED, brings_program="c", reads="s")
    if _PYTHON.fullmatch(program):
        return _takes_input(arguments, _PYTHON_VALUED, brings_program="cm")
    return bool(_OTHER.fullmatch(program)) and list(arguments[:1]) in ([], ["-"])


def _takes_input(
    arguments: Sequence[str], valued: Sequence[str], brings_program: str, reads: str = ""
) -> bool:
    """Return whether an interpreter with these arguments reads its program from standard input.

    ``brings_program`` and ``reads`` are letters of options that bring a program, or ask for standard input.
    """
    place = 0
    while place < len(arguments):
        word = arguments[place]
        if word in _INFORMATION:
            return False
        if word in ("-", "--"):
            return word == "-" or place + 1 == len(arguments)
        if not word.startswith(("-", "+")):
            return False
        if not word.startswith("--"):
            letters = set(word[1:])
            if letters & set(brings_program):
                return False
            if letters & set(reads):
                return True
        place += 2 if word in valued else 1
    return True
