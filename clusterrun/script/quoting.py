"""Write values into script text, with one rule for each use."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from clusterrun.model.errors import BadInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

# Value of a template variable: text, a number, or lines of text.
Value: TypeAlias = "str | int | Sequence[str]"

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)
_BLANKED = re.compile(r"packjob|hetjob", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Characters. Older versions of sbatch copy a directive into a buffer without a check of its length.
LONGEST = 1000

# Replaces a dollar sign that the shell does not expand. ``$`` in a value is an open expansion.
DOLLAR = "\ue024"


def literal(text: str) -> str:
    """Return the value in whose ``text`` the shell expands nothing."""
    return text.replace("$", DOLLAR)


def plain_text(value: str) -> str:
    """Return a value without the marks of dollar signs that the shell does not expand."""
    return value.replace(DOLLAR, "$")


def evaluated_text(value: str) -> str:
    """Return the shell's text, in double quotes, of a value with open expansions."""
    return '"' + value.replace(DOLLAR, "\\$") + '"'


def quoted(value: Value) -> str:
    """Return one quoted word of the shell for each text."""
    return shlex.quote(str(value)) if isinstance(value, (str, int)) else shlex.join(value)


def lines(value: Value) -> str:
    """Return the text unchanged, one line for each item."""
    return str(value) if isinstance(value, (str, int)) else "\n".join(value)


def checked(value: Value) -> str:
    """Return shell lines unchanged, each followed by a check of its exit code.

    If a command or a here-document may span several lines, only the last line is checked. A check after
    ``else`` would read the exit code of the condition.
    """
    items = [str(value)] if isinstance(value, (str, int)) else value
    if any(map(_continues, items)):
        return "\n".join((*items, _CHECK.format(quoted("; ".join(items)))))
    return "\n".join(f"{item}\n{_CHECK.format(quoted(item))}" for item in items)


# It sets no variable: the lines may have one of any name.
_CHECK = "case $? in 0) ;; *) setup_failed $? {} ;; esac"
_OPENING = re.compile(r"\b(?:if|for|while|until|case|select)\b")
_CLOSING = re.compile(r"\b(?:fi|done|esac)\b")
_OPEN_END = re.compile(r"<<|(?:[\\|&({]|\b(?:then|else|do|in))\s*\Z|\A\s*(?:[)}]|elif\b|else\b)")


def _continues(item: str) -> bool:
    """Return whether a line may be part of a longer command. A shell keyword inside a string counts too."""
    uneven = len(_OPENING.findall(item)) != len(_CLOSING.findall(item))
    odd = item.count("'") % 2 or item.count('"') % 2
    return bool(uneven or odd or _OPEN_END.search(item))


def sbatch(value: Value) -> str:
    """Return ``#SBATCH`` lines, one for each option (``--key=value``).

    sbatch parses them unlike a shell: a backslash escapes everywhere, also between single quotes. Raises
    ``BadInput`` if no line can carry an option.
    """
    options = [str(value)] if isinstance(value, (str, int)) else value
    lines = []
    for option in options:
        if not carries(option):
            raise BadInput(f"{option!r} does not fit on an #SBATCH line", "leave out control characters")
        escaped = option.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f"#SBATCH {option}" if _PLAIN.fullmatch(option) else f'#SBATCH "{escaped}"')
    return "\n".join(lines)


def carries(option: str) -> bool:
    """Return whether an ``#SBATCH`` line can carry ``option`` unchanged; otherwise the command line must.

    The line ends at the first line break, and sbatch erases the words "packjob" and "hetjob" in it.
    """
    return not (_CONTROL.search(option) or _BLANKED.search(option) or len(option) > LONGEST)


# Rules by their names in templates. ``quoted`` applies to every value without a name.
RULES: Mapping[str, Callable[[Value], str]] = {
    "quoted": quoted,
    "lines": lines,
    "checked": checked,
    "sbatch": sbatch,
}
