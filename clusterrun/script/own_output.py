"""Finds commands that open their own standard output or error stream by name (``> /dev/stderr``)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from clusterrun.model.spec import JobSpec

# gawk and mawk handle these names themselves. For all other programs the kernel opens the file.
_NAMES = re.compile(r"/dev/std(?:out|err)\b|/dev/fd/[12]\b|/proc/(?:self|\$\$|\$\{?BASHPID\}?)/fd/[12]\b")
_PATH = re.compile(r"[\w.+-]*[/.][\w./+-]*")
_MAX_SIZE = 1024 * 1024
_MAX_FILES = 64
# Limit on arguments that are looked up as files. A network file system may need a millisecond for each.
_MAX_WORDS = 500


def opens_own_output(spec: JobSpec) -> bool:
    """Return whether the command or a script that it runs opens its own output by name.

    Scripts that a shell script names are read too. Modules that Python imports are not.
    """
    if _NAMES.search("\n".join(spec.command)):
        return True
    waiting = list(_command_files(spec.command))
    read_paths: set[str] = set()
    read = 0
    while waiting and len(read_paths) < _MAX_WORDS and read < _MAX_FILES:
        path = os.path.join(spec.cwd, waiting.pop())
        if path in read_paths:
            continue
        read_paths.add(path)
        text = _text(path)
        read += bool(text)
        if _NAMES.search(text):
            return True
        if not path.endswith(".py"):
            waiting += _PATH.findall(text)
    return False


def _command_files(command: Sequence[str]) -> Iterator[str]:
    """Yield the words that may be files; for ``-m MODULE`` the files that Python would run."""
    for option, word in zip(("", *command), command):
        if option == "-m":
            yield word.replace(".", "/") + ".py"
            yield word.replace(".", "/") + "/__main__.py"
        else:
            # One argument may contain several words, as in ``bash -c './run.sh --lr 1'``.
            yield word
            yield from _PATH.findall(word)


def _text(path: str) -> str:
    """Return the content of a text file; '' for anything else and for a large file."""
    if not os.path.isfile(path):
        return ""
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_SIZE + 1)
    except OSError:
        return ""
    is_text = len(content) <= _MAX_SIZE and b"\0" not in content
    return content.decode("utf-8", "replace") if is_text else ""
