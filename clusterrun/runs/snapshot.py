"""The code as it is now, uncommitted changes too, copied into a folder; knows git only as a list of files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from clusterrun import system
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen
from clusterrun.runs.disk import new_folder, refusal, write_whole

LIMIT = 200 << 20
MOST = 20_000
"""Bytes and files; more than this is data rather than code."""
GIT_SECONDS = 60.0
_NEVER = ("__pycache__", ".git", ".venv", "node_modules")


@frozen
class Snapshot:
    """What is to be copied: ``files`` below ``root``; ``commit`` is '' outside git."""

    root: str
    files: tuple[str, ...]
    size: int
    commit: str = ""

    def inside(self, path: str, target: str) -> str:
        """Where ``path`` is in the copy at ``target``; ``path`` itself where it is not in the snapshot."""
        within = os.path.relpath(path, self.root)
        return path if within.startswith("..") else os.path.normpath(os.path.join(target, within))


def look(cwd: str) -> Snapshot:
    """What a snapshot of ``cwd`` holds: what git knows or would add, or without git the whole folder.

    Raises ``BadInput`` where it is more than ``LIMIT`` bytes or ``MOST`` files.
    """
    top = _git(cwd, "rev-parse", "--show-toplevel").rstrip("\n")
    if not top:
        return _counted(cwd, _walk(cwd), "")
    listed = _git(top, "ls-files", "-co", "--exclude-standard", "-z").split("\0")
    return _counted(top, filter(None, dict.fromkeys(listed)), _git(top, "rev-parse", "HEAD").strip())


def _counted(root: str, names: Iterable[str], commit: str) -> Snapshot:
    """The files that are there; counting stops where they are too much, for it may be a whole home."""
    found: list[str] = []
    size = 0
    for name in names:
        path = os.path.join(root, name)
        if not os.path.lexists(path) or (os.path.isdir(path) and not os.path.islink(path)):
            continue  # deleted but still in git, or a repository inside this one
        found.append(name)
        size += os.lstat(path).st_size
        if size > LIMIT or len(found) > MOST:
            raise BadInput(
                f"below {root} there are more than {LIMIT >> 20} MB or {MOST} files: that is more than code",
                "keep data out (git: .gitignore), submit from a smaller folder, or use --no-snapshot",
            )
    return Snapshot(root, tuple(found), size, commit)


def _git(cwd: str, *args: str) -> str:
    try:
        done = system.run(("git", "-C", cwd, *args), GIT_SECONDS)
    except system.ProgramMissing:
        return ""
    return done.out if done.code == 0 else ""


def _walk(root: str) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _NEVER)
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in sorted(names) + links:
            yield os.path.relpath(os.path.join(folder, name), root)


def take(snapshot: Snapshot, target: str, record: str) -> None:
    """Copy the files to ``target`` (a new folder), and write beside it what differs from the commit.

    ``record`` is the path of the note: the commit and the diff of the working tree against it.
    """
    import shutil

    new_folder(target)
    for name in snapshot.files:
        copy = os.path.join(target, name)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        try:
            shutil.copy2(os.path.join(snapshot.root, name), copy, follow_symlinks=False)
        except OSError as error:
            raise refusal(copy, error) from error
    diff = _git(snapshot.root, "diff", "--binary", "HEAD") if snapshot.commit else ""
    write_whole(record, f"root {snapshot.root}\ncommit {snapshot.commit or 'none'}\n\n{diff}")
