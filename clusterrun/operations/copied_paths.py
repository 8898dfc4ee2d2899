"""Map the paths of a submission into the copy of its code, and report the paths that a run would miss."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType

from clusterrun.model import contract
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.paths import RunPaths
from clusterrun.model.phrases import some_of
from clusterrun.model.spec import JobSpec
from clusterrun.runs.code_snapshot import Snapshot
from clusterrun.script.interpreter_calls import inline_text, shell_script
from clusterrun.system import text_of

_RUNNERS = ("source", ".", "bash", "sh", "exec")
# Bytes. A longer script is a program that is not written for this run.
SMALL_SCRIPT = 1 << 16
# Files with a notice each. A larger number of lines hides the other notices.
MOST_FILES = 3
_SHELL_ENDINGS = (".sh", ".bash", ".zsh", ".ksh")
_CODE_ENDINGS = (*_SHELL_ENDINGS, ".py", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini", ".env")
# Ends at what cannot belong to the path: quotes, blanks, brackets, separators.
_REST_OF_PATH = re.compile(r"[^\s\"'`:;,)\]}>|&]*")
# A relative path that leaves the folder in which it starts.
_LEAVES = re.compile(r"(?<![\w.}$/])(?:\.\./)+")
# Variables that shells set, and the import path, which ranks map.
_OTHER_VARIABLES = {"PWD", "OLDPWD", "_", "PYTHONPATH"}
_SHELL_LINE = re.compile(r"#!.*\b(?:ba|da|z|k)?sh\b")
REMEDY = "copy it with --snapshot-include {0}, or give its absolute path"


def moved(spec: JobSpec, snapshot: Snapshot, target: str) -> JobSpec:
    """Return ``spec`` with every path below the project in the copy at ``target``.

    The directory always moves. Words of the command and values of ``--env`` move if the copy has that file. A
    path that leaves the project becomes absolute. The ranks map their import path by the variables that are
    set here.
    """
    relative = snapshot.below(spec.cwd)
    cwd = os.path.normpath(os.path.join(target, relative)) if relative else spec.cwd

    def place(word: str) -> str:
        head, equals, path = word.rpartition("=")
        if os.path.isabs(path):
            return head + equals + (snapshot.inside(path, target) if os.path.isfile(path) else path)
        original = _absolute(spec.cwd, path)
        leaves = os.pardir in path.split("/") and not snapshot.below(original)
        return head + equals + original if leaves else word

    python = os.path.join(spec.cwd, spec.python) if "/" in spec.python else spec.python
    is_compared = snapshot.commit and (snapshot.is_dirty or not snapshot.not_compared)
    code = {
        contract.CODE_ORIGINAL_VARIABLE: snapshot.root,
        contract.CODE_COPY_VARIABLE: target,
        contract.GIT_COMMIT_VARIABLE: snapshot.commit,
        contract.GIT_DIRTY_VARIABLE: str(int(snapshot.is_dirty)) if is_compared else "",
    }
    environment = tuple((name, place(value)) for name, value in spec.environment)
    return replace(
        spec,
        cwd=cwd,
        command=tuple(map(place, spec.command)),
        python=snapshot.inside(python, target) if "/" in python else python,
        environment=(*((name, value) for name, value in code.items() if value), *environment),
    )


def _absolute(folder: str, path: str) -> str:
    """Return the absolute form of ``path`` in ``folder``. A slash at its end stays, for names behind it."""
    return os.path.normpath(os.path.join(folder, path)) + "/" * path.endswith("/")


def moved_back(spec: JobSpec, paths: RunPaths) -> JobSpec:
    """Return the recorded ``spec`` of a run with every path in its copy of the code back in the project."""
    root = text_of(paths.snapshot_note).partition("\n")[0].removeprefix("root ")

    def original(path: str) -> str:
        return path.replace(paths.snapshot, root) if root else path

    command = tuple(map(original, spec.command))
    return replace(spec, cwd=original(spec.cwd), command=command, python=original(spec.python))


def missing(
    spec: JobSpec, snapshot: Snapshot, environ: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return notices about paths of ``spec`` that the copy lacks, or that still lead to the original.

    ``environ`` is the user's, which ranks inherit. Its PWD may lead through a link.
    Raises ``BadInput`` if the script or a file that ``--setup`` names is not in the copy.
    """
    for line in spec.setup:
        for word in _scripts(line):
            if _is_lost(word, spec.cwd, snapshot):
                message = f"--setup {line!r} runs {word}, which is not in the copy of --snapshot"
                raise BadInput(message, REMEDY.format(shlex.quote(word)))
    notices = []
    for number, word in enumerate(spec.command):
        path = word.rpartition("=")[2]
        is_script = path.endswith(".py") and all(name.startswith("-") for name in spec.command[1:number])
        if _is_lost(path, spec.cwd, snapshot) and snapshot.below(os.path.join(spec.cwd, path)):
            message = f"{path} is not in the copy of --snapshot"
            if is_script:
                raise BadInput(message, REMEDY.format(shlex.quote(path)))
            notices.append(f"{message}: {REMEDY.format(shlex.quote(path))}")
        elif os.path.isabs(path) and os.path.isdir(path) and snapshot.below(path):
            notices.append(
                f"{path} stays the folder of the original: name it by a relative path to use the copy"
            )
    inherited = environ.keys() - _OTHER_VARIABLES - dict(spec.environment).keys()
    live = sorted(name for name in inherited if any(map(snapshot.copies, _absolute_paths(environ[name]))))
    if live:
        notices.append(
            f"variables of this shell lead to the original, not to the copy: {some_of(live)}: --env"
            f" {live[0]}=PATH with a path relative to the working directory"
        )
    return (*notices, *_live_paths(spec, snapshot, environ.get("PWD", "")))


def _live_paths(spec: JobSpec, snapshot: Snapshot, shown_cwd: str) -> Iterator[str]:
    """Yield a notice for each path in the code that leads to the live folder, or out of the copy.

    Reads the ``--setup`` lines, the shell line of COMMAND, the small shell scripts that COMMAND names, and
    the copied files of code and settings, at most ``MOST_FILES`` of which have a notice each.
    """
    texts = [(f"--setup {line!r}", line) for line in spec.setup]
    texts.append(("the shell line", inline_text(spec.command)))
    script = shell_script(spec.command)
    read = set()
    for argument in dict.fromkeys(spec.command):
        path = os.path.join(spec.cwd, argument)
        text = _small_text(path)
        is_run_by_shell = argument == script and argument != spec.command[0]
        if is_run_by_shell or argument.endswith(_SHELL_ENDINGS) or _SHELL_LINE.match(text):
            texts.append((argument, text))
            read.add(snapshot.below(os.path.abspath(path)))
    folder = os.path.join(snapshot.root, snapshot.below(spec.cwd))
    for place, text in texts:
        paths: set[str] = set()
        is_file = place in spec.command
        for number, line in enumerate(text.split("\n"), 1):
            for path in _absolute_paths(line):
                if path in paths or not snapshot.copies(path):
                    continue
                paths.add(path)
                where = f"{place}, line {number}" if is_file else place
                yield _live_path(where, path, snapshot, folder)
    # The beginnings of absolute paths that lead into the project, longest first: its path without links, its
    # path in the user's shell, and its path below the home folder.
    cwd = spec.cwd
    roots = {snapshot.root}
    below = snapshot.below(cwd)
    if shown_cwd and os.path.realpath(shown_cwd) == os.path.realpath(cwd) and below:
        depth = 0 if below == "." else below.count("/") + 1
        shown_root = os.path.normpath(os.path.join(shown_cwd, *[os.pardir] * depth))
        if os.path.realpath(shown_root) == os.path.realpath(snapshot.root):
            roots.add(shown_root)
    home = os.path.expanduser("~")
    relative = os.path.relpath(os.path.realpath(snapshot.root), os.path.realpath(home))
    if relative != "." and relative.partition("/")[0] != os.pardir:
        roots |= {f"{start}/{relative}" for start in (home, "~", "$HOME", "${HOME}")}
    beginnings = sorted(roots, key=len, reverse=True)
    spellings = "|".join(map(re.escape, beginnings))
    spelling = re.compile(rf"(?<![\w.}}$])(?:{spellings})|{_LEAVES.pattern}")
    notices: list[str] = []
    named = {snapshot.below(os.path.abspath(os.path.join(spec.cwd, word))) for word in spec.command}
    for name in sorted(snapshot.files, key=lambda name: name not in named):
        # Folders such as .vscode hold settings of programs that are no part of the run.
        if not name.endswith(_CODE_ENDINGS) or f"/{name}".rpartition("/")[0].count("/."):
            continue
        text = _small_text(os.path.join(snapshot.root, name))
        pattern = _LEAVES if name in read else spelling
        if pattern.search(text):
            notices += islice(_live_paths_of_file(name, text, pattern, snapshot, folder), 1)
    yield from notices[:MOST_FILES]
    others = len(notices) - MOST_FILES
    if others > 0:
        yield f"other files name the live folder, or something outside of the copy: {others}"


def _live_paths_of_file(
    name: str, text: str, spelling: re.Pattern[str], snapshot: Snapshot, folder: str
) -> Iterator[str]:
    """Yield a notice for each line of a copied file, except comments, that names another copied file.

    A relative path that leaves the project has a notice too. It starts in ``folder``, or where the file is.
    """
    shown_name = os.path.relpath(os.path.join(snapshot.root, name), folder)
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith(("#", "//", ";")):
            continue
        for match in spelling.finditer(line):
            path = match[0] + _REST_OF_PATH.match(line, match.end())[0]  # type: ignore[index]
            if path.startswith("../"):
                starts = (folder, os.path.dirname(os.path.join(snapshot.root, name)))
                places = [_absolute(start, path) for start in starts]
                places = [place for place in places if os.path.exists(place)]
                if not places or any(map(snapshot.below, places)):
                    continue
                yield (
                    f"{shown_name}, line {number} names {path}, which is outside of the copy, so ranks do not"
                    f" find it: write {shlex.quote(places[0])}"
                )
                break
            path = os.path.expanduser(re.sub(r"^\$\{?HOME\}?", "~", path)).rstrip(".")
            if snapshot.copies(os.path.normpath(path)):
                yield _live_path(f"{shown_name}, line {number}", os.path.normpath(path), snapshot, folder)
                break


def _live_path(where: str, path: str, snapshot: Snapshot, folder: str) -> str:
    """Return the notice that ``where`` names ``path``; ``folder`` is the original of the ranks' directory."""
    kind = "folder" if os.path.isdir(path) else "file"
    relative = shlex.quote(os.path.relpath(os.path.join(snapshot.root, snapshot.below(path)), folder))
    return f"{where} names {path}: that is the live {kind}, not the copy: write it relative ({relative})"


def _small_text(path: str) -> str:
    """Return the text of a file of at most ``SMALL_SCRIPT`` bytes; '' for anything else."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > SMALL_SCRIPT:
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return ""
    return "" if "\0" in text else text


def _absolute_paths(line: str) -> Iterator[str]:
    """Yield the absolute paths in a line of shell, also within ``KEY=PATH`` and ``PATH:PATH``."""
    line = re.sub(r"\$HOME\b|\$\{HOME\}", lambda _: os.path.expanduser("~"), line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError:  # another line closes the quote
        tokens = re.split(r"[\s\"']+", line)
    for word in tokens:
        for part in re.split(r"[=:,]", word):
            # A quoted part may be a path with blanks, or a command of its own.
            for candidate in dict.fromkeys((part, *part.split())):
                path = os.path.expanduser(candidate)
                if os.path.isabs(path):
                    yield os.path.normpath(path)


def _scripts(line: str) -> Iterator[str]:
    """Yield the paths that a line of shell runs or sources."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    before = ";"
    try:
        for word in lexer:
            if "/" in word and (before in _RUNNERS or not before.strip(";&|()")):
                yield word
            before = word
    except ValueError:  # an unbalanced quote
        return


def _is_lost(path: str, cwd: str, snapshot: Snapshot) -> bool:
    """Return whether the relative ``path`` leads to something here, and to nothing in the copy."""
    original = os.path.join(cwd, path)
    return bool(path) and not os.path.isabs(path) and os.path.lexists(original) and not snapshot.has(original)
