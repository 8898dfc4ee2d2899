"""Read the recipes that ``make TARGET`` or ``just RECIPE`` runs, as a shell script. Runs no code of them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from clusterrun.script.interpreter_calls import RECIPE_FILES
from clusterrun.script.script_texts import text_of_script

# ``train: data``, and with parameters of just: ``train gpus="2" *args: data``.
_RULE = re.compile(r"@?([\w.-]+)(?:\s+[^:]*)?::?(?!=)([^#;]*)")
_VARIABLE = re.compile(r"\$\((\w+)\)|\{\{\s*(\w+)\s*\}\}")
_ASSIGNMENT = re.compile(r"(?:export\s+)?(\w+)\s*(?:\?|::?)?=\s*[\"']?([^\"']*)", re.ASCII)


def recipe_lines(command: Sequence[str], cwd: str) -> tuple[str, str]:
    """Return the name of the file with the recipes that ``command`` runs, and their lines as a shell script.

    Every other line is empty, or sets a variable. The name is '' for other commands.
    """
    program = os.path.basename(command[0]) if command else ""
    targets = [word for word in command[1:] if not (word.startswith("-") or "=" in word or word.isdigit())]
    for name in RECIPE_FILES.get(program, ()):
        if text := text_of_script(os.path.join(cwd, name)):
            return name, _recipes(text, targets)
    return "", ""


def _recipes(text: str, targets: list[str]) -> str:
    recipes: dict[str, list[int]] = {}
    needs: dict[str, list[str]] = {}
    target = ""
    lines = _VARIABLE.sub(r"${\1\2}", text).split("\n")
    shell_lines = [""] * len(lines)
    for number, line in enumerate(lines):
        if line[:1] in ("\t", " "):
            recipes.setdefault(target, []).append(number)
        elif assignment := _ASSIGNMENT.match(line):
            shell_lines[number] = f"{assignment[1]}={shlex.quote(assignment[2])}"
        elif rule := _RULE.match(line):
            target = rule[1]
            recipes.setdefault(target, [])
            needs[target] = rule[2].split()
    waiting = targets or [name for name in recipes if not name.startswith(".")][:1]
    while waiting:
        name = waiting.pop()
        for number in recipes.pop(name, []):
            shell_lines[number] = lines[number].lstrip("\t @+-").replace("$$", "$")
        waiting += needs.pop(name, [])
    return "\n".join(shell_lines)
