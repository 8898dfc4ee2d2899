"""Reads the recipes that ``make TARGET`` runs, as a shell script. Runs no code of them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from clusterrun.script.script_texts import MAKEFILES, text_of_script

_RULE = re.compile(r"([^\s#=:][^#=:]*)::?(?!=)([^#;]*)")
_ASSIGNMENT = re.compile(r"(?:export\s+)?(\w+)\s*(?:\?|::?)?=\s*(.*)", re.ASCII)


def make_recipe(command: Sequence[str], cwd: str) -> tuple[str, str]:
    """Return the name of the Makefile and the recipes of the targets of ``command``; '' for other commands.

    The lines keep their numbers: every other line is empty, or sets a variable.
    """
    if not command or os.path.basename(command[0]) not in ("make", "gmake"):
        return "", ""
    names, folder, targets, overrides = list(MAKEFILES), "", [], {}
    arguments = iter(command[1:])
    for word in arguments:
        option, value = word[:2], word[2:]
        if option in ("-f", "-C"):
            value = value or next(arguments, "")
            names, folder = ([value], folder) if option == "-f" else (names, value)
        elif "=" in word:
            overrides[word.partition("=")[0]] = word.partition("=")[2]
        elif not word.startswith("-") and not word.isdigit():  # a number is of ``-j 4``
            targets.append(word)
    for name in names:
        text = text_of_script(os.path.join(cwd, folder, name))
        if text:
            return os.path.join(folder, name), _recipes(text, targets, overrides)
    return "", ""


def _recipes(text: str, targets: list[str], overrides: dict[str, str]) -> str:
    recipes: dict[str, list[int]] = {}
    needs: dict[str, list[str]] = {}
    current: list[str] = []
    lines = re.sub(r"\$\((\w+)\)", r"${\1}", text).split("\n")
    shell_lines = [""] * len(lines)
    for number, line in enumerate(lines):
        if line.startswith("\t"):
            for target in current:
                recipes[target].append(number)
        elif assignment := _ASSIGNMENT.match(line):
            name, value = assignment.groups()
            shell_lines[number] = f"{name}={shlex.quote(overrides.get(name, value))}"
        elif rule := _RULE.match(line):
            current = rule[1].split()
            for target in current:
                recipes.setdefault(target, [])
                needs.setdefault(target, []).extend(rule[2].split())
    waiting = targets or [target for target in recipes if not target.startswith(".")][:1]
    while waiting:
        target = waiting.pop()
        for number in recipes.pop(target, []):
            shell_lines[number] = lines[number].lstrip("\t@+-").replace("$$", "$")
        waiting += needs.pop(target, [])
    return "\n".join(shell_lines)
