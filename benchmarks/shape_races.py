"""Races between the shapes of a run, in virtual time: the real claim, client and coordinator's commands.

Slurm is a model here: it starts jobs when it likes, two of them in the same second, stops for a random
time, loses answers, and takes a node away just after the run has begun on it, whose job starts again.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from clusterrun.coordinator.io.scheduler import Scheduler
from clusterrun.coordinator.slurm_job import SlurmJob
from clusterrun.model.errors import ClusterrunError, SchedulerError, SchedulerUnreachable
from clusterrun.model.orders import Orders
from clusterrun.model.record import RunRecord
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.operations import submit_shapes
from clusterrun.operations.context import Context, quiet
from clusterrun.operations.submit import Draft, prepare
from clusterrun.runs.store import Store, run_id
from clusterrun.runtime.commands import CommandDone
from clusterrun.runtime.run_files import claim_shape
from clusterrun.script.plan import MachineFacts, Plan, comment, plan
from clusterrun.slurm.client import SlurmClient

SITE = MachineFacts(slurm=True, python="/usr/bin/python3")
AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


@dataclass
class Job:
    """One job: ``life`` counts its starts, so that what a dead one ordered is heard by nobody."""

    number: str
    shape: int
    comment: str
    word: str = "PENDING"
    life: int = 0


@dataclass
class Race:
    """One run in several shapes; ``began`` are the shapes whose ranks would have started, in turn."""

    chance: random.Random
    shapes: int = 2
    claim: Callable[[Any, int], bool] = claim_shape
    now: float = 0.0
    jobs: dict[str, Job] = field(default_factory=dict)
    began: list[int] = field(default_factory=list)
    stops: int = 0
    refused: str = ""
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _away_until: float = 0.0
    _paths: Any = None

    # --- time ---

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Let something happen."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), do))

    def pass_time(self, until: float) -> None:
        """Let everything happen that does until then."""
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()
        self.now = max(self.now, until)

    def _stop(self) -> None:
        self.stops += 1
        self._away_until = max(self._away_until, self.now + self.chance.choice((0.5, 5.0, 60.0, 300.0)))

    @property
    def _away(self) -> bool:
        return self.now < self._away_until

    # --- the client ---

    def run(self, context: Context) -> None:
        """The whole race."""
        spec = JobSpec(
            ("train.py",), "/", shapes=" ".join(map(str, range(1, self.shapes + 1))), cluster=Cluster.SLURM
        )
        name = run_id("train", 1_800_000_000.0 + next(_RUNS) / 512, self.chance.randbytes(2))
        self._paths = context.store.paths(name)
        for _ in range(self.chance.randint(0, 3)):
            self.later(self.chance.uniform(0.0, 6.0), self._stop)
        made = [
            Draft(plan(spec.shaped(one), name, "t0ken", self._paths.run_dir, SITE, one), ())
            for one in range(self.shapes)
        ]
        parts = {"drafts": lambda *_: made, "queued": lambda one, *_: self._sbatch(one)}
        with _in_the_place_of(prepare=partial(prepare, sync=False), **parts):
            try:
                submit_shapes.send(spec, context, quiet)
            except SchedulerUnreachable:
                pass  # its jobs may be queued, and the record stays
            except ClusterrunError as error:
                self.refused = error.seen
        self.pass_time(self.now + 3600.0)

    def _sbatch(self, asked: Plan) -> str:
        self.pass_time(self.now + self.chance.uniform(0.0, 0.5))
        if self._away and self.chance.random() < 0.5:
            raise SchedulerError("Slurm does not answer, nothing was queued", "try again")
        number = str(100 + len(self.jobs))
        self.jobs[number] = Job(number, asked.shape, comment(asked.run_id, asked.token, asked.shape))
        self._start_sometime(self.jobs[number])
        if self._away:  # taken, and the answer lost: it is looked for
            if self._away_until - self.now > 90.0:
                raise SchedulerUnreachable("it is not known whether the job is queued", "look")
            self.pass_time(self._away_until)
        return number

    # --- Slurm ---

    def _start_sometime(self, job: Job) -> None:
        at = self.chance.choice(
            (1.0, 1.0, 1.0, self.chance.uniform(0.0, 3.0), self.chance.uniform(0.0, 90.0))
        )
        self.later(at, lambda: self._start(job))

    def _start(self, job: Job) -> None:
        if self._away:
            self.later(self._away_until - self.now, lambda: self._start(job))
        elif job.word == "PENDING":
            job.word, job.life = "RUNNING", job.life + 1
            life = job.life
            self.later(
                self.chance.choice((0.1, self.chance.uniform(0.0, 2.0))), lambda: self._begin(job, life)
            )

    def _begin(self, job: Job, life: int) -> None:
        """The batch script has become the coordinator."""
        if job.word != "RUNNING" or job.life != life:
            return
        if not self.claim(self._paths, job.shape):
            job.word = "COMPLETED"
            return
        self.began.append(job.shape)
        if self.chance.random() < 0.15:  # its node is lost, and Slurm queues the job again
            job.word, job.life = "PENDING", job.life + 1
            self._start_sometime(job)
            return
        name = os.path.basename(self._paths.run_dir)
        nobody: Any = None
        commands: Any = _Commands(self, job, life)
        orders = Orders(name, name, 1, 1, 0, 1, ("true",), "/")
        this = SlurmJob(job.number, 0, 0.0)
        Scheduler(commands, this, orders, nobody, quiet, nobody).drop_shapes(job.shape)

    def answer(self, argv: tuple[str, ...]) -> CommandDone:
        """What a program of Slurm says."""
        if self._away:
            return CommandDone(1, (AWAY,), AWAY)
        if argv[0] == "squeue":
            alive = [job for job in self.jobs.values() if job.word in ("PENDING", "RUNNING")]
            return CommandDone(0, tuple(f"{job.number}|{job.comment}" for job in alive), "")
        self.scancel(argv[1:])
        return CommandDone(0, (), "")

    def scancel(self, numbers: tuple[str, ...] | list[str]) -> None:
        """End jobs."""
        if self._away:
            raise SchedulerUnreachable(AWAY, "try again")
        for number in numbers:
            if self.jobs[number].word in ("PENDING", "RUNNING"):
                self.jobs[number].word = "CANCELLED"

    # --- what came of it ---

    @property
    def doubled(self) -> bool:
        """Ranks began in two shapes."""
        return len(set(self.began)) > 1

    @property
    def lost(self) -> bool:
        """A job was queued, and no rank began."""
        return bool(self.jobs) and not self.began

    @property
    def left(self) -> int:
        """Jobs beside the run's own that are still there after an hour."""
        return sum(job.word in ("PENDING", "RUNNING") for job in self.jobs.values()) - bool(self.began)


class _Commands:
    """What the coordinator of one life of a job runs; nothing, once that is over."""

    def __init__(self, race: Race, job: Job, life: int) -> None:
        self._race, self._job, self._life = race, job, life

    def _if_alive(self, do: Callable[[], None]) -> None:
        if self._job.life == self._life and self._job.word == "RUNNING":
            do()

    def run(self, argv: tuple[str, ...], seconds: float, done: Callable[[CommandDone], None]) -> None:
        """A program, which takes its time."""
        told = lambda: self._if_alive(lambda: done(self._race.answer(argv)))  # noqa: E731
        self._race.later(self._race.chance.uniform(0.0, 0.3), told)

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """After a pause."""
        self._race.later(seconds, lambda: self._if_alive(do))


_RUNS = itertools.count()


class _Client(SlurmClient):
    """Slurm as the client meets it in a race."""

    race: Race

    def cancel(self, job_ids: Any) -> None:
        self.race.scancel(list(job_ids))

    def identity(self) -> str:
        return ""


class _Store(Store):
    """No race is to outlive a crash of this machine."""

    def claim(self, run_id: str, sync: bool = True) -> None:
        super().claim(run_id, False)

    def save(self, record: RunRecord, sync: bool = True) -> None:
        super().save(record, False)


@contextmanager
def _in_the_place_of(**parts: Any) -> Any:
    kept = {name: getattr(submit_shapes, name) for name in parts}
    for name, part in parts.items():
        setattr(submit_shapes, name, part)
    try:
        yield
    finally:
        for name, part in kept.items():
            setattr(submit_shapes, name, part)


def races(count: int, seed: int, home: str, shapes: int = 2, **changes: Any) -> list[Race]:
    """So many of them; ``home`` is a folder for their runs, ``changes`` replaces parts of each."""
    client = _Client({})
    context = Context({**os.environ, "CLUSTERRUN_HOME": home}, client=client)
    context.store = _Store(home)
    made = []
    for number in range(count):
        race = Race(random.Random(f"{seed}.{number}"), shapes, **changes)
        client.race = race
        race.run(context)
        made.append(race)
    return made


def tally(raced: list[Race]) -> dict[str, int]:
    """What came of them."""
    words = [job.word for race in raced for job in race.jobs.values()]
    return {
        "races": len(raced),
        "controller stops": sum(race.stops for race in raced),
        "refused whole": sum(not race.jobs for race in raced),
        "doubled": sum(race.doubled for race in raced),
        "lost": sum(race.lost for race in raced),
        "jobs left": sum(max(race.left, 0) for race in raced),
        "losers cancelled": words.count("CANCELLED"),
        "losers that ended by themselves": words.count("COMPLETED"),
    }
