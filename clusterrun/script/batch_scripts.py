"""Hold what becomes of each part of a batch script (a file with ``#SBATCH`` lines).

Refuses such a script as COMMAND.
"""

from __future__ import annotations

import shlex
from enum import Enum

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.option_table import CONFIGURABLE
from clusterrun.model.phrases import some_of
from clusterrun.model.spec import JobSpec
from clusterrun.script import submit_again
from clusterrun.script.quoting import evaluated_text, plain_text
from clusterrun.script.sbatch_lines import NO_OPTION


class PartOutcome(str, Enum):
    """The outcome of the conversion for a part of a batch script."""

    OPTION = "option"  # an option of submit
    COMMAND = "command"
    SETUP = "setup"  # a ``--setup`` line
    NEEDLESS = "not needed"  # clusterrun does it without being asked
    UNTRANSLATED = "not translated"


@frozen
class Part:
    """A directive, a statement, or an option of a launcher, and what becomes of it."""

    line: int
    text: str  # as the script has it
    outcome: PartOutcome
    reason: str = ""  # the reason, or what to do instead; '' if there is nothing to say


NO_COMMAND = "convert cannot tell which program trains: put it in the place of COMMAND"
# Why no option of the line says where the output goes.
IN_LOGS = "clusterrun logs shows what ranks print, job.out in the run directory what setup lines print"
# Why sbatch refuses a script, for which a run can be submitted all the same.
NO_SHEBANG = "sbatch refuses a file whose first line does not begin with #!"
DOS_LINES = "sbatch refuses a file with DOS line ends (CR LF): sed -i 's/\\r$//' mends it"


@frozen
class Conversion:
    """The line that asks clusterrun for what a batch script asks Slurm for."""

    verb: str  # ``submit``, or ``sweep`` for an array
    # (name, value) in the order of the line; the value is '' for a switch. The shell in which the line is
    # typed expands ``$`` in a value, and not one that ``quoting.literal`` marks.
    options: tuple[tuple[str, str], ...]
    command: tuple[str, ...]  # () if the script starts no program that trains
    parts: tuple[Part, ...]  # in the order of the script

    @property
    def untranslated(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.outcome is PartOutcome.UNTRANSLATED)

    @property
    def changed(self) -> tuple[Part, ...]:
        """The parts that have another meaning in the line."""
        in_line = (PartOutcome.SETUP, PartOutcome.OPTION)
        return tuple(part for part in self.parts if part.outcome in in_line and part.reason)

    @property
    def outputs(self) -> str:
        """A note about the files that the script writes its output to; '' if there are none."""
        texts = [_text(part) for part in self.parts if part.reason == IN_LOGS]
        return f"in place of {some_of(texts, 6)}: {IN_LOGS}" if texts else ""

    def missing_in(self, spec: JobSpec) -> list[tuple[str, str]]:
        """Return the options of the line that ``spec`` lacks. Its own options take precedence."""
        plain = JobSpec(spec.command, spec.cwd)
        environment = ["=".join(variable) for variable in spec.environment]
        missing = []
        for name, value in self.options:
            option = CONFIGURABLE.get(name)
            is_typed = False
            if option and option.kind == "list":
                is_typed = plain_text(value) in (*getattr(spec, option.field, ()), *environment)
            elif option:
                own_value = getattr(spec, option.field)
                is_typed = own_value != getattr(plain, option.field) or str(own_value) == value
                is_size = name in ("gpus", "ranks-per-node")
                is_typed = is_typed or (is_size and (spec.gpus > 0 or spec.ranks_per_node > 0))
            if not is_typed:
                missing.append((name, value))
        return missing

    def words(self) -> list[str]:
        """Return the quoted words to type: ``clusterrun VERB``, each option with its value, COMMAND."""
        options = [f"--{name} {_quoted(name, value)}".rstrip() for name, value in self.options]
        return [f"clusterrun {self.verb}", *options, shlex.join(self.command or ("COMMAND",))]


def _quoted(name: str, value: str) -> str:
    """Return ``value`` for a shell, which expands ``$PWD`` in it. The job's shell does so in setup lines."""
    if "$" not in value or name == "setup" or set('"\\`') & set(value):
        return shlex.quote(plain_text(value)) if value else ""
    return evaluated_text(value)


def refuse(spec: JobSpec, script: tuple[str, ...], conversion: Conversion, verb: str = "submit") -> BadInput:
    """Return the refusal of ``script`` (its path and arguments) as COMMAND, with the line to type instead."""
    problem = f"{script[0]!r} is a batch script: each rank would run it, without the options in its comments"
    remedy = line_to_type(spec, conversion, verb)
    quoted = shlex.join(script)
    remedy += f"\nclusterrun convert {quoted} shows what becomes of each line"
    if not any(part.reason in (NO_SHEBANG, DOS_LINES, NO_OPTION) for part in conversion.parts):
        remedy += f"\nor queue it as it is: sbatch {quoted}"
    return BadInput(problem, remedy)


def line_to_type(spec: JobSpec, conversion: Conversion, verb: str = "submit") -> str:
    """Return the advice to type the line for ``conversion``, with the parts that it lacks."""
    advice = "clusterrun writes the batch script itself; give it the program and the options:\n  "
    plain = replace(spec, per_node=False)
    advice += line(plain, conversion, verb)
    advice += "" if conversion.command else f"\n{NO_COMMAND}"
    return advice + _differences(conversion, "\n")


def instead(spec: JobSpec, conversion: Conversion, verb: str) -> str:
    """Return the advice of a notice to type the line for ``conversion``, with the parts that it lacks."""
    return f"instead {line(spec, conversion, verb)}{_differences(conversion, '; ')}"


def _differences(conversion: Conversion, separator: str) -> str:
    notes = [f"not in that line: {note}" for note in _notes(conversion.untranslated)]
    notes += [f"with another meaning: {note}" for note in _notes(conversion.changed)]
    return "".join(separator + note for note in (*notes, conversion.outputs) if note)


def _text(part: Part) -> str:
    return part.text.removeprefix("#SBATCH ").partition("\n")[0]


def _notes(parts: tuple[Part, ...]) -> list[str]:
    return [f"{_text(part)} (line {part.line}: {part.reason})" for part in parts]


def line(spec: JobSpec, conversion: Conversion, verb: str) -> str:
    """Return the line for ``conversion``. Options of ``spec``, typed before COMMAND, take precedence."""
    missing = conversion.missing_in(spec)
    options = [f"--{name} {_quoted(name, value)}".rstrip() for name, value in missing]
    command = shlex.join(conversion.command or ("COMMAND",))
    if conversion.verb == "sweep" and verb == "submit":
        verb = "sweep"
    typed = submit_again.line(replace(spec, command=("COMMAND",)), verb, with_values=True)
    return f"{typed.removesuffix(' COMMAND')} {' '.join((*options, command))}"
