"""Run a program in a lab as another user: identity, environment, folder."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterrun.lab.place import LabPlace
from clusterrun.lab.spec import USERS
from clusterrun.model.errors import BadInput

# Variables that name the caller's own folders: another user has others.
PRIVATE = ("CLUSTERRUN_HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")


@dataclass(frozen=True)
class Identity:
    """An ordinary user inside a lab."""

    name: str
    user: int
    group: int
    home: str

    @property
    def words(self) -> list[str]:
        """Return the arguments that run a program as this user."""
        ids = [f"--reuid={self.user}", f"--regid={self.group}", "--clear-groups"]
        return ["setpriv", *ids, "--"]

    def environment(self, callers: Mapping[str, str]) -> dict[str, str]:
        """Return the caller's environment with this user's own variables."""
        inherited = {key: value for key, value in callers.items() if key not in PRIVATE}
        return {**inherited, "HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": "/bin/bash"}

    def folder(self, requested: str) -> str:
        """Return the folder, or the home if this user may not enter it."""
        path = Path(requested)
        return requested if all(self._may_enter(folder) for folder in (path, *path.parents)) else self.home

    def _may_enter(self, path: Path) -> bool:
        status = os.stat(path)
        return bool(status.st_mode & (0o100 if status.st_uid == self.user else 0o001))


def identity(name: str, place: LabPlace) -> Identity:
    """Return an ordinary user of the lab or of this machine. Raises ``BadInput``."""
    if os.geteuid() != 0:
        raise BadInput(f"without root a lab has one user, and {name!r} is not it", "start the lab with sudo")
    if name in USERS:
        return Identity(name, USERS[name], USERS[name], str(place.homes / name))
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise BadInput(f"there is no user {name!r}", f"a lab has {', '.join(USERS)}") from error
    return Identity(name, entry.pw_uid, entry.pw_gid, entry.pw_dir)
