"""Checks and runs on an overloaded lab, beside plain Slurm: no node is blamed, no run ends worse.

python -m benchmarks overload [ROUNDS [LOOPS …]]
python -m benchmarks overload lose [LOOPS]    # kill an agent during the check: the run starts it again

The lab, the commands and the busy loops share a control group with a small part of the processors, so that
other work on this machine is not disturbed. It needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec
from clusterrun.system import ProgramTimeout

ROOT = Path(__file__).resolve().parents[1]
CGROUPS = Path("/sys/fs/cgroup")
ROUNDS, LOOPS = 5, (400, 800)
# More than 16 running processes per processor are an overload.
LOST_LOOPS = (100,)
NODES = 4
# Every process of the lab gets nine times the share of a busy loop. With equal shares one `import torch`
# takes half an hour under 800 loops.
NICE = 10
# Seconds within which a command ends. Under 800 loops a check takes about three minutes.
LIMIT = 900.0
PROGRAM = "import os; print('rank', os.environ.get('RANK', os.environ.get('SLURM_PROCID')), flush=True)\n"
RUNS = {
    "check": ("check", "--nodes", str(NODES), "--mem", "2G"),
    "submit": ("submit", "--nodes", str(NODES), "--mem", "2G", "--wait", "train.py"),
    "requeue": ("submit", "--requeue", "--nodes", str(NODES), "--mem", "2G", "--wait", "train.py"),
}
PLAIN = ("sbatch", "--wait", f"-N{NODES}", "--mem=1G", "-o", "plain.out", "--wrap", "srun python3 train.py")


@dataclass(frozen=True)
class Trial:
    """How one command ended."""

    name: str
    seconds: float
    state: str  # of the run, or its verdict if it is a check
    blamed: tuple[str, ...] = ()  # the nodes and links that failed the check, each with the reason
    message: str = ""  # the last lines of the command's error output

    @property
    def is_wrong(self) -> bool:
        return bool(self.blamed) or self.state not in ("COMPLETED", "pass", "warn", "undetermined")

    def __str__(self) -> str:
        blamed = f", blames {'; '.join(self.blamed)}" if self.blamed else ""
        message = f" ({self.message})" if self.is_wrong else ""
        return f"{self.name} {self.state} in {self.seconds:.0f} s{blamed}{message}"


def main() -> None:
    """Print each trial; exit code 1 if a node was blamed, or a run ended worse than plain Slurm."""
    loses = sys.argv[1:2] == ["lose"]
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 and not loses else ROUNDS
    numbers = [int(word) for word in sys.argv[2:]] or (LOST_LOOPS if loses else LOOPS)
    lab = Lab(f"overload-{os.getpid()}")
    folder = Path(tempfile.mkdtemp(prefix="overload-"))
    (folder / "train.py").write_text(PROGRAM)
    wrong = trials = 0
    with control_group():
        # Slurm itself must not take an overloaded node for a lost one.
        lab.up(LabSpec(name=lab.name, nodes=NODES, gpus=0, settings=(("SlurmdTimeout", "3000"),)))
        try:
            if loses:
                with busy_loops(numbers[0]):
                    raise SystemExit(0 if lose_an_agent(lab, folder) else 1)
            for number in range(rounds):
                for loops in numbers:
                    results = one_round(lab, folder / f"{number}-{loops}", folder / "train.py", loops)
                    plain_failed = results[0].is_wrong
                    trials += len(results) - 1
                    wrong += 0 if plain_failed else sum(result.is_wrong for result in results)
                    print(f"{loops} loops, round {number + 1}: {' | '.join(map(str, results))}", flush=True)
        finally:
            lab.down()
    print(f"{wrong} of {trials} blamed a node or ended worse than plain Slurm    goal: 0", flush=True)
    raise SystemExit(1 if wrong else 0)


@contextlib.contextmanager
def control_group() -> Iterator[None]:
    """Move this process into a control group, of version 1 or 2, that weighs half as much as one process."""
    of_processors = CGROUPS / "cpu" if (CGROUPS / "cpu").is_dir() else CGROUPS
    group = of_processors / f"clusterrun-overload.{os.getpid()}"
    group.mkdir()
    try:
        if (group / "cpu.shares").exists():
            (group / "cpu.shares").write_text("512")
        else:
            (group / "cpu.weight").write_text("50")
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (of_processors / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


@contextlib.contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """Run ``number`` processes that only compute."""
    code = f"import os\nfor _ in range({number - 1}):\n  if not os.fork(): break\nwhile True: pass"
    loops = subprocess.Popen(
        ["nice", "-n", str(NICE), sys.executable, "-S", "-c", code], start_new_session=True
    )
    try:
        yield
    finally:
        os.killpg(loops.pid, signal.SIGKILL)
        loops.wait()


def one_round(lab: Lab, home: Path, script: Path, loops: int) -> list[Trial]:
    """Run plain Slurm and all commands at once under ``loops`` busy loops. Plain Slurm is the first."""
    home.mkdir()
    (home / "train.py").write_bytes(script.read_bytes())
    clusterrun = {name: (sys.executable, "-m", "clusterrun", *arguments) for name, arguments in RUNS.items()}
    commands = {"plain": PLAIN, **clusterrun}
    with busy_loops(loops), ThreadPoolExecutor(len(commands)) as people:
        ends = list(people.map(lambda name: end_of(lab, home, name, commands[name]), commands))
    plain = home / "plain.out"
    ranks = len(plain.read_text().splitlines()) if plain.exists() else 0
    (code, seconds, message), *others = ends
    state = "COMPLETED" if code == 0 and ranks == NODES else f"ended with {code} after {ranks} ranks"
    trials = [Trial("plain", seconds, state, message=message)]
    trials += [judged(lab, home, name, *end) for name, end in zip(RUNS, others, strict=True)]
    lab.exec(("scancel", "--user", str(os.geteuid())))
    lab.wait_idle(120.0)
    return trials


def lose_an_agent(lab: Lab, home: Path) -> bool:
    """Kill the agent of one node during the check. Return whether the run blames no node and completes."""
    command = [sys.executable, "-m", "clusterrun", *RUNS["submit"]]
    with ThreadPoolExecutor(1) as person:
        run = person.submit(end_of, lab, home, "lost", command)
        began, killed, reasons = time.monotonic(), 0, [""]
        while not run.done() and time.monotonic() < began + LIMIT:
            state = next((home / "lost/runs").glob("*/state.json"), None)
            run_state = json.loads(state.read_text()) if state else {}
            reason = f"{run_state.get('phase')}: {run_state.get('reason')}".partition(", waiting")[0]
            if reason != reasons[-1]:
                reasons.append(reason)
                print(f"{time.monotonic() - began:5.0f} s  {reason}", flush=True)
            if not killed and reason.startswith("preflight: control round"):
                agents = [entry for entry in lab.processes() if ".pyz agent " in entry.command]
                for agent in agents:
                    if agent.host == "n0003":
                        os.kill(agent.process, signal.SIGKILL)
                        killed += 1
            time.sleep(0.2)
        trial = judged(lab, home, "lost", *run.result())
    print(trial)
    return killed > 0 and not trial.is_wrong and any("after an overload" in reason for reason in reasons)


def end_of(lab: Lab, home: Path, name: str, command: Sequence[str]) -> tuple[int, float, str]:
    """Return the exit code of a command on the login host (-1: it is late), its seconds and its errors."""
    began = time.monotonic()
    try:
        completed = lab.exec(command, timeout=LIMIT, env=environment(home / name), cwd=home)
        code, message = completed.code, " / ".join(completed.err.splitlines()[-6:])
    except ProgramTimeout as error:
        code, message = -1, error.seen
    return code, time.monotonic() - began, message


def judged(lab: Lab, home: Path, name: str, code: int, seconds: float, message: str) -> Trial:
    """Return what a command did, from its report and its status."""
    status = answer_of(lab, home / name, "status", "last")
    report = answer_of(lab, home / name, "report", "last")
    state = status["runs"][0]["state"] if status else f"no run, exit code {code}"
    if name == "check":
        state = report.get("verdict") or state
    failed = {node: row["findings"] for node, row in report.get("nodes", {}).items()}
    failed |= {f"{link['a']} - {link['b']}": [link] for link in report.get("links", ())}
    blamed = tuple(
        f"{who}: {finding['said']}"
        for who, findings in failed.items()
        for finding in findings
        if finding["verdict"] == "fail"
    )
    return Trial(name, seconds, state, blamed, message)


def answer_of(lab: Lab, home: Path, *arguments: str) -> dict[str, Any]:
    """Return the JSON document of a command; {} if it printed none."""
    command = (sys.executable, "-m", "clusterrun", *arguments, "--json")
    text = lab.exec(command, timeout=LIMIT, env=environment(home)).out
    return dict(json.loads(text)) if text.strip() else {}


def environment(home: Path) -> dict[str, str]:
    path = os.environ.get("PYTHONPATH", str(ROOT))
    return {"CLUSTERRUN_HOME": str(home), "CLUSTERRUN_PREFLIGHT": "full", "PYTHONPATH": path}


if __name__ == "__main__":
    main()
