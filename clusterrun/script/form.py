"""The shipped script as a form to be filled in; knows the places and no template language.

A form is ``templates/job.sbatch.j2`` rendered ahead of time, with a place where each value goes
and the rule by which it is written there: starting the template engine costs a fifth of the time
that a whole submission takes. The form's first line holds the checksum of the templates that it was
made from; where they were edited since, the template engine renders them. ``make form`` writes it again.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping

from clusterrun.script import quoting, shipped

NAME = "job.sbatch.form"
TEMPLATES = ("job.sbatch.j2", "start.sh.j2")

VARIABLES = {
    "directives": "the options for sbatch, `--key=value` each; the filter `sbatch` makes lines of them",
    "setup": "the lines of `--setup`; the filter `checked` ends the job where one fails, `lines` does not",
    "python": "the Python that runs coordinator and agents, and ranks where the setup brings no other",
    "agent": "the node-side program, one file",
    "run_dir": "the run directory",
    "job_output": "the file for what the batch script prints",
    "run_id": "the run id",
    "name": "the name of the run",
    "cwd": "the directory where the ranks run",
    "command": "the command as typed, a list",
    "nodes": "how many nodes",
    "gpus": "GPUs on each node",
    "ranks_per_node": "ranks on each node",
}
"""What a template may use, and what it says."""

_PLACE = re.compile(r"@\{(\w+):(\w+)\}@")


class FormPlace:
    """Stands for a value while a form is made."""

    def __init__(self, name: str) -> None:
        self._name = name

    def under(self, rule: str) -> str:
        """What marks this place in a form, for a value written by ``rule``."""
        return f"@{{{rule}:{self._name}}}@"


def checksum() -> str:
    """The line that names the present content of the shipped templates."""
    return "".join(f"{zlib.crc32(_shipped(name).encode()):08x}" for name in TEMPLATES) + "\n"


def is_current() -> bool:
    return _shipped(NAME).startswith(checksum())


def fill(values: Mapping[str, quoting.Value]) -> str:
    """The shipped script with ``values`` in their places. Raises ``BadInput`` as the rules do."""
    text = _shipped(NAME).partition("\n")[2]
    return _PLACE.sub(lambda match: quoting.RULES[match[1]](values[match[2]]), text)


def _shipped(name: str) -> str:
    with open(os.path.join(shipped.folder("templates"), name), encoding="utf-8") as file:
        return file.read()
