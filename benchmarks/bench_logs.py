"""Measure the merge of many ranks' logs beside `cat` of the same files, and `logs -f`."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import BinaryIO

from benchmarks.measure import in_turn, process, table
from clusterrun.model.frozen import replace
from clusterrun.model.record import Attempt, RunRecord, RunState
from clusterrun.model.spec import JobSpec
from clusterrun.model.states import Phase, State
from clusterrun.runs.store import Store, _text, run_id

RANKS, MEGABYTES = 512, 200
MANY_RANKS = 10_000
FOLLOWED, LINES = 64, 8
LINE = b"step %7d loss 0.12345678 samples/s 12345.6 lr 1.0000e-04 grad norm 1.2345 mem 12.3 GiB\n"
PROGRAM = str(Path(sys.executable).with_name("clusterrun"))


def main() -> None:
    """Fill two attempts, then read them."""
    with tempfile.TemporaryDirectory() as home:
        merging(home)
        tails(home)
        memory()
        latency(home)


def merging(home: str) -> None:
    """Merge all lines of 512 ranks in time order into a file, beside `cat`."""
    attempt = run_of(home, "merge", RANKS)
    lines = MEGABYTES * 1_000_000 // RANKS // len(LINE % 0)
    fill(attempt, RANKS, lines)
    environment = {"PATH": os.defpath, "HOME": home, "CLUSTERRUN_HOME": home}
    sides = {
        "clusterrun logs": process(["/bin/sh", "-c", f"{PROGRAM} logs merge > {home}/out"], env=environment),
        "cat": process(["/bin/sh", "-c", f"cat {attempt}/*.out > {home}/out"], env=environment),
    }
    results = in_turn(sides, 3)
    print(table(f"{RANKS} ranks, {MEGABYTES} MB merged by time", results))
    print(f"that is {MEGABYTES / results[0].median:.0f} MB/s   goal: ≥ 50 MB/s", flush=True)


def tails(home: str) -> None:
    """Print the last ten lines of each of 10,000 ranks."""
    attempt = run_of(home, "tails", MANY_RANKS)
    fill(attempt, MANY_RANKS, 200)
    began = time.perf_counter()
    subprocess.run(
        [PROGRAM, "logs", "tails", "--tail", "10"],
        env={"PATH": os.defpath, "HOME": home, "CLUSTERRUN_HOME": home},
        stdout=subprocess.DEVNULL,
        timeout=600,
        check=True,
    )
    print(
        f"last 10 lines of {MANY_RANKS} ranks: {time.perf_counter() - began:.2f} s   goal: ≤ 5 s", flush=True
    )


def memory() -> None:
    """Print the largest memory of all processes that ran."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"memory of the largest of these processes: {peak:.0f} MiB   goal: ≤ 100 MiB", flush=True)


def latency(home: str) -> None:
    """Measure the time from a line of one of 64 ranks to that line in the output of ``logs -f``."""
    attempt = run_of(home, "follow", FOLLOWED, live=True)
    (attempt / "node-0000.index").touch()
    files = [(attempt / f"{rank:05d}.out").open("ab", buffering=0) for rank in range(FOLLOWED)]
    command = [PROGRAM, "logs", "-f", "--raw", "follow"]
    environment = {"PATH": os.defpath, "HOME": home, "CLUSTERRUN_HOME": home}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as follower:
        writer = threading.Thread(target=write_times, args=(files,))
        writer.start()
        assert follower.stdout is not None
        delays = [time.time() - float(follower.stdout.readline()) for _ in range(LINES * FOLLOWED)]
        writer.join()
        follower.terminate()
    late = sorted(delays[FOLLOWED:])
    print(
        f"line written to line shown, {FOLLOWED} ranks: median {statistics.median(late):.3f} s, "
        f"99 % within {late[len(late) * 99 // 100]:.3f} s   goal: median ≤ 0.3 s",
        flush=True,
    )


def write_times(files: list[BinaryIO]) -> None:
    """Write the time for each rank again and again, no two ranks at the same moment."""
    for _ in range(LINES):
        for file in files:
            file.write(b"%.6f\n" % time.time())
            time.sleep(1 / FOLLOWED)


def run_of(home: str, name: str, ranks: int, live: bool = False) -> Path:
    """Make an empty attempt of a run with this name."""
    store, now = Store(home), time.time()
    chosen = run_id(name, now, os.urandom(2))
    store.claim(chosen)
    spec = JobSpec(command=("train.py",), cwd="/tmp", name=name, nodes=ranks // 8, ranks_per_node=8)
    record = RunRecord(chosen, name, "local", "token", spec, now, host="elsewhere" if live else "")
    Path(store.paths(chosen).record).write_text(_text(replace(record, job_id="1.1")))
    folder = Path(store.paths(chosen).attempt(0).folder)
    folder.mkdir(parents=True)
    word, phase = (State.RUNNING, Phase.TRAINING) if live else (State.COMPLETED, Phase.ENDED)
    nodes = tuple(f"n{number:04d}" for number in range(ranks // 8))
    state = RunState(
        chosen, 0, word, phase, "", "n0000", 7, now + 3600, (Attempt(0, "first start", nodes, now),)
    )
    Path(store.paths(chosen).state).write_text(_text(state))
    return folder


def fill(attempt: Path, ranks: int, lines: int) -> None:
    """Write the same lines for every rank. Their times spread over as many seconds as the index has."""
    data = b"".join(LINE % number for number in range(lines))
    seconds = 60
    for rank in range(ranks):
        (attempt / f"{rank:05d}.out").write_bytes(data)
        if rank % 8 == 0:
            knots = [
                f"{1.8e9 + s:.3f} {one} o {len(data) * s // seconds}\n"
                for s in range(1, seconds + 1)
                for one in range(rank, rank + 8)
            ]
            (attempt / f"node-{rank // 8:04d}.index").write_text("".join(knots))


if __name__ == "__main__":
    main()
