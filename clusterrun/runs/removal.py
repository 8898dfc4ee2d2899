"""Remove run directories, and finish removals that were cut short. Links are not followed.

The run directory is first renamed to a name that no run has, so the run does not exist any more. Its content
is removed after that.
"""

from __future__ import annotations

import errno
import os

from clusterrun.model.errors import ClusterrunError, system_reason
from clusterrun.runs.private_files import names_in

# Prefix of the name of a run directory during its removal.
ASIDE = ".removed-"
# Number of levels of folders that are open at once. A deeper folder is first moved up to the top.
DEEPEST = 50
# Another process that removes the same folder may move a folder up to the top meanwhile.
TRIES = 3
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
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
    try:
        try:
            os.rename(run_dir, aside)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            _remove(os.path.join(run_dir, "attempts"))  # a new name may need room in the folder
            os.rename(run_dir, aside)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unremoved(run_dir, error) from error
    finish(aside)
    return True


def finish(aside: str) -> None:
    """Remove the rest of a run directory that was renamed. Raise ``Unremoved``."""
    try:
        _remove(aside)
    except OSError as error:
        raise _unremoved(aside, error) from error


def _unremoved(path: str, error: OSError) -> Unremoved:
    where = os.path.join(path, error.filename) if isinstance(error.filename, str) else path
    message = f"{where} could not be removed: {system_reason(error)}"
    return Unremoved(message, "clusterrun clean tries again")


def _remove(top: str) -> None:
    """Remove a folder and its content. Several processes may do so at once."""
    above, name = os.path.split(top)
    try:
        parent = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        for tries_left in reversed(range(TRIES)):
            with _Folder(parent, name) as folder:
                while _empty(folder, folder, 0):
                    pass
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or not tries_left:
                    raise
    except FileNotFoundError:
        pass
    finally:
        os.close(parent)


class _Folder:
    """An open folder. Its owner gets permission to write to it."""

    def __init__(self, parent: int, name: str) -> None:
        place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            about = os.fstat(place)
            if about.st_mode & 0o700 != 0o700:
                os.chmod(f"/proc/self/fd/{place}", 0o700)
        finally:
            os.close(place)
        self.device = about.st_dev
        self.fd = os.open(name, _FOLDER, dir_fd=parent)

    def __enter__(self) -> _Folder:
        return self

    def __exit__(self, *why: object) -> None:
        os.close(self.fd)


def _empty(folder: _Folder, top: _Folder, depth: int) -> bool:
    """Remove the content of ``folder``. Return whether a folder was moved up into ``top``."""
    raised = False
    with os.scandir(folder.fd) as entries:
        contents = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in contents:
        try:
            if not is_folder:
                os.unlink(name, dir_fd=folder.fd)
            elif depth >= DEEPEST:
                os.rename(name, os.urandom(8).hex(), src_dir_fd=folder.fd, dst_dir_fd=top.fd)
                raised = True
            else:
                raised |= _remove_below(folder, name, top, depth)
        except FileNotFoundError:
            continue
    return raised


def _remove_below(above: _Folder, name: str, top: _Folder, depth: int) -> bool:
    """Remove the folder ``name``. Return whether a folder was moved up into ``top``."""
    with _Folder(above.fd, name) as folder:
        if folder.device != top.device:
            raise OSError(errno.EXDEV, "it is the mount point of another file system", name)
        raised = _empty(folder, top, depth + 1)
    os.rmdir(name, dir_fd=above.fd)
    return raised
