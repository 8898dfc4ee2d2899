"""Encodes a command so that any remote login shell (sh, bash, zsh, ksh, csh, fish) passes it on unchanged;
pure."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping

from clusterrun.model.errors import BadInput

GONE = 97
"""What a session ends with where the client that was installed there is not there any more."""
HOME = '"${CLUSTERRUN_HOME:-$HOME/.clusterrun}"'
"""CLUSTERRUN_HOME there, as a word of sh."""
LONGEST = 120_000
"""Bytes: sshd gives the whole command to the shell as one argument, and Linux takes 128 KiB."""
_PLAIN = re.compile(rb"[A-Za-z0-9_@%+=:,./-]")
_START = (
    "exec 3>&1 >&2; "  # what a profile prints is no data
    'case $SHELL in */bash|*/zsh|*/ksh) s=$SHELL;; *) s=/bin/sh;; esac; exec "$s" -lc {inner}'
)


def command(script: str) -> str:
    """What sshd is given so that a login shell runs ``script``, whichever shell the user has.

    Every shell takes the text apart before sh reads it, and their quotes differ: csh looks for ``!`` in them,
    fish for backslashes before quotes. So it holds plain letters and octal numbers. Raises ``BadInput``.
    """
    whole = _START.format(inner=shlex.quote(f"exec >&3 3>&-; {script}"))
    codes = (bytes([code]) for code in os.fsencode(whole))
    octal = b"".join(one if _PLAIN.match(one) else b"\\0%03o" % one[0] for one in codes)
    found = b'/bin/sh -c \'eval "$(printf %b "$0")"\' \'' + octal + b"'"
    if len(found) > LONGEST:
        raise BadInput("the command is too long to be sent there", "put its words into a file of the project")
    return found.decode("ascii")


def place(path: str) -> str:
    """A path there as a word of sh, where ``~`` is the home directory."""
    if path in ("", "~"):
        return '"$HOME"'
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def runs(prefix: str, words: str, folder: str, variables: Mapping[str, str]) -> str:
    """The script that ends with ``prefix`` and ``words``, in ``folder``; all three are text of sh."""
    exported = "".join(f"export {name}={shlex.quote(value)}; " for name, value in variables.items())
    return f"cd {folder} || exit 2; {exported}{prefix} {words}"
