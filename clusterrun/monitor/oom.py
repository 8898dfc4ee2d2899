"""Count the processes that the kernel killed for lack of memory, from the control group of this process.

The kernel counts a kill at the group of the killed process, and with cgroup version 2 at all groups above it
as well. The groups above the job's own group also count processes of other jobs.
"""

from __future__ import annotations

from clusterrun import proc

_ROOT = "/sys/fs/cgroup"
# The name of a Slurm job's group begins with this.
_JOB = "/job_"


def killed() -> int:
    """Return the count of this control group or of the job's group above it; 0 if there is none."""
    counts = [0]
    for line in proc.content("/proc/self/cgroup").decode("utf-8", "replace").split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "memory":
            counts += _counts(f"{_ROOT}/memory", path, "memory.oom_control")
        elif number == "0" and not controllers:
            counts += _counts(_ROOT, path, "memory.events")
    return max(counts)


def _counts(root: str, path: str, name: str) -> list[int]:
    """Return the counts of the group and of the job's groups above it.

    The count of a step disappears with the step. The job's count stays.
    """
    counts = []
    while path:
        for line in proc.content(f"{root}{path.rstrip('/')}/{name}").split(b"\n"):
            cells = line.split()
            if cells[:1] == [b"oom_kill"]:
                counts.append(int(cells[1]))
        path = path.rpartition("/")[0]
        if _JOB not in path:
            break
    return counts
