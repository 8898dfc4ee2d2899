"""Write the batch script of a whole array. Each task becomes the run at its index in a list.

A requeued task keeps its index, so it continues with the same run. The script of a run is read from its run
directory. Slurm keeps a copy of the array's script, list included.
"""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Mapping

from clusterrun import shipped


def array_script(head: str, runs: str, run_ids: Mapping[int, str]) -> str:
    """Return the script of an array, with the run of each index.

    Its shell and its options are those of ``head``, a script of one run.
    """
    head_lines = head.splitlines()
    lines = list(itertools.takewhile(lambda line: line.startswith("#") or not line.strip(), head_lines))
    shell = lines[0].removeprefix("#!").strip() if lines and lines[0].startswith("#!") else "/bin/bash"
    options = [line for line in lines if line.startswith("#SBATCH")]
    end = _END.format(shlex.quote(runs), shell)
    tasks = [f"[{index}]={run_id}" for index, run_id in run_ids.items()]
    with open(os.path.join(shipped.folder("templates"), "own_commands.sh.j2"), encoding="utf-8") as file:
        own_commands = file.read().rstrip("\n")
    return "\n".join(["#!/bin/bash", *options, own_commands, _ABOUT, "runs=(", *tasks, end])


_ABOUT = "# Each task of this array is the run whose place in this list is its number."
_END = """)
script={}/${{runs[$SLURM_ARRAY_TASK_ID]}}/script.sh
# Retry if the file system fails for a moment.
for pause in 1 1 2 4 8 16; do
  [[ -r $script ]] && builtin break
  command sleep "$pause"
done
\\exec {} "$script"
"""
