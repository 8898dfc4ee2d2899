"""Encode a command so that any remote login shell passes it on unchanged; pure.

The shells are sh, bash, zsh, ksh, csh and fish.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping

from clusterrun.model.errors import BadInput

# Exit code of a session if the installed client has been removed.
GONE = 97
# CLUSTERRUN_HOME on the cluster, as a word of sh.
HOME = '"${CLUSTERRUN_HOME:-$HOME/.clusterrun}"'
# Bytes. sshd passes the whole command to the shell as one argument, and Linux allows 128 KiB.
LONGEST = 120_000
_PLAIN = re.compile(rb"[A-Za-z0-9_@%+=:,./-]")
_START = (
    "exec 3>&1 >&2; "  # the output of a profile is no data
    'case $SHELL in */bash|*/zsh|*/ksh) s=$SHELL;; *) s=/bin/sh;; esac; exec "$s" -lc {inner}'
)


def command(script: str) -> str:
    """Return the command for sshd that runs ``script`` in a login shell, whatever shell the user has.

    Every shell parses the text before sh reads it, and their quotes differ: csh looks for ``!`` in them, fish
    for backslashes before quotes. The text therefore holds only plain letters and octal numbers. Raise
    ``BadInput`` if it is too long.
    """
    wrapped = _START.format(inner=shlex.quote(f"exec >&3 3>&-; {script}"))
    codes = (bytes([code]) for code in os.fsencode(wrapped))
    octal = b"".join(byte if _PLAIN.match(byte) else b"\\0%03o" % byte[0] for byte in codes)
    encoded = b'/bin/sh -c \'eval "$(printf %b "$0")"\' \'' + octal + b"'"
    if len(encoded) > LONGEST:
        raise BadInput("the command is too long to be sent there", "put its words into a file of the project")
    return encoded.decode("ascii")


def place(path: str) -> str:
    """Return a remote path as a word of sh; ``~`` is the home directory."""
    if path in ("", "~"):
        return '"$HOME"'
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def runs(prefix: str, arguments: str, folder: str, variables: Mapping[str, str]) -> str:
    """Return the script that runs ``prefix`` with ``arguments`` in ``folder``; all three are text of sh."""
    exported = "".join(f"export {name}={shlex.quote(value)}; " for name, value in variables.items())
    return f"cd {folder} || exit 2; {exported}{prefix} {arguments}"
