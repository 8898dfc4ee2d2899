"""What is around a probe: the environment that ranks will inherit, and whose processes there are."""

from __future__ import annotations

import os
from collections.abc import Mapping


def variables() -> Mapping[str, str]:
    """What the examiner was started with: what the node's ranks will inherit."""
    return os.environ


def owner(pid: int, command: str) -> str:
    """Whose process ``pid`` is; empty if it cannot be seen, or where that number is another program here.

    The driver reports host PIDs, which name other processes inside a container.
    """
    import pwd  # of use only where a GPU is in use

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
