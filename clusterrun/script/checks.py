"""Faults of a plan that can be seen before it waits hours in a queue; looks at files, runs no user code."""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from clusterrun import system
from clusterrun.model.errors import BadInput
from clusterrun.model.paths import RunPaths
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.script import quoting
from clusterrun.script.command_words import check_files, near_file
from clusterrun.script.containers import ANSWER_SECONDS, LEAST_PYTHON, QUESTION, Run, answered, check_image
from clusterrun.script.input_readers import reads_input
from clusterrun.script.plan import Plan


def check(
    plan: Plan, run: Run = system.run, environ: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """Notices about what may go wrong on the nodes. Raises ``BadInput`` for what surely will."""
    cwd = plan.spec.cwd
    if not os.path.isdir(cwd):
        raise BadInput(f"{cwd!r} is not a directory", "ranks run in the directory where submit is called")
    check_setup(plan.spec.setup)
    check_input(plan)
    contained = bool(plan.orders.container.image)  # then the host's programs are not those of the ranks
    if plan.spec.alone:
        if contained:
            return check_image(plan.spec, plan.orders, False, environ, run)
        return () if plan.spec.setup else check_python(plan.spec.python, False, run)
    if not contained:
        check_word(plan.spec.command, plan.spec.cwd)
    script = script_of(plan)
    if script and not os.path.exists(script) and _changes_directory(plan.spec.setup):
        return (f"{plan.spec.command[0]} is not here: it is expected where the --setup lines lead",)
    if script and not (contained and os.path.isabs(plan.spec.command[0])):
        check_script(script, cwd)
    said = (*check_files(plan.spec, contained, run), *launchers(plan.spec, script))
    if not contained:
        return (*said, *_of_programs(plan.spec, script, run))
    torch = bool(script) and wants_torch(script)
    return (*said, *check_image(plan.spec, plan.orders, torch, environ, run))


def check_input(plan: Plan) -> None:
    """Refuse a command that would read nothing, and an input file that cannot be read."""
    spec = plan.spec
    if not spec.input and reads_input(spec.command):
        seen = f"{shlex.join(spec.command)} would read from standard input, and ranks have none"
        raise BadInput(seen, f"give it a script: {spec.command[0]} SCRIPT; or name its input: --input FILE")
    is_own = spec.input == RunPaths(plan.run_dir).input
    if spec.input and not is_own and not (os.path.isfile(spec.input) and os.access(spec.input, os.R_OK)):
        raise BadInput(
            f"--input {spec.input!r} is not a file that can be read", "name a file, or - for a pipe"
        )


def check_setup(setup: tuple[str, ...]) -> None:
    """Refuse ``--setup`` lines that are no complete shell code: they would swallow the lines after them."""
    bash = shutil.which("bash")
    if not setup or not bash:
        return
    for lines in (quoting.lines(setup), quoting.checked(setup)):
        # In a group, so that a trailing backslash or an open here-document is an error too.
        code = f"{{\n:\n{lines}\n}}\n"
        done = system.run((bash, "-n"), ANSWER_SECONDS, code, {"LC_ALL": "C"})
        if done.code:
            reason = re.sub(r"^\S+: line \d+: ", "", done.err.strip().partition("\n")[0])
            seen = f"the --setup lines are no complete shell code: {reason}"
            remedy = (
                "close what a line leaves open: a quote, a bracket, a here-document, a backslash at its end"
            )
            raise BadInput(seen, remedy)


def _changes_directory(setup: tuple[str, ...]) -> bool:
    return any(re.search(r"(?:^|[\s;&|(])(?:cd|pushd)\s", line) for line in setup)


def _of_programs(spec: JobSpec, script: str, run: Run) -> tuple[str, ...]:
    if spec.setup:
        return ()  # its lines may bring the Python and the program, on the nodes
    if script or spec.command[0] == "-m":
        return check_python(spec.python, bool(script) and wants_torch(script), run)
    return check_program(spec.command[0], spec.cwd, spec.cluster is Cluster.LOCAL)


def launchers(spec: JobSpec, script: str) -> tuple[str, ...]:
    """Return a sentence for each launcher in a Python script; none for a lone rank or with ``--per-node``."""
    if not script or spec.per_node or spec.world_size == 1:
        return ()
    from clusterrun.script.nested_launchers import in_python  # it parses Python: not for every command

    return tuple(in_python(os.path.basename(script), system.text_of(script)))


def script_of(plan: Plan) -> str:
    """The path of the Python script that ranks run; '' for a module or a program."""
    first = plan.spec.command[0]
    return os.path.join(plan.spec.cwd, first) if first.endswith(".py") else ""


def check_word(command: tuple[str, ...], cwd: str) -> None:
    """Refuse a first word that is not a program anywhere: a folder, a notebook, a whole command line."""
    first = command[0]
    path = os.path.join(cwd, first)
    parts = first.split()
    if len(parts) > 1 and not os.path.exists(path):
        line = shlex.join(["clusterrun", "submit", *parts, *command[1:]])
        raise BadInput(f"there is no program {first!r}: this is one word", f"without the quotes: {line}")
    if first.endswith(".py"):
        return  # what is wrong with a script is said below
    if os.path.isdir(path) and ("/" in first or first in (".", "..") or not shutil.which(first)):
        raise BadInput(f"{first!r} is a folder", "name a Python script, a program, or -m and a module")
    if first.endswith(".ipynb"):
        script = shlex.quote(first.removesuffix(".ipynb") + ".py")
        remedy = f"make a script of it: jupyter nbconvert --to script {shlex.quote(first)}; submit {script}"
        raise BadInput(f"{first!r} is a notebook: no rank can run it", remedy)


def misplaced(command: tuple[str, ...], cwd: str, own: Iterable[str]) -> tuple[str, ...]:
    """Options of ``submit`` (``own``) that stand after a script whose text does not name them."""
    if not command[0].endswith(".py"):
        return ()
    text = system.text_of(os.path.join(cwd, command[0]))
    words = [word.partition("=")[0] for word in command[1:]]

    def known(option: str) -> bool:
        """As it is typed, or as the variable that it becomes."""
        words = "[-_]".join(map(re.escape, option.lstrip("-").split("-")))
        return re.search(rf"\b{words}\b", text) is not None

    return tuple(word for word in dict.fromkeys(words) if word in own and not known(word))


def check_script(path: str, cwd: str) -> None:
    """The script must be a file that can be read, before hours in a queue."""
    if not os.path.exists(path):
        remedy = near_file(path, cwd) or "give its path relative to the current directory"
        raise BadInput(f"there is no script {path!r}", remedy)
    if not os.path.isfile(path):
        raise BadInput(f"{path!r} is not a file", "name a Python script, a program, or -m and a module")
    if not os.access(path, os.R_OK):
        raise BadInput(f"the script {path!r} cannot be read", f"chmod u+r {shlex.quote(path)}")


def check_program(program: str, cwd: str, stays_here: bool) -> tuple[str, ...]:
    """A program given by path must be there and be executable; one given by name may be elsewhere."""
    if "/" not in program:
        return _on_path(program, cwd, stays_here)
    path = os.path.normpath(os.path.join(cwd, program))
    if not os.path.isfile(path):
        remedy = near_file(path, cwd) or "give its path relative to the current directory"
        raise BadInput(f"there is no program {path!r}", remedy)
    if not os.access(path, os.X_OK):
        seen = f"{path!r} is not executable"
        raise BadInput(seen, f"chmod u+x {shlex.quote(path)}, or run it by its interpreter")
    return ()


def _on_path(program: str, cwd: str, stays_here: bool) -> tuple[str, ...]:
    if shutil.which(program):
        return ()
    near = [name for name in (f"{program}.py", f"./{program}") if os.path.isfile(os.path.join(cwd, name))]
    if near or stays_here:
        meant = f"did you mean {near[0]}? " if near else "give its path, "
        seen = f"there is no program {program!r} on PATH"
        raise BadInput(seen, f"{meant}or add a --setup line that puts it on PATH")
    return (f"{program!r} is not on PATH here: will it be on the nodes?",)


def check_python(python: str, torch: bool, run: Run) -> tuple[str, ...]:
    """The ranks' Python: there, new enough, and (a notice only) with torch where ``torch`` wants it."""
    if python == sys.executable:
        return _without_torch(python) if torch and not _torch_beside_us() else ()
    try:
        done = run((python, "-c", QUESTION), ANSWER_SECONDS)
    except (system.ProgramMissing, PermissionError) as error:
        seen = f"there is no Python {python!r} here ({error})"
        raise BadInput(seen, "name it by its whole path with --python") from error
    except system.ProgramTimeout as error:
        return (f"the Python {python!r} could not be tried: {error.seen}",)
    version, has_torch = answered(done)
    if not version:
        said = done.err.strip()[-200:] or "it gives no version"
        raise BadInput(f"{python!r} is not a Python: {said}", "name the ranks' interpreter with --python")
    if version < LEAST_PYTHON:
        seen = f"{python!r} is Python {version[0]}.{version[1]}"
        raise BadInput(seen, "ranks need Python 3.9 or newer: --python")
    return _without_torch(python) if torch and not has_torch else ()


def ranks_python(environ: Mapping[str, str]) -> tuple[str, str, str]:
    """The Python that ranks run in by default, why, and what to tell about it ('': nothing).

    It is that of the active virtual or conda environment, which ``python`` means in this shell, else our
    own; that too where only ours has torch, for a base environment may be active by itself.
    """
    found = shutil.which("python", path=environ.get("PATH", os.defpath)) or ""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = os.path.normpath(environ.get(name) or "/")
        if os.path.dirname(found) != os.path.join(prefix, "bin") or os.path.samefile(prefix, sys.prefix):
            continue
        if _torch_beside_us() and not glob.glob(os.path.join(prefix, "lib/python3*/site-packages/torch")):
            why = f"the active environment {prefix} ({name}) has no torch"
            said = f"{why}: ranks use {sys.executable}; --python {found} takes the active one"
            return sys.executable, f"the one clusterrun runs in: {why}", said
        why = f"of the active environment ({name})"
        return found, why, f"ranks use {found}, {why}; --python takes another one"
    return sys.executable, "the one clusterrun runs in", ""


def wants_torch(script: str) -> bool:
    return re.search(r"^\s*(import|from)\s+torch\b", system.text_of(script), re.MULTILINE) is not None


def _torch_beside_us() -> bool:
    """By looking for the folder: importing torch takes seconds."""
    return any(os.path.isdir(os.path.join(place, "torch")) for place in sys.path)


def _without_torch(python: str) -> tuple[str, ...]:
    return (f"{python} has no torch, and the script imports it: install it there, or see --python, --setup",)
