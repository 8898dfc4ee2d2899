"""Compare a converted line with its batch script: each variable that the line reads has the same value."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterrun.model.frozen import replace
from clusterrun.script.batch_reading import COMPUTED, Reading, variables_read, variables_set
from clusterrun.script.batch_scripts import Part, PartOutcome
from clusterrun.script.directives import OF_PLACE
from clusterrun.script.shell_source import ShellSource
from clusterrun.script.statement_rules import IS_COMPUTED, RENDEZVOUS, of_tasks
from clusterrun.script.statements_beside import ALIKE, EXPORTED_BY_SHELLS, OF_SHELL

# Commands of a setup line that may set variables which no statement shows.
_SETS_UNSEEN = re.compile(r"(?m)(?:^|[;&|{(]\s*)(?:source|\.|eval|set -a)\s|\w+\s*\(\)\s*\{|^function\s")
# A shell script, which reads any variable that it finds.
_RUNS_SHELL = re.compile(r"\bexec (?:(?:ba|z|da|k)?sh\b|\S+\.sh\b)")
# An array that a line sets.
_ARRAY = re.compile(
    r"\b([A-Za-z_]\w*)(?:\+?=\(|\[[^\]\s]*\]=)"
    r"|\b(?:mapfile|readarray|read -r?a|declare -[Aa])\s[^<\n]*?([A-Za-z_]\w*)\s*(?:<|$|\n)"
)


def _code(command: tuple[str, ...]) -> str:
    """Return the shell code of COMMAND; '' if it is no ``bash -c CODE``."""
    return command[2] if command[:2] == ("bash", "-c") else ""


def evaluated(source: ShellSource, reading: Reading) -> Reading:
    """Return ``reading`` of ``source`` with a COMMAND whose words have the values of the script's shell.

    A shell in each rank expands them if it does so alike, with variables that are exported for it. Else a
    setup line expands them.
    """
    names = reading.read_in_ranks
    if not (names or reading.text_in_ranks):
        return reading
    code, setup = _code(reading.command), "\n".join(reading.setup)
    exported = {*EXPORTED_BY_SHELLS, *RENDEZVOUS}
    of_setup: set[str] = set()
    for statement in ShellSource(setup).statements:
        exported |= statement.exports
        of_setup |= statement.sets
        if statement.text.startswith("unset "):
            exported -= {*statement.text.split()}
    # An array cannot be exported.
    arrays = {name for pair in _ARRAY.findall(setup) for name in pair} & names
    hidden = {
        name
        for name in names - exported - arrays
        if name in of_setup
        or (
            not name.startswith(("SLURM_", "CLUSTERRUN_"))
            and (_SETS_UNSEEN.search(setup) or re.search(rf"\b{name}\b", setup))
        )
    }
    exports = [f"export {' '.join(sorted(hidden))}"] if hidden else []
    # ``A=1 srun python t.py $A``: the script's shell expands $A before it is set.
    launch = reading.training.launch if reading.training else None
    is_set_behind = launch is not None and bool(
        variables_read((reading.text,)) & {name for name, _ in launch.environment}
    )
    # No shell inherits IFS.
    is_alike = ALIKE.fullmatch(reading.text) and not is_set_behind and "IFS" not in of_setup
    if not reading.text or is_alike:
        command = reading.command
        # The program sees none of the variables that only the shell of the script has.
        own = names & {name for statement in source.statements for name in statement.sets}
        own -= arrays.union(*(statement.exports for statement in source.statements))
        if own and _RUNS_SHELL.match(code):
            code = f"export -n {' '.join(sorted(own))}\n{code}"
            command = (*command[:2], code, *command[3:])
        if arrays:
            values = f"$(declare -p {' '.join(sorted(arrays))} 2>/dev/null || :)"
            exports.append(f'export ARRAYS="{values}"')
            command = (*command[:2], f'eval "$ARRAYS"\n{code}', *command[3:])
        return replace(reading, setup=(*reading.setup, *exports), command=command)
    # ``export A=$(f)`` would hide that f failed.
    export = f'ARGUMENTS="$(printf "%q " {reading.text})" && export ARGUMENTS'
    code = 'eval "set -- $ARGUMENTS"\n' + code.replace(reading.text_in_ranks, '"$@"', 1)
    return replace(reading, setup=(*reading.setup, export), command=("bash", "-c", code))


def differences(source: ShellSource, reading: Reading) -> Iterator[Part]:
    """Yield the variables that the line reads, and that have another value, or none, in it."""
    code = _code(reading.command)
    in_line = ShellSource("\n".join((*reading.setup, code)))
    launch = reading.training.launch if reading.training else None
    environment = launch.environment if launch else ()
    texts = (*reading.command, *reading.setup, *(value for _, value in environment))
    absent = variables_read(texts) - RENDEZVOUS - {name for name, _ in (*reading.sweeps, *environment)}
    absent = absent.difference(*(statement.sets for statement in in_line.statements))
    named = {part.line for part in reading.parts if part.outcome is PartOutcome.UNTRANSLATED}
    for statement in source.statements:
        if statement.line not in named and (names := statement.sets & absent):
            reason = f"the line reads {', '.join(sorted(names))}, and this statement is not in it"
            yield Part(statement.line, statement.text, PartOutcome.UNTRANSLATED, reason)
    line = next((part.line for part in reading.parts if part.outcome is PartOutcome.COMMAND), 1)
    # The line is typed before the script computes its variables, and before Slurm sets those of the job.
    own = variables_set(source)
    sets_unseen = _SETS_UNSEEN.search("\n".join(reading.setup))
    for name, value in launch.options if launch else ():
        reads = variables_read([value])
        is_computed = bool(own & reads) or "SLURM_" in "".join(reads) or COMPUTED.search(value)
        if name not in ("setup", "input") and (is_computed or (sets_unseen and reads.difference(OF_SHELL))):
            yield Part(line, value, PartOutcome.UNTRANSLATED, IS_COMPUTED.format(name))
    if not (launch and (launch.rank_launcher or launch.keeps_accelerate)):
        unset = variables_read((code,)) & RENDEZVOUS - source.names_set
        for name in sorted(unset):
            reason = "the script does not set it, and clusterrun does"
            yield Part(line, f"${name}", PartOutcome.OPTION, reason)
    # The script's shell expands no single quotes.
    text = re.sub(r"\\.|'[^']*'", "", reading.text if "$ARGUMENTS" in code else "")
    counts = set(of_tasks(variables_read((text,)))).difference(OF_PLACE)
    if not (launch and launch.program == "srun" and not launch.rank_launcher):
        counts.update(of_tasks(variables_read((code,))))  # srun's tasks have the values of ranks
    for name in sorted(counts):
        reason = "it counts ranks in the line, and other tasks in the script: write the value"
        yield Part(line, f"${name}", PartOutcome.UNTRANSLATED, reason)
