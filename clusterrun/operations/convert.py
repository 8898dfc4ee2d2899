"""Convert a batch script of the user, and write its options to a configuration file."""

from __future__ import annotations

import json
import os
import sys

from clusterrun.config.profiles import PROJECT_FILE
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.option_table import CONFIGURABLE
from clusterrun.script.batch_scripts import Conversion
from clusterrun.script.quoting import plain_text
from clusterrun.script.sbatch_lines import OF_OTHERS

# Characters. A longer file is no batch script.
MOST_TEXT = 1 << 20
# Options that belong to one command, and not to a project.
_OF_THE_COMMAND = ("name", "per-node", "input", "nodelist", "exclude")
_VARIABLES_OF_THE_COMMAND = ("ARGUMENTS=", "SLURM_ARRAY_")


def convert_file(path: str, arguments: tuple[str, ...] = (), ignores_pbs: bool = False) -> Conversion:
    """Return the conversion of the batch script at ``path``; ``-``: standard input. Raises ``BadInput``.

    Without ``arguments`` the arguments of the script count as unknown. ``ignores_pbs``: sbatch takes options
    for other schedulers as comments.
    """
    try:
        from clusterrun.script.conversion import convert
        from clusterrun.script.statement_rules import NEEDS_ARGUMENTS, QUEUES_JOB
    except ImportError as error:
        raise BadInput(
            f"the parser for shell scripts is not installed ({error.name})",
            "pip install 'clusterrun[convert]'",
        ) from None
    # Slurm starts a script in the folder where sbatch is called. It may be called in the script's folder.
    folders = (os.getcwd(), os.path.dirname(os.path.abspath(path)))
    text = _read(path)
    if text is None:
        raise BadInput(
            f"{path} cannot be read as a batch script", "name a text file, or - for standard input"
        )
    text = OF_OTHERS.sub(r"#\g<0>", text) if ignores_pbs else text

    def read_script(name: str) -> str:
        texts = (_read(os.path.join(folder, name)) for folder in folders)
        return next(filter(None, texts), "").replace("\r\n", "\n")

    conversion = convert(text, read_script, arguments or None, path)
    reasons = {part.reason for part in conversion.untranslated} - {NEEDS_ARGUMENTS}
    if not conversion.command and reasons == {QUEUES_JOB}:
        raise BadInput(
            f"{path} trains nothing itself: it queues other jobs",
            "clusterrun convert each script that it gives to sbatch, and clusterrun submit each command of "
            "--wrap; --after RUN replaces --dependency",
        )
    return conversion


def _read(path: str) -> str | None:
    """Return the text of a file; None if there is none, or if it is too long."""
    try:
        if path == "-":
            return sys.stdin.read(MOST_TEXT)
        if not os.path.isfile(path):
            return None
        with open(path, encoding="utf-8", errors="replace", newline="") as file:  # DOS line ends are shown
            return file.read(MOST_TEXT)
    except OSError:
        return None


def write_configuration(conversion: Conversion, folder: str) -> tuple[str, Conversion]:
    """Write the options to ``clusterrun.toml`` in ``folder``; return its path, and what is left to type.

    Raises ``BadInput`` if there is such a file.
    """
    values: dict[str, list[str]] = {}
    written: list[tuple[str, str]] = []
    of_the_line = (*_OF_THE_COMMAND, *(("setup",) if _has_swept_setup(conversion) else ()))
    for name, value in conversion.options:
        option = CONFIGURABLE.get(name)
        # A shell expands ``$PWD``, and a sweep ``{task}``.
        is_fixed = name == "setup" or not set("${") & set(value)
        is_of_the_line = name in of_the_line or value.startswith(_VARIABLES_OF_THE_COMMAND)
        if option is None or is_of_the_line or not is_fixed:
            continue
        written.append((name, value))
        values.setdefault(option.name, []).append(plain_text(value))
    lines = ["[defaults]"]
    for name, texts in values.items():
        kind = CONFIGURABLE[name].kind
        if kind == "list":
            lines += [f"{name} = [", *(f"    {_quoted(text)}," for text in texts), "]"]
        else:
            value = "true" if kind == "switch" else _quoted(texts[-1])
            lines.append(f"{name} = {value}")
    text = "\n".join(lines) + "\n"
    path = os.path.join(folder, PROJECT_FILE)
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadInput(f"{path} exists and is not replaced", f"add this to it:\n{text.rstrip()}") from None
    options = tuple(pair for pair in conversion.options if pair not in written)
    return path, replace(conversion, options=options)


def _has_swept_setup(conversion: Conversion) -> bool:
    """Return whether a setup line has the ``{name}`` of a sweep. Others may read the variable it sets."""
    places = [f"{{{value.partition('=')[0]}}}" for name, value in conversion.options if name == "set"]
    setup = "\n".join(value for name, value in conversion.options if name == "setup")
    return any(place in setup for place in places)


def _quoted(text: str) -> str:
    """Return a TOML string. JSON's escapes are TOML's too, except for that of DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
