"""Check the words of COMMAND and the files that they name, before the run is queued; runs no user code.

A mistake that fails on every machine is refused. A file that a ``--setup`` line, a container or another
node may provide leads to a warning.
"""

from __future__ import annotations

import ast
import codecs
import glob
import os
import re
import shlex
import shutil
import sys
import warnings
from contextlib import suppress

from clusterrun import system
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.nearest import nearest
from clusterrun.model.spec import JobSpec
from clusterrun.script import submit_again
from clusterrun.script.containers import ANSWER_SECONDS, LEAST_PYTHON, Run
from clusterrun.script.interpreter_calls import SHELLS, interpreter_call, unwrapped
from clusterrun.script.launch_commands import ACTIVATORS, SETUP_COMMANDS, WITHOUT_EFFECT, launch_in

_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_QUOTES = "\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f"
_SPACES = "\u00a0\u2007\u202f"
_STRAIGHT = str.maketrans(
    dict.fromkeys(_QUOTES[:4], "'") | dict.fromkeys(_QUOTES[4:], '"') | dict.fromkeys(_SPACES, " ")
)
# A dash at the beginning of a word, or a quote at an end of it or of its value.
_TYPOGRAPHIC = re.compile(rf"[{_DASHES}].|[{_QUOTES}]|.*(?:[{_QUOTES}]$|=[{_QUOTES}][^=]*$)", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
# A trap that runs commands. One with '' or - as its action only changes what a signal does.
_TRAP = re.compile(r"(?:^|[;&|{]\s*)trap\s+(?:--\s+)?(?!-(?:\s|[lp])|''|\"\")\S")
_SOURCED = re.compile(r"(?:^|[;&|{(]\s*)(?:source|\.|bash|sh)\s+([^\s;&|<>()]+)")
# In the script that activates a virtual environment: the folder in which it was made.
_VIRTUAL_ENV = re.compile(r"^\s*(?:export )?VIRTUAL_ENV=([\"']?)(/[^\"'$\n]*)\1$", re.MULTILINE)
_PREPARES = (*SETUP_COMMANDS, "declare", "set", "shopt")
# Other commands and keywords that only a shell runs.
_SHELL_COMMANDS = (
    *("eval", "exec", "trap", "wait", "builtin", "command", "let", "local", "read", "return", "shift"),
    *("for", "while", "until", "if", "case", "function", "select", "{", "(", "!", "[[", "time", "coproc"),
)
# The file of a process substitution: ``<(…)``.
_SUBSTITUTED = re.compile(r"(?:[^/\s]*=)?/dev/fd/(?:[3-9]|\d\d+)")
_CONNECTORS = ("&&", ";", "||")
# A variable of the environment, as in 'runs/$SLURM_JOB_ID'. A name in lower case may be one of hydra's.
_VARIABLE = re.compile(r"[^\s\"\\`$]*\$(?:\{[A-Z_][A-Z0-9_]*\}|[A-Z_][A-Z0-9_]*\b)[^\s\"\\`]*")
_SHELL_OPERATORS = (*_CONNECTORS, "|", "|&", "&", ">", ">>", "<", "2>", "&>", "2>&1", "1>&2", ">&2")
NEAR = 0.65
# Bytes. A larger file is probably data, and takes long to compile.
MAX_SOURCE = 2 << 20
_COMPILE = """import sys, warnings
warnings.simplefilter("ignore")
try:
    compile(open(sys.argv[1], "rb").read(), sys.argv[1], "exec", dont_inherit=True)
except SyntaxError as error:
    print("%s: line %s: %s" % (type(error).__name__, error.lineno, error.msg))"""


def check_words(spec: JobSpec, verb: str = "submit") -> tuple[str, ...]:
    """Return warnings about characters that a word processor puts in the place of - and quotes, and others.

    The others concern operators and traps, which need a shell. Raises ``BadInput`` for a process substitution
    and if the first word cannot be a program: it sets a variable, it is a command of the shell, or it begins
    with such a character.
    """
    first = spec.command[0]
    if not os.path.exists(os.path.join(spec.cwd, first)):
        assignment = _ASSIGNMENT.fullmatch(first)
        if assignment:
            command = spec.command
            if len(command) == 1:  # a whole command line in quotes
                with suppress(ValueError):
                    command = tuple(shlex.split(first))
            place = 1
            while place < len(command) and _ASSIGNMENT.fullmatch(command[place]):
                place += 1
            pairs = tuple(tuple(word.split("=", 1)) for word in command[:place])
            rest = command[place:] or ("COMMAND",)
            meant = replace(spec, command=rest, environment=(*spec.environment, *pairs))
            line = submit_again.line(meant, verb, with_values=True)
            raise BadInput(f"{first!r} sets a variable: it is not a program", f"use --env: {line}")
        if _TYPOGRAPHIC.match(first) or any(space in first for space in _SPACES):
            arguments = ("clusterrun", verb, *(_typed(word) for word in spec.command))
            problem = (
                f"{first!r} has a dash, quote or space that no keyboard types ({typographic_marks(first)})"
            )
            raise BadInput(problem, f"type it anew: {' '.join(arguments)}")
    _check_shell_command(spec, verb)
    substituted = next(filter(_SUBSTITUTED.fullmatch, spec.command), "")
    if substituted:
        problem = f"{substituted} belongs to this shell, which made it for <(…): ranks do not have it"
        raise BadInput(problem, f"write it into a file, or pipe a script in: … | clusterrun {verb} bash -s")
    sentences: list[str] = []
    command = spec.command
    for_shell = [word for word in command[1:] if word in _SHELL_OPERATORS or _VARIABLE.fullmatch(word)]
    if for_shell and not any(os.path.basename(word) in SHELLS for word in command):
        texts = [*command]
        for place, word in enumerate(command):
            if word not in _SHELL_OPERATORS:
                texts[place] = f'"{word}"' if word in for_shell else shlex.quote(word)
        if command[0] == "-m" or command[0].endswith(".py"):
            texts.insert(0, "python")
        line = f"bash -c {shlex.quote(' '.join(texts))}"
        sentences.append(
            f"{command[0]} gets {for_shell[0]!r} as an argument, because no shell reads it; with one: {line}"
        )
    options = (spec.name, spec.partition, spec.account, *spec.sbatch, *spec.srun)
    for word in (*spec.command[1:], *spec.setup, *options):
        if _TYPOGRAPHIC.match(word):
            advice = f"did you mean {_typed(word)}"
            sentences.append(f"{word!r} has {typographic_marks(word)}, which no keyboard types: {advice}")
    sentences += [
        f"--setup {line!r}: no trap of the batch script runs, because that shell becomes the coordinator:"
        " set it in a shell script that is COMMAND"
        for line in spec.setup
        if _TRAP.search(line)
    ]
    return tuple(sentences)


def _check_shell_command(spec: JobSpec, verb: str) -> None:
    """Refuse a command that only a shell can run, with the line to type instead."""
    first, second = (*spec.command, "")[:2]
    activates = os.path.basename(first) in ACTIVATORS and second in ("activate", "deactivate")
    prepares = activates or first in _PREPARES
    is_certain = activates or first in WITHOUT_EFFECT
    if not (prepares or first in _SHELL_COMMANDS) or (not is_certain and shutil.which(first)):
        return
    meant = replace(spec, command=("bash", "-c", " ".join(spec.command)))
    remedy = "a shell can run it"
    if prepares:
        end = next((index for index, word in enumerate(spec.command) if word in _CONNECTORS), None)
        rest = spec.command[end + 1 :] if end is not None else ()
        setup = (*spec.setup, shlex.join(spec.command[:end]))
        meant = replace(spec, command=rest or ("COMMAND",), setup=setup)
        remedy = "it belongs before the command"
    line = submit_again.line(meant, verb, with_values=True)
    raise BadInput(f"{first!r} is a command of the shell, not a program", f"{remedy}: {line}")


def _typed(word: str) -> str:
    """Return ``word`` as a keyboard types it. Editors replace the two dashes of a long option by one."""
    bare = word.lstrip(_DASHES + "-")
    dashes = word[: len(word) - len(bare)]
    if any(dash in dashes for dash in _DASHES):
        dashes = "-" if len(bare.partition("=")[0]) == 1 else "--"
    return dashes + bare.translate(_STRAIGHT)


def typographic_marks(word: str) -> str:
    """Return the code points of the dashes, quotes and spaces in ``word`` that no keyboard types."""
    strange = [letter for letter in word if letter in _DASHES + _QUOTES + _SPACES]
    return ", ".join(dict.fromkeys(f"U+{ord(letter):04X}" for letter in strange))


def check_files(spec: JobSpec, contained: bool, run: Run = system.run) -> tuple[str, ...]:
    """Return warnings about the files that COMMAND and ``--setup`` name.

    ``contained``: ranks run in a container, whose files are not seen here.
    Raises ``BadInput`` for a script that is missing, that cannot be started, or that does not compile.
    """
    command, cwd = unwrapped(spec.command) or spec.command, spec.cwd
    for line in spec.setup:
        for name in _SOURCED.findall(line):
            path = os.path.join(cwd, os.path.expanduser(name.strip("'\"")))
            if os.path.isfile(path):
                _check_first_line(path, name, is_shell_argument=True)
                _check_moved(path, name)
    launch = launch_in(command, reads_inline=False)
    if launch and launch.command and (launch.command[0] == "-m" or launch.command[0].endswith(".py")):
        command = (spec.python, *launch.command)
    if command[0] == "-m":
        return _check_module(replace(spec, command=command), contained)
    is_sure = not (spec.setup or contained)
    name = argument = command[0]
    call = interpreter_call(command)
    is_shell = call is not None and not call.is_python
    if call and call.module:
        return _check_module(replace(spec, command=("-m", call.module)), contained)
    if call:
        argument = call.script
    if not argument:
        return ()
    path = os.path.normpath(os.path.join(cwd, argument))
    if is_shell and "/" not in argument and not os.path.exists(path) and shutil.which(argument):
        return ()  # a shell looks for a script on PATH too
    if argument != name and not os.path.exists(path):
        sentence = f"there is no file {path!r}"
        remedy = near_file(path, cwd) or "give its path relative to the current directory"
        if is_sure:
            raise BadInput(sentence, remedy)
        return () if contained else (f"{sentence} here ({remedy}): will it be on the nodes?",)
    if not os.path.isfile(path) or os.path.getsize(path) > MAX_SOURCE:
        return ()
    is_python = argument.endswith(".py")
    if not is_python and (argument != name or "/" in argument):
        notices = _check_first_line(path, argument, is_shell_argument=argument != name)
        _check_shell_syntax(path, argument, name if is_shell else "", run)
        return notices
    python = spec.python if name.endswith(".py") else name
    return _check_syntax(path, argument, python, is_sure, run) if is_python else ()


def _check_moved(path: str, name: str) -> None:
    """Refuse the ``activate`` of a virtual environment that was made in a folder that is gone."""
    folder = os.path.dirname(os.path.dirname(path))
    if os.path.basename(path) != "activate" or not os.path.isfile(os.path.join(folder, "pyvenv.cfg")):
        return
    for _, activated in _VIRTUAL_ENV.findall(system.text_of(path)):
        if not os.path.isdir(activated):
            problem = f"{name} activates {activated}, which does not exist: was the environment moved?"
            python = os.path.join(folder, "bin", "python")
            raise BadInput(problem, f"make it again, or leave that line out: --python {shlex.quote(python)}")


def _check_module(spec: JobSpec, contained: bool) -> tuple[str, ...]:
    module = spec.command[1]
    path = os.path.normpath(os.path.join(spec.cwd, module))
    rest = spec.command[2:]
    dotted = module.removesuffix(".py").removeprefix("./").strip("/").replace("/", ".")
    is_script = module.endswith(".py") and os.path.isfile(path)
    if "/" in module or is_script:
        ways = [("-m", dotted, *rest)]
        if is_script:
            ways.insert(0, (module, *rest))
        lines = " or ".join(shlex.join(way) for way in ways)
        raise BadInput(f"-m {module}: this is a path, and -m takes the name of a module", f"give {lines}")
    if spec.setup or contained:
        return ()
    top, *inner = module.split(".")
    folder = os.path.join(spec.cwd, top)
    if not os.path.isfile(os.path.join(folder, "__init__.py")):
        return ()
    for part in inner:
        if not (os.path.isdir(os.path.join(folder, part)) or glob.glob(f"{glob.escape(folder)}/{part}.*")):
            names = [
                os.path.basename(file).removesuffix(".py")
                for file in glob.glob(f"{glob.escape(folder)}/*.py")
            ]
            similar = nearest(part, names, alike=NEAR)
            meant = f": did you mean {module.replace(part, similar[0])}?" if similar else ""
            return (f"there is no module {module!r} below {os.path.join(spec.cwd, top)}{meant}",)
        folder = os.path.join(folder, part)
    files = [*glob.glob(f"{glob.escape(folder)}.*"), *glob.glob(f"{glob.escape(folder)}/__main__.*")]
    if os.path.isfile(os.path.join(folder, "__init__.py")) and not files:
        problem = f"{module} is a package without __main__.py, which Python cannot run"
        raise BadInput(problem, f"name a module in it: -m {module}.NAME")
    return ()


def near_file(path: str, cwd: str) -> str:
    """Return ``did you mean NAME?`` for the file that ``path`` may have meant; '' if there is none."""
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    try:
        entries = map(os.path.splitext, os.listdir(folder))
        stems = [other for other, other_suffix in entries if other_suffix == suffix]
    except OSError:
        stems = []
    similar = nearest(stem, stems, alike=NEAR)
    below_pattern = f"{glob.escape(cwd)}/*/{glob.escape(name)}"
    places = [os.path.join(folder, similar[0] + suffix)] if similar else glob.glob(below_pattern)
    return f"did you mean {os.path.relpath(places[0], cwd)}?" if len(places) == 1 else ""


def _check_first_line(path: str, name: str, is_shell_argument: bool) -> tuple[str, ...]:
    """Refuse a script that the kernel, or a shell, cannot run for its line ends or its first line."""
    with open(path, "rb") as file:
        start = file.read(4096)
    if b"\0" in start:
        return ()  # a program, not a script
    first = start.partition(b"\n")[0]
    has_dos_lines = start.count(b"\r\n") * 2 > start.count(b"\n")
    if (is_shell_argument and has_dos_lines) or (first.startswith(b"#!") and first.endswith(b"\r")):
        problem = f"{name!r} has DOS line ends (CR LF): a shell takes the CR as a part of each last word"
        raise BadInput(problem, f"convert it: sed -i 's/\\r$//' {shlex.quote(name)}")
    if is_shell_argument or not start:
        return ()
    if not start.startswith(b"#!"):
        problem = f"{name!r} has no #! line: the kernel cannot start it"
        raise BadInput(problem, f"write #!/bin/bash as its first line, or submit: bash {shlex.quote(name)}")
    interpreter = os.fsdecode(first[2:].split()[0]) if first[2:].split() else ""
    if interpreter and not os.path.exists(interpreter):
        named = f"{interpreter!r}, which the first line of {name} names"
        return (f"{named}, does not exist on this machine: is it on the nodes?",)
    return ()


def _check_shell_syntax(path: str, name: str, shell: str, run: Run) -> None:
    """Refuse a script of bash that is not complete. ``shell`` runs it; '' if its first line names the shell.

    A script may end before a part that is no shell code.
    """
    text, bash = system.text_of(path), shutil.which("bash")
    interpreter = os.path.basename(shell) or "".join(re.findall(r"\A#!.*\bbash\b", text))
    if not bash or "bash" not in interpreter or re.search(r"^(exit|exec)\b", text, re.MULTILINE):
        return
    completed = run((bash, "-O", "extglob", "-n", path), ANSWER_SECONDS)
    if completed.code:
        reason = completed.err.strip().partition("\n")[0].removeprefix(f"{path}: ")
        raise BadInput(
            f"{name} is not complete: {reason}", f"correct it; bash -n {shlex.quote(name)} checks it"
        )


def _check_syntax(path: str, name: str, python: str, is_sure: bool, run: Run) -> tuple[str, ...]:
    """Refuse a script that the ranks' Python cannot compile.

    Warn if that Python cannot be run on this machine.

    clusterrun's own Python compiles it first, within a few milliseconds. The ranks' Python compiles it if
    that fails, or if the script needs a newer Python than the oldest supported one.
    """
    with open(path, "rb") as file:
        source = file.read()
    before, null, _ = source.partition(b"\0")
    if null:
        is_utf16 = source.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        line = before.count(b"\n") + 1
        problem = f"{name}, line {line}: a NUL byte, which Python accepts in no script"
        remedy = f"was it damaged while it was copied? look: file {shlex.quote(name)}"
        if is_utf16:
            remedy = f"it is UTF-16: iconv -f UTF-16 -t UTF-8 {shlex.quote(name)} > new.py"
        if is_sure:
            raise BadInput(problem, remedy)
        return (f"{problem}; {remedy}",)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, name, "exec", dont_inherit=True)
            if python == sys.executable:
                return ()
            ast.parse(source, feature_version=LEAST_PYTHON)
        return ()
    except SyntaxError as error:
        mistake = f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError):
        return ()
    if not is_sure:
        return (f"{name}, {mistake}: can the Python of the ranks compile it?",)
    try:
        completed = run((python, "-c", _COMPILE, path), ANSWER_SECONDS)
    except (system.ProgramMissing, system.ProgramTimeout, PermissionError):
        return (f"{name}, {mistake}: can {python} compile it?",)
    kind, _, mistake = completed.out.strip().partition(": ")
    if not kind.endswith("Error"):
        return ()  # the ranks' Python is newer than clusterrun's
    problem = f"{name} cannot be compiled by {python}: {mistake}"
    raise BadInput(problem, f"correct {name}, or name another --python")
