"""The batch script of a whole array: each task becomes the run whose place in the list is its number.

A task that is queued again has the same number, so it continues with the same run. The script of a run is
read from its run directory; Slurm keeps a copy of this one, list included.
"""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Sequence

from clusterrun import shipped


def array_script(head: str, runs: str, run_ids: Sequence[str]) -> str:
    """``head`` is the script of such a run: its first line and its options are those of the array."""
    whole = head.splitlines()
    lines = list(itertools.takewhile(lambda line: line.startswith("#") or not line.strip(), whole))
    shell = lines[0].removeprefix("#!").strip() if lines and lines[0].startswith("#!") else "/bin/bash"
    options = [line for line in lines if line.startswith("#SBATCH")]
    end = _END.format(shlex.quote(runs), shell)
    with open(os.path.join(shipped.folder("templates"), "own_commands.sh.j2"), encoding="utf-8") as file:
        own_commands = file.read().rstrip("\n")
    return "\n".join(["#!/bin/bash", *options, own_commands, _ABOUT, "runs=(", *run_ids, end])


_ABOUT = "# Each task of this array is the run whose place in this list is its number."
_END = """)
script={}/${{runs[$SLURM_ARRAY_TASK_ID]}}/script.sh
# A file system that is in trouble for a moment is waited for.
for pause in 1 1 2 4 8 16; do
  [[ -r $script ]] && builtin break
  command sleep "$pause"
done
\\exec {} "$script"
"""
