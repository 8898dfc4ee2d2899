"""Measure the CPU time that `clusterrun rehearse` adds to a step of jobs/train.py, in turns.

One rank on one thread, forked from a Python that has loaded torch; a step is the difference of a long and a
short training, so neither the start nor the first step counts. Processor time is what other work on the
machine disturbs least.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import tempfile
from pathlib import Path

from clusterrun.model.contract import REHEARSAL_VARIABLE
from clusterrun.rank_hooks.clusterrun_rehearsal.start_watch import RankWatch

TURNS = 25
SHORT, LONG = 20, 220
JOBS = Path(__file__).resolve().parents[1] / "jobs"


def seconds(model: str, steps: int, watched: bool) -> float:
    """Return the CPU seconds of a training in a child."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pid = os.fork()
    if not pid:
        train(model, steps, watched)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError(f"{model}, {steps} steps: the training failed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def train(model: str, steps: int, watched: bool) -> None:
    """Run the reference script in this process, and end it."""
    import torch

    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.path.insert(0, str(JOBS))
        if watched:
            folder = tempfile.mkdtemp(prefix="watched-")
            os.environ[REHEARSAL_VARIABLE] = json.dumps({"steps": 0})
            watch = RankWatch({"steps": 0}, folder, 0, folder)
            sys.addaudithook(watch.audit)
            watch.install(torch)
        import train as script

        script.main(["--model", model, "--steps", str(steps), "--device", "cpu"])
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    """Print the two costs of a step, and their ratio."""
    sys.path.insert(0, str(JOBS))
    import torch

    import train as warm  # noqa: F401 (loaded once, for all children)

    torch.set_num_threads(1)

    for model in sys.argv[1:] or ("cnn",):
        steps: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(TURNS):
            for watched in (False, True):
                spent = seconds(model, LONG, watched) - seconds(model, SHORT, watched)
                steps[watched].append(1000 * spent / (LONG - SHORT))
        plain, seen = statistics.median(steps[False]), statistics.median(steps[True])
        ratio = f"{seen / plain - 1:+.1%}"
        print(f"{model}: a step takes {plain:.2f} ms, watched {seen:.2f} ms: {ratio}", flush=True)


if __name__ == "__main__":
    main()
