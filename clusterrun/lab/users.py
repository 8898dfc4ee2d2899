"""Who runs a program in a lab when it is not the owner: identity, environment, folder."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterrun.lab.place import LabPlace
from clusterrun.lab.spec import USERS
from clusterrun.model.errors import BadInput

PRIVATE = ("CLUSTERRUN_HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
"""Variables that name the caller's own folders: another user has others."""


@dataclass(frozen=True)
class Identity:
    """An ordinary user inside a lab."""

    name: str
    user: int
    group: int
    home: str

    @property
    def words(self) -> list[str]:
        """What runs the program that follows as this user."""
        ids = [f"--reuid={self.user}", f"--regid={self.group}", "--clear-groups"]
        return ["setpriv", *ids, "--"]

    def environment(self, callers: Mapping[str, str]) -> dict[str, str]:
        """The caller's environment with what is this user's."""
        kept = {key: value for key, value in callers.items() if key not in PRIVATE}
        return {**kept, "HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": "/bin/bash"}

    def folder(self, wanted: str) -> str:
        """That folder, or home where this user may not enter it."""
        path = Path(wanted)
        return wanted if all(self._may_enter(one) for one in (path, *path.parents)) else self.home

    def _may_enter(self, path: Path) -> bool:
        found = os.stat(path)
        return bool(found.st_mode & (0o100 if found.st_uid == self.user else 0o001))


def identity(name: str, place: LabPlace) -> Identity:
    """One of the lab's ordinary users or of this machine's. Raises ``BadInput``."""
    if os.geteuid() != 0:
        raise BadInput(f"without root a lab has one user, and {name!r} is not it", "start the lab with sudo")
    if name in USERS:
        return Identity(name, USERS[name], USERS[name], str(place.homes / name))
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise BadInput(f"there is no user {name!r}", f"a lab has {', '.join(USERS)}") from error
    return Identity(name, entry.pw_uid, entry.pw_gid, entry.pw_dir)
