"""How many processes the kernel has ended here for want of memory, from the control group of this one.

The kernel counts each at the group of the process that it ended and (from version 2 on) at all groups
above, whichever of them had the limit: above the job's own group others' processes count too.
"""

from __future__ import annotations

from clusterrun import proc

_ROOT = "/sys/fs/cgroup"
_JOB = "/job_"
"""How the name of a Slurm job's group begins."""


def killed() -> int:
    """The count of this control group, and of the job's above it; 0 if nobody counts."""
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
    """A step that is gone takes its count along; that of the job stays."""
    found = []
    while path:
        for line in proc.content(f"{root}{path.rstrip('/')}/{name}").split(b"\n"):
            words = line.split()
            if words[:1] == [b"oom_kill"]:
                found.append(int(words[1]))
        path = path.rpartition("/")[0]
        if _JOB not in path:
            break
    return found
