"""Read the scripts that COMMAND runs, and find what needs an option of clusterrun. Runs no code of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from clusterrun.model.frozen import frozen
from clusterrun.model.spec import JobSpec
from clusterrun.script.interpreter_calls import RECIPE_FILES, unwrapped

# gawk and mawk handle these names themselves. For all other programs the kernel opens the file.
_NAMES = re.compile(r"/dev/std(?:out|err)\b|/dev/fd/[12]\b|/proc/(?:self|\$\$|\$\{?BASHPID\}?)/fd/[12]\b")
# A shell script that reads another file, whose functions may use such a name.
_SOURCES = re.compile(r"^[ \t]*(?:source|\.)[ \t]", re.MULTILINE)
# The module of an import, and the first name that is taken from it, which may be a module too.
_IMPORTS = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+)?import[ \t]+([\w.]+)", re.MULTILINE)
_LIGHTNING = re.compile(r"^\s*(?:from|import)\s+(?:pytorch_)?lightning\b", re.MULTILINE)
_LIGHTNING_REQUEUES = re.compile(r"\bSLURMEnvironment\((?!.*auto_requeue\s*=\s*False)")
_JOB_NUMBER = re.compile(r"\bSLURM_(?:JOB_ID|JOBID)\b")
_WORD = re.compile(r"[\w./+-]+")
_MAX_SIZE = 1024 * 1024
_MAX_FILES = 64
# Limit on arguments that are looked up as files. A network file system may need a millisecond for each.
_MAX_WORDS = 500


@frozen
class ScriptHabits:
    """Calls in the scripts of a command that the job must be prepared for."""

    opens_own_output: bool = False  # perhaps, by its name: ``> /dev/stderr``
    lightning: str = ""  # a script whose Lightning does not react to the signal of ``--sbatch signal``


def script_habits(spec: JobSpec) -> ScriptHabits:
    """Read the command and its scripts once."""
    habits = ScriptHabits()
    for name, text in _texts(spec):
        is_silent = bool(_LIGHTNING.search(text)) and not _LIGHTNING_REQUEUES.search(text)
        is_sourcing = not name.endswith(".py") and _SOURCES.search(text)
        opens_own_output = bool(_NAMES.search(text) or is_sourcing)
        habits = ScriptHabits(
            opens_own_output=habits.opens_own_output or opens_own_output,
            lightning=habits.lightning or (name if is_silent else ""),
        )
    return habits


def lightning_notices(spec: JobSpec, name: str) -> tuple[str, ...]:
    """Return a notice if the job gets a signal and Lightning in the script ``name`` will not react to it."""
    keys = [entry.removeprefix("--").partition("=")[0] for entry in (*spec.sbatch, *spec.srun)]
    if not name or "signal" not in keys or spec.goes_on:
        return ()
    return (
        f"{name}: at that signal Lightning saves and queues its job again only below plain srun: "
        "give its Trainer plugins=[SLURMEnvironment()], or add --requeue and the callback of "
        "clusterrun help training",
    )


def job_number_notices(spec: JobSpec) -> tuple[str, ...]:
    """Return a notice if a script may name its checkpoints by the job, whose number another job lacks."""
    name = next((name for name, text in _texts(spec) if name and _JOB_NUMBER.search(text)), "")
    if not name:
        return ()
    fact = f"{name} reads SLURM_JOB_ID: another job does not find checkpoints in a folder of that name"
    return (f"{fact} (--requeue-by chain; a run submitted again); CLUSTERRUN_RUN_ID is the same in a chain",)


def _texts(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Yield the command (without a name), then the name and the text of each script that it runs.

    Scripts that a shell script names are read too, and modules beside a Python script that it imports
    (without a name).
    """
    yield "", "\n".join(spec.command)
    # Words that may be files; for ``-m MODULE`` the files that Python would run.
    command = spec.command
    waiting: list[str] = list(RECIPE_FILES.get(os.path.basename((unwrapped(command) or command)[0]), ()))
    for option, word in zip(("", *command), command):
        if option == "-m":
            waiting.append(word.replace(".", "/") + ".py")
            waiting.append(word.replace(".", "/") + "/__main__.py")
        else:
            # One argument may contain several words, as in ``bash -c './run.sh --lr 1'``.
            waiting.append(word)
            waiting += _paths(word)
    read_paths: set[str] = set()
    modules: dict[str, str] = {}  # the folder of the script that imports a module, by the module's path
    read = 0
    while waiting and len(read_paths) < _MAX_WORDS and read < _MAX_FILES:
        name = waiting.pop()
        path = os.path.join(spec.cwd, name)
        if path in read_paths:
            continue
        read_paths.add(path)
        text = text_of_script(path)
        read += bool(text)
        if text:
            yield "" if path in modules else name, text
        if not path.endswith(".py"):
            waiting += _paths(text)
            continue
        folder = modules.get(path, spec.cwd if "-m" in command else os.path.dirname(path))
        for package, imported in _IMPORTS.findall(text):
            start = os.path.dirname(path) if package.startswith(".") else folder
            dotted_names = (package, f"{package}.{imported}") if package else (imported,)
            for dotted in dotted_names:
                module = os.path.join(start, dotted.strip(".").replace(".", "/") + ".py")
                modules.setdefault(module, folder)
                waiting.append(module)


def _paths(text: str) -> Iterator[str]:
    return (word for word in _WORD.findall(text) if "/" in word or "." in word)


def text_of_script(path: str) -> str:
    """Return the content of a text file; '' for anything else and for a large file."""
    if not os.path.isfile(path):
        return ""
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_SIZE + 1)
    except OSError:
        return ""
    is_text = len(content) <= _MAX_SIZE and b"\0" not in content
    return content.decode("utf-8", "replace") if is_text else ""
