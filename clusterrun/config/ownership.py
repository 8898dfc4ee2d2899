"""Decide whether only this user or root can have written a configuration file.

A configuration file can name a program that its reader runs. It is searched upwards from the working
directory, so another user's file in a shared folder must not count.

The folders above the one with the file do not matter. A user with write access to them can replace that
folder, but cannot put a file of this user into the new one.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterable

from clusterrun.model.errors import BadInput

ROOT = 0


def objection(
    entries: Iterable[tuple[str, os.stat_result]], user: int, private: Callable[[int], bool]
) -> tuple[str, str]:
    """Return the problem of the first bad entry, and the command that repairs it; '' if there is none.

    ``entries`` are the file, the link that leads to it, and the folders that hold them. ``private`` tells
    whether a group has only the member ``user``. Many systems create one group per user, and let it write
    by default.
    """
    for path, status in entries:
        mode, uid, gid = status.st_mode, status.st_uid, status.st_gid
        if uid not in (user, ROOT):
            return f"{path} belongs to another user (number {uid})", ""
        shared = mode & stat.S_IWGRP and gid != ROOT and not private(gid)
        sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
        if (mode & stat.S_IWOTH or shared) and not (sticky or stat.S_ISLNK(mode)):
            mend = f"chmod go-w {shlex.quote(path)}" if uid == user else ""
            return f"{path} can be written by others (mode {stat.S_IMODE(mode):04o})", mend
    return "", ""


def check(path: str, handle: int) -> None:
    """Refuse the file ``path``, open as ``handle``, if others may have written it. Raises ``BadInput``."""
    real = os.path.realpath(path)
    folders = dict.fromkeys((os.path.dirname(real), os.path.dirname(path)))
    entries = [(real, os.fstat(handle))]
    entries += [(path, os.lstat(path))] if os.path.islink(path) else []
    entries += [(folder, os.stat(folder)) for folder in folders]
    problem, mend = objection(entries, os.geteuid(), _private)
    if problem:
        raise refusal(path, f"{problem}, and its lines can run programs as you", mend)


def refusal(path: str, problem: str, mend: str = "") -> BadInput:
    ways = [
        *([mend] if mend else []),
        f"if you trust all who may write it: export CLUSTERRUN_TRUST={shlex.quote(path)}",
        f'or in ~/.config/clusterrun/config.toml, below [defaults]: trust = ["{path}"]',
        "if not: touch clusterrun.toml in your project; the search upwards ends there",
    ]
    return BadInput(f"{path} is not read: {problem}", "\n".join(ways))


def _private(gid: int) -> bool:
    """Return whether the group has this user's name and no other member."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}
