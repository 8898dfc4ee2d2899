"""Which processes killed for want of memory are counted as this job's, by the groups it may live in."""

from __future__ import annotations

import pytest

from clusterrun.monitor import oom

OTHERS = b"low 0\noom 9\noom_kill 9\n"
"""The counters of a group that holds other jobs too."""
OWN = b"oom 1\noom_kill 1\n"
NONE = b"oom_kill 0\n"
SLURM = "/system.slice/slurmstepd.scope"


@pytest.mark.parametrize(
    ("groups", "counts", "killed"),
    [
        ("0::/user.slice/session-3.scope", {"/user.slice": OTHERS, "/user.slice/session-3.scope": NONE}, 0),
        ("0::/user.slice/session-3.scope", {"/user.slice": OTHERS, "/user.slice/session-3.scope": OWN}, 1),
        (f"0::{SLURM}/job_7/step_0/user", {SLURM: OTHERS, f"{SLURM}/job_7": NONE}, 0),
        (f"0::{SLURM}/job_7/step_0/user", {SLURM: OTHERS, f"{SLURM}/job_7": OWN}, 1),
        (f"0::{SLURM}/job_7/step_0/user", {f"{SLURM}/job_7/step_0/user": OWN, f"{SLURM}/job_7": NONE}, 1),
        ("0::/", {"": OWN}, 1),
        ("0::/nothing", {}, 0),
        ("", {}, 0),
    ],
)
def test_processes_of_other_jobs_are_not_counted(
    groups: str, counts: dict[str, bytes], killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"/sys/fs/cgroup{path}/memory.events": text for path, text in counts.items()}
    files["/proc/self/cgroup"] = groups.encode()
    monkeypatch.setattr(oom.proc, "content", lambda path: files.get(path, b""))
    assert oom.killed() == killed


def test_groups_of_version_1_keep_their_count_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/self/cgroup": b"9:cpu:/x\n4:memory:/slurm/uid_0/job_7/step_0\n0::/x",
        "/sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.oom_control": b"under_oom 0\noom_kill 2\n",
        "/sys/fs/cgroup/memory/slurm/uid_0/memory.oom_control": OTHERS,
    }
    monkeypatch.setattr(oom.proc, "content", lambda path: files.get(path, b""))
    assert oom.killed() == 2
