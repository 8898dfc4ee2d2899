"""How a value is written into script text, one rule for each way to use it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from clusterrun.model.errors import BadInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

Value: TypeAlias = "str | int | Sequence[str]"
"""What a template may show: text, a number, or lines of text."""

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)
_BLANKED = re.compile(r"packjob|hetjob", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
LONGEST = 1000
"""Characters; older versions of sbatch read a directive into a buffer and do not look at its length."""


def quoted(value: Value) -> str:
    """One word for the shell for each text, whatever is in it."""
    return shlex.quote(str(value)) if isinstance(value, (str, int)) else shlex.join(value)


def lines(value: Value) -> str:
    """Text as it is, one line for each item."""
    return str(value) if isinstance(value, (str, int)) else "\n".join(value)


def checked(value: Value) -> str:
    """Shell lines as they are, each followed by a check of its exit code.

    Where a command or a here-document may span several lines, the code of the last one is checked alone:
    a check after ``else`` would read the code of the condition.
    """
    items = [str(value)] if isinstance(value, (str, int)) else value
    if any(map(_continues, items)):
        return "\n".join((*items, _CHECK.format(quoted("; ".join(items)))))
    return "\n".join(f"{item}\n{_CHECK.format(quoted(item))}" for item in items)


_CHECK = "code=$?; [[ $code = 0 ]] || setup_failed $code {}"
_OPENING = re.compile(r"\b(?:if|for|while|until|case|select)\b")
_CLOSING = re.compile(r"\b(?:fi|done|esac)\b")
_OPEN_END = re.compile(r"<<|(?:[\\|&({]|\b(?:then|else|do|in))\s*\Z|\A\s*(?:[)}]|elif\b|else\b)")


def _continues(item: str) -> bool:
    """Whether a line may be a part of something longer; a word of the shell in a string counts too."""
    uneven = len(_OPENING.findall(item)) != len(_CLOSING.findall(item))
    odd = item.count("'") % 2 or item.count('"') % 2
    return bool(uneven or odd or _OPEN_END.search(item))


def sbatch(value: Value) -> str:
    """``#SBATCH`` lines, one for each option (``--key=value``).

    Written for sbatch's own reading of them, which is not the shell's: a backslash escapes
    everywhere, also between single quotes. Raises ``BadInput`` if no line can carry an option.
    """
    options = [str(value)] if isinstance(value, (str, int)) else value
    return "\n".join("#SBATCH " + _directive(option) for option in options)


def carries(option: str) -> bool:
    """Whether an ``#SBATCH`` line can carry ``option`` unchanged; the command line must carry the others.

    Such a line always ends at a line break, and sbatch blanks the words "packjob" and
    "hetjob" wherever they stand in it.
    """
    return not (_CONTROL.search(option) or _BLANKED.search(option) or len(option) > LONGEST)


def _directive(option: str) -> str:
    if not carries(option):
        raise BadInput(f"{option!r} does not fit on an #SBATCH line", "leave out control characters")
    if _PLAIN.fullmatch(option):
        return option
    return '"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"'


RULES: Mapping[str, Callable[[Value], str]] = {
    "quoted": quoted,
    "lines": lines,
    "checked": checked,
    "sbatch": sbatch,
}
"""By the names that templates use; ``quoted`` needs no mention, it is what happens to every value."""
