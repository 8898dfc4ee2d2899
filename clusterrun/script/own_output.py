"""Finds commands that open their own standard output or error stream by name (``> /dev/stderr``)."""

from __future__ import annotations

import os
import re

from clusterrun.model.spec import JobSpec

# gawk and mawk know these names themselves; for all other programs the kernel opens them.
_NAMES = re.compile(r"/dev/std(?:out|err)\b|/dev/fd/[12]\b|/proc/(?:self|\$\$|\$\{?BASHPID\}?)/fd/[12]\b")
_PATH = re.compile(r"[\w.+-]*[/.][\w./+-]*")
_MAX_SIZE = 1024 * 1024
_MAX_FILES = 64


def opens_own_output(spec: JobSpec) -> bool:
    """Return whether the command names its own output, itself or in a script that it runs.

    Scripts that are named in a script are read too, at most ``_MAX_FILES`` in all.
    """
    texts = ["\n".join(spec.command)]
    words = list(spec.command)
    seen: set[str] = set()
    while texts:
        text = texts.pop()
        if _NAMES.search(text):
            return True
        for word in (*words, *_PATH.findall(text)):
            path = os.path.join(spec.cwd, word)
            if path not in seen and len(seen) < _MAX_FILES and os.path.isfile(path):
                seen.add(path)
                texts.append(_text(path))
        words.clear()
    return False


def _text(path: str) -> str:
    """Return the content of a text file; '' for a binary or large file."""
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_SIZE + 1)
    except OSError:
        return ""
    is_text = len(content) <= _MAX_SIZE and b"\0" not in content
    return content.decode("utf-8", "replace") if is_text else ""
