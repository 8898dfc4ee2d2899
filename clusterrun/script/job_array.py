"""Read the indices of a job array, and write the options of the sweep that replaces it."""

from __future__ import annotations

import re

from clusterrun.model.frozen import frozen


@frozen
class JobArray:
    """A job array."""

    # The indices as the values of a sweep; '' if there is no array, or if ``--array`` is not understood.
    values: str = ""
    limit: int = 0  # most tasks that run at once; 0 if there is no limit
    # Slurm's variables about the array. The array of a sweep counts from 0, in steps of 1.
    counts: tuple[tuple[str, str], ...] = ()

    @property
    def index(self) -> dict[str, str]:
        return {"SLURM_ARRAY_TASK_ID": "{task}"} if self.values else {}


def read_array(text: str) -> JobArray:
    """Return the job array of ``--array``."""
    indices, _, limit = text.replace("[", "").replace("]", "").partition("%")
    step = 1
    tasks: list[int] = []
    if match := re.fullmatch(r"(\d+)-(\d+)(?::(\d+))?", indices):
        start, end, step = int(match[1]), int(match[2]) + 1, int(match[3] or 1)
        tasks = list(range(start, end, step)) if step else []
        values = f"range({start},{end},{step})" if step > 1 else f"range({start},{end})"
    else:
        for part in indices.split(","):
            match = re.fullmatch(r"(\d+)(?:-(\d+)(?::([1-9]\d*))?)?", part)
            if not match:
                return JobArray()
            tasks += range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
        values = ",".join(map(str, tasks))
    if not tasks:
        return JobArray()
    counts = {"MIN": min(tasks), "MAX": max(tasks), "COUNT": len(tasks), "STEP": step}
    named = tuple((f"SLURM_ARRAY_TASK_{name}", str(number)) for name, number in counts.items())
    return JobArray(values, int(limit) if limit.isdecimal() else 0, named)


def instead_of_array(text: str = "") -> str:
    """Return the sweep to type instead of ``--array TEXT``. An array that is not understood is an example."""
    array, example = read_array(text), ""
    if not array.values:
        array, example = read_array("0-3"), " (for 0-3; 0-3%2: --at-most 2)"
    at_most = f" --at-most {array.limit}" if array.limit else ""
    options = f"--set task='{array.values}'{at_most} --env SLURM_ARRAY_TASK_ID={{task}}"
    return f"a run is one job: use clusterrun sweep {options} COMMAND{example}"
