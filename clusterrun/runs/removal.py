"""Remove run directories, and finish removals that were cut short. Links are not followed.

The run directory is first renamed to a name that no run has, so the run does not exist any more. Its content
is removed after that.
"""

from __future__ import annotations

import errno
import os

from clusterrun import system
from clusterrun.model.errors import ClusterrunError, system_reason
from clusterrun.runs.private_files import names_in

# Prefix of the name of a run directory during its removal.
ASIDE = ".removed-"
# A process that has not noticed the removal may still write into the folder.
TRIES = 3
# Limit of one try. A slow file server may need minutes.
SECONDS = 3600.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Unremoved(ClusterrunError):
    """A part of a run directory could not be removed."""


def leftovers(runs: str) -> list[str]:
    """Return the folders below ``runs`` that an earlier removal has not finished."""
    return sorted(os.path.join(runs, name) for name in names_in(runs) if name.startswith(ASIDE))


def remove_run(run_dir: str) -> bool:
    """Remove a run directory. Return False if it does not exist any more. Raise ``Unremoved``."""
    runs, name = os.path.split(run_dir)
    aside = os.path.join(runs, ASIDE + name)
    if os.path.islink(run_dir):
        raise _unremoved(run_dir, "it is a link")
    try:
        try:
            os.rename(run_dir, aside)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            finish(os.path.join(run_dir, "attempts"))  # a new name may need room in the folder
            os.rename(run_dir, aside)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unremoved(run_dir, system_reason(error)) from error
    finish(aside)
    return True


def finish(folder: str) -> None:
    """Remove a folder and its content, but no other file system. Several processes may do so at once.

    rm removes folders of any depth. Its owner gets permission to write to a folder that rm cannot remove.
    Raise ``Unremoved``.
    """
    for _ in range(TRIES):
        result = system.run(("env", "LC_ALL=C", "rm", "-rf", "--one-file-system", "--", folder), SECONDS)
        if result.code == 0:
            return
        closed = ("-xdev", "-type", "d", "!", "-perm", "-700", "-exec", "chmod", "u+rwx", "{}", ";")
        system.run(("find", folder, *closed), SECONDS)
    raise _unremoved(folder, result.err.partition("\n")[0].removeprefix("rm: "))


def _unremoved(path: str, reason: str) -> Unremoved:
    return Unremoved(f"{path} could not be removed: {reason}", "clusterrun clean tries again")
