"""The shipped script as a form to be filled in; knows the places and no template language.

A form is ``templates/job.sbatch.j2`` rendered ahead of time, with a place where each value goes
and the rule by which it is written there. Starting the template engine costs a fifth of the time
that a whole submission takes, and the shipped template never changes between two releases.
``make form`` writes it anew, and a test holds the two against each other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from clusterrun.script import quoting, shipped

NAME = "job.sbatch.form"

VARIABLES = {
    "directives": "the options for sbatch, `--key=value` each; the filter `sbatch` makes lines of them",
    "setup": "the lines of `--setup`; the filter `lines` puts them in as they are",
    "python": "the Python that runs coordinator, agents and ranks",
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


class Place:
    """Stands for a value while a form is made."""

    def __init__(self, name: str) -> None:
        self._name = name

    def under(self, rule: str) -> str:
        """What marks this place in a form, for a value written by ``rule``."""
        return f"@{{{rule}:{self._name}}}@"


def fill(values: Mapping[str, quoting.Value]) -> str:
    """The shipped script with ``values`` in their places. Raises ``BadInput`` as the rules do."""
    with open(os.path.join(shipped.folder("templates"), NAME), encoding="utf-8") as file:
        text = file.read()
    return _PLACE.sub(lambda match: quoting.RULES[match[1]](values[match[2]]), text)
