"""Copy the working directory for each run, and list large files that a run makes in its copy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice

from clusterrun.model.errors import BadInput
from clusterrun.rehearse.rank_trace import Start, is_below

# Larger files are linked to, not copied.
LINKED_BYTES = 32 << 20
# Largest total size of the files that are copied.
MOST_BYTES = 2 << 30
# Most files of a linked folder that are linked to in turn. A folder with more is a data set.
MOST_LINKS = 10_000
LEFT_OUT = (".git", "__pycache__", ".hg", "node_modules", ".tox", ".mypy_cache", ".pytest_cache")
# A file of at least this size that is not a checkpoint was probably downloaded.
MADE_BYTES = 10 << 20


def moved(word: str, root: str, folder: str) -> str:
    """Return a word of the command; a path inside the working directory becomes one inside the copy."""
    return folder + word[len(root) :] if word == root or word.startswith(root + os.sep) else word


def outside(command: Sequence[str], root: str) -> tuple[str, ...]:
    """Return the paths in a command that lie outside of the working directory, which all runs share."""
    paths = [part for word in command for part in word.split("=") if os.path.isabs(part)]
    return tuple(word for word in paths if not (word + os.sep).startswith(root + os.sep))


def copy_folder(source: str, target: str) -> None:
    """Copy a working directory, without a folder in it that ``target`` is in, with links to large files.

    Raises ``BadInput`` if it is too large, or if a folder is gone or cannot be read.
    """

    def refuse(error: OSError) -> None:
        problem = f"{error.filename} cannot be copied: {error.strerror}"
        raise BadInput(problem, "each run needs a copy of the folder that the rehearsal was started in")

    source, target, total = os.path.realpath(source), os.path.realpath(target), 0
    for folder, names, files in os.walk(source, onerror=refuse):
        venvs = [name for name in names if os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))]
        names[:] = [name for name in names if name not in LEFT_OUT and name not in venvs]
        names[:] = [name for name in names if not is_below(target, os.path.join(folder, name))]
        target_folder = os.path.join(target, os.path.relpath(folder, source))
        os.makedirs(target_folder, 0o700, exist_ok=True)
        for name in names:
            if os.path.islink(os.path.join(folder, name)):
                _link_folder(os.path.join(folder, name), os.path.join(target_folder, name), source, target)
        for name in files:
            path = os.path.join(folder, name)
            if os.path.islink(path) or not os.path.isfile(path):
                if os.path.exists(path):
                    os.symlink(os.path.realpath(path), os.path.join(target_folder, name))
                continue
            size = os.path.getsize(path)
            total += size if size < LINKED_BYTES else 0
            if total > MOST_BYTES:
                raise BadInput(
                    f"{source} holds more than {MOST_BYTES >> 30} GB of small files; each run needs a copy",
                    "start in a folder that holds the script and little else",
                )
            if size >= LINKED_BYTES:
                os.symlink(path, os.path.join(target_folder, name))
            else:
                shutil.copy2(path, os.path.join(target_folder, name))


def _link_folder(path: str, target: str, root: str, copy: str) -> None:
    """Make the linked folder ``path`` of ``root`` as ``target`` in ``copy``: a folder of links to its files.

    A file that the script writes there then replaces a link, not the file of the user.
    """
    original = os.path.realpath(path)
    if is_below(original, root):
        os.symlink(copy + original[len(root) :], target)
        return
    folders = list(islice(os.walk(original), MOST_LINKS + 1))
    is_large = len(folders) + sum(len(files) for _, _, files in folders) > MOST_LINKS
    if is_large or is_below(root, original):
        os.symlink(original, target)
        return
    for folder, names, files in folders:
        target_folder = os.path.join(target, os.path.relpath(folder, original))
        os.makedirs(target_folder, 0o700, exist_ok=True)
        links = [name for name in names if os.path.islink(os.path.join(folder, name))]
        for name in (*links, *files):
            os.symlink(os.path.realpath(os.path.join(folder, name)), os.path.join(target_folder, name))


def new_files(source: str, copy: str, life: Start) -> Iterator[tuple[str, int]]:
    """Yield name and size of the large files that a run made in its copy and that are no checkpoints."""
    saved = {os.path.dirname(save.path) for save in life.saves}
    for folder, _, files in os.walk(copy):
        for name in files:
            path = os.path.join(folder, name)
            inside = os.path.relpath(path, copy)
            mine = os.path.lexists(os.path.join(source, inside)) or os.path.islink(path)
            if not mine and folder not in saved and os.path.getsize(path) >= MADE_BYTES:
                yield inside, os.path.getsize(path)
