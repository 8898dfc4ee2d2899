"""Submissions while the controller freezes, crawls, dies and comes back: none may be lost or made twice.

    python -m benchmarks.bench_once 10000 --kill      # kill -9 of slurmctld, and of who submits, too

Whole submissions through the Python API by a crowd on the login host. At the end of each round the
controller is well again, every job in the queue is counted by the run that its comment names, and what
`status` says of the runs that were left in doubt is compared with it.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec
from clusterrun.model.errors import SchedulerError
from clusterrun.slurm.client import SlurmClient
from tests.lab.test_slurm_words import OnLogin

COUNT = 600
CROWDS, AT_ONCE, EACH = 2, 16, 150
PROGRAM = (sys.executable, "-m", "clusterrun")
SETTINGS = (("MessageTimeout", "2"), ("MaxJobCount", "200000"), ("MinJobAge", "5"))
OURS = "clusterrun:"


@dataclass
class Tally:
    """The number of submissions of each kind, and the names of those that violate the law."""

    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def main() -> None:
    """Make as many submissions as the first argument has. Print a line; exit code 1 if any is wrong."""
    arguments = [word for word in sys.argv[1:] if word != "--kill"]
    count, kill = int(arguments[0]) if arguments else COUNT, "--kill" in sys.argv
    lab = Lab(f"bench-once-{os.getpid()}")
    lab.up(LabSpec(name=lab.name, nodes=1, gpus=1, settings=SETTINGS))
    chance, outcomes, began = random.Random(count), Tally(), time.monotonic()
    try:
        for number in range(-(-count // (CROWDS * EACH))):
            one_round(lab, chance, number, kill, outcomes)
            print(f"{time.monotonic() - began:6.0f} s  {told(outcomes)}", flush=True)
    finally:
        lab.down()
    submissions = sum(outcomes.kinds.values())
    print(
        f"{submissions} submissions in {time.monotonic() - began:.0f} s: {told(outcomes)}    "
        "goal: 0 lost, 0 twice"
    )
    print("\n".join(outcomes.wrong[:20]), end="\n" if outcomes.wrong else "", flush=True)
    raise SystemExit(1 if outcomes.wrong else 0)


def told(outcomes: Tally) -> str:
    """Return the kinds of outcomes with their numbers, and the number of wrong ones."""
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(outcomes.kinds.items()))
    return f"{kinds}; wrong: {len(outcomes.wrong)}"


def one_round(lab: Lab, chance: random.Random, number: int, kill: bool, outcomes: Tally) -> None:
    """Let two crowds submit while the controller has troubles. Then count the jobs."""
    home = tempfile.mkdtemp(prefix="once-")
    crowds = [f"once-{number}-{letter}" for letter in "ab"[:CROWDS]]
    over = threading.Event()
    trouble = threading.Thread(target=troubles, args=(lab, random.Random(chance.random()), kill, over))
    try:
        people = [start(lab, home, crowd) for crowd in crowds]
        trouble.start()
        if kill:
            time.sleep(chance.uniform(0.5, 6.0))
            os.killpg(people[0].pid, signal.SIGKILL)
        answers = [line for crowd in people for line in heard(crowd)]
        over.set()
        trouble.join()
        judge(lab, home, crowds, answers, kill, outcomes)
    finally:
        over.set()
        trouble.join()
        shutil.rmtree(home)


def start(lab: Lab, home: str, crowd: str) -> subprocess.Popen[str]:
    """Start a crowd on the login host, in a process group of its own."""
    argv, environment = lab.entering("login", {**os.environ, "CLUSTERRUN_HOME": home}, os.getcwd(), "")
    command = [*argv, sys.executable, "-m", "benchmarks.submitters", crowd, str(EACH), str(AT_ONCE)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def heard(crowd: subprocess.Popen[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the answers that a crowd got. A crowd that ends by itself must have got all answers."""
    out, _ = crowd.communicate(timeout=900)
    lines = [json.loads(line) for line in out.splitlines() if line.endswith("]")]
    if crowd.returncode != -signal.SIGKILL and (crowd.returncode or len(lines) != EACH):
        raise RuntimeError(f"a crowd ended with {crowd.returncode} and {len(lines)} answers")
    return iter([(name, kind, text) for name, kind, text in lines])


# --- trouble --------------------------------------------------------------------------------------


def troubles(lab: Lab, chance: random.Random, kill: bool, over: threading.Event) -> None:
    """Make one trouble after another with pauses between them. At the end the controller works."""
    kinds = [frozen] * 3 + [slow] * 2 + [stopped, cut] + [killed] * kill
    while not over.wait(chance.uniform(0.1, 1.0)):
        chance.choice(kinds)(lab, chance)


def frozen(lab: Lab, chance: random.Random) -> None:
    """Stop the controller for a time around sbatch's own limit."""
    lab.fault("freeze", "ctl", process="slurmctld")
    time.sleep(chance.choice([0.1, 1.0, 3.0]))
    lab.heal()


def slow(lab: Lab, chance: random.Random) -> None:
    """Let the controller run a tenth of the time for some seconds."""
    until = time.monotonic() + chance.uniform(1, 4)
    while time.monotonic() < until:
        lab.fault("freeze", "ctl", process="slurmctld")
        time.sleep(0.18)
        lab.heal()
        time.sleep(0.02)


def stopped(lab: Lab, chance: random.Random) -> None:
    """End the controller in order and start it again."""
    lab.fault("controller")
    time.sleep(chance.choice([0.0, 0.5, 3.0]))
    lab.heal()


def cut(lab: Lab, chance: random.Random) -> None:
    """Drop the packets to the controller, or those from it."""
    ways = [{"host": "ctl"}, {"host": "ctl", "to": "login"}, {"host": "login", "to": "ctl"}]
    way = chance.choice(ways)
    lab.fault("cut", **way)
    time.sleep(chance.choice([0.2, 1.0, 3.0]))
    lab.heal()


def killed(lab: Lab, chance: random.Random) -> None:
    """Kill the controller. It forgets the state that it had not written, as after a power cut."""
    lab.fault("kill", "ctl", process="slurmctld")
    time.sleep(chance.choice([0.0, 1.0]))
    lab.heal()


# --- the count ------------------------------------------------------------------------------------


def judge(
    lab: Lab,
    home: str,
    crowds: Sequence[str],
    answers: Sequence[tuple[str, str, str]],
    kill: bool,
    outcomes: Tally,
) -> None:
    """Compare the answers with the jobs that exist, and with the current `status`."""
    jobs, runs = jobs_by_name(lab), runs_by_name(home)
    answer_by_name = {name: (kind, text) for name, kind, text in answers}
    doubtful = [
        run for name, run in runs.items() if ("queued", *jobs.get(name, ())) != answer_by_name.get(name)
    ]
    status_by_name = statuses(lab, home, doubtful)
    for crowd, number in itertools.product(crowds, range(EACH)):
        name = f"{crowd}-{number}"
        kind, text = answer_by_name.get(name, ("never begun" if name not in runs else "cut short", ""))
        job_ids, status = jobs.get(name, []), status_by_name.get(name, ("", ""))
        outcome = verdict(kind, text, job_ids, status, name in runs, kill)
        outcomes.kinds[outcome] += 1
        if outcome in ("LOST", "TWICE"):
            outcomes.wrong.append(f"{outcome}: {name}: {kind} {text!r}, jobs {job_ids}, status {status!r}")
    result = lab.exec(["scancel", "--quiet", "--user=root"], timeout=120)
    if result.code:
        raise RuntimeError(f"the jobs of a round cannot be ended: {result.err}")


def verdict(
    kind: str, text: str, jobs: list[str], status: tuple[str, str], recorded: bool, kill: bool
) -> str:
    """Return the outcome of a submission. A job without an answer is lost; so is an answer without a job.

    ``known`` is the job and the state that ``status`` shows. A slurmctld that is killed forgets jobs which
    it acknowledged in the last seconds. Such a run must be reported as failed.
    """
    if len(jobs) > 1:
        return "TWICE"
    if kind == "queued":
        if jobs == [text]:
            return "queued"
        forgotten = kill and not jobs and status == (text, "FAILED")
        return "forgotten by a slurmctld that was killed, and told so" if forgotten else "LOST"
    if jobs and (not recorded or status[0] != jobs[0]):
        return "LOST"
    return f"{kind}, {'found by status' if jobs else 'no job'}"


def jobs_by_name(lab: Lab) -> dict[str, list[str]]:
    """Return the ids of the queued jobs by the name of their run, once the controller answers."""
    slurm = SlurmClient({}, OnLogin(lab), user=0)
    until, job_ids = time.monotonic() + 60, {}
    while True:
        try:
            rows = slurm.jobs()
            break
        except SchedulerError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
    for row in rows:
        if row.comment.startswith(OURS) and not row.state.ended:
            job_ids.setdefault(name_of(row.comment.split(":")[1]), []).append(row.job_id)
    return job_ids


def runs_by_name(home: str) -> dict[str, str]:
    """Return the run ids on disk by their names."""
    folder = Path(home, "runs")
    return {name_of(path.name): path.name for path in folder.iterdir()} if folder.exists() else {}


def name_of(run_id: str) -> str:
    """Return the name in a run id."""
    return run_id.split("-", 3)[3]


def statuses(lab: Lab, home: str, runs: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the job id and the state in `status` for each run, by name."""
    if not runs:
        return {}
    environment = {"CLUSTERRUN_HOME": home, "NO_COLOR": "1"}
    result = lab.exec([*PROGRAM, "status", "--json", *runs], env=environment, timeout=300)
    if result.code:
        raise RuntimeError(f"status: {result.err}")
    return {row["name"]: (row["job_id"], row["state"]) for row in json.loads(result.out)["runs"]}


if __name__ == "__main__":
    main()
