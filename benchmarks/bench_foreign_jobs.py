"""How often `diagnose JOB` names the culprit of a job that clusterrun did not start, and never a wrong one.

    python -m benchmarks.bench_foreign_jobs [first|second] [LAUNCHER] [CASE …] | size [NODES] | pause

Jobs of four ranks on two nodes of a lab hang, under torchrun, srun, mpirun, accelerate, Lightning, Ray and
an imitation of DeepSpeed's launcher. accelerate, lightning and ray must be importable. A launcher that is
missing is left out and named. The first set is in `hanging_script.py`, the second in `hanging_set_2.py`.
Three jobs run at a time.
``RECORD=FOLDER`` keeps the looks of all nodes, as the tests read them. ``size`` measures the time for 64
nodes of 8 ranks. Its ranks pretend: Python without torch that waits in a file of torch's name, because 512
real ones do not fit into one machine. ``pause`` measures the longest step of a rank while it is looked at,
and while nobody looks.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "hanging_script.py"
SECOND = ROOT / "benchmarks" / "hanging_set_2.py"
LIGHTNING = ROOT / "benchmarks" / "hanging_lightning.py"
PATIENCE = 240.0
# Seconds from the hang to the look: as long as a user needs to notice it.
NOTICED = 22.0
NOBODY: tuple[int, ...] = ()

# Prints the looks of all nodes at the job that it is given, as the tests read them.
RECORDER = """
import json, sys
from clusterrun.model.document import encode_set
from clusterrun.operations.context import Context
from clusterrun.operations.diagnose_job import LookStep
from clusterrun.operations.job_step import check_live
context = Context()
job = context.client().foreign_job(sys.argv[1])
looks, _ = LookStep(context, job, check_live(job), "").look(1.0, 30.0)
print(json.dumps([encode_set(look) for look in looks]))
"""
# The ranks to blame, in each case.
CASES: dict[str, tuple[int, ...]] = {
    "sleeps": (3,),
    # Long work and an endless loop look the same: such a rank is named, and not blamed.
    "endless_loop": NOBODY,
    "computes": NOBODY,
    "stopped": (2,),
    "waits_for_queue": (0,),
    "waits_for_program": (1,),
    "waits_for_lock": (3,),
    "waits_for_file_lock": (1,),
    "reads_pipe": (2,),
    "polls_file": (0,),
    "asks_user": (0,),
    "joins_thread": (1,),
    "data_loader": (1,),
    "data_without_workers": (1,),
    "accepts": (1,),
    "awaits": (2,),
    "returns_early": (2,),
    "retries": (3,),
    "skips_backward": (1,),
    "logs_in_the_middle": (0,),
    "uneven_data": (3,),
    "extra_barrier": (2,),
    "only_rank_0_saves": (0,),
    "other_branch": (1,),
    "half_and_half": NOBODY,
    "recv_without_send": NOBODY,
    "all_receive_first": NOBODY,
    "waits_for_key": NOBODY,
    "exits_early": (1,),
    "healthy": NOBODY,
    "healthy_slow": NOBODY,
    "absent_in_init": (2,),
    "other_world_size": (3,),
    "other_port": (1,),
}
PER_LAUNCHER = {
    "torchrun": tuple(case for case in CASES if case != "exits_early"),
    "srun": (
        "sleeps",
        "endless_loop",
        "stopped",
        "data_loader",
        "skips_backward",
        "extra_barrier",
        "exits_early",
    )
    + ("absent_in_init", "other_port", "other_world_size", "uneven_data", "healthy"),
    "mpirun": ("sleeps", "computes", "uneven_data", "absent_in_init", "polls_file"),
    "accelerate": ("sleeps", "logs_in_the_middle", "other_branch", "data_without_workers"),
    "spawn": ("sleeps", "stopped", "extra_barrier"),
    "lightning": ("sleeps_in_step", "sleeps_in_validation", "other_batches"),
    "lightning_alone": ("sleeps_in_step",),
}
LIGHTNING_CASES = {
    "sleeps_in_step": (1,),
    "sleeps_in_validation": (0,),
    "other_batches": (3,),
    "callback_waits_for_program": (0,),
    "fewer_batches": (2,),
}
SECOND_CASES: dict[str, tuple[int, ...]] = {
    "locks_in_opposite_order": (2,),
    "worker_opens_fifo": (0,),
    "gathers_where_others_reduce": (3,),
    "ends_before_key": (2,),
    "writes_fifo": (1,),
    "pair_or_world": (1,),
    "matches_for_ever": (1,),
    "key_of_rank_0": (0,),
    "full_pipe": (2,),
    "saves_to_fifo": (3,),
    "downloads": (0,),
    "holds_interpreter": (2,),
    "pool_of_forks": (3,),
    "asks_to_overwrite": (0,),
    "event_of_thread": (1,),
    "saves_slowly": NOBODY,
    "pipeline": NOBODY,
    "all_wait_for_data": NOBODY,
    "two_and_two": (1, 2),
}
SECOND_PER_LAUNCHER = {
    "torchrun": (
        "locks_in_opposite_order",
        "gathers_where_others_reduce",
        "pair_or_world",
        "pool_of_forks",
        "saves_slowly",
        "event_of_thread",
    ),
    "srun": (
        "worker_opens_fifo",
        "ends_before_key",
        "matches_for_ever",
        "full_pipe",
        "pipeline",
        "key_of_rank_0",
    ),
    "srun_server": ("pair_or_world", "gathers_where_others_reduce", "locks_in_opposite_order"),
    "accelerate": ("asks_to_overwrite", "two_and_two"),
    "mpirun": ("downloads", "holds_interpreter"),
    "spawn": ("writes_fifo",),
    "deepspeed": ("saves_to_fifo",),
    "ray": ("full_pipe", "all_wait_for_data"),
    "lightning": ("callback_waits_for_program", "fewer_batches"),
}
EXPECTED = {**CASES, **LIGHTNING_CASES, **SECOND_CASES}
AT_A_TIME = 3


@dataclass(frozen=True)
class Outcome:
    launcher: str
    case: str
    expected: tuple[int, ...]
    blamed: tuple[int, ...]
    seconds: float
    message: str
    evidence: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        if self.blamed == self.expected:
            return "right"
        return "silent" if not self.blamed else "wrong"


def command(launcher: str, case: str, port: int) -> str:
    python, bin_folder = sys.executable, os.path.dirname(sys.executable)
    path = SECOND if case in SECOND_CASES else SCRIPT
    script = f"{path} {case}"
    head = "head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)\n"
    torchrun = f"--nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-id x --rdzv-endpoint $head:{port}"
    export = f"export MASTER_ADDR=$head MASTER_PORT={port}\n"
    if launcher == "torchrun":
        return f"{head}srun --ntasks=2 --ntasks-per-node=1 {bin_folder}/torchrun {torchrun} {script}"
    if launcher == "srun":
        return f"{head}{export}srun --ntasks=4 --ntasks-per-node=2 --kill-on-bad-exit=0 {python} {script}"
    if launcher == "srun_server":  # torch's worker server in each rank
        inner = f"TORCH_WORKER_SERVER_SOCKET=$MARKS/$SLURM_PROCID exec {python} {script}"
        return f"{head}{export}srun --ntasks=4 --ntasks-per-node=2 bash -c '{inner}'"
    if launcher == "mpirun":
        names = "-x MASTER_ADDR -x MASTER_PORT -x MARKS -x PATH"
        options = "--allow-run-as-root --oversubscribe -np 4 --npernode 2 --mca btl tcp,self --mca pml ob1"
        return f"{head}{export}mpirun {options} {names} {python} {script}"
    if launcher == "accelerate":
        options = f"--num_machines 2 --num_processes 4 --main_process_ip $head --main_process_port {port}"
        options += " --mixed_precision no --dynamo_backend no --multi_gpu"
        inner = f"{python} -m accelerate.commands.launch {options} --machine_rank $SLURM_NODEID {script}"
        return f"{head}export head\nsrun --ntasks=2 --ntasks-per-node=1 bash -c '{inner}'"
    if launcher == "spawn":
        spawn = SCRIPT.with_name("hanging_spawn.py")
        return f"{head}{export}srun --ntasks=2 --ntasks-per-node=1 {python} {spawn} {path.stem} {case}"
    if launcher == "deepspeed":
        return f"{head}{export}srun --ntasks=2 --ntasks-per-node=1 {python} {SECOND} --deepspeed {case}"
    if launcher == "ray":
        start = f"{bin_folder}/ray start --num-cpus=2 --disable-usage-stats --block"
        first = f"srun --nodes=1 --ntasks=1 --nodelist=$head --overlap {start} --head --port={port}"
        first += " --include-dashboard=false --temp-dir=$MARKS/ray"
        second = f"srun --nodes=1 --ntasks=1 --exclude=$head --overlap {start} --address=$head:{port}"
        train = f"{python} {SECOND.with_name('hanging_ray.py')} {case} {port + 3}"
        return f"{head}{first} &\nsleep 20\n{second} &\nsleep 10\n{train}"
    if launcher == "lightning":
        return f"{head}srun --ntasks=4 --ntasks-per-node=2 {python} {LIGHTNING} {case} 2"
    inner = f"NODE_RANK=$SLURM_NODEID SLURM_JOB_NAME=bash {python} {LIGHTNING} {case} 2"
    return (
        f"{head}{export}export MASTER_ADDR MASTER_PORT\nsrun --ntasks=2 --ntasks-per-node=1 bash -c '{inner}'"
    )


def trial(lab: Lab, launcher: str, case: str, folder: Path, port: int) -> Outcome:
    """Start the job, wait until it hangs, and ask."""
    marks = folder / f"{launcher}-{case}"
    marks.mkdir(parents=True)
    script = marks / "job.sh"
    text = f"#!/bin/bash\nexport MARKS={marks} PYTHONUNBUFFERED=1\n"
    script.write_text(text + command(launcher, case, port) + "\n")
    options = ["--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", f"--output={marks}/out"]
    answer = lab.exec(["sbatch", "--parsable", *options, str(script)]).out.strip()
    try:
        until = time.monotonic() + PATIENCE
        while len(list(marks.glob("up-*"))) < 4:
            if time.monotonic() > until:
                output = (marks / "out").read_text()[-400:] if (marks / "out").exists() else ""
                return Outcome(launcher, case, (), (-9,), 0.0, f"did not start: {output}")
            time.sleep(0.5)
        time.sleep(NOTICED)
        began = time.monotonic()
        result = lab.exec(
            [
                "env",
                f"CLUSTERRUN_HOME={folder}/home",
                sys.executable,
                "-m",
                "clusterrun.cli.main",
                "diagnose",
                "--json",
                answer,
            ],
            timeout=120,
        )
        seconds = time.monotonic() - began
        expected = EXPECTED[case]
        if result.code != 0:
            return Outcome(launcher, case, expected, (-9,), seconds, result.err.strip()[-300:])
        document = json.loads(result.out)
        (marks / "diagnosis.json").write_text(result.out)
        if recordings := os.environ.get("RECORD"):
            recording = lab.exec([sys.executable, "-c", RECORDER, answer], timeout=120).out
            Path(recordings, f"{launcher}-{case}.json").write_text(recording)
        blamed = tuple(culprit["rank"] for culprit in document["culprits"])
        said = f"{document['verdict']}: {document['said']}"
        return Outcome(launcher, case, expected, blamed, seconds, said, tuple(document["evidence"]))
    finally:
        lab.exec(["scancel", "--quiet", answer])


# A rank of 7 MB: it waits in a function with the path and the name of torch's all_reduce.
PRETENDED = """
import os, threading, time
def all_reduce():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
"""
PRETENDING = """
import os, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "site-packages", "torch", "distributed"))
from distributed_c10d import all_reduce
def step():
    if os.environ["SLURM_PROCID"] == "42":
        time.sleep(100000)
    all_reduce()
with open(os.path.join(os.environ["MARKS"], "up-" + os.environ["SLURM_PROCID"]), "w"):
    pass
step()
"""


def size(nodes: int) -> None:
    """Print how long it takes to name one of eight times ``nodes`` ranks, in a lab on this machine."""
    name = f"foreign-{os.getpid()}"
    lab = Lab(name)
    with tempfile.TemporaryDirectory() as folder:
        lab.up(LabSpec(name=name, nodes=nodes, gpus=0, cpus=8))
        try:
            module = Path(folder, "site-packages", "torch", "distributed", "distributed_c10d.py")
            module.parent.mkdir(parents=True)
            module.write_text(PRETENDED)
            Path(folder, "train.py").write_text(PRETENDING)
            script = Path(folder, "job.sh")
            script.write_text(
                f"#!/bin/bash\nexport MARKS={folder}\nsrun {sys.executable} -S {folder}/train.py\n"
            )
            options = [f"--nodes={nodes}", "--ntasks-per-node=8", f"--output={folder}/out"]
            job = lab.exec(["sbatch", "--parsable", *options, str(script)]).out.strip()
            until = time.monotonic() + 2 * PATIENCE
            while len(list(Path(folder).glob("up-*"))) < 8 * nodes and time.monotonic() < until:
                time.sleep(1)
            time.sleep(NOTICED)
            for _ in range(5):
                began = time.monotonic()
                beside = ["srun", f"--jobid={job}", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}"]
                lab.exec([*beside, "--ntasks-per-node=1", "--cpu-bind=none", "true"], timeout=180)
                plain = time.monotonic() - began
                began = time.monotonic()
                ask = ["env", f"CLUSTERRUN_HOME={folder}/home", sys.executable, "-m", "clusterrun.cli.main"]
                result = lab.exec([*ask, "diagnose", job], timeout=180)
                seconds = time.monotonic() - began
                first_line = (result.out or result.err).partition("\n")[0]
                load = os.getloadavg()[0]
                figures = f"{seconds:.1f} s (goal 10 s), srun of true {plain:.1f} s, load {load:.0f}"
                print(f"{nodes} nodes × 8 ranks: {figures}  {first_line}", flush=True)
        finally:
            lab.down()


# A rank that takes steps of about a millisecond. It writes when the longest of 100 began and
# its milliseconds.
STEPPING = """
import os, time
with open(os.path.join(os.environ["MARKS"], "steps-" + os.environ["SLURM_PROCID"]), "w", buffering=1) as file:
    while True:
        steps = []
        for _ in range(100):
            began = time.monotonic()
            sum(range(40000))
            steps.append(((time.monotonic() - began) * 1000, began))
        longest, began = max(steps)
        print(began, longest, file=file)
"""


def pause() -> None:
    """Print the longest step of a rank in each look, and in as many seconds without one."""
    name = f"foreign-{os.getpid()}"
    lab = Lab(name)
    with tempfile.TemporaryDirectory() as folder:
        lab.up(LabSpec(name=name, nodes=1, gpus=0, cpus=8))
        try:
            Path(folder, "train.py").write_text(STEPPING)
            script = Path(folder, "job.sh")
            script.write_text(
                f"#!/bin/bash\nexport MARKS={folder}\nsrun {sys.executable} {folder}/train.py\n"
            )
            job = lab.exec(["sbatch", "--parsable", f"--output={folder}/out", str(script)]).out.strip()
            file = Path(folder, "steps-0")
            until = time.monotonic() + PATIENCE
            while not file.exists() and time.monotonic() < until:
                time.sleep(0.1)
            ask = ["env", f"CLUSTERRUN_HOME={folder}/home", sys.executable, "-m", "clusterrun.cli.main"]
            windows: dict[str, list[tuple[float, float]]] = {"looked at": [], "not looked at": []}
            for _ in range(10):
                began = time.monotonic()
                lab.exec([*ask, "diagnose", job, "--limit", "3s"], timeout=120)
                between = time.monotonic()
                time.sleep(between - began)
                windows["looked at"].append((began, between))
                windows["not looked at"].append((between, time.monotonic()))
            steps = [tuple(map(float, line.split())) for line in file.read_text().splitlines()[:-1]]
            for kind, times in windows.items():
                longest = [
                    max(milliseconds for at, milliseconds in steps if start <= at < end)
                    for start, end in times
                ]
                figures = f"median {statistics.median(longest):.0f} ms, most {max(longest):.0f} ms"
                usual = statistics.median(milliseconds for _, milliseconds in steps)
                print(f"longest step of a rank {kind}: {figures} (usual longest of 100: {usual:.1f} ms)")
        finally:
            lab.down()


def available(launcher: str) -> bool:
    if launcher == "mpirun":
        return shutil.which("mpirun") is not None
    module = {"lightning_alone": "lightning"}.get(launcher, launcher)
    if launcher not in ("accelerate", "lightning", "lightning_alone", "ray"):
        return True
    return importlib.util.find_spec(module) is not None


def main() -> None:
    """Print a line for each case, and the figures."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["size"]:
        size(int(arguments[1]) if arguments[1:] else 64)
        return
    if arguments[:1] == ["pause"]:
        pause()
        return
    sets = {"first": PER_LAUNCHER, "second": SECOND_PER_LAUNCHER}
    jobs: list[tuple[str, str]] = []
    for name, cases_by_launcher in sets.items():
        if not (sets.keys() & arguments) or name in arguments:
            jobs += [(launcher, case) for launcher, cases in cases_by_launcher.items() for case in cases]
    launchers = {launcher for launcher, _ in jobs}
    for launcher in sorted(launchers):
        if not available(launcher):
            print(f"{launcher} is not installed: its cases are left out", flush=True)
    arguments = [word for word in arguments if word not in sets]
    if named := launchers & {*arguments}:
        jobs = [(launcher, case) for launcher, case in jobs if launcher in named]
    if cases := {*arguments} - launchers:
        jobs = [(launcher, case) for launcher, case in jobs if case in cases]
    outcomes: list[Outcome] = []
    name = f"foreign-{os.getpid()}"
    lab = Lab(name)
    with tempfile.TemporaryDirectory() as folder:
        lab.up(LabSpec(name=name, nodes=2 * AT_A_TIME, gpus=0, cpus=8))
        try:
            with ThreadPoolExecutor(AT_A_TIME) as pool:
                trials = [
                    pool.submit(trial, lab, launcher, case, Path(folder), 21_000 + 7 * number)
                    for number, (launcher, case) in enumerate(jobs)
                    if available(launcher)
                ]
                for future in as_completed(trials):
                    outcome = future.result()
                    outcomes.append(outcome)
                    what = f"{outcome.launcher:16} {outcome.case:26} {outcome.verdict:7}"
                    print(f"{what} {outcome.seconds:5.1f} s  {outcome.message}", flush=True)
                    if outcome.verdict != "right":
                        print(*(f"    {line}" for line in outcome.evidence), sep="\n", flush=True)
        finally:
            lab.down()
    counts = {
        word: sum(outcome.verdict == word for outcome in outcomes) for word in ("right", "silent", "wrong")
    }
    print(f"{len(outcomes)} jobs: {counts}; goal: >= 90 % right, 0 wrong", flush=True)


if __name__ == "__main__":
    main()
