"""A crowd that submits from the login host in parallel and prints the answer to each submission.

Each line is JSON: the name and the outcome ("queued" with the job's id, "refused" or "open").
``bench_once`` runs it and may kill it at any moment. Unfinished submissions have no line.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from clusterrun import api
from clusterrun.model.errors import SchedulerError, SchedulerUnreachable


def main(crowd: str, count: int, at_once: int) -> None:
    """Submit ``count`` runs named CROWD-1, CROWD-2, …, ``at_once`` of them at the same time."""
    chance = random.Random(crowd)
    pauses = [chance.uniform(0, 0.2) for _ in range(count)]
    with ThreadPoolExecutor(at_once) as people:
        for answer in people.map(one, [f"{crowd}-{number}" for number in range(count)], pauses):
            os.write(1, json.dumps(answer).encode() + b"\n")


def one(name: str, pause: float) -> tuple[str, str, str]:
    """Submit once. Return the name, the kind of answer, and the job's id or the error."""
    time.sleep(pause)
    try:
        run = api.submit("true", name=name, cluster="slurm", gpus=0, sbatch=("hold",))
    except SchedulerUnreachable as error:
        return name, "open", error.seen
    except SchedulerError as error:
        return name, "refused", error.seen
    return name, "queued", run.job_id


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
