"""The code as it is now, uncommitted changes too, copied into a folder; knows git only as a list of files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from clusterrun import system
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen, replace
from clusterrun.runs.private_files import new_folder, refusal, write_whole

LIMIT = 200 << 20
MOST = 20_000
"""Bytes and files; more than this is data rather than code."""
GIT_SECONDS = 60.0
CARRIED_NOTE = ".clusterrun-snapshot"
"""What a copy that came from another machine has in the place of git: the note that was made there."""
_NEVER = ("__pycache__", ".git", ".venv", "node_modules")


@frozen
class LeftOut:
    """What git ignores and a snapshot lacks, but for caches and the like; counted up to ``MOST`` files."""

    files: int = 0
    size: int = 0
    largest: str = ""
    largest_size: int = 0

    def __str__(self) -> str:
        if not self.files:
            return ""
        count = f"{MOST} files or more" if self.files >= MOST else f"{self.files} files"
        many = "1 file that git ignores is" if self.files == 1 else f"{count} that git ignores are"
        largest = f"the largest is {self.largest}, {_bytes(self.largest_size)}"
        return f"{many} not in it ({_bytes(self.size)}; {largest}): --snapshot-include PATH takes them along"


def _bytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


@frozen
class Snapshot:
    """What is copied of ``root``; ``commit`` is '' outside git, ``links`` are too large and linked to."""

    root: str
    files: tuple[str, ...]
    size: int
    commit: str = ""
    links: tuple[str, ...] = ()
    left_out: LeftOut = LeftOut()

    def __str__(self) -> str:
        linked = f"{', '.join(self.links)} linked to, for its size" if self.links else ""
        taken = f"snapshot: {len(self.files)} files, {_bytes(self.size)} of {self.root}"
        return "; ".join(filter(None, (taken, linked, str(self.left_out))))

    def inside(self, path: str, target: str) -> str:
        """Where ``path`` is in the copy at ``target``; ``path`` itself where it is not in the snapshot."""
        within = os.path.relpath(path, self.root)
        return path if within.startswith("..") else os.path.normpath(os.path.join(target, within))


def look(cwd: str, include: Iterable[str] = ()) -> Snapshot:
    """What a snapshot of ``cwd`` holds: what git knows or would add, or without git the whole folder.

    ``include`` are paths of which it has what git ignores too: copied, or linked to where that would be too
    much.
    """
    wanted = [os.path.normpath(os.path.join(cwd, path)) for path in include]
    for path in wanted:
        if not os.path.lexists(path):
            raise BadInput(f"--snapshot-include {path}: there is no such file or folder", "check its name")
    if carried := _carried(cwd):
        return _counted(carried, (name for name in _walk(carried) if name != CARRIED_NOTE), "")
    top = _git(cwd, "rev-parse", "--show-toplevel").rstrip("\n")
    if not top:
        return _counted(cwd, _walk(cwd), "")
    listed = _git(top, "ls-files", "-co", "--exclude-standard", "-z").split("\0")
    found = _counted(top, filter(None, dict.fromkeys(listed)), _git(top, "rev-parse", "HEAD").strip())
    ignored = _ignored(top)
    chosen = dict.fromkeys(entry for path in wanted for entry in _below(os.path.relpath(path, top), ignored))
    for entry in chosen:
        found = _with(found, entry)
    return replace(found, left_out=_weighed(top, ignored, tuple(chosen)))


def _carried(folder: str) -> str:
    """The copy from another machine in which ``folder`` is, '' for none; it may lie inside a repository."""
    while not os.path.isfile(os.path.join(folder, CARRIED_NOTE)):
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return ""
    return folder


def _ignored(top: str) -> list[str]:
    """What git ignores below ``top``: files, and folders of which it knows nothing else, each once."""
    listed = _git(top, "ls-files", "-oi", "--exclude-standard", "--directory", "-z").split("\0")
    found: list[str] = []
    for entry in sorted(filter(None, listed)):
        if not found or not entry.startswith(found[-1] + "/"):  # git names a folder and what is in it
            found.append(entry.rstrip("/"))
    return found


def _below(path: str, ignored: Iterable[str]) -> Iterator[str]:
    """Those of ``ignored`` that are ``path`` or lie below it; ``path`` itself where it lies below one."""
    for entry in ignored:
        if path == "." or entry == path or entry.startswith(path + "/"):
            yield entry
        elif path.startswith(entry + "/"):
            yield path


def _with(snapshot: Snapshot, entry: str) -> Snapshot:
    """The snapshot with one ignored file or folder more: its files, or a link to it."""
    path = os.path.join(snapshot.root, entry)
    folder = os.path.isdir(path) and not os.path.islink(path)
    names = [os.path.join(entry, name) for name in _walk(path)] if folder else [entry]
    try:
        more = _counted(snapshot.root, [*snapshot.files, *names], snapshot.commit)
    except BadInput:
        return replace(snapshot, links=(*snapshot.links, entry))
    return replace(snapshot, files=more.files, size=more.size)


def _weighed(root: str, ignored: Iterable[str], chosen: tuple[str, ...]) -> LeftOut:
    """What is left out: data, but no caches, environments or hidden files, which nobody misses."""
    count = size = largest_size = 0
    largest = ""
    for name in _data(root, ignored):
        if any(name == entry or name.startswith(entry + "/") for entry in chosen):
            continue
        try:
            own = os.lstat(os.path.join(root, name)).st_size
        except OSError:
            own = 0
        count, size = count + 1, size + own
        if own >= largest_size:
            largest, largest_size = name, own
        if count >= MOST:
            break
    return LeftOut(count, size, largest, largest_size)


def _data(root: str, ignored: Iterable[str]) -> Iterator[str]:
    for entry in ignored:
        path = os.path.join(root, entry)
        if _is_noise(entry):
            continue
        if not os.path.isdir(path):
            yield entry
        elif not os.path.exists(os.path.join(path, "pyvenv.cfg")):
            yield from (os.path.join(entry, name) for name in _walk(path) if not _is_noise(name))


def _is_noise(name: str) -> bool:
    noise = (part.startswith(".") or part in _NEVER or part.endswith(".egg-info") for part in name.split("/"))
    return name.endswith(".pyc") or any(noise)


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
            seen = (
                f"below {root} there are more than {LIMIT >> 20} MB or {MOST} files: that is more than code"
            )
            remedy = "keep data out (git: .gitignore), submit from a smaller folder, or use --no-snapshot"
            raise BadInput(seen, remedy)
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
    """Copy the files to ``target`` (a new folder), and write the ``note`` to the path ``record``."""
    import shutil

    new_folder(target)
    for name in (*snapshot.files, *snapshot.links):
        original, copy = os.path.join(snapshot.root, name), os.path.join(target, name)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        try:
            if name in snapshot.links:
                os.symlink(original, copy)
            else:
                shutil.copy2(original, copy, follow_symlinks=False)
        except OSError as error:
            raise refusal(copy, error) from error
    write_whole(record, note(snapshot))


def note(snapshot: Snapshot) -> str:
    """Where the files come from: folder, commit, and the diff of the working tree against it."""
    carried = os.path.join(snapshot.root, CARRIED_NOTE)
    if os.path.isfile(carried):
        with open(carried, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    diff = _git(snapshot.root, "diff", "--binary", "HEAD") if snapshot.commit else ""
    return f"root {snapshot.root}\ncommit {snapshot.commit or 'none'}\n\n{diff}"
