"""Read the statements of a batch script before and behind its command: setup lines, and other parts."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from clusterrun.model.frozen import replace
from clusterrun.script.batch_reading import (
    COMPUTED,
    END_IS_REPORTED,
    PLACEHOLDER,
    PREPARATIONS,
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
from clusterrun.script.interpreter_calls import (
    interpreter_call,
)
from clusterrun.script.launch_commands import (
    launch_in,
)
from clusterrun.script.shell_source import (
    PRINTS,
    Command,
    Constant,
    ShellSource,
    Statement,
    evaluated_text,
    is_launcher_text,
    plain_text,
)
from clusterrun.script.statement_rules import (
    ALLEXPORT,
    IS_BEHIND,
    IS_TRAP_OF_SIGNAL,
    QUEUES_JOB,
    READS_RESULT,
    Facts,
    of_tasks,
    rule_for,
    traps_signal,
)

ERREXIT = re.compile(r"set\s(?:.*\s)?(?:-[A-Za-z]*e|-o\s+errexit\b)")
_PROFILE = re.compile(r"(?:bashrc|profile)$")
# Variables that differ between the script's shell and a rank.
OF_PLACE = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURMD_NODENAME", "HOSTNAME", "RANDOM")
# Words that each shell expands alike if it has the same variables.
_VALUE = r"\$[A-Za-z_]\w*|\$\{[A-Za-z_]\w*\}|\$\(\([\w\s+*/%-]*\)\)"
ALIKE = re.compile(
    rf"""(?!.*\$\{{?(?:{"|".join(OF_PLACE)})\b)"""
    rf"""(?:[\w@%+=:,./?*\s~\[\]-]|'[^']*'|"(?:[^"$`\\]|{_VALUE})*"|{_VALUE})*""",
    re.DOTALL,
)
_SENDS_SIGNAL = re.compile(r"\bscancel\s.*(?:-s\b|--signal\b)")
# A loop until something happens.
_WAITS = re.compile(r"(?:while|until)\b.*\bsleep\b", re.DOTALL)
_OF_SLURM = re.compile(r"\bSLURM_[A-Z_]+\b")


def read_before(
    scope: Scope,
    statements: Sequence[Statement],
    training: Candidate | None,
    of_training: Reading,
    beside: Sequence[Statement],
    runs: Sequence[Statement],
    trainings: Sequence[Statement],
) -> Reading:
    """Return the setup lines of the statements before the command.

    They are read backwards, because a line is needed if a later one reads the variables that it sets.
    ``beside``: statements with a training that runs beside the command. ``runs``: statements that are runs
    of their own. ``trainings``: all with a command that trains.
    """
    # The line sets the launcher's variables behind the setup lines of the script.
    of_launch = of_training.training.launch.environment if of_training.training else ()
    needed = variables_read((*of_training.command, *of_training.setup, *(value for _, value in of_launch)))
    is_expanded_once = of_training.text and not ALIKE.fullmatch(of_training.text)
    texts = (*of_training.setup, of_training.text) if is_expanded_once else of_training.setup
    read_by_setup = variables_read(texts)
    needed |= read_by_setup
    commands = training.statement.commands if training else ()
    code = "\n".join(of_training.command)
    called = {name for command in commands for name in plain_launch(command.names).command[:1]}
    setup: list[str] = []
    parts: list[Part] = []
    fates: list[tuple[Statement, list[Part], list[str]]] = []
    requeues = False
    # ``set -a`` exports the variables of the statements behind it, until ``set +a``.
    switches = [(other.line, match[1]) for other in statements if (match := ALLEXPORT.match(other.text))]
    exported = [
        statement
        for statement in statements
        if [sign for line, sign in switches if line <= statement.line][-1:] == ["-"]
    ]
    errexit = "e" if any(ERREXIT.match(statement.text) for statement in statements) else ""
    if errexit and any(re.match(r"set\s.*\bpipefail\b", statement.text) for statement in statements):
        errexit = "eo pipefail"
    absent = min((statement.line for statement in beside), default=None)
    is_before_run = False
    for statement, readers in reversed([*_with_readers(statements)]):
        facts = _facts(scope, statement, needed, read_by_setup)
        facts = replace(
            facts,
            is_read=facts.is_read or (training is None and not scope.depth),  # the user's COMMAND may read it
            is_exported=statement in exported,
            launches=facts.launches or statement in runs,
            is_beside=statement in beside,
            waits=bool(_WAITS.match(statement.text)) and absent is not None and absent < statement.line,
            is_of_other_run=is_before_run
            and bool(statement.commands)
            and not all(_prepares(command) for command in statement.commands if command.names)
            and not statement.sets & needed
            and statement.kind != "function_definition",
        )
        is_before_run = is_before_run or facts.launches
        rule = rule_for(facts)
        lines: list[str] = []
        if rule:
            requeues = requeues or facts.requeues
            outcome, reason = rule.outcome, rule.reason
            if facts.name == "shift":
                lines = [statement.text]
        elif statement.kind == "function_definition" and not (
            calls("\n".join((*setup, *of_training.setup)), statement)
            or (calls(code, statement) and statement.text not in code)
        ):
            is_followed = function_name(statement) in called or statement.text in code
            outcome = PartOutcome.NEEDLESS
            reason = (
                "its statements are in the line" if is_followed else "nothing that is in the line calls it"
            )
        else:
            counts = ", ".join(_counts_read(scope, statement))
            steps = [launch_in(command.names, reads_inline=False) for command in statement.commands]
            has_more_tasks = scope.source.constants.get("SLURM_NTASKS_PER_NODE", "1") != "1"
            reason = ""
            if of_training.sweeps and not is_repeatable(statement):
                reason = "each run of the loop repeats it"
            elif statement in trainings:
                reason = "it runs once, before the ranks: clusterrun watches and restarts only the ranks"
            if counts:
                reason = f"{counts} may have another value: the job has one task per node"
            if any(command.names in (("exit",), ("exit", "0")) for command in statement.commands):
                reason = "if it ends the script here, the run counts as failed"
            for step in steps if has_more_tasks else ():
                if step and step.program == "srun" and not (step.per_node or step.total or step.open_sizes):
                    reason = "this srun starts one task on each node: say how many with --ntasks"
            outcome = PartOutcome.SETUP
            lines = _setup_lines(facts, sorted(statement.sets & needed), errexit)
            reads = statement.reads | variables_read([statement.text])
            needed |= reads
            read_by_setup |= reads
        own = [Part(statement.line, statement.text, outcome, reason)]
        own += [Part(reader.line, reader.text, outcome, reason) for reader in readers]
        if facts.requeues and statement.kind == "function_definition":
            parts += _parts_of_handler(scope, statement)
        fates.insert(0, (statement, own, lines))
        setup[:0] = lines
    # A line that reads a variable of a statement that is not in the line would do something else.
    setup = []
    absent_names: set[str] = set()
    for statement, own, lines in fates:
        if lines and (missing := sorted(statement.reads & absent_names)):
            reason = f"it reads {', '.join(missing)}, and a statement that sets it is not in the line"
            own = [replace(part, outcome=PartOutcome.UNTRANSLATED, reason=reason) for part in own]
            lines = []
        if own[0].outcome is PartOutcome.UNTRANSLATED and not lines:
            absent_names |= statement.sets
        elif statement.kind in ("variable_assignment", "declaration_command"):
            absent_names -= statement.sets
        setup += lines
        parts += own
    return Reading(setup=tuple(setup), requeues=requeues, parts=tuple(parts))


def _prepares(command: Command) -> bool:
    """Return whether a command prepares the shell, as ``eval "$(conda shell.bash hook)"`` does."""
    is_of_output = command.names[:1] == ("eval",) and command.program.startswith("$(")
    return is_of_output or command.program in PREPARATIONS


def _with_readers(statements: Sequence[Statement]) -> Iterator[tuple[Statement, tuple[Statement, ...]]]:
    """Yield each statement with those behind it that read its result (``$?``): one setup line."""
    place = 0
    while place < len(statements):
        statement, end = statements[place], place + 1
        is_simple = statement.is_plain or statement.kind in ("variable_assignment", "declaration_command")
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


def _parts_of_handler(scope: Scope, function: Statement) -> Iterator[Part]:
    """Yield what a signal's handler does beside the requeue of the job."""
    body = scope.source.functions.get(function_name(function))
    source = ShellSource(body.text, lines_above=body.line - 1) if body else None
    for statement in source.statements if source else ():
        names = {command.program for command in statement.commands if command.names}
        # The ranks get the signal of the job, without a handler that passes it on.
        names -= {"scancel"} if _SENDS_SIGNAL.search(statement.text) else set()
        if not names <= {"scontrol", "exit", "wait", "kill", "sleep", "trap", "return", "true", ":", *PRINTS}:
            reason = "the handler of a signal runs it: do it in the training script (clusterrun help signals)"
            yield Part(statement.line, statement.text, PartOutcome.UNTRANSLATED, reason)


def _setup_lines(facts: Facts, read_variables: list[str], errexit: str) -> list[str]:
    """Return the setup lines of a statement.

    ``read_variables``: what it sets and a later line reads. ``errexit``: the script's options of ``set -e``.
    Without them a command may fail.
    """
    statement = facts.statement
    text = statement.text
    if statement.in_background:
        return [f"{text} &"]
    if facts.is_inherited and not facts.is_read:
        return [text]
    if statement.kind == "variable_assignment" or (facts.is_exported and facts.is_assignment):
        if errexit and COMPUTED.search(text) and "=(" not in text:
            # ``export X=$(f)`` hides that f failed.
            is_pipeline = "|" in text and "pipefail" in errexit
            first = f"set -{errexit}\n{text}\nset +{errexit}" if is_pipeline else text
            return [first, f"export {' '.join(sorted(statement.sets))}"]
        return [f"export {text}" if "=(" not in text else text]
    # The last command of such a file often fails, as in ``[ -f ~/.x ] && . ~/.x``.
    reads_profile = statement.is_plain and facts.name in ("source", ".") and _PROFILE.search(facts.argument)
    is_needed = facts.name in PREPARES and not reads_profile and not is_condition(statement)
    is_definition = statement.kind in ("declaration_command", "function_definition")
    if is_definition or is_needed or (errexit and statement.kind == "command" and not read_variables):
        return [f"export{text[5:]}" if text.startswith("local ") else text]
    lines = [f"{{ {text}\n}} || :" if "\n" in text else f"{text} || :"]
    if errexit:
        # The check behind a setup line sees the last command of it alone.
        lines = [f"set -{errexit}\n{text}\nset +{errexit}"]
    # The shell of a rank needs what a condition or a loop sets.
    return [*lines, f"export {' '.join(read_variables)}"] if read_variables else lines


def _counts_read(scope: Scope, statement: Statement) -> list[str]:
    """Return the variables of Slurm about tasks that a statement, or a file that it runs, reads."""
    names = set() if statement.kind == "unset_command" else set(of_tasks(statement.reads))
    names -= {*scope.source.constants}
    for command in statement.commands:
        call = interpreter_call(command.names)
        is_sourced = command.names[:1] in (("source",), (".",))
        file = call.script if call else "".join(command.names[is_sourced : is_sourced + 1])
        if file and set("./") & set(file):
            of_file = of_tasks(_OF_SLURM.findall(scope.read_file(file)))
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
        is_read=bool(statement.sets & needed),
        is_read_by_setup=bool(statement.sets & read_by_setup),
        is_constant=statement.sets <= set(constants),
        sets_launcher=statement.kind == "declaration_command"
        and any(is_launcher_text(constants[name]) for name in statement.sets & set(constants)),
        requeues=(names == ("trap",) or is_function) and "requeue" in text,
        launches=not is_function
        and any(not (is_helper(launch) or is_small(launch, constants)) for launch in launches if launch),
    )


def parts_after(statements: Sequence[Statement]) -> Iterator[Part]:
    """Yield what becomes of the statements behind the command, the last one first."""
    needed: set[str] = set()
    with_result = [statement for statement in statements if READS_RESULT.match(statement.text)]
    results = {name for statement in with_result for name in statement.sets}
    for statement in reversed(statements):
        part = _part_after(statement)
        reads_result = "$?" in statement.text or bool(statement.reads & results)
        decides = re.search(r"\bexit [1-9]", statement.text) and not reads_result
        is_needed = bool(statement.sets & needed) and statement not in with_result
        if part.outcome is PartOutcome.NEEDLESS and (decides or is_needed):
            part = replace(part, outcome=PartOutcome.UNTRANSLATED, reason=IS_BEHIND)
        if part.outcome is PartOutcome.UNTRANSLATED:
            needed |= statement.reads
        if statement.text:
            yield part


def _part_after(statement: Statement) -> Part:
    """Return what becomes of a statement behind the command."""
    names = {command.program for command in statement.commands if command.names}
    files = [text for command in statement.commands for text in command.redirections]
    prints_to_file = any(os.devnull not in text and ">&" not in text for text in files)
    exits = [command.names[1:] for command in statement.commands if command.names[:1] == ("exit",)]
    if statement.is_plain and any(code and code[0].isdecimal() and int(code[0]) for code in exits):
        reason = "the script always fails: the run ends as its ranks do"
        return Part(statement.line, statement.text, PartOutcome.UNTRANSLATED, reason)
    is_harmless = names <= {"wait", "exit", "set", "kill", *PRINTS} and statement.only_reads
    if is_harmless and not prints_to_file:
        return Part(statement.line, statement.text, PartOutcome.NEEDLESS, END_IS_REPORTED)
    reason = QUEUES_JOB if names & {"sbatch", "scontrol"} else IS_BEHIND
    if any(command.names[:1] == ("trap",) and traps_signal(command.names) for command in statement.commands):
        reason = IS_TRAP_OF_SIGNAL
    return Part(statement.line, statement.text, PartOutcome.UNTRANSLATED, reason)
