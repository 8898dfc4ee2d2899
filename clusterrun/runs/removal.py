"""Removes run directories so that a removal cut short is finished by the next one; follows no link.

A run directory is first renamed, in one step: from then on there is no such run. What is left of it
bears a name that no run has, beside the others.
"""

from __future__ import annotations

import errno
import os

from clusterrun.model.errors import ClusterrunError
from clusterrun.runs.private_files import names_in

ASIDE = ".removed-"
"""How the name of a run directory that is being removed begins."""
DEEPEST = 50
"""Levels of folders that are held open at once; what lies deeper is first moved up to the top."""
TRIES = 3
"""Somebody who removes the same folder may bring something up from below meanwhile."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Unremoved(ClusterrunError):
    """Something of a run directory could not be removed."""


def leftovers(runs: str) -> list[str]:
    """The folders below ``runs`` of which an earlier removal has left something."""
    return sorted(os.path.join(runs, name) for name in names_in(runs) if name.startswith(ASIDE))


def remove_run(run_dir: str) -> bool:
    """Remove a run directory; False if somebody else has done so. Raises ``Unremoved``."""
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
    """Remove what is left of a run directory that was renamed. Raises ``Unremoved``."""
    try:
        _remove(aside)
    except OSError as error:
        raise _unremoved(aside, error) from error


def _unremoved(path: str, error: OSError) -> Unremoved:
    where = os.path.join(path, error.filename) if isinstance(error.filename, str) else path
    said = (error.strerror or str(error)).lower()
    return Unremoved(f"{where} could not be removed: {said}", "clusterrun clean tries again")


def _remove(top: str) -> None:
    """Remove a folder with all that is in it; several may do so at once."""
    above, name = os.path.split(top)
    try:
        parent = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        for left in reversed(range(TRIES)):
            with _Folder(parent, name) as folder:
                while _empty(folder, folder, 0):
                    pass
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or not left:
                    raise
    except FileNotFoundError:
        pass
    finally:
        os.close(parent)


class _Folder:
    """An open folder of ours that may be written, whatever its mode was."""

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
    """Remove what is in ``folder``; whether something was moved up into ``top``, which then is not empty."""
    raised = False
    with os.scandir(folder.fd) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
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
    with _Folder(above.fd, name) as folder:
        if folder.device != top.device:
            raise OSError(errno.EXDEV, "it is the mount point of another file system", name)
        raised = _empty(folder, top, depth + 1)
    os.rmdir(name, dir_fd=above.fd)
    return raised
