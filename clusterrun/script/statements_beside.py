"""Read the statements of a batch script before and behind its command: setup lines, and other parts."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence

from clusterrun.model.frozen import replace
from clusterrun.script.batch_reading import (
    COMPUTED,
    END_IS_REPORTED,
    PREPARES,
    Candidate,
    Reading,
    Scope,
    calls,
    function_name,
    is_condition,
    is_helper,
    is_repeatable,
    is_small,
    plain_launch,
    variables_read,
)
from clusterrun.script.batch_scripts import Part, PartOutcome
from clusterrun.script.directives import OF_PLACE
from clusterrun.script.interpreter_calls import interpreter_call
from clusterrun.script.launch_commands import ACTIVATORS, PLACEHOLDER, LaunchCommand, launch_in
from clusterrun.script.program_table import is_tool
from clusterrun.script.quoting import evaluated_text, plain_text
from clusterrun.script.shell_source import (
    ASSIGNMENTS,
    PRINTS,
    Body,
    Command,
    Constant,
    ShellSource,
    Statement,
    is_launcher_text,
)
from clusterrun.script.statement_rules import (
    ALLEXPORT,
    IS_BEHIND,
    IS_BESIDE,
    IS_FOR_HOSTS,
    IS_LATER_RUN,
    IS_OF_LATER,
    IS_OPTION,
    IS_TRAP_OF_SIGNAL,
    QUEUES_AGAIN,
    QUEUES_JOB,
    READS_RESULT,
    RENDEZVOUS,
    Facts,
    of_tasks,
    reason_of_trap,
    rule_for,
)

# The list of nodes in the options of a launcher.
_HOSTS = re.compile(r"(?:host|machine)file[= ]['\"]?([^\s'\"]+)")
_PROFILE = re.compile(r"(?:bashrc|profile)$")
# Variables that every shell has, and programs see.
EXPORTED_BY_SHELLS = ("HOME", "USER", "LOGNAME", "PATH", "PWD", "SHELL", "UID")
# Variables that every shell has.
OF_SHELL = (*EXPORTED_BY_SHELLS, "HOSTNAME", "RANDOM", "SECONDS", "OLDPWD")
# Words that each shell expands alike if it has the same variables.
_VALUE = r"\$[A-Za-z_]\w*\b|\$\{[A-Za-z_]\w*\}|\$\(\([\w\s+*/%-]*\)\)"
ALIKE = re.compile(
    rf"""(?!.*\$\{{?(?:{"|".join(OF_PLACE)})\b)"""
    rf"""(?:[\w@%+=:,./?*\s~\[\]-]|'[^']*'|"(?:[^"$`\\]|{_VALUE})*"|{_VALUE})*""",
    re.DOTALL,
)
# Commands whose failure ends the run, and not the script.
_MAY_FAIL = re.compile(r"(?:module|ml|conda|mamba|micromamba|spack|source|\.|cd)\s")
_SUCCEEDS = re.compile(r".*\|\|\s*(?:true|:)")
_IS_STRICT = "the run ends if this line or a similar one fails, unlike the script: add || : to go on"
_SENDS_SIGNAL = re.compile(r"\bscancel\s.*(?:-s\b|--signal\b)")
# ``scontrol requeue``, and ``sbatch`` of the script itself, without other arguments.
_REQUEUES = re.compile(
    r"requeue|\bsbatch\s+\"?\$\{?(?:0|BASH_SOURCE)\b\}?\"?\s*(?:$|[;&|)}'\"])", re.MULTILINE
)
# A loop until something happens, and the number of a program in the background.
_WAITS = re.compile(r"\A(?:wait\b|(?:while|until|for)\b.*\bsleep\b)|\$!", re.DOTALL)
# ``set -u``, and ``set +u``.
_NOUNSET = re.compile(r"set\s(?:.*\s)?([-+])(?:[a-zA-Z]*u|o\s+nounset\b)")
_NOUNSET_LINES = ("set -u", "set +u")
# The variable whose name another one holds: ``${!NAME}``.
_INDIRECT = re.compile(r"\$\{![A-Za-z_]\w*\}", re.ASCII)
# Kinds of statements whose commands all run.
_CERTAIN = (*ASSIGNMENTS, "subshell", "compound_statement")
# A variable that must be set there.
_EXPANDED = re.compile(r"(?<!\\)\$(?:\{(?=\w+\}))?([A-Za-z_]\w*)", re.ASCII)
_OF_SLURM = re.compile(r"\bSLURM_[A-Z_]+\b")


def read_before(
    scope: Scope,
    statements: Sequence[Statement],
    training: Candidate | None,
    of_training: Reading,
    beside: Sequence[Statement],
    programs: Sequence[Statement],
    unsure: Sequence[Statement],
) -> Reading:
    """Return the setup lines of the statements before the command.

    They are read backwards, because a line is needed if a later one reads the variables that it sets.
    ``beside``: statements with a training that runs beside the command. ``programs``: those with a program
    that is no tool. ``unsure``: those that may be COMMAND.
    """
    # The line sets the launcher's variables behind the setup lines of the script.
    launch = of_training.training.launch if of_training.training else LaunchCommand("")
    of_launch = [value for _, value in (*launch.environment, *launch.options, *of_training.options)]
    # Each shell that splits words reads IFS.
    needed = {"IFS", *variables_read((*of_training.command, *of_training.setup, *of_launch))}
    is_expanded_once = of_training.text and not ALIKE.fullmatch(of_training.text)
    texts = (*of_training.setup, of_training.text) if is_expanded_once else of_training.setup
    read_by_setup = variables_read(texts)
    needed |= read_by_setup
    read_in_ranks = set() if is_expanded_once else of_training.read_in_ranks
    # The user's COMMAND may read all of them.
    is_open = training is None and not scope.depth
    whole = (*statements, training.statement) if training else statements
    reads_any = any(_INDIRECT.search(statement.text) for statement in whole)
    commands = training.statement.commands if training else ()
    code = "\n".join(of_training.command)
    called = {name for command in commands for name in plain_launch(command.names).command[:1]}
    setup: list[str] = []
    parts: list[Part] = []
    fates: list[tuple[Statement, list[Part], list[str]]] = []
    requeues = False
    exported = _exported(statements)
    errexit = scope.errexit_by_line()
    absent = min((statement.line for statement in (*beside, *unsure)), default=None)
    branches = [part for part in scope.source.skipped if part.reads_arguments and part.has_program]
    first_unsure = min((part.line for part in (*unsure, *(branches if is_open else ()))), default=math.inf)
    moves = (statement.line for statement in statements if re.match(r"(?:cd|pushd)\s", statement.text))
    first_move = min(moves, default=math.inf)
    traps = "\n".join(
        command.names[1]
        for statement in statements
        for command in statement.commands
        if command.names[:1] == ("trap",) and reason_of_trap(command.names) == IS_TRAP_OF_SIGNAL
    )
    for statement, readers in reversed([*_with_readers(statements)]):
        facts = _facts(scope, statement, needed, read_by_setup)
        facts = replace(
            facts,
            is_read=facts.is_read or is_open or reads_any,
            is_exported=statement in exported,
            is_beside=statement in beside,
            is_unsure=statement in unsure,
            is_behind_unsure=first_unsure < statement.line,
            waits=bool(_WAITS.search(statement.text)) and absent is not None and absent < statement.line,
            is_for_hosts=is_for_hosts(scope, launch, statement),
            is_in_other_folder=first_move < statement.line,
            is_other_branch=is_condition(statement) and re.search(r"\bexit\b", statement.text) is not None,
        )
        rule = rule_for(facts)
        lines: list[str] = []
        if rule:
            requeues = requeues or facts.requeues
            outcome, reason = rule.outcome, rule.reason
            if facts.name == "shift":
                lines = [statement.text]
            elif match := _NOUNSET.match(statement.text):
                lines = [f"set {match[1]}u"]
        elif (statement.kind == "function_definition" or statement.text.startswith("export -f ")) and not (
            calls("\n".join((*setup, *of_training.setup)), statement)
            or (calls(code, statement) and statement.text not in code)
        ):
            is_followed = function_name(statement) in called or statement.text in code
            outcome = PartOutcome.NEEDLESS
            reason = (
                "its statements are in the line" if is_followed else "nothing that is in the line calls it"
            )
        else:
            reason = _remark(scope, statement, of_training, programs)
            outcome = PartOutcome.SETUP
            in_ranks = is_open or bool(statement.sets & read_in_ranks)
            lines = _setup_lines(facts, scope.source.functions, errexit[statement.line], in_ranks)
            reads = statement.reads | variables_read([statement.text])
            needed |= reads
            read_by_setup |= reads
        own = [Part(part.line, part.text, outcome, reason) for part in (statement, *readers)]
        is_handler = statement.kind == "function_definition" and calls(traps, statement)
        if is_handler or facts.requeues or reason == IS_TRAP_OF_SIGNAL:
            parts += _parts_of_handler(scope, statement)
        fates.insert(0, (statement, own, lines))
        setup[:0] = lines
    lines, own_parts = _with_their_variables(fates)
    lines, check_parts = _with_nounset(scope, statements, training, lines)
    strict = [
        place
        for place, part in enumerate(own_parts)
        if _MAY_FAIL.match(part.text) and part.text in lines and "||" not in part.text
        if not errexit[part.line]
        if (part.outcome, part.reason) == (PartOutcome.SETUP, "")
    ]
    for place in strict[:1]:
        own_parts[place] = replace(own_parts[place], reason=_IS_STRICT)
    is_check = {(part.line, part.text) for part in check_parts}
    own_parts = [part for part in own_parts if (part.line, part.text) not in is_check]
    return Reading(setup=tuple(lines), requeues=requeues, parts=(*parts, *own_parts, *check_parts))


def is_for_hosts(scope: Scope, launch: LaunchCommand, statement: Statement) -> bool:
    """Return whether a statement does nothing but use the list of nodes that ``launch`` reads."""
    match = _HOSTS.search(" ".join(map(plain_text, launch.needless)))
    programs = {command.program for command in statement.commands if command.names}
    are_tools = programs and all(map(is_tool, programs - {"srun"}))
    if not (match and are_tools) or statement.kind == "function_definition":
        return False
    names = [name for name, value in scope.source.constants.items() if value == match[1]]
    names += re.findall(r"\A\$\{?(\w+)\}?\Z", match[1])
    texts = (*(rf"\$\{{?{name}\b" for name in names), rf"(?<![\w./-]){re.escape(match[1])}(?![\w.-])")
    redirections = [text for command in statement.commands for text in command.redirections]
    return all(re.search("|".join(texts), text) for text in (statement.text, *redirections))


def _with_nounset(
    scope: Scope, statements: Sequence[Statement], training: Candidate | None, lines: Sequence[str]
) -> tuple[list[str], list[Part]]:
    """Return the setup ``lines`` with each ``set -u`` of the script, if one of their variables may be unset.

    The run ends where the script does.
    """
    settings = [statement for statement in statements if _NOUNSET.match(statement.text)]
    command = training.statement if training else None
    is_certain = command is not None and (command.is_plain or command.kind in _CERTAIN)
    of_command = _expanded(command.text) if command and is_certain else []
    is_set = {*OF_SHELL, *RENDEZVOUS, *scope.source.constants, *scope.source.environment}
    for other in statements:
        # ``A=$A:x`` reads it before it sets it. An option that is not given sets nothing.
        sets = set() if other.bodies and other.reads_arguments else other.sets
        is_set |= sets - {*_expanded(other.text, "+")} if other.kind in ASSIGNMENTS else sets
    in_lines = _expanded("\n".join(lines), "+")
    open_names = [name for name in dict.fromkeys((*in_lines, *of_command)) if name not in is_set]
    open_names = [name for name in open_names if not name.startswith(("SLURM_", "CLUSTERRUN_"))]
    if not (settings and open_names):
        return [line for line in lines if line not in _NOUNSET_LINES], []
    # A last line reads the variables of the command.
    last = [line for line in lines if line in _NOUNSET_LINES][-1:]
    own = " ".join(f"${name}" for name in open_names if name in of_command)
    end = [*([f": {own}"] if own else []), "set +u"] if last == ["set -u"] else []
    return [*lines, *end], [Part(other.line, other.text, PartOutcome.SETUP) for other in settings]


def _expanded(text: str, signs: str = "-+=") -> list[str]:
    """Return the variables in shell code that must be set under ``set -u``.

    Not those of ``'…'``, which is not expanded, and of alternatives with one of ``signs``: ``${A:+$A}``. The
    default in ``${A:-$B}`` must be set if A is not.
    """
    text, before = re.sub(r"\\.|'[^']*'", "", text), ""
    while text != before:
        before, text = text, re.sub(rf"\$\{{\w+:?[{signs}][^{{}}]*\}}", "", text)
    return _EXPANDED.findall(text)


def _exported(statements: Sequence[Statement]) -> list[Statement]:
    """Return the statements whose variables programs see: behind ``set -a``, or exported by another one."""
    exported = []
    names: set[str] = set()
    sign = ""
    for statement in statements:
        match = ALLEXPORT.match(statement.text)
        sign = match[1] if match else sign
        if sign == "-" or statement.sets & names:
            exported.append(statement)
        names |= statement.exports
    return exported


def _remark(scope: Scope, statement: Statement, of_training: Reading, programs: Sequence[Statement]) -> str:
    """Return the difference between a statement and its setup line; '' if there is none."""
    codes = [command.names[1:2] for command in statement.commands if command.names[:1] == ("exit",)]
    if any(code in ((), ("0",)) or "$" in code[0] for code in codes):
        return "if it ends the script here, the run counts as failed"
    has_more_tasks = scope.source.constants.get("SLURM_NTASKS_PER_NODE", "1") != "1"
    steps = [launch_in(command.names, reads_inline=False) for command in statement.commands]
    for step in steps if has_more_tasks else ():
        if step and step.program == "srun" and not (step.per_node or step.total or step.open_sizes):
            return "this srun starts one task on each node: say how many with --ntasks"
    is_function = statement.kind == "function_definition"
    # The ranks run a function that COMMAND calls.
    is_of_ranks = is_function and calls("\n".join(of_training.command), statement)
    if not is_of_ranks and (counts := ", ".join(_counts_read(scope, statement))):
        return f"{counts} may have another value: the job has one task per node"
    if of_training.sweeps and not is_repeatable(statement):
        return "each run of the loop repeats it"
    if of_training.training is None and not scope.depth and scope.sources_unread(statement):
        return (
            "convert cannot read it: if it starts the program, give that as COMMAND, and leave this line out"
        )
    if names := _values_before(scope, statement):
        return f"convert does not read it: if it changes {', '.join(names)}, the line has the values before"
    is_program = any(statement.line == program.line for program in programs)
    if is_program and not is_function:
        time = "beside" if statement.in_background else "before"
        return f"it runs once, {time} the ranks: clusterrun watches and restarts only the ranks"
    return ""


def _values_before(scope: Scope, statement: Statement) -> list[str]:
    """Return the variables of the line that are set before a statement which sources a file, and not behind.

    The file is not read.
    """
    if not scope.sources_unread(statement):
        return []
    others = scope.source.statements
    before = {name for other in others if other.line < statement.line for name in other.sets - other.exports}
    behind = [other for other in others if other.line > statement.line]
    reads = {name for other in behind for name in other.reads}
    reads.update(name for part in scope.source.skipped if part.line > statement.line for name in part.reads)
    return sorted(before.difference(*(other.sets for other in behind)) & {*scope.source.constants} & reads)


def _with_their_variables(
    fates: Sequence[tuple[Statement, list[Part], list[str]]],
) -> tuple[list[str], list[Part]]:
    """Return the setup lines and the parts of the statements, in their order.

    A line that reads a variable of a statement that is not in the line would do something else: it is left
    out.
    """
    setup: list[str] = []
    parts: list[Part] = []
    absent: set[str] = set()
    for statement, own, lines in fates:
        if lines and (missing := sorted(statement.reads & absent)):
            reason = f"it reads {', '.join(missing)}, and a statement that sets it is not in the line"
            own = [replace(part, outcome=PartOutcome.UNTRANSLATED, reason=reason) for part in own]
            lines = []
        if own[0].outcome is PartOutcome.UNTRANSLATED and not lines:
            absent |= statement.sets
        elif statement.kind in ASSIGNMENTS:
            absent -= statement.sets
        setup += lines
        parts += own
    return setup, parts


def _with_readers(statements: Sequence[Statement]) -> Iterator[tuple[Statement, tuple[Statement, ...]]]:
    """Yield each statement with those behind it that read its result (``$?``): one setup line."""
    place = 0
    while place < len(statements):
        statement, end = statements[place], place + 1
        is_simple = statement.is_plain or statement.kind in ASSIGNMENTS
        is_run = any(launch_in(command.names, reads_inline=False) for command in statement.commands)
        if is_simple and not (is_run or statement.in_background):
            while end < len(statements) and READS_RESULT.match(statements[end].text):
                end += 1
        whole = statements[place:end]
        if len(whole) > 1:
            statement = replace(
                statement,
                text="\n".join(part.text for part in whole),
                kind="list",
                commands=tuple(command for part in whole for command in part.commands),
                sets=frozenset().union(*(part.sets for part in whole)),
                exports=frozenset().union(*(part.exports for part in whole)),
                reads=frozenset().union(*(part.reads for part in whole)),
            )
        yield statement, tuple(whole[1:])
        place = end


_OF_HANDLER = (
    "the handler of a signal runs it: do it in the training script (clusterrun help signals), or let a shell"
    " start that: bash -c 'trap \"…\" SIGNAL; PROGRAM & wait $!; wait $!'"
)


def _parts_of_handler(scope: Scope, handler: Statement) -> Iterator[Part]:
    """Yield what a signal's handler, a function or the text of a trap, does beside the requeue of the job."""
    body = scope.source.functions.get(function_name(handler))
    if handler.kind != "function_definition":
        body = Body(handler.line, handler.commands[0].names[1])
    for statement in ShellSource(body).statements if body else ():
        names = {command.program for command in statement.commands if command.names}
        names -= set(scope.source.functions)
        # The ranks get the signal of the job, without a handler that passes it on.
        names -= {"scancel"} if _SENDS_SIGNAL.search(statement.text) else set()
        names -= {"sbatch"} if _REQUEUES.search(statement.text) else set()
        if not names <= {"scontrol", "exit", "wait", "kill", "sleep", "trap", "return", "true", ":", *PRINTS}:
            yield Part(statement.line, statement.text, PartOutcome.UNTRANSLATED, _OF_HANDLER)


def _setup_lines(facts: Facts, functions: Collection[str], errexit: str, in_ranks: bool) -> list[str]:
    """Return the setup lines of a statement. They run in one shell, as the script does.

    ``functions``: their names, because ``set -e`` ends a function at its first failure. ``in_ranks``: whether
    a shell in each rank reads a variable that it sets. ``errexit``: the script's options of ``set -e``.
    Without them a command may fail.
    """
    statement = facts.statement
    text = re.sub(r"^local\b", "declare", statement.text)
    if statement.in_background:
        return [f"{text} &"]
    # The last command of such a file often fails, as in ``[ -f ~/.x ] && . ~/.x``.
    reads_profile = statement.is_plain and facts.name in ("source", ".") and _PROFILE.search(facts.argument)
    is_needed = facts.name in PREPARES and not reads_profile and not is_condition(statement)
    is_assignment = statement.kind == "variable_assignment"
    may_fail = bool(COMPUTED.search(text)) if is_assignment else not _SUCCEEDS.fullmatch(text)
    # ``export $NAME`` fails if the value is no name.
    is_definition = statement.kind == "function_definition" or (
        statement.kind == "declaration_command" and not re.match(r"\w+ +[\"']?\$", text)
    )
    is_program = statement.kind == "command" and facts.name not in functions
    is_checked = errexit and (is_program or (is_assignment and "|" not in text))
    is_array = "=(" in text or re.match(r"\w+\[", text)
    if in_ranks and is_assignment and not (is_array or (errexit and may_fail)):
        return [f"export {text}"]
    if is_definition or is_needed or is_checked or not may_fail:
        return [text]
    if errexit:
        # The check behind a setup line sees the last command of it alone.
        return [f"set -{errexit}\n{text}\nset +{errexit}"]
    return [f"{{ {text}\n}} || :" if "\n" in text else f"{text} || :"]


def _counts_read(scope: Scope, statement: Statement) -> list[str]:
    """Return the variables of Slurm about tasks that a statement, or a file that it runs, reads."""
    names = set() if statement.kind == "unset_command" else set(of_tasks(statement.reads))
    names -= {*scope.source.constants}
    for command in statement.commands:
        call = interpreter_call(command.names)
        is_sourced = command.names[:1] in (("source",), (".",))
        file = call.script if call else "".join(command.names[is_sourced : is_sourced + 1])
        if file and set("./") & set(file):
            of_file = of_tasks(_OF_SLURM.findall(scope.text_of(file, statement.line)))
            names.update(f"{name} (in {file})" for name in of_file)
    return sorted(names)


def setup_word(value: str, constants: Mapping[str, Constant]) -> str:
    """Return a word for a setup line, which does not expand the ``{name}`` of a sweep."""
    if "$" in value:  # the script's shell evaluates it
        return evaluated_text(value)
    for name in PLACEHOLDER.findall(value):
        if constants.get(name) == f"{{{name}}}":
            return f'"{value}"'.replace(f"{{{name}}}", f"${name}")
    return shlex.quote(plain_text(value))


def _facts(scope: Scope, statement: Statement, needed: set[str], read_by_setup: set[str]) -> Facts:
    constants = scope.source.constants
    is_function = statement.kind == "function_definition"
    names = statement.commands[0].names[:1] if statement.commands else ()
    text = statement.text
    if names == ("trap",):
        # A trap does what the functions do that it calls.
        functions = [other for other in scope.source.statements if other.kind == "function_definition"]
        text += "".join(other.text for other in functions if function_name(other) in statement.text)
    launches = [launch_in(command.names, reads_inline=False) for command in statement.commands]
    return Facts(
        statement,
        # ``${A:?}`` ends the script if A is unset.
        is_read=bool(statement.sets & needed)
        or (":?" in statement.text and not statement.sets <= {*constants}),
        is_read_by_setup=bool(statement.sets & read_by_setup),
        sets_launcher=statement.kind == "declaration_command"
        and any(is_launcher_text(constants[name]) for name in statement.sets & set(constants)),
        requeues=(names == ("trap",) or is_function) and _REQUEUES.search(text) is not None,
        launches=not is_function
        and any(not (is_helper(launch) or is_small(launch, constants)) for launch in launches if launch),
    )


def _leaves_an_environment(command: Command) -> bool:
    """Return whether a command behind the last program changes nothing but the shell, which ends."""
    is_of_conda = command.program in ACTIVATORS and command.names[1:2] in (("activate",), ("deactivate",))
    return is_of_conda or command.program in ("deactivate", "module", "ml", "cd", "unset", "popd", "export")


def parts_after(
    scope: Scope, statements: Sequence[Statement], of_training: Reading, trainings: Sequence[Statement]
) -> Iterator[Part]:
    """Yield what becomes of the statements behind the command, the last one first.

    A command in the background runs beside them, until the script waits for it. ``trainings``: all with a
    command that trains.
    """
    needed: set[str] = set()
    is_followed = False  # whether a statement behind it is not in the line
    with_result = [statement for statement in statements if READS_RESULT.match(statement.text)]
    results = {name for statement in with_result for name in statement.sets}
    waits = [place for place, statement in enumerate(statements) if statement.waits]
    end = min(waits, default=len(statements)) if of_training.in_background else 0
    launch = of_training.training.launch if of_training.training else LaunchCommand("")
    for place, statement in reversed([*enumerate(statements)]):
        reason = IS_BESIDE if place < end or statement.in_background else IS_BEHIND
        reason = reason if statement.commands else IS_OF_LATER
        reason = IS_LATER_RUN if reason == IS_BEHIND and statement in trainings else reason
        part = _part_after(statement, reason)
        reads_result = "$?" in statement.text or bool(statement.reads & results)
        decides = re.search(r"\bexit [1-9]", statement.text) and not reads_result
        if hides := results & {*re.findall(r"\b(\w+)=0\b", statement.text)} and is_condition(statement):
            reason = "the run ends as its ranks do: no later line changes the exit code"
        is_needed = bool(statement.sets & needed) and statement not in with_result
        if is_for_hosts(scope, launch, statement):
            part = replace(part, outcome=PartOutcome.NEEDLESS, reason=IS_FOR_HOSTS)
        elif part.outcome is PartOutcome.NEEDLESS and (decides or hides or is_needed):
            part = replace(part, outcome=PartOutcome.UNTRANSLATED, reason=reason)
        commands = [command for command in statement.commands if command.names]
        if commands and all(map(_leaves_an_environment, commands)) and not is_followed:
            part = replace(part, outcome=PartOutcome.NEEDLESS, reason=END_IS_REPORTED)
        if part.outcome is PartOutcome.UNTRANSLATED:
            is_followed = True
            needed |= statement.reads
        if statement.text:
            yield part


def _part_after(statement: Statement, reason: str) -> Part:
    """Return what becomes of a statement behind the command; ``reason`` is that of a program."""
    names = {command.program for command in statement.commands if command.names}
    files = [text for command in statement.commands for text in command.redirections]
    prints_to_file = any(os.devnull not in text and ">&" not in text for text in files)
    exits = [command.names[1:] for command in statement.commands if command.names[:1] == ("exit",)]
    if statement.is_plain and any(code and code[0].isdecimal() and int(code[0]) for code in exits):
        reason = "the script always fails: the run ends as its ranks do"
        return Part(statement.line, statement.text, PartOutcome.UNTRANSLATED, reason)
    is_harmless = (
        names <= {"wait", "exit", "return", "break", "continue", "set", "kill", "sleep", "true", ":", *PRINTS}
        and statement.only_reads
    )
    if is_harmless and not prints_to_file:
        return Part(statement.line, statement.text, PartOutcome.NEEDLESS, END_IS_REPORTED)
    if names & {"sbatch"}:
        reason = QUEUES_JOB
    elif re.search(r"\bscontrol\s+requeue", statement.text):
        reason = QUEUES_AGAIN
    if statement.text.startswith("-"):
        reason = IS_OPTION
    for command in statement.commands:
        if command.names[:1] == ("trap",):
            reason = reason_of_trap(command.names)
    return Part(statement.line, statement.text, PartOutcome.UNTRANSLATED, reason)
