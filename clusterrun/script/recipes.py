"""Read the recipes that ``make TARGET`` or ``just RECIPE`` runs, as a shell script. Runs no code of them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from clusterrun.script.interpreter_calls import RECIPE_FILES
from clusterrun.script.script_texts import text_of_script

_RULES = {
    "make": re.compile(r"([^\s#=:][^#=:]*)::?(?!=)([^#;]*)"),
    # A recipe may have parameters, with defaults: ``train gpus="2" *args: build``.
    "just": re.compile(r"@?([\w-]+)(?:\s+[^:]*)?:(?!=)([^#]*)"),
}
_INDENTS = {"make": ("\t",), "just": ("\t", " ")}
_VARIABLES = {"make": re.compile(r"\$\((\w+)\)"), "just": re.compile(r"\{\{\s*(\w+)\s*\}\}")}
_ASSIGNMENT = re.compile(r"(?:export\s+)?(\w+)\s*(?:\?|::?)?=\s*(.*)", re.ASCII)
_FILE_OPTIONS, _FOLDER_OPTIONS = (
    ("-f", "--file", "--justfile"),
    ("-C", "-d", "--directory", "--working-directory"),
)


def recipe_lines(command: Sequence[str], cwd: str) -> tuple[str, str]:
    """Return the name of the recipe file and the recipes that ``command`` runs; '' for other commands.

    The lines keep their numbers: every other line is empty, or sets a variable.
    """
    program = os.path.basename(command[0]) if command else ""
    if program not in RECIPE_FILES:
        return "", ""
    names, folder, targets, overrides = list(RECIPE_FILES[program]), "", [], {}
    arguments = iter(command[1:])
    for word in arguments:
        option, _, value = word.partition("=") if word.startswith("--") else (word[:2], "", word[2:])
        if option in (*_FILE_OPTIONS, *_FOLDER_OPTIONS):
            value = value or next(arguments, "")
            names, folder = ([value], folder) if option in _FILE_OPTIONS else (names, value)
        elif not word.startswith("-") and "=" in word:
            overrides[word.partition("=")[0]] = word.partition("=")[2]
        elif not word.startswith("-") and not word.isdigit():  # a number is of ``-j 4``
            targets.append(word)
    for name in names:
        text = text_of_script(os.path.join(cwd, folder, name))
        if text:
            return os.path.join(folder, name), _recipes(text, targets, overrides, program.lstrip("g"))
    return "", ""


def _recipes(text: str, targets: list[str], overrides: dict[str, str], syntax: str) -> str:
    recipes: dict[str, list[int]] = {}
    needs: dict[str, list[str]] = {}
    current: list[str] = []
    lines = _VARIABLES[syntax].sub(r"${\1}", text).split("\n")
    shell_lines = [""] * len(lines)
    for number, line in enumerate(lines):
        if line.startswith(_INDENTS[syntax]):
            for target in current:
                recipes[target].append(number)
        elif assignment := _ASSIGNMENT.match(line):
            name, value = assignment.groups()
            value = value.strip("\"'") if syntax == "just" else value
            shell_lines[number] = f"{name}={shlex.quote(overrides.get(name, value))}"
        elif rule := _RULES[syntax].match(line):
            current = rule[1].split()
            for target in current:
                recipes.setdefault(target, [])
                needs.setdefault(target, []).extend(rule[2].split())
    waiting = targets or [target for target in recipes if not target.startswith(".")][:1]
    while waiting:
        target = waiting.pop()
        for number in recipes.pop(target, []):
            shell_lines[number] = lines[number].lstrip("\t @+-").replace("$$", "$")
        waiting += needs.pop(target, [])
    return "\n".join(shell_lines)
