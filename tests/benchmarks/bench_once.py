"""Submissions while the controller freezes, dies and comes back: none may be lost or made twice."""

from __future__ import annotations

import os
import random
import sys
import threading
import time

from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec
from clusterrun.model.errors import SchedulerError, SchedulerUnreachable
from clusterrun.slurm.client import SlurmClient
from tests.lab.test_slurm_once import answered, send
from tests.lab.test_slurm_words import OnLogin

COUNT = 320
AT_ONCE = 16


def main() -> None:
    """As many submissions as the first argument says; a line at the end, and exit code 1 if any is wrong."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    lab = Lab(f"bench-once-{os.getpid()}")
    lab.up(LabSpec(name=lab.name, nodes=1, gpus=1, settings=(("MessageTimeout", "2"),)))
    slurm = SlurmClient({}, OnLogin(lab), user=0)
    chance = random.Random(count)
    kinds = {"queued": 0, "refused": 0, "open": 0, "lost": 0, "twice": 0}
    began = time.monotonic()
    try:
        for first in range(0, count, AT_ONCE):
            one_round(lab, slurm, chance, [f"once-{first + number}." for number in range(AT_ONCE)], kinds)
    finally:
        lab.down()
    told = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    print(
        f"{count} submissions in {time.monotonic() - began:.0f} s: {told}    goal: 0 lost, 0 twice",
        flush=True,
    )
    raise SystemExit(1 if kinds["lost"] or kinds["twice"] else 0)


def one_round(
    lab: Lab, slurm: SlurmClient, chance: random.Random, tokens: list[str], kinds: dict[str, int]
) -> None:
    """Submit all at once, trouble the controller meanwhile, then count the jobs that carry each token."""
    told: dict[str, str | SchedulerError] = {}

    def one(token: str, pause: float) -> None:
        time.sleep(pause)
        try:
            told[token] = send(slurm, token)
        except SchedulerError as error:
            told[token] = error

    threads = [threading.Thread(target=one, args=(token, chance.uniform(0, 0.3))) for token in tokens]
    for thread in threads:
        thread.start()
    time.sleep(chance.uniform(0, 0.3))
    trouble(lab, chance)
    for thread in threads:
        thread.join()
    for token, answer in told.items():
        kinds[judged(answer, answered(slurm, token))] += 1
    lab.exec(["scancel", "--quiet", "--user=root"])


def trouble(lab: Lab, chance: random.Random) -> None:
    """Frozen for a while, mostly; sometimes ended and started anew."""
    if chance.random() < 0.25:
        lab.fault("controller")
    else:
        lab.fault("freeze", "ctl", process="slurmctld")
    time.sleep(chance.choice([0.1, 1.0, 3.0]))
    lab.heal()


def judged(answer: str | SchedulerError, jobs: list[str]) -> str:
    """What became of one submission, from what was said of it and the jobs that are really there."""
    if len(jobs) > 1:
        return "twice"
    if isinstance(answer, SchedulerUnreachable):
        return "open"
    if isinstance(answer, SchedulerError):
        return "lost" if jobs else "refused"
    return "queued" if jobs == [answer] else "lost"


if __name__ == "__main__":
    main()
