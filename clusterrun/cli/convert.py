"""`clusterrun convert`: prints the submit line that does what a batch script does."""

from __future__ import annotations

import os

import click

from clusterrun.cli.error_output import put, say
from clusterrun.cli.shell_complete import FILE, json_option
from clusterrun.model.contract import ExitCode
from clusterrun.model.phrases import count_of, shortened
from clusterrun.operations.convert import convert_file, write_configuration
from clusterrun.reports.view import INTEGER, View, ViewField, many, one_of
from clusterrun.script.batch_scripts import NO_COMMAND, Conversion, PartOutcome

# Columns of a line that is not folded.
_WIDTH = 100
# Characters of a statement that a report shows.
_MOST_SHOWN = 70

PART = View(
    "A directive, a statement or an option of a launcher.",
    ViewField("line", "Its line in the script.", INTEGER),
    ViewField("text", "As the script has it."),
    ViewField("outcome", "What becomes of it.", one_of(PartOutcome)),
    ViewField("reason", "The reason, or what to do instead; empty if there is nothing to say."),
)
CONVERSION = View(
    "The output of `convert --json`.",
    ViewField("line", "The line to type.", read=lambda conversion: _line(conversion, 0)),
    ViewField("parts", "Each part of the script.", many(PART)),
)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("script", **FILE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--write", is_flag=True, help="Write the options to a new clusterrun.toml in this folder.")
@json_option
def convert(script: str, arguments: tuple[str, ...], write: bool, as_json: bool) -> ExitCode:
    """Print the submit line that does what a batch script does.

    FILE is a script with #SBATCH lines; - reads standard input. Its lines become options, COMMAND and
    --setup lines. stderr names every other line with the reason. Nothing is run, and nothing is queued.
    The exit code is 1 if you have to put your program in the place of COMMAND.
    ARGUMENTS are those of the script, as behind sbatch FILE.

    \b
    Examples:
      clusterrun convert job.sbatch
      clusterrun convert --write job.sbatch
      clusterrun convert job.sbatch --lr 0.1
    """
    conversion = convert_file(script, arguments, ignores_pbs="SBATCH_IGNORE_PBS" in os.environ)
    path = ""
    if write:
        path, conversion = write_configuration(conversion, os.getcwd())
    if as_json:
        put(CONVERSION.json(conversion))
    else:
        put(_line(conversion, _WIDTH))
        if path:
            say(f"{path} has the other options")
        _report(conversion)
    return ExitCode.DONE if conversion.command else ExitCode.FAILED


def _line(conversion: Conversion, width: int) -> str:
    """Return the line. If it is longer than ``width``, it has an option in each row; 0: it has none."""
    line = " ".join(conversion.words())
    return line if not width or len(line) <= width else " \\\n    ".join(conversion.words())


def _report(conversion: Conversion) -> None:
    from clusterrun.script.statement_rules import IS_UNSURE, OTHER_PROGRAMS

    others = {part.line for part in conversion.untranslated if part.reason in OTHER_PROGRAMS}
    candidates = {part.line for part in conversion.untranslated if part.reason == IS_UNSURE}
    if not conversion.command and len(candidates) > 1:
        others |= candidates
    if others:
        places = ", ".join(map(str, sorted(others)))
        say(
            f"the script does more than start one program: the line lacks the programs of "
            f"{count_of(len(others), 'line')}: {places}"
        )
        say(
            "  it can stay a script for sbatch, with clusterrun run in the place of each launcher "
            "(srun, torchrun): clusterrun help interactive"
        )
    if not conversion.command:
        say(NO_COMMAND)
    needless = [part for part in conversion.parts if part.outcome is PartOutcome.NEEDLESS]
    for title, parts in (
        ("not translated", conversion.untranslated),
        ("kept, with another meaning", conversion.changed),
        ("not needed", needless),
    ):
        if parts:
            say(f"{title}:")
        lines_by_text: dict[str, list[int]] = {}
        for part in parts:
            first = shortened(part.text.partition("\n")[0], _MOST_SHOWN)
            lines_by_text.setdefault(f"{first}: {part.reason}", []).append(part.line)
        for text, numbers in lines_by_text.items():
            word = "line" if len(numbers) == 1 else "lines"
            say(f"  {word} {', '.join(map(str, numbers))}: {text}")
