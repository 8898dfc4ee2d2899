"""Signals and time to save on a real Slurm, each beside plain sbatch and srun with the same script."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.lab.test_slurm_runs import Site, site, until
from tests.lab_fixture import MakeLab

pytestmark = pytest.mark.lab

SAVES_FOR = 25
"""Seconds: less than Slurm's default KillWait of 30, and more than clusterrun's old limit of 8."""
SAVER = """
import signal, sys, time

got = []

def on_signal(number, frame):
    got.append(number)
    print(signal.Signals(number).name, flush=True)

for name in ("USR1", "USR2", "HUP", "ABRT", "INT", "TERM"):
    signal.signal(getattr(signal, f"SIG{name}"), on_signal)
print("up", flush=True)
while not {signal.SIGTERM, signal.SIGINT} & set(got):
    time.sleep(0.1)
for second in range(int(sys.argv[1])):
    time.sleep(1)
print("saved", flush=True)
"""
IGNORES = "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
IGNORES += "sys.exit(subprocess.call(sys.argv[1:]))"
"""A program that leaves SIGTERM to the programs below it."""
ENDS = 300.0
NODES = 22
# A shell that ends when a signal interrupts its ``wait``, while its program saves.
TRAPS = ("bash", "-c", "trap 'kill -TERM $!' USR1; \"$@\" & wait", "bash")
# A rank without a handler, and one that lets Slurm queue its job again, once.
NO_HANDLER = ("bash", "-c", "echo up; sleep 900; :")
REQUEUES = (
    "bash",
    "-c",
    '[ "${SLURM_RESTART_COUNT:-0}" != 0 ] && echo saved && exit; scontrol requeue $SLURM_JOB_ID; sleep 900',
)


class Runs:
    """Runs of clusterrun and plain jobs side by side, each on a node of its own."""

    def __init__(self, lab_site: Site) -> None:
        self.here = lab_site
        self.jobs: dict[str, str] = {}
        self._nodes = (f"n{number:04d}" for number in range(1, NODES + 1))
        self.node: dict[str, str] = {}
        self._run_ids: dict[str, str] = {}
        self._folders: dict[str, Path] = {}

    def plain(self, name: str, *options: str, below: tuple[str, ...] = ()) -> None:
        node = self.node[name] = next(self._nodes)
        command = shlex.join(["srun", *below, sys.executable, "-u", "saver.py", str(SAVES_FOR)])
        argv = ["sbatch", "--parsable", f"--nodelist={node}", f"--output={name}.txt", *options]
        result = self.here.lab.exec([*argv, f"--wrap={command}"], cwd=str(self.here.project))
        assert result.code == 0, result.err
        self.jobs[name] = result.out.strip()

    def ours(self, name: str, *options: str, seconds: int = SAVES_FOR, below: tuple[str, ...] = ()) -> None:
        node = self.node[name] = next(self._nodes)
        arguments = ("--preflight", "off", "--name", name, "--nodelist", node, *options)
        command = (*below, sys.executable, "-u") if below else ()
        answer = self.here.submit(*arguments, *command, "saver.py", str(seconds))
        self.jobs[name], self._run_ids[name] = answer["job_id"], answer["run_id"]
        self._folders[name] = Path(answer["run_dir"]) / "attempts"

    def printed(self, name: str, attempt: int = 0) -> list[str]:
        """Return the output of the rank, or of the plain job's task, without Slurm's own lines."""
        if name in self._folders:
            files = list((self._folders[name] / f"{attempt:03d}").glob("*.out"))
        else:
            files = [self.here.project / f"{name}.txt"]
        lines = [line for path in files if path.exists() for line in path.read_text().splitlines()]
        return [line for line in lines if line in ("up", "saved") or line.startswith("SIG")]

    def state(self, name: str) -> tuple[str, str]:
        status = self.here.status(self._run_ids[name])
        return status["state"], status["reason"]

    def shown(self, name: str) -> str:
        """Return scontrol's description of the job."""
        return self.here.lab.exec(["scontrol", "show", "job", self.jobs[name]]).out

    def scancel(self, name: str, *options: str) -> None:
        result = self.here.lab.exec(["scancel", *options, self.jobs[name]])
        assert result.code == 0, result.err


@pytest.fixture
def runs(make_lab: MakeLab, tmp_path: Path) -> Runs:
    lab = make_lab(nodes=NODES, gpus=0, cpus=2, preempt="cancel", settings={"KillWait": "30"})
    assert lab.exec(["scontrol", "update", "PartitionName=debug", "GraceTime=40"]).code == 0
    lab_site = site(lab, tmp_path)
    (lab_site.project / "saver.py").write_text(SAVER)
    return Runs(lab_site)


def test_signals_and_saves_are_those_of_plain_slurm(runs: Runs) -> None:
    """All cases at once, because a time limit of Slurm takes a minute and more."""
    for case, options in (("limit", ["--time=1"]), ("cancelled", []), ("preempted", [])):
        below = (sys.executable, "-c", IGNORES) if case == "limit" else ()
        runs.plain(f"plain-{case}", *options, below=below)
        runs.ours(f"our-{case}", *options, below=below)
    runs.ours("requeued", "--requeue", "--time", "1h")
    runs.ours("told", "--time", "2", "--sbatch", "signal=B:USR1@60")
    runs.ours("term", "--time", "2", "--requeue", "--sbatch", "signal=B:TERM@60", seconds=5)
    runs.plain("plain-signalled", below=("timeout", "900"))
    runs.ours("signalled", below=("timeout", "900"))
    runs.ours("trapped", seconds=8, below=TRAPS)
    runs.plain("plain-interrupted")
    runs.ours("cut", seconds=120)
    runs.plain("plain-no-handler", below=NO_HANDLER)
    runs.ours("no-handler", below=NO_HANDLER)
    runs.plain("plain-stopped")
    runs.ours("stopped", seconds=0)
    runs.plain("plain-killed")
    runs.ours("killed")
    until(lambda: all("up" in runs.printed(case) for case in runs.jobs), 180)

    for case in ("plain-stopped", "stopped"):
        runs.scancel(case, "-s", "STOP")
    runs.plain("plain-requeues", below=REQUEUES)
    runs.ours("requeues", below=REQUEUES)
    for case in ("plain-cancelled", "our-cancelled", "cut"):
        runs.scancel(case)
    for case in ("plain-killed", "killed"):
        runs.scancel(case, "-b")
    # A signal to the steps ends a rank without a handler.
    for case in ("plain-no-handler", "no-handler"):
        runs.scancel(case, "-s", "USR1")
    for case in ("plain-preempted", "our-preempted", "requeued"):
        argv = ["sbatch", "--partition=urgent", f"--nodelist={runs.node[case]}", "--exclusive", "--wrap=true"]
        assert runs.here.lab.exec(argv, cwd=str(runs.here.project)).code == 0
    for option, number in (("-s", "USR1"), ("-bs", "HUP"), ("-fs", "USR2"), ("-s", "ABRT")):
        runs.scancel("signalled", option, number)
        wanted = f"SIG{number}"
        until(lambda wanted=wanted: wanted in runs.printed("signalled"), 60)
    assert runs.state("signalled")[0] == "RUNNING"
    runs.scancel("trapped", "-b", "-s", "USR1")
    for case, number in (("plain-signalled", "USR1"), ("plain-interrupted", "ABRT")):
        runs.scancel(case, "-s", number)
        until(lambda case=case, wanted=f"SIG{number}": wanted in runs.printed(case), 60)
    # INT ends a rank only if the rank ends by itself.
    runs.scancel("signalled", "-fs", "INT")
    runs.scancel("plain-interrupted", "-s", "INT")

    # A save of 25 s completes wherever plain Slurm completes it.
    saved = [f"{whose}-{case}" for case in ("cancelled", "preempted", "limit") for whose in ("plain", "our")]
    saved += ["signalled", "plain-interrupted", "requeued"]
    until(lambda: all("saved" in runs.printed(case) for case in saved), ENDS)
    # The saves took longer than a node may be silent.
    is_listed = runs.here.lab.exec(["squeue", "-h", "-t", "all", "-j", runs.jobs["plain-stopped"]]).out != ""
    # Slurm 20.11 does not list a stopped job, so its nodes count as lost.
    assert runs.state("stopped")[0] == ("RUNNING" if is_listed else "NODE_FAIL")
    for case in ("plain-stopped", "stopped") if is_listed else ("plain-stopped",):
        runs.scancel(case, "-s", "CONT")
        runs.scancel(case, "-s", "INT")
    until(lambda: "SIGINT" in runs.printed("plain-stopped"), 60)
    until(lambda: runs.state("stopped")[0] == ("COMPLETED" if is_listed else "NODE_FAIL"), 60)
    until(lambda: runs.state("signalled")[0] == "COMPLETED", 60)
    until(lambda: runs.state("no-handler")[0] == "FAILED", 60)
    assert "SIGUSR1" in runs.state("no-handler")[1]
    for case in ("plain-no-handler", "plain-killed"):
        until(lambda case=case: "JobState=FAILED" in runs.shown(case), 60)
    until(lambda: runs.state("killed")[0] == "FAILED", 60)
    until(lambda: runs.printed("plain-requeues") == ["saved"] == runs.printed("requeues", 1), 120)
    until(lambda: runs.state("requeues")[0] == "COMPLETED", 60)
    until(lambda: runs.state("our-limit")[0] == "TIMEOUT", 60)
    ends = {case: runs.state(f"our-{case}")[0] for case in ("cancelled", "preempted")}
    assert ends == {"cancelled": "CANCELLED", "preempted": "COMPLETED"}
    until(lambda: runs.state("trapped")[0] == "FAILED", 60)
    assert runs.printed("trapped")[-1] == "saved"
    # A save that is cut is reported.
    until(lambda: runs.state("cut")[0] == "CANCELLED", 60)
    assert "saved" not in runs.printed("cut")
    assert "perhaps while saving" in runs.state("cut")[1]

    # The user's own signal reaches the ranks as it is; TERM before the time limit is the notice.
    until(lambda: "SIGUSR1" in runs.printed("told"), ENDS)
    assert runs.printed("told")[:2] == ["up", "SIGUSR1"]
    until(lambda: "up" in runs.printed("term", 1) and "up" in runs.printed("requeued", 1), ENDS)
    assert runs.printed("term")[-1] == "saved"

    runs.here.lab.exec(["scancel", "--signal=KILL", "--user=root"])
    runs.here.lab.exec(["scancel", "--user=root"])
    until(lambda: runs.here.lab.exec(["squeue", "-h"]).out == "", ENDS)
    runs.here.lab.down()
