"""Read the recipes that ``make TARGET`` or ``just RECIPE`` runs, as a shell script. Runs no code of them."""

from __future__ import annotations

import glob
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
_INCLUDES = {"make": re.compile(r"[-s]?include\s+([^#]*)"), "just": re.compile(r"import\??\s+([^#]*)")}
# Files that include each other are read no deeper.
_MOST_DEPTH = 5
_ASSIGNMENT = re.compile(r"(?:export\s+)?(\w+)\s*(?:\?|::?)?=\s*(.*)", re.ASCII)
_FILE_OPTIONS, _FOLDER_OPTIONS = (
    ("-f", "--file", "--justfile"),
    ("-C", "-d", "--directory", "--working-directory"),
)


def recipe_lines(command: Sequence[str], cwd: str) -> tuple[list[str], str]:
    """Return the recipes that ``command`` runs, and the place of each line; '' for other commands.

    Every other line is empty, or sets a variable.
    """
    program = os.path.basename(command[0]) if command else ""
    if program not in RECIPE_FILES:
        return [], ""
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
    syntax = program.lstrip("g")
    # just also looks for its file in the folders above.
    depth = os.path.abspath(cwd).count(os.sep) if syntax == "just" and not folder else 0
    for place in (folder, *(os.path.join(*[os.pardir] * number) for number in range(1, depth + 1))):
        for name in names:
            places, lines = _with_included(cwd, os.path.join(place, name), folder, syntax)
            if lines:
                return places, _recipes("\n".join(lines), targets, overrides, syntax)
    return [], ""


def _with_included(
    cwd: str, name: str, folder: str, syntax: str, depth: int = 0
) -> tuple[list[str], list[str]]:
    """Return the places and the lines of a recipe file, each file that it includes in place of the line.

    Relative paths start in the folder of the file for just, in ``folder`` for make.
    """
    base = os.path.join(cwd, os.path.dirname(name) if syntax == "just" else folder)
    places: list[str] = []
    lines: list[str] = []
    text = text_of_script(os.path.join(cwd, name))
    for number, line in enumerate(text.split("\n") if text else (), 1):
        include = _INCLUDES[syntax].match(line)
        patterns = include[1].replace('"', " ").replace("'", " ").split() if include else []
        included = [path for word in patterns for path in sorted(glob.glob(os.path.join(base, word)))]
        for path in included if depth < _MOST_DEPTH else ():
            more_places, more_lines = _with_included(
                cwd, os.path.relpath(path, cwd), folder, syntax, depth + 1
            )
            places, lines = places + more_places, lines + more_lines
        places.append(f"{name}, line {number}")
        lines.append(line)
    return places, lines


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
