"""Return the environment that ranks will inherit, and the owners of processes."""

from __future__ import annotations

import os
from collections.abc import Mapping


def variables() -> Mapping[str, str]:
    """Return the environment of the examiner, which the node's ranks will inherit."""
    return os.environ


def owner(pid: int, command: str) -> str:
    """Return the user of process ``pid``, or '' if it is not visible or runs another program.

    The driver reports host PIDs, which name other processes inside a container.
    """
    import pwd  # Needed only if a GPU is in use.

    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            program = os.fsdecode(file.read(4096).split(b"\0")[0])
        number = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    if not command or os.path.basename(program) != os.path.basename(command):
        return ""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
