"""Find faults of a plan before it waits hours in a queue. Looks at files and runs no user code."""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from clusterrun import system
from clusterrun.model.errors import BadInput
from clusterrun.model.paths import RunPaths
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.model.world import own_variables
from clusterrun.notify.notify_address import ACCEPTED, APPRISE, read_address, shortened
from clusterrun.script import quoting, sbatch_options
from clusterrun.script.command_words import check_files, near_file
from clusterrun.script.containers import ANSWER_SECONDS, LEAST_PYTHON, QUESTION, Run, answered, check_image
from clusterrun.script.interpreter_calls import interpreter_call, reads_input, unwrapped
from clusterrun.script.plan import NAMED, Plan
from clusterrun.script.script_texts import text_of_script


def check(
    plan: Plan, run: Run = system.run, environ: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return notices about possible problems on the nodes. Raises ``BadInput`` for certain failures."""
    cwd = plan.spec.cwd
    if not os.path.isdir(cwd):
        raise BadInput(f"{cwd!r} is not a directory", "ranks run in the directory where submit is called")
    check_setup(plan.spec.setup)
    check_activation(plan.spec.setup, environ)
    unexpanded = check_environment(plan.spec, environ)
    check_input(plan)
    check_notify(plan.spec.notify, plan.spec.python, run)
    contained = bool(plan.orders.container.image)  # ranks do not use the host's programs
    if plan.spec.alone:
        if contained:
            return check_image(plan.spec, plan.orders, False, environ, run)
        return () if plan.spec.setup else check_python(plan.spec.python, False, run)
    if not contained:
        check_word(plan.spec.command, plan.spec.cwd)
    script = script_of(plan)
    changes_directory = any(re.search(r"(?:^|[\s;&|(])(?:cd|pushd)\s", text) for text in plan.spec.setup)
    if script and not os.path.exists(script) and changes_directory:
        missing = f"{plan.spec.command[0]} is not in this directory"
        return (f"{missing}: it must be in the folder that the --setup lines change to",)
    if script and not (contained and os.path.isabs(plan.spec.command[0])):
        check_script(script, cwd)
    notices = (*unexpanded, *check_files(plan.spec, contained, run), *about_first_line(plan, script))
    if plan.spec.command[:2] == ("conda", "run") and not _STREAMING & set(plan.spec.command):
        line = shlex.join(("conda", "run", "--no-capture-output", *plan.spec.command[2:]))
        notices = (*notices, f"conda run keeps the output of each rank back until its end: {line} does not")
    torch = bool(script) and re.search(r"(?m)^\s*(import|from)\s+torch\b", system.text_of(script)) is not None
    if contained:
        return (*notices, *check_image(plan.spec, plan.orders, torch, environ, run))
    if not script and not changes_directory:
        program = (*unwrapped(plan.spec.command), "")[0]
        if _SHELL_SCRIPT.search(program) and not shutil.which(program):
            check_script(os.path.join(cwd, program), cwd)
        check_executable(program, cwd)
    if plan.spec.setup:  # its lines may provide the Python and the program on the nodes
        return notices
    if script or plan.spec.command[0] == "-m":
        return (*notices, *check_python(plan.spec.python, torch, run))
    stays_here = plan.spec.cluster is Cluster.LOCAL
    return (*notices, *check_program(plan.spec.command[0], cwd, stays_here))


# The name of a script for a shell or a batch system.
_SHELL_SCRIPT = re.compile(r"\.(?:sh|bash|sbatch|slurm|job|pbs)$")
# The code of ``convert``, whose shell reads none of its arguments.
_IGNORES_ARGUMENTS = re.compile(
    r'(?s)(?:export -n [^\n]+\n)?(?:eval "set -- \$ARGUMENTS"\n|exec (?!.*\$[\d@*#{]))'
)
# Options of ``conda run`` with which it passes output on at once.
_STREAMING = {"--no-capture-output", "--live-stream", "-s"}


def about_first_line(plan: Plan, script: str) -> tuple[str, ...]:
    """Return a notice if an executable script names a Python in its first line that ranks do not use."""
    python = plan.orders.interpreter
    if not os.access(script, os.X_OK) or python.why == NAMED or plan.orders.container.image:
        return ()
    match = re.match(r"#!\s*(/\S*/python[\d.]*)(?=\s)", system.text_of(script))
    if not match or os.path.realpath(os.path.dirname(match[1])) == os.path.realpath(
        os.path.dirname(python.path)
    ):
        return ()
    named = f"{match[1]}, which the first line of {plan.spec.command[0]} names"
    return (f"ranks do not use {named}: --python {match[1]} does",)


def check_input(plan: Plan) -> None:
    """Refuse arguments that a shell ignores, an empty standard input, and an unreadable input file."""
    spec, call = plan.spec, interpreter_call(plan.spec.command)
    if call and not call.is_python and call.arguments and _IGNORES_ARGUMENTS.match(call.code):
        arguments = shlex.join(call.arguments)
        problem = f"the program would not get {arguments}: the code behind bash -c reads no arguments"
        raise BadInput(problem, f"write them into the code, or: clusterrun convert SCRIPT {arguments}")
    if not spec.input and reads_input(spec.command):
        problem = f"{shlex.join(spec.command)} would read from standard input, and ranks have none"
        raise BadInput(
            problem, f"give it a script: {spec.command[0]} SCRIPT; or name its input: --input FILE"
        )
    is_own = spec.input == RunPaths(plan.run_dir).input
    if spec.input and not is_own and not (os.path.isfile(spec.input) and os.access(spec.input, os.R_OK)):
        raise BadInput(
            f"--input {spec.input!r} is not a file that can be read", "name a file, or - for a pipe"
        )


# Exits with code 3 without apprise, 4 if it does not understand an address.
_APPRISE = """
import sys
try:
    import apprise
except ImportError:
    sys.exit(3)
sys.exit(0 if all(apprise.Apprise().add(url) for url in sys.stdin.read().split()) else 4)
"""


def check_notify(urls: Sequence[str], python: str, run: Run = system.run) -> None:
    """Refuse addresses that ``python``, which sends the messages, does not understand."""
    for_apprise = [url for url in urls if read_address(url).kind == APPRISE]
    if not for_apprise:
        return
    names = ", ".join(map(shortened, for_apprise))
    try:
        code = run((python, "-I", "-c", _APPRISE), ANSWER_SECONDS, "\n".join(for_apprise)).code
    except (system.ProgramMissing, system.ProgramTimeout, PermissionError):
        code = 3
    if code == 4:
        raise BadInput(f"--notify {names}: apprise does not understand this address", ACCEPTED)
    if code:
        problem = (
            f"--notify {names} has no form that clusterrun sends to, and {python} has no package apprise"
        )
        raise BadInput(problem, ACCEPTED)


def check_setup(setup: tuple[str, ...]) -> None:
    """Refuse ``--setup`` lines that are incomplete shell code. They would swallow the lines after them."""
    bash = shutil.which("bash")
    if not setup or not bash:
        return
    for lines in (quoting.lines(setup), quoting.checked(setup)):
        # The group makes a trailing backslash or an open here-document an error.
        code = f"{{\n:\n{lines}\n}}\n"
        syntax_check = system.run((bash, "-n"), ANSWER_SECONDS, code, {"LC_ALL": "C"})
        if syntax_check.code:
            reason = re.sub(r"^\S+: line \d+: ", "", syntax_check.err.strip().partition("\n")[0])
            problem = f"the --setup lines are no complete shell code: {reason}"
            remedy = (
                "close what a line leaves open: a quote, a bracket, a here-document, a backslash at its end"
            )
            raise BadInput(problem, remedy)


# Commands that may define the shell function ``conda``.
_DEFINES = re.compile(r"(?:^|[\s;&|({])(?:source|\.|eval|module|ml)\s")
_ACTIVATES = re.compile(r"(?:^|[;&|({]\s*)(conda|mamba|micromamba) activate\b")


_BASHRC = re.compile(r"(?:source|\.)\s+(?:~|\$HOME|\$\{HOME\})/\.bashrc\b")
# How a ~/.bashrc ends early in a shell that is not interactive.
_GUARD = re.compile(r"case \$- in|\$\{?-\}?\s*(?:!=|=~)|-z \"?\$\{?PS1")


def check_activation(setup: tuple[str, ...], environ: Mapping[str, str]) -> None:
    """Refuse ``conda activate`` if no line before it defines that shell function.

    The function is in the user's interactive shell only. A batch script does not read ``~/.bashrc``, which
    often ends early in it.
    """
    if not any(map(_ACTIVATES.search, setup)):
        return
    before = ""
    ends_early = _GUARD.search(text_of_script(os.path.join(environ.get("HOME", ""), ".bashrc")))
    for line in setup:
        line = _BASHRC.sub(":", line) if ends_early else line
        activation = _ACTIVATES.search(line)
        before += line[: activation.start()] if activation else line + "\n"
        if not activation:
            continue
        program = activation[1]
        if _DEFINES.search(before) or "BASH_ENV" in environ or f"BASH_FUNC_{program}%%" in environ:
            return
        conda = environ.get("CONDA_EXE") or shutil.which("conda", path=environ.get("PATH", os.defpath))
        prefix = os.path.dirname(os.path.dirname(os.path.realpath(conda))) if conda else "~/miniforge3"
        hook = f'eval "$({program} shell hook --shell bash)"'
        definition = f"source {prefix}/etc/profile.d/conda.sh" if program == "conda" else hook
        message = f"--setup {line!r}: the batch script has no shell function {program}"
        if ends_early and any(map(_BASHRC.search, setup)):
            message += ": your ~/.bashrc returns early in it"
        remedy = f"put a line before it that defines it: --setup {shlex.quote(definition)}"
        raise BadInput(message, remedy)


# A value that a shell would expand.
_UNEXPANDED = re.compile(r"\$\{?[A-Za-z_]|(?:^|:)~(?=/|$)")


def check_environment(spec: JobSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return notices about values of ``--env`` that no shell has expanded.

    Raises ``BadInput`` for a variable that clusterrun sets in every rank.
    """
    exports = [value for key, value in sbatch_options.passed(spec.sbatch, "--sbatch") if key == "export"]
    pairs = [word for value in exports for word in value.split(",") if "=" in word]
    options = {name: "--env" for name, _ in spec.environment}
    options.update({word.partition("=")[0]: "--sbatch export" for word in pairs})
    for name in sorted(own_variables() & options.keys()) if not spec.alone else ():
        remedy = f"leave it out, or change it in each rank: submit env {name}=VALUE COMMAND"
        problem = f"{options[name]} {name} would have no effect: clusterrun sets it in every rank"
        raise BadInput(problem, remedy)
    notices = []
    for name, value in spec.environment:
        match = _UNEXPANDED.search(value)
        if match and environ.get(name) != value:
            mark = "~" if "~" in match[0] else "$"
            notices.append(
                f"--env {name}: {mark} in its value is passed as it is: your shell expands it in double"
                f" quotes, and the nodes do in --setup 'export {name}=…'"
            )
    return tuple(notices)


def script_of(plan: Plan) -> str:
    """Return the path of the Python script that ranks run; '' for a module or a program."""
    first = plan.spec.command[0]
    return os.path.join(plan.spec.cwd, first) if first.endswith(".py") else ""


def check_word(command: tuple[str, ...], cwd: str) -> None:
    """Refuse a first argument that is no program on any machine.

    It may be a folder, a notebook, or a whole command line.
    """
    first = command[0]
    path = os.path.join(cwd, first)
    parts = first.replace("\\\n", " ").split()  # a shell joins lines that end in a backslash
    if len(parts) > 1 and not os.path.exists(path):
        needs_shell = any(character in first for character in "&|;<>$`")
        meant = ["bash", "-c", first] if needs_shell else parts
        line = shlex.join(["clusterrun", "submit", *meant, *command[1:]])
        remedy = f"let a shell read it: {line}" if needs_shell else f"without the quotes: {line}"
        raise BadInput(f"there is no program {first!r}: this is one word", remedy)
    if first.endswith(".py"):
        return  # check_script reports problems of scripts
    if os.path.isdir(path) and ("/" in first or first in (".", "..") or not shutil.which(first)):
        raise BadInput(f"{first!r} is a folder", "name a Python script, a program, or -m and a module")
    if first.endswith(".ipynb"):
        script = shlex.quote(first.removesuffix(".ipynb") + ".py")
        remedy = f"make a script of it: jupyter nbconvert --to script {shlex.quote(first)}; submit {script}"
        raise BadInput(f"{first!r} is a notebook: no rank can run it", remedy)


def misplaced(command: tuple[str, ...], cwd: str, own: Iterable[str]) -> tuple[str, ...]:
    """Return options of ``submit`` (``own``) that follow a script whose text does not mention them."""
    if not command[0].endswith(".py"):
        return ()
    text = system.text_of(os.path.join(cwd, command[0]))
    arguments = [word.partition("=")[0] for word in command[1:]]

    def is_used(option: str) -> bool:
        """Return whether the script's text contains the option or the variable that it becomes."""
        spelling = "[-_]".join(map(re.escape, option.lstrip("-").split("-")))
        return re.search(rf"\b{spelling}\b", text) is not None

    return tuple(word for word in dict.fromkeys(arguments) if word in own and not is_used(word))


def check_script(path: str, cwd: str) -> None:
    """Refuse a script that is not a readable file."""
    if not os.path.exists(path):
        if os.path.islink(path):
            raise BadInput(
                f"{path!r} is a link to {os.readlink(path)!r}, which does not exist", "make it anew"
            )
        remedy = near_file(path, cwd) or "give its path relative to the current directory"
        raise BadInput(f"there is no script {path!r}", remedy)
    if not os.path.isfile(path):
        raise BadInput(f"{path!r} is not a file", "name a Python script, a program, or -m and a module")
    if not os.access(path, os.R_OK):
        raise BadInput(f"the script {path!r} cannot be read", f"chmod u+r {shlex.quote(path)}")


def check_executable(program: str, cwd: str) -> None:
    """Refuse the path of a file that is not executable."""
    path = os.path.normpath(os.path.join(cwd, program))
    if "/" in program and os.path.isfile(path) and not os.access(path, os.X_OK):
        problem = f"{path!r} is not executable"
        name, text = shlex.quote(os.path.relpath(path, cwd)), text_of_script(path)
        remedy = f"chmod u+x {shlex.quote(path)}, or run it by its interpreter"
        if text and not text.startswith("#!"):
            remedy = f"name the script or program that reads it: train.py {name}, bash {name}"
        raise BadInput(problem, remedy)


def check_program(program: str, cwd: str, stays_here: bool) -> tuple[str, ...]:
    """Refuse a program path that is missing. Warn of a program name that is not on PATH."""
    if program in ("-", "/dev/stdin"):
        remedy = "put it into a file; clusterrun convert - prints the submit line of a batch script"
        raise BadInput("submit reads no script from its standard input", remedy)
    if "/" not in program:
        if shutil.which(program):
            return ()
        similar = [
            name for name in (f"{program}.py", f"./{program}") if os.path.isfile(os.path.join(cwd, name))
        ]
        if similar:
            check_executable(similar[-1], cwd)
        if similar or stays_here:
            meant = f"did you mean {similar[0]}? " if similar else "give its path, "
            problem = f"there is no program {program!r} on PATH"
            raise BadInput(problem, f"{meant}or add a --setup line that puts it on PATH")
        return (f"{program!r} is not on PATH on this machine: is it on the nodes?",)
    path = os.path.normpath(os.path.join(cwd, program))
    if not os.path.isfile(path):
        remedy = near_file(path, cwd) or "give its path relative to the current directory"
        raise BadInput(f"there is no program {path!r}", remedy)
    return ()


def check_python(python: str, torch: bool, run: Run) -> tuple[str, ...]:
    """Refuse a Python that is missing or too old. Warn if ``torch`` is needed and missing."""
    if python == sys.executable:
        return _without_torch(python) if torch and not _torch_beside_us() else ()
    try:
        completed = run((python, "-c", QUESTION), ANSWER_SECONDS)
    except (system.ProgramMissing, PermissionError) as error:
        problem = f"there is no Python {python!r} here ({error})"
        raise BadInput(problem, "name it by its whole path with --python") from error
    except system.ProgramTimeout as error:
        return (f"the Python {python!r} could not be run: {error.seen}",)
    version, has_torch = answered(completed)
    if not version:
        message = completed.err.strip()[-200:] or "it gives no version"
        raise BadInput(f"{python!r} is not a Python: {message}", "name the ranks' interpreter with --python")
    if version < LEAST_PYTHON:
        problem = f"{python!r} is Python {version[0]}.{version[1]}"
        raise BadInput(problem, "ranks need Python 3.9 or newer: --python")
    return _without_torch(python) if torch and not has_torch else ()


def ranks_python(environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the Python that ranks use by default, the reason, and a notice ('' if none).

    It is the Python of the active virtual or conda environment, else clusterrun's own. It is also
    clusterrun's own if conda's base environment, which may be active by default, has no torch.
    """
    python = shutil.which("python", path=environ.get("PATH", os.defpath)) or ""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if not environ.get(name):
            continue
        prefix = os.path.normpath(environ[name])
        is_first = os.path.realpath(os.path.dirname(python)) == os.path.realpath(os.path.join(prefix, "bin"))
        if not is_first or os.path.samefile(prefix, sys.prefix):
            continue
        is_base = name == "CONDA_PREFIX" and environ.get("CONDA_DEFAULT_ENV", "base") == "base"
        has_torch = glob.glob(os.path.join(prefix, "lib/python3*/site-packages/torch"))
        if is_base and not has_torch and _torch_beside_us():
            why = f"the active environment {prefix} ({name}) has no torch"
            notice = f"{why}: ranks use {sys.executable}; --python {python} takes the active one"
            return sys.executable, f"the one clusterrun runs in: {why}", notice
        why = f"of the active environment ({name})"
        return python, why, f"ranks use {python}, {why}; --python takes another one"
    return sys.executable, "the one clusterrun runs in", ""


def _torch_beside_us() -> bool:
    """Return whether torch is installed, by its folder. Importing torch takes seconds."""
    return any(os.path.isdir(os.path.join(place, "torch")) for place in sys.path)


def _without_torch(python: str) -> tuple[str, ...]:
    return (f"{python} has no torch, and the script imports it: install it there, or see --python, --setup",)
