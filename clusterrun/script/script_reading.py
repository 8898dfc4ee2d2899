"""Read the statements of a batch script: the command that trains, its setup, what has no translation.

A script, a script that it starts, a function and a block of statements are all read to one ``Reading``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from clusterrun.model.frozen import replace
from clusterrun.script.batch_reading import (
    POSITIONAL,
    SCRIPT_ENDS,
    Candidate,
    Reading,
    Scope,
    Training,
    TrainingKind,
    is_condition,
    is_helper,
    is_repeatable,
    plain_launch,
    variables_read,
)
from clusterrun.script.batch_scripts import Part, PartOutcome
from clusterrun.script.interpreter_calls import SHELLS, inline_text, interpreter_call, shell_script, unwrapped
from clusterrun.script.launch_commands import SIZES, LaunchCommand, is_image_command, launch_in
from clusterrun.script.program_table import TRAITS, Trait, is_tool
from clusterrun.script.quoting import plain_text
from clusterrun.script.shell_source import PRINTS, Body, Command, Constant, ShellSource, Statement
from clusterrun.script.statement_rules import (
    HAS_NO_ARGUMENTS,
    IS_BEHIND,
    IS_FALLBACK,
    IS_LATER_RUN,
    IS_OTHER_BRANCH,
    NEEDS_ARGUMENTS,
    ONLY_PRINTS,
)
from clusterrun.script.statements_beside import ALIKE, parts_after, read_before, setup_word
from clusterrun.script.training_statement import (
    block_reading,
    command_reading,
    kept_whole,
    reason_against_sweep,
)

# Modules that are tools, and no training script.
_TOOLS = ("pip", "venv", "ensurepip", "http.server", "json.tool", "zipfile")
# The files that a login shell reads.
LOGIN = (
    "[ ! -r /etc/profile ] || . /etc/profile || :; for file in ~/.bash_profile ~/.bash_login ~/.profile; do "
    "[ ! -r $file ] || { . $file; break; }; done || :"
)
# Code that only running the script shows. ``eval "$(…)"`` prepares the shell.
_EVALUATES = re.compile(r"eval\s+[\"']?\$(?!\()|(?:source|\.)\s+\"?\$\{?\d")
# A program that trains, by its name. One behind it evaluates.
_TRAINS = re.compile(r"(?i)train|tun(?:e|ing)")
_STARTS_PYTHON = re.compile(r"\b(?:python3?|torchrun|accelerate|deepspeed)\s")
_SCRIPT_OR_MODULE = re.compile(r".*\.(?:py|sh)|\w+(?:\.\w+)+")
# Blocks inside of blocks, and scripts that start scripts. A deeper one is a program.
_MOST_DEPTH = 6
# Expansions that have a value without arguments: ``"$@"``, ``${1:-DEFAULT}``.
_WITHOUT_ARGUMENTS = re.compile(r"\$[@*]|\$\{[@*][^{}]*\}|\$\{\d+:?-[^{}]*\}")
_IS_BEHIND_END = "it does not run: the script ends before it"
_IS_SKIPPED = "it does not run: its condition is false with the values and resources of this file"


def read_script(
    source: ShellSource, read_file: Callable[[str], str], arguments: tuple[str, ...] | None
) -> Reading:
    """Return what the script ``source`` asks for.

    ``read_file`` returns the text of a script that it starts, or ''. ``arguments``: those of the script; None
    if they are known only when it runs.
    """
    reading = _read(Scope(source, read_file, arguments))
    if not source.has_errors:
        return reading
    reason = "convert cannot read the shell code from here: bash -n SCRIPT says whether bash can"
    part = Part(source.error_line, source.line(source.error_line), PartOutcome.UNTRANSLATED, reason)
    return replace(reading, parts=(*reading.parts, part))


def _read(scope: Scope) -> Reading:
    statements = scope.source.statements
    training: Candidate | None = None
    candidates = [*_candidates(scope)] or [*_preparations(scope)]
    clients = [other for other in candidates if not _serves(scope, other, candidates)]
    for candidate in clients or candidates:
        kind, is_one_task = candidate.training.kind, candidate.training.launch.total == 1
        best_kind = training.training.kind if training else TrainingKind.UNKNOWN
        if training and kind == best_kind:
            first, second = training.training.launch.command, candidate.training.launch.command
            evaluates = _TRAINS.search(" ".join(first[:2])) and not _TRAINS.search(" ".join(second[:2]))
            is_beside = _is_in_background(candidate) and not _is_in_background(training)
            if evaluates or is_beside or _follows(scope, training, candidate.statement):
                continue
        if kind >= best_kind and not (is_one_task and best_kind is TrainingKind.LAUNCHED):
            training = candidate
    unsure: list[Statement] = []
    if training and training.training.kind is TrainingKind.UNKNOWN and not _is_certain(scope, candidates):
        unsure, training = [other.statement for other in candidates], None
    if training is None:
        unsure += [other for other in statements if _EVALUATES.match(other.text)]
    if training is None:
        place, of_training = len(statements), Reading()
    elif training.is_block and training.inner:
        place, of_training = statements.index(training.statement), block_reading(training, training.inner)
    else:
        place, of_training = statements.index(training.statement), command_reading(scope, training)
    once = [] if of_training.in_background else [s for s in statements[:place] if not is_repeatable(s)]
    is_shared = bool(of_training.sweeps) and once != []
    kept = kept_whole(scope, training) if training and (of_training.is_partial or is_shared) else None
    of_training = kept or of_training
    beside = [
        other.statement
        for other in candidates
        if other.training.kind >= TrainingKind.PYTHON and _is_in_background(other)
    ]
    of_candidates = [other.statement for other in candidates]
    trainings = [other.statement for other in candidates if other.training.kind >= TrainingKind.PYTHON]
    programs = [
        statement
        for statement in statements[:place]
        if statement in of_candidates or _starts_program(scope, statement.commands, statement.substitutes)
    ]
    if training and _is_in_background(training):
        beside += [statement for statement in statements if statement.in_background]
    before = read_before(scope, statements[:place], training, of_training, beside, programs, unsure)
    setup = (*before.setup, *of_training.setup)
    if scope.arguments and any(POSITIONAL.search(line) for line in (*setup, of_training.text)):
        shell_words = [setup_word(value, scope.source.constants) for value in scope.arguments]
        setup = (f"set -- {' '.join(shell_words)}", *setup)
    else:
        own_setup = [line for line in before.setup if not re.match(r"shift\b", line)]
        setup = (*own_setup, *of_training.setup)
    parts = [
        *of_training.parts,
        *before.parts,
        *parts_after(scope, statements[place + 1 :], of_training, trainings),
    ]
    if training and _ends_on_success(training.statement):
        is_later = (IS_BEHIND, IS_LATER_RUN)
        parts = [replace(part, reason=IS_FALLBACK) if part.reason in is_later else part for part in parts]
    printed = {part.line for part in parts if part.reason == ONLY_PRINTS}
    for statement in statements if scope.arguments is None else ():
        if any(command.names[:2] == ("set", "--") for command in statement.commands):
            break
        is_inner = (
            bool(statement.bodies) and training is not None and statement is training.statement and not kept
        )
        is_function = statement.kind == "function_definition"
        is_inner = is_inner or statement.line in printed
        if not is_function and not is_inner and statement.reads_arguments:
            text = statement.text.partition("\n")[0]
            if training is not None and statement is training.statement and of_training.command:
                text = "$" + max(re.findall(r"\$\{?([@*#\d])", statement.text), default="@")
            has_value = not (
                statement.bodies or POSITIONAL.search(_WITHOUT_ARGUMENTS.sub("", statement.text))
            )
            is_replaced = (PartOutcome.SETUP, PartOutcome.NEEDLESS)
            own = [part for part in parts if (part.line, part.text) == (statement.line, statement.text)]
            parts = [part for part in parts if part not in own or part.outcome not in is_replaced]
            outcome, reason = PartOutcome.UNTRANSLATED, NEEDS_ARGUMENTS
            if has_value:
                outcome, reason = PartOutcome.OPTION, HAS_NO_ARGUMENTS
            parts.append(Part(statement.line, text, outcome, reason))
    for skipped in scope.source.skipped:
        outcome, reason = PartOutcome.NEEDLESS, _IS_BEHIND_END if skipped.is_behind_end else _IS_SKIPPED
        if skipped.reads_arguments:
            outcome, reason = PartOutcome.UNTRANSLATED, NEEDS_ARGUMENTS
        parts.append(Part(skipped.line, skipped.text, outcome, reason))
    requeues = before.requeues or of_training.requeues
    return replace(of_training, setup=setup, requeues=requeues, parts=tuple(parts))


def with_login_files(reading: Reading, shell: Sequence[str], line: int, text: str) -> Reading:
    """Return ``reading`` with the files that a login shell reads, if ``shell`` starts one at ``line``."""
    if not any(word == "--login" or re.match(r"-[a-z]*l", word) for word in shell):
        return reading
    part = Part(line, text, PartOutcome.SETUP, "a login shell reads the login files, and --setup does so")
    return replace(reading, setup=(LOGIN, *reading.setup), parts=(part, *reading.parts))


def _is_certain(scope: Scope, candidates: Sequence[Candidate]) -> bool:
    """Return whether programs that convert does not know are one program, and no function or server.

    One whose name says that it trains may follow others.
    """
    programs = {candidate.training.launch.command[:1] for candidate in candidates}
    train = [program for program in programs if _TRAINS.search("".join(program))]
    programs = {candidates[-1].training.launch.command[:1]} if len(train) == 1 else programs
    lines = [candidate.statement.line for candidate in candidates]
    has_unread = any(
        other.line < lines[-1] and scope.sources_unread(other) for other in scope.source.statements
    )
    in_background = any(candidate.statement.in_background for candidate in candidates)
    return len(programs) == 1 and not (has_unread or in_background)


def _serves(scope: Scope, candidate: Candidate, candidates: Sequence[Candidate]) -> bool:
    """Return whether a program in the background serves one behind it, before the script waits for it."""
    if not _is_in_background(candidate):
        return False
    ends = [
        other.line
        for other in scope.source.statements
        if other.line > candidate.statement.line and other.waits
    ]
    end = min(ends, default=math.inf)
    has_client = any(
        candidate.statement.line < other.statement.line < end
        for other in candidates
        if other.training.kind >= min(candidate.training.kind, TrainingKind.PYTHON)
        and not _is_in_background(other)
    )
    return has_client and not _TRAINS.search(" ".join(candidate.training.launch.command[:2]))


def _is_in_background(candidate: Candidate) -> bool:
    is_inner = candidate.inner is not None and candidate.inner.in_background
    return candidate.statement.in_background or is_inner


def _follows(scope: Scope, training: Candidate, second: Statement) -> bool:
    """Return whether ``second`` runs at the end of ``training``: ``wait`` or ``$?`` is between."""
    statements, first = scope.source.statements, training.statement
    between = statements[statements.index(first) + 1 : statements.index(second)]
    if first is not second and _is_in_background(training):
        return any(statement.waits for statement in between)
    if first is second:  # ``srun python train.py || srun python train.py --resume``
        return "||" in first.text
    if _ends_on_success(first):
        return True
    results = {name for statement in between if "$?" in statement.text for name in statement.sets}
    return (is_condition(second) and "$?" in second.text) or bool(second.reads & results)


def _ends_on_success(statement: Statement) -> bool:
    """Return whether what is behind a statement runs only if its command fails: ``PROGRAM && exit``."""
    return not is_condition(statement) and re.search(r"&&\s*exit\b", statement.text) is not None


def _candidates(scope: Scope) -> Iterator[Candidate]:
    """Yield the commands that may train, in their order."""
    for statement in scope.source.statements:
        if statement.kind in ("function_definition", "ERROR"):
            continue
        block = _block_that_trains(scope, statement)
        of_block = (
            [Candidate(statement, block.training, block, is_block=True)] if block and block.training else []
        )
        of_commands: list[Candidate] = []
        for command in statement.commands:
            names = command.names[command.names[:1] == ("exec",) :]
            if command.program in (*PRINTS, "set"):
                continue
            in_job = _launch(command.names_in_job[-len(names) :])
            launch = replace(_launch(names), **{size: getattr(in_job, size) for size in SIZES})
            kind: TrainingKind | None = None
            of_launch = replace(scope, in_ranks=scope.in_ranks or launch.program != "")
            inner = _started(of_launch, launch.command, command, statement.line)
            if launch.program:
                is_unknown = inner is None or inline_text(launch.command).startswith("$")
                if not is_helper(launch):
                    may_train = is_unknown or (inner and inner.training)
                    kind = TrainingKind.LAUNCHED if may_train else TrainingKind.PROGRAM
            elif inner and inner.training:
                kind = max(inner.training.kind, TrainingKind.PYTHON)
            elif inner and command.program in scope.source.functions:
                continue
            elif _runs_python(names):
                kind = TrainingKind.PYTHON
            elif statement.is_plain or statement.bodies:
                kind = _kind_of_program(command)
                # A shell script that convert cannot read may start Python.
                is_script = kind is TrainingKind.PROGRAM and _TRAINS.search(shell_script(launch.command))
                if is_script or (statement.is_plain and _holds_python(scope, launch.command)):
                    kind = TrainingKind.PYTHON
            if names[:1] == ("ssh",):
                text = _remote_text(command.last_values(len(names)))
                launch = LaunchCommand("ssh", command=("bash", "-c", text))
                inner = _started(replace(scope, in_ranks=True), launch.command, command, statement.line)
                kind = inner.training.kind if inner and inner.training else TrainingKind.UNKNOWN
            # A command of the block counts there, unless it is in front: ``if srun python t.py; then``.
            if kind is not None and not any(kind <= candidate.training.kind for candidate in of_block):
                marked = _launch(command.last_values(len(names)))
                launch = replace(launch, environment=marked.environment, options=marked.options)
                of_commands.append(Candidate(statement, Training(kind, command, launch), inner))
        yield from of_commands or of_block


def _launch(names: tuple[str, ...]) -> LaunchCommand:
    launch = launch_in(names, reads_inline=False)
    return launch if launch and launch.program not in ("sbatch", "salloc") else plain_launch(names)


def _preparations(scope: Scope) -> Iterator[Candidate]:
    """Yield the programs of a script that starts nothing which could train."""
    for statement in scope.source.statements if not scope.depth else ():
        is_list = statement.kind == "list" and not is_condition(statement)
        for command in statement.commands if statement.is_plain or is_list else ():
            is_program = is_list and _kind_of_program(command) is TrainingKind.PROGRAM
            is_work = Trait.WORK in TRAITS.get(command.program, Trait.TOOL)
            is_work = is_work or (_is_inline(command) and not {"-V", "--version"} & {*command.names})
            if is_program or is_work or is_image_command(command.names):
                training = Training(TrainingKind.PROGRAM, command, plain_launch(command.names))
                yield Candidate(statement, training, None)


def _remote_text(names: tuple[str, ...]) -> str:
    """Return the shell text that ``ssh HOST TEXT`` runs. ``names``: as `Command.last_values` returns them."""
    place = 1
    while place < len(names) and names[place].startswith("-"):
        place += 1 + (names[place][1:] in tuple("bcDEeFIiJLlmOopQRSWw"))
    text = " ".join(names[place + 1 :])
    # The shell of the script has put its values there. ``$`` in single quotes is one of them.
    text = re.sub(r"'([^'\"]*\$[^'\"]*)'", r'"\1"', text)
    return plain_text(text)


def _block_that_trains(scope: Scope, statement: Statement) -> Reading | None:
    """Return the block of a loop, a condition or a group in which a command trains; None if there is none."""
    if scope.depth >= _MOST_DEPTH or not statement.bodies:
        return None
    is_sweep = bool(statement.loop_values) and not reason_against_sweep(statement)
    constants = {**scope.source.constants, **({statement.loop: f"{{{statement.loop}}}"} if is_sweep else {})}
    outside = replace(scope, errexit=scope.errexit_by_line()[statement.line])
    blocks = [_block(outside, body, scope.source.arguments, constants) for body in statement.bodies]
    blocks = [block for block in blocks if block.training]

    kinds = [block.training.kind for block in blocks if block.training]
    best = blocks[max(range(len(kinds)), key=lambda place: (kinds[place], place))] if kinds else None
    others = [
        replace(part, outcome=PartOutcome.UNTRANSLATED, reason=IS_OTHER_BRANCH)
        for block in blocks
        for part in block.parts
        if block is not best and part.outcome is PartOutcome.COMMAND
    ]
    return replace(best, parts=(*best.parts, *others)) if best else None


def _started(scope: Scope, shell_words: tuple[str, ...], command: Command, line: int) -> Reading | None:
    """Return what the script or function that ``shell_words`` run asks for; None for other programs.

    ``shell_words`` are the last ones of ``command``. All parts of another script get ``line``.
    """
    if not shell_words or scope.depth >= _MOST_DEPTH:
        return None
    if function := scope.source.functions.get(shell_words[0]):
        # A function that calls itself is not followed.
        others = {name: body for name, body in scope.source.functions.items() if name != shell_words[0]}
        caller = replace(scope, errexit=scope.errexit_by_line()[line])
        values = scope.source.constants.items()
        # It has arguments of its own.
        constants = {name: value for name, value in values if not POSITIONAL.search(str(value))}
        arguments = command.last_values(len(shell_words) - 1)
        if scope.arguments is None:  # the line has no arguments of the batch script
            arguments = tuple(value for value in arguments if not re.match(r"\$\{?[@*]", value))
        reading = _block(caller, function, arguments, constants, others)
        for word in command.words:
            if word.text[:1] in ("$", "`") and any(map(word.is_open, word.values)):
                reason = "it may be several arguments of the function: write its value"
                part = Part(line, word.text, PartOutcome.UNTRANSLATED, reason)
                reading = replace(reading, parts=(*reading.parts, part))
        return reading
    text = inline_text(shell_words)
    place = shell_words.index(text) + 1 if text else 0  # the word behind the text is its name
    if not text:
        name = shell_script(shell_words)
        is_shell = name != shell_words[0] or name.endswith(SCRIPT_ENDS)
        text = scope.text_of(name, line) if is_shell and name else ""
        place = shell_words.index(name) if text else 0
    if not text:
        return None
    arguments = command.last_values(max(0, len(shell_words) - place - 1))
    marked = "".join(command.last_values(len(shell_words))[place - 1 : place])
    if inline_text(shell_words) and re.search(r"\b(?:cd|pushd)\s", text) and not scope.folder_at(line):
        # The shell around the text has put its folder there.
        marked = re.sub(r"\$PWD\b|\$\{PWD\}", "$SLURM_SUBMIT_DIR", marked)
        text = plain_text(marked)
    source = ShellSource(
        text, scope.source.constants, arguments, scope.source.functions, environment=scope.source.environment
    )
    reading = _read(replace(_inner(scope, source, arguments), errexit=""))
    code, is_code = "".join(reading.command[2:3]), reading.command[:2] == ("bash", "-c")
    # The shell around it has put their values into the text, and the shell of the text reads them as code.
    outer = variables_read((marked,)) & variables_read((code,))
    read = {name for name in source.last_set if _reads_beside(marked, name)}
    for name in sorted(read):
        reason = "the script's shell puts its value there, before the text sets another one: write the value"
        part = Part(line, f"${name}", PartOutcome.UNTRANSLATED, reason)
        reading = replace(reading, parts=(*reading.parts, part))
    if outer and is_code and inline_text(shell_words) and ALIKE.fullmatch(reading.text):
        escaped = re.sub(rf'["\\`]|\$(?!\{{?(?:{"|".join(outer)})\b)', r"\\\g<0>", code)
        reading = replace(reading, command=("bash", "-c", f'eval "{escaped}"', *reading.command[3:]), text="")
    if shell_words[0] in SHELLS:
        reading = with_login_files(reading, shell_words[:place], line, " ".join(shell_words[:place][:2]))
    return replace(reading, parts=tuple(replace(part, line=line) for part in reading.parts))


def _block(
    scope: Scope,
    body: Body,
    arguments: tuple[str, ...] | None,
    constants: Mapping[str, Constant],
    functions: Mapping[str, Body] | None = None,
) -> Reading:
    """Return what the statements of a function, a loop, a branch or a group ask for."""
    source = ShellSource(
        body,
        constants,
        arguments,
        scope.source.functions if functions is None else functions,
        environment=scope.source.environment,
    )
    return _read(_inner(scope, source, arguments))


def _inner(scope: Scope, source: ShellSource, arguments: tuple[str, ...] | None) -> Scope:
    return replace(scope, source=source, arguments=arguments, depth=scope.depth + 1)


def _runs_python(names: tuple[str, ...]) -> bool:
    """Return whether the command runs a Python script or module, possibly behind a wrapper."""
    for index in range(len(names)):
        call = interpreter_call(names[index:])
        if call and call.is_python:
            return call.script.endswith(".py") or (bool(call.module) and call.module not in _TOOLS)
    program, *arguments = plain_launch(names).command or ("",)
    is_open = program.startswith("$") and any(word.endswith(".py") for word in arguments)
    return is_open or program.endswith(".py")


def _starts_program(scope: Scope, commands: Sequence[Command], substitutes: Iterable[str] = ()) -> bool:
    """Return whether commands, or the functions that they call, start a program that is no tool."""
    for command in commands:
        body = scope.source.functions.get(command.program)
        is_step = launch_in(command.names, reads_inline=False) is not None
        if body is None and _kind_of_program(command) is not None and not is_step:
            return True
        inner = [part for other in ShellSource(body).statements for part in other.commands] if body else []
        if any(part.program.startswith("$") for part in inner) or any(map(_kind_of_program, inner)):
            return True
    return any(map(_SCRIPT_OR_MODULE.fullmatch, substitutes))


def _reads_beside(text: str, name: str) -> bool:
    """Return whether shell code reads a variable elsewhere than in ``NAME=$NAME:x``."""
    others = re.sub(rf"(?<![\w-]){name}=\S*", "", text)
    return name in variables_read((others,))


def _holds_python(scope: Scope, command: tuple[str, ...]) -> bool:
    """Return whether the program is a variable that holds a whole command line with Python."""
    name = re.fullmatch(r"\$\{?(\w+)(?:\[[@*]\]\})?", command[0]) if len(command) == 1 else None
    texts = [other.text for other in scope.source.statements if name and name[1] in other.sets]
    text = "\n".join(texts)
    return bool(_STARTS_PYTHON.search(text)) and not re.search(r"\b(?:srun|mpirun|mpiexec)\b", text)


def _kind_of_program(command: Command) -> TrainingKind | None:
    """Return how sure it is that a command is the work of a script; None for a tool."""
    launched = plain_launch(command.names).command
    names = ("".join(command.names[:1]), "".join(launched[:1]))
    name, program = (re.sub(r"^/(?:usr/)?s?bin/", "", word) for word in names)
    traits = TRAITS.get(program)
    if (
        not program
        or command.program.startswith("$")
        or is_tool(name)
        or is_tool(program)
        or _is_inline(command)
        or is_image_command(launched)
    ):
        return None
    if traits and Trait.IN_SHELL in traits:
        return TrainingKind.PROGRAM if "run" in command.names[1:2] else None
    # ``exec`` starts no function.
    is_known = traits or name == "exec" or "/" in names[1] or program.endswith(SCRIPT_ENDS)
    is_known = is_known or interpreter_call((program,)) is not None
    return TrainingKind.PROGRAM if is_known else TrainingKind.UNKNOWN


def _is_inline(command: Command) -> bool:
    """Return whether a Python runs code that is in the script, or prints its version."""
    call = interpreter_call(unwrapped(command.names))
    return call is not None and call.is_python and not (call.module or call.script)
