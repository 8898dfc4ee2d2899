"""Copy the code in its present state, with uncommitted changes, into a folder."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from clusterrun import system
from clusterrun.model import contract
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.phrases import count_of, some_of
from clusterrun.model.size import sized
from clusterrun.runs.private_files import new_folder, refusal, write_whole

# Bytes and files of a snapshot. More is data rather than code.
LIMIT = 200 << 20
MOST = 20_000
GIT_SECONDS = 60.0
# The note in a copy that came from another machine: folder, commit and diff there.
CARRIED_NOTE = ".clusterrun-snapshot"
_NEVER = ("__pycache__", ".git", ".venv", "node_modules")
# Files that mark a folder as a Python environment: of venv, virtualenv and uv; of conda.
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
# Modules that git often ignores since a build makes them; the package does not import without them.
_MODULES = (".py", ".so")
# The mode of a submodule in the index.
_SUBMODULE = "160000 "
_LIVE = "ranks use the original, so later changes there reach them"


@frozen
class Data:
    """Files that ranks do not find in the copy, counted up to ``MOST``."""

    files: int = 0
    size: int = 0
    names: tuple[str, ...] = ()  # ignored files, then ignored folders with a slash


@frozen
class Snapshot:
    """The files of a project that are copied, and the links to other files.

    Every path is relative to ``root``, the top folder of the repository, or the submit folder outside git.
    """

    root: str
    files: tuple[str, ...]
    size: int  # bytes of the files
    commit: str = ""  # '' outside git and before the first commit
    is_dirty: bool = False  # the files differ from the commit
    diff: str = ""  # the difference, as git shows it
    not_compared: str = ""  # why git could not compare the files with the commit
    repositories: tuple[str, ...] = ()  # submodules and nested clones, whose files are copied too
    empty_submodules: tuple[str, ...] = ()
    links: tuple[str, ...] = ()  # too large to copy: the copy has a link to the original
    environments: tuple[str, ...] = ()  # Python environments: the copy has a link to the original
    outside: tuple[tuple[str, str], ...] = ()  # links to something that is not copied: name, absolute target
    special: tuple[str, ...] = ()  # pipes, sockets and devices, which cannot be copied
    ignored: Data = Data()
    lacks_git: bool = False  # a repository, on a machine without git: the whole folder is copied
    home: str = ""  # the folder of all runs, which is never copied; '' if it is not below the root

    def lines(self) -> Iterator[str]:
        """Yield sentences on the copied files, the other files, and the effect on the ranks."""
        commit = f", commit {self.commit[:12]}" if self.commit else ""
        changes = " with uncommitted changes" if self.commit and self.is_dirty else ""
        files = f"{count_of(len(self.files), 'file')}, {sized(self.size)}"
        yield f"snapshot: {files} of {self.root}{commit}{changes}"
        if self.not_compared:
            yield f"the difference from the commit is not known: {self.not_compared}"
        if self.lacks_git:
            yield "this machine has no git: what git ignores is copied too, and no commit is known"
        if self.empty_submodules:
            names = some_of(self.empty_submodules)
            yield f"not in the copy: {names}: empty here (git submodule update --init --recursive fills it)"
        if self.links:
            yield f"linked to for its size: {some_of(self.links)}: {_LIVE}"
        if self.environments:
            names = some_of(self.environments)
            yield f"not in the copy: the Python environment {names}: {_LIVE}"
        if self.outside:
            size = sum(_weight(target) for _, target in self.outside)
            names = some_of([f"{name} → {target}" for name, target in self.outside])
            count = count_of(len(self.outside), "link")
            yield f"not in the copy: the target of {count} ({sized(size)}; {names}): {_LIVE}"
        if self.special:
            yield f"not in the copy: {some_of(self.special)}: not a file (a pipe, a socket or a device)"
        if self.ignored.files:
            data = self.ignored
            count = f"{MOST} files or more" if data.files >= MOST else count_of(data.files, "file")
            yield (
                f"not in the copy: {count} that git ignores ({sized(data.size)}; {some_of(data.names)}):"
                " no relative path leads to them; --snapshot-include PATH takes them along"
            )

    def __str__(self) -> str:
        return "; ".join(self.lines())

    def below(self, path: str) -> str:
        """Return the absolute ``path`` relative to the root; '' if it is not below it."""
        resolved = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        for name in (resolved, path):
            relative = os.path.relpath(name, self.root)
            if relative.partition("/")[0] != os.pardir:
                return relative
        return ""

    def inside(self, path: str, target: str) -> str:
        """Return where the copy at ``target`` has the absolute ``path``, or ``path`` if it is not copied."""
        relative = self.below(path)
        return (
            os.path.normpath(os.path.join(target, relative)) if relative and self._copies(relative) else path
        )

    def has(self, path: str) -> bool:
        """Return whether the copy has the absolute ``path``, be it by a link."""
        relative = self.below(path)
        linked = (*self.links, *self.environments, *(name for name, _ in self.outside))
        return bool(relative) and (
            self._copies(relative) or any(_is_within(relative, link) for link in linked)
        )

    def copies(self, path: str) -> bool:
        """Return whether the copy has a file or folder of its own for the absolute ``path``, not a link."""
        relative = self.below(path)
        return bool(relative) and self._copies(relative)

    def _copies(self, below: str) -> bool:
        return below == "." or any(_is_within(name, below) for name in self.files)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _weight(path: str) -> int:
    """Return the bytes of a file, or of at most ``MOST`` files below a folder."""
    if not os.path.isdir(path):
        return os.stat(path).st_size if os.path.exists(path) else 0
    size = 0
    for number, name in enumerate(_walk(path)):
        if number >= MOST:
            break
        size += os.lstat(os.path.join(path, name)).st_size
    return size


def look(cwd: str, include: Iterable[str] = (), home: str = "") -> Snapshot:
    """Return a snapshot of ``cwd``: the files that git knows or would add, or the whole folder without git.

    Submodules and nested clones are copied in the same way. The git-ignored files of ``include`` are copied
    too, or linked to if they are too large. The folder ``home``, which holds all runs, is never copied. Raise
    ``BadInput``, with git's message if git fails.
    """
    included = [os.path.normpath(os.path.join(cwd, path)) for path in include]
    for path in included:
        if not os.path.lexists(path):
            raise BadInput(f"--snapshot-include {path}: there is no such file or folder", "check its name")
    carried_folder = _folder_with(cwd, CARRIED_NOTE)
    if carried_folder:
        note_file = os.path.join(carried_folder, CARRIED_NOTE)
        with open(note_file, encoding="utf-8", errors="surrogateescape") as file:
            head, _, patch = file.read().partition("\n\n")
        facts = dict(line.split(" ", 1) for line in head.splitlines() if " " in line)
        commit = facts.get("commit", "none")
        commit = "" if commit == "none" else commit
        is_dirty = facts.get("dirty", "yes" if patch else "no") == "yes"
        names = (name for name in _walk(carried_folder) if name != CARRIED_NOTE)
        return replace(_copied(Snapshot(carried_folder, (), 0), names), commit=commit, is_dirty=is_dirty)
    try:
        top = _top(cwd)
    except system.ProgramMissing:
        lacks_git = bool(_folder_with(cwd, ".git"))
        return replace(_whole_folder(cwd, home), lacks_git=lacks_git)
    if not top:
        return _whole_folder(cwd, home)
    snapshot = _with_repository(_empty(top, home), "")
    listed = _git(top, "ls-files", "-oi", "--exclude-standard", "--directory", "-z").split("\0")
    ignored: list[str] = []
    for entry in sorted(filter(None, listed)):
        if not ignored or not entry.startswith(ignored[-1] + "/"):  # git names a folder and what is in it
            ignored.append(entry.rstrip("/"))
    for entry in ignored:  # setuptools keeps the links of a strict editable install in an ignored folder
        included += glob.glob(os.path.join(glob.escape(os.path.join(top, entry)), "__editable__.*"))
    chosen = [entry for path in included for entry in _ignored_below(os.path.relpath(path, top), ignored)]
    for entry in dict.fromkeys(chosen):
        location = os.path.join(snapshot.root, entry)
        is_folder = os.path.isdir(location) and not os.path.islink(location)
        contents = [os.path.join(entry, name) for name in _walk(location)] if is_folder else [entry]
        try:
            snapshot = _copied(snapshot, contents)
        except TooMuch:
            snapshot = replace(snapshot, links=(*snapshot.links, entry))
    environments = [
        entry for entry in ignored if _is_environment(os.path.join(top, entry)) and entry not in chosen
    ]
    code = [  # modules, and links: a copied link leads to the data of the original
        entry
        for entry in ignored
        if (entry.endswith(_MODULES) or os.path.islink(os.path.join(top, entry)))
        and not _is_noise(entry)
        and entry not in environments
    ]
    snapshot = _copied(snapshot, [entry for entry in code if entry not in chosen])
    chosen += code
    commit, is_dirty, diff, not_compared = _commit(top), False, "", ""
    try:
        is_dirty = bool(_git(top, "status", "--porcelain"))
        diff = _git(top, "diff", "--binary", "HEAD") if commit else ""
    except BadInput as error:  # both run the filters of .gitattributes, such as git-lfs
        not_compared = error.seen
    return replace(
        snapshot,
        commit=commit,
        is_dirty=is_dirty,
        diff=diff,
        not_compared=not_compared,
        environments=(*snapshot.environments, *environments),
        outside=_links_outside(snapshot),
        ignored=_weigh_ignored(top, ignored, chosen),
    )


def _empty(root: str, home: str) -> Snapshot:
    relative = os.path.relpath(os.path.realpath(home), os.path.realpath(root)) if home else ".."
    is_below = relative != "." and relative.split(os.sep)[0] != ".."
    return Snapshot(root, (), 0, home=os.path.join(root, relative) if is_below else "")


def _whole_folder(cwd: str, home: str) -> Snapshot:
    environments: list[str] = []
    snapshot = _empty(cwd, home)
    snapshot = _copied(snapshot, _walk(cwd, environments, snapshot.home))
    snapshot = replace(snapshot, environments=tuple(environments))
    return replace(snapshot, outside=_links_outside(snapshot))


def _folder_with(folder: str, name: str) -> str:
    """Return ``folder`` or the nearest folder above it that has a file ``name``; '' if there is none."""
    while not os.path.exists(os.path.join(folder, name)):
        folder, folder_below = os.path.dirname(folder), folder
        if folder == folder_below:
            return ""
    return folder


def _git(folder: str, *args: str, absent: int = 0, stdin: str = "") -> str:
    """Return the output of git in ``folder``, '' for the exit code ``absent``.

    Raise ``BadInput`` or ``ProgramMissing``.
    """
    without = [option for name in contract.GIT_VARIABLES for option in ("-u", name)]
    argv = ("env", *without, "LC_ALL=C", "GIT_OPTIONAL_LOCKS=0", "git", *args)
    result = system.run(argv, GIT_SECONDS, stdin, cwd=folder)
    if result.code == 127:
        raise system.ProgramMissing("the program 'git' was not found")
    if result.code not in (0, absent):
        message = " ".join(result.err.split()) or f"exit code {result.code}"
        raise BadInput(f"git fails in {folder}: {message}", "mend that, or use --no-snapshot")
    return result.out if result.code == 0 else ""


def _top(cwd: str) -> str:
    """Return the top folder of the repository of ``cwd``, '' outside git."""
    try:
        return _git(cwd, "rev-parse", "--show-toplevel").rstrip("\n")
    except BadInput as error:
        if "not a git repository" in error.seen:
            return ""
        raise


def _commit(repository: str) -> str:
    return _git(repository, "rev-parse", "--verify", "--quiet", "HEAD", absent=1).strip()


def _with_repository(snapshot: Snapshot, folder: str) -> Snapshot:
    """Return ``snapshot`` with the files of the repository at ``folder``, and of repositories inside it."""
    path = os.path.join(snapshot.root, folder)
    listed = _git(path, "ls-files", "-co", "--exclude-standard", "-z").split("\0")
    names = [os.path.join(folder, name).rstrip("/") for name in dict.fromkeys(listed) if name]
    environments = tuple(
        os.path.dirname(name) for name in names if os.path.basename(name) == _ENVIRONMENT_MARKS[0]
    )
    files: list[str] = []
    nested: list[str] = []
    for name in names:
        path = os.path.join(snapshot.root, name)
        if any(_is_within(name, environment) for environment in environments):
            continue
        is_folder = os.path.isdir(path) and not os.path.islink(path)
        (nested if is_folder else files).append(name)
    snapshot = _copied(snapshot, files)
    snapshot = replace(snapshot, environments=(*snapshot.environments, *environments))
    for name in nested:
        if not os.path.lexists(os.path.join(snapshot.root, name, ".git")):
            entry = _git(snapshot.root, "ls-files", "-s", "--", name)
            # The folder may replace a tracked file. git lists its files too.
            if not entry or entry.startswith(_SUBMODULE):
                snapshot = replace(snapshot, empty_submodules=(*snapshot.empty_submodules, name))
            continue
        try:
            snapshot = _with_repository(replace(snapshot, repositories=(*snapshot.repositories, name)), name)
        except TooMuch:
            snapshot = replace(snapshot, links=(*snapshot.links, name))
    return snapshot


def _ignored_below(path: str, ignored: Iterable[str]) -> Iterator[str]:
    """Yield the entries of ``ignored`` at or below ``path``; ``path`` itself if it is below an entry."""
    for entry in ignored:
        if path == "." or _is_within(entry, path):
            yield entry
        elif _is_within(path, entry):
            yield path


def _weigh_ignored(root: str, ignored: Iterable[str], chosen: Sequence[str]) -> Data:
    """Return the ignored files that ranks may miss, except caches, environments and hidden files."""
    files, size = 0, 0
    names: list[str] = []
    for entry in ignored:
        before = files
        for name in _ignored_data(root, entry):
            if files >= MOST:
                break
            if not any(_is_within(name, included) for included in chosen):
                files += 1
                with suppress(OSError):
                    size += os.lstat(os.path.join(root, name)).st_size
        if files > before:
            names.append(entry + "/" if os.path.isdir(os.path.join(root, entry)) else entry)
    return Data(files, size, tuple(sorted(names, key=lambda name: name.endswith("/"))))


def _ignored_data(root: str, entry: str) -> Iterator[str]:
    """Yield the files of an ignored file or folder, except caches, environments and hidden files."""
    path = os.path.join(root, entry)
    if _is_noise(entry) or _is_environment(path):
        return
    if not os.path.isdir(path):
        yield entry
    else:
        yield from (os.path.join(entry, name) for name in _walk(path) if not _is_noise(name))


def _is_environment(path: str) -> bool:
    return any(os.path.exists(os.path.join(path, mark)) for mark in _ENVIRONMENT_MARKS)


def _is_noise(name: str) -> bool:
    for part in name.split("/"):
        # python-dotenv and direnv read .env and .envrc.
        is_hidden = part.startswith(".") and not part.startswith(".env")
        if is_hidden or part in _NEVER or part.endswith(".egg-info"):
            return True
    return name.endswith(".pyc")


class TooMuch(BadInput):
    """The files of a snapshot are more than code."""


def _copied(snapshot: Snapshot, names: Iterable[str]) -> Snapshot:
    """Return ``snapshot`` with the files ``names`` that exist.

    Raise ``TooMuch`` if the files are more than code.
    """
    files, special = list(snapshot.files), list(snapshot.special)
    size = snapshot.size
    for name in names:
        path = os.path.join(snapshot.root, name)
        if snapshot.home and _is_within(path, snapshot.home):
            continue
        try:
            status = os.lstat(path)
        except OSError:
            continue  # git still lists a file that was deleted
        if stat.S_ISDIR(status.st_mode):
            continue
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
            special.append(name)
            continue
        files.append(name)
        size += status.st_size
        if size > LIMIT or len(files) > MOST:
            limits = f"more than {LIMIT >> 20} MB or {MOST} files, counted up to {name}"
            message = f"below {snapshot.root} there are {limits}: that is more than code"
            remedy = "keep data out (git: .gitignore), submit from a smaller folder, or use --no-snapshot"
            raise TooMuch(message, remedy)
    return replace(snapshot, files=tuple(files), special=tuple(special), size=size)


def _links_outside(snapshot: Snapshot) -> tuple[tuple[str, str], ...]:
    """Return the links whose target is not in the copy, each with its absolute target."""
    links = []
    for name in snapshot.files:
        path = os.path.join(snapshot.root, name)
        if os.path.islink(path):
            target = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
            relative = snapshot.below(target)
            if os.path.exists(target) and not (relative and snapshot._copies(relative)):
                links.append((name, target))
    return tuple(links)


def _walk(root: str, environments: list[str] | None = None, home: str = "") -> Iterator[str]:
    """Yield the files and links below ``root``.

    Caches and ``home`` are left out, and Python environments if there is a list ``environments`` to add them
    to.
    """
    for folder, folders, names in os.walk(root):
        if environments is not None:
            for name in folders:
                if _is_environment(os.path.join(folder, name)):
                    environments.append(os.path.relpath(os.path.join(folder, name), root))
        folders[:] = sorted(
            name
            for name in folders
            if name not in _NEVER
            and os.path.join(folder, name) != home
            and os.path.relpath(os.path.join(folder, name), root) not in (environments or ())
        )
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in sorted(names) + links:
            yield os.path.relpath(os.path.join(folder, name), root)


def take(snapshot: Snapshot, target: str, record: str) -> None:
    """Copy the files to ``target`` (a new folder), and write the ``note`` to the path ``record``."""
    import shutil

    new_folder(target)
    originals = {
        name: os.path.join(snapshot.root, name) for name in (*snapshot.links, *snapshot.environments)
    }
    originals.update(snapshot.outside)
    for name in dict.fromkeys((*snapshot.files, *originals)):
        path, copy = os.path.join(snapshot.root, name), os.path.join(target, name)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        try:
            if name in originals:
                os.symlink(originals[name], copy)
            elif os.path.islink(path) and os.path.isabs(os.readlink(path)):
                os.symlink(snapshot.inside(os.readlink(path), target), copy)
            else:
                shutil.copy2(path, copy, follow_symlinks=False)
        except OSError as error:
            raise refusal(copy, error) from error
    try:
        # Make the folders of which no file was copied, because ranks may write into them. A folder that holds
        # files is made without its own folders: it may be a tree of data.
        new_folders = set()
        for folder, folders, names in os.walk(snapshot.root):
            copy = os.path.join(target, os.path.relpath(folder, snapshot.root))
            if copy in new_folders and names:
                folders.clear()
            for name in list(folders):
                path, original = os.path.join(copy, name), os.path.join(folder, name)
                if (
                    name in _NEVER
                    or original == snapshot.home
                    or os.path.islink(path)
                    or os.path.islink(original)
                ):
                    folders.remove(name)
                elif not os.path.exists(path):
                    os.mkdir(path)
                    new_folders.add(path)
    except OSError as error:
        raise refusal(target, error) from error
    has_repository = bool(snapshot.commit) or os.path.lexists(os.path.join(snapshot.root, ".git"))
    for repository in ("", *snapshot.repositories) if has_repository else ():
        _make_repository(snapshot, repository, os.path.join(target, repository))
    write_whole(record, note(snapshot))


def _make_repository(snapshot: Snapshot, folder: str, copy: str) -> None:
    """Make ``copy`` a repository at the commit of the original, with its branches, tags and staged changes.

    It reads the objects of the original. A copy from another machine knows its commit and no object. A git
    that is missing, or too old for this, leaves the copy as it is.
    """
    import shutil

    original, git = os.path.join(snapshot.root, folder), os.path.join(copy, ".git")
    has_objects = os.path.lexists(os.path.join(original, ".git"))
    try:
        commit = _commit(original) if has_objects else snapshot.commit
        kind = _git(original, "rev-parse", "--show-object-format").strip() if has_objects else ""
        _git(
            copy, "init", "--quiet", "--template=", *(["--object-format=sha256"] if kind == "sha256" else [])
        )
        os.makedirs(os.path.join(git, "info"), exist_ok=True)
        linked = [*snapshot.links, *snapshot.environments]
        exclude = "".join(f"/{os.path.relpath(name, folder or '.')}\n" for name in linked)
        write_whole(os.path.join(git, "info", "exclude"), exclude)
        write_whole(os.path.join(git, "HEAD"), f"{commit}\n" if commit else "ref: refs/heads/main\n")
        if not has_objects:
            return
        objects = os.path.join(original, _git(original, "rev-parse", "--git-path", "objects").rstrip("\n"))
        write_whole(os.path.join(git, "objects", "info", "alternates"), f"{objects}\n")
        if commit:  # the original may lose the commit: git commit --amend, then git gc
            names = _git(original, "rev-list", "--objects", "--filter=blob:none", "--no-walk", commit)
            _git(original, "pack-objects", "-q", os.path.join(git, "objects/pack/pack"), stdin=names)
        shallow = os.path.join(original, _git(original, "rev-parse", "--git-path", "shallow").rstrip("\n"))
        if os.path.exists(shallow):
            shutil.copyfile(shallow, os.path.join(git, "shallow"))
        references = _git(original, "for-each-ref", "--format=%(objectname) %(refname)")
        write_whole(os.path.join(git, "packed-refs"), references)
        if branch := _git(original, "symbolic-ref", "--quiet", "HEAD", absent=1):
            write_whole(os.path.join(git, "HEAD"), f"ref: {branch}")
        index = os.path.join(original, _git(original, "rev-parse", "--git-path", "index").rstrip("\n"))
        try:
            shutil.copyfile(index, os.path.join(git, "index"))
            _git(copy, "ls-files")
        except (OSError, BadInput):  # nothing was staged yet, or the index has parts in other files
            if os.path.lexists(os.path.join(git, "index")):
                os.unlink(os.path.join(git, "index"))
            if commit:
                _git(copy, "read-tree", "HEAD")
        _git(copy, "update-index", "-q", "--refresh", absent=1)
        for name in filter(None, _git(copy, "ls-files", "-z").split("\0")):
            link, place = os.path.join(original, name), os.path.join(copy, name)
            if os.path.islink(link) and os.path.islink(place) and os.readlink(link) != os.readlink(place):
                # Another target in the copy is no change of the code.
                _git(copy, "update-index", "--skip-worktree", "--", name)
    except (BadInput, system.ProgramMissing):
        shutil.rmtree(git, ignore_errors=True)


def note(snapshot: Snapshot) -> str:
    """Return the origin of the files: the folder, the commit, and the diff of the working tree."""
    carried = os.path.join(snapshot.root, CARRIED_NOTE)
    if os.path.isfile(carried):
        with open(carried, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    dirty = "yes" if snapshot.is_dirty else "no"
    facts = f"root {snapshot.root}\ncommit {snapshot.commit or 'none'}\n"
    facts += f"not compared {snapshot.not_compared}\n" if snapshot.not_compared else f"dirty {dirty}\n"
    return f"{facts}\n{snapshot.diff}"
