"""Jobs that go on with a run: what is queued, what is asked first, what a lost answer does.

Slurm's own programs are stand-ins here: real ones cannot be made to lose one answer.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from clusterrun.coordinator.actions import DropNext, ExcludeNext, QueueNext, Requeue, Resubmit
from clusterrun.coordinator.events import HandedOver, NextQueued, Resubmitted
from clusterrun.coordinator.io.run_directory import ReportFiles
from clusterrun.coordinator.io.scheduler import Scheduler
from clusterrun.coordinator.slurm_job import SlurmJob
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Survival
from clusterrun.model.paths import RunPaths
from clusterrun.runtime.commands import CommandDone, CommandRunner
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.processes import ended_children
from clusterrun.slurm_text.exclude_list import filled
from tests.coordinator.tapes import ORDERS

ARGV = ("sbatch", "--parsable", "--exclude=n9,{excluded}", "--dependency=", "{dependency}", "script.sh")


class Site:
    """A scheduler of shell scripts that write down how they were called."""

    def __init__(self, folder: Path, argv: tuple[str, ...] = ARGV, **programs: str) -> None:
        self.called = folder / "called"
        self.called.touch()
        for name in ("squeue", "sbatch", "scontrol", "scancel"):
            program = folder / name
            body = programs.get(name, "")
            program.write_text(f'#!/bin/sh\nprintf "%s\\n" "{name} $*" >>{self.called}\n{body}\n')
            program.chmod(0o755)
        self.paths = RunPaths(str(folder))
        self.notes: list[str] = []
        self.loop = EventLoop()
        path = f"{folder}:{os.defpath}"
        self.commands = CommandRunner(
            self.loop, {"PATH": path, "SLURM_NTASKS": "4", "SLURM_CONF": "/c", "MINE": "1"}
        )
        files = ReportFiles(ORDERS, self.paths, self.notes.append)
        orders = replace(ORDERS, survival=Survival(resubmit=argv))
        self.told: list[Any] = []
        provided = (SlurmJob("7", 0, 0.0), orders, files, self.notes.append, self.told.append)
        self.scheduler = Scheduler(self.commands, *provided)
        self.loop.every(0.02, self.reap)

    def reap(self) -> None:
        for child in ended_children():
            self.commands.reaped(child)

    def answer(self, order: Any) -> Any:
        """Return the event that answers an order."""
        self.scheduler.carry_out(order)
        return self.heard(self.told)

    def heard(self, message: list[Any]) -> Any:
        until = steady() + 60.0
        while not message:
            assert steady() < until
            self.loop.wait(steady() + 0.05)
        return message.pop()

    def calls(self) -> list[str]:
        self.commands.finish(60.0)
        return self.called.read_text().splitlines()


@pytest.fixture
def site(tmp_path: Path) -> Any:
    return lambda **programs: Site(tmp_path, **programs)


LOOK = "squeue -h --me -t PENDING -o %i|%E|%k"
QUEUED = "job 8 waits to go on after this one"
QUEUE = "sbatch --parsable --dependency= --dependency=afterany:7 script.sh"


def test_a_successor_job_that_depends_on_this_one_is_queued(site: Any) -> None:
    entry = site(sbatch="echo 8")
    assert entry.answer(QueueNext(())) == NextQueued("8")
    assert entry.calls() == [LOOK, QUEUE]
    assert json.loads(Path(entry.paths.next).read_text()) == {"job_id": "8", "excluded": []}


def test_a_waiting_job_of_this_run_is_the_successor(site: Any) -> None:
    other = "echo '5|afterany:77(unfulfilled)|clusterrun:r:x'; echo '4|afterany:7(unfulfilled)|mine'; "
    entry = site(squeue=other + "echo '9|afterany:7(unfulfilled)|clusterrun:r:x'")
    assert entry.answer(QueueNext(())) == NextQueued("9")
    assert entry.calls() == [LOOK]


def test_thousands_of_waiting_jobs_of_the_user_are_read(site: Any) -> None:
    entry = site(squeue="seq -f '%g|(null)|mine' 20000; echo '9|afterany:7(unfulfilled)|clusterrun:r:x'")
    assert entry.answer(QueueNext(())) == NextQueued("9")


def test_a_job_whose_number_was_lost_is_found_and_not_queued_twice(site: Any) -> None:
    marks = "[ -e $(dirname $0)/taken ] && echo '9|afterany:7(unfulfilled)|clusterrun:r:x'; true"
    entry = site(squeue=marks, sbatch="touch $(dirname $0)/taken; echo 'Socket timed out' >&2; exit 1")
    assert entry.answer(QueueNext(())) == NextQueued("9")
    assert entry.calls() == [LOOK, QUEUE, LOOK]


def test_a_job_that_cannot_be_queued_is_an_answer_too(site: Any) -> None:
    entry = site(sbatch="echo 'QOSMaxSubmitJobPerUserLimit' >&2; exit 1")
    why = "the program exited with code 1: QOSMaxSubmitJobPerUserLimit"
    assert entry.answer(QueueNext(())) == NextQueued("", why)
    assert entry.notes == [f"no job was queued: {why}"]
    assert not os.path.exists(entry.paths.next)


def test_the_successor_excludes_bad_nodes_and_those_of_the_user(site: Any) -> None:
    entry = site(sbatch="echo 8")
    entry.answer(QueueNext(()))
    entry.scheduler.carry_out(ExcludeNext(("n1", "n2", "no such name")))
    assert entry.calls()[2:] == ["scontrol update JobId=8 ExcNodeList=n9,n[1-2]"]
    assert entry.notes == [QUEUED]


def test_a_full_exclude_list_is_reported(site: Any) -> None:
    entry = site(argv=("sbatch", "x"), sbatch="echo 8")
    entry.answer(QueueNext(()))
    entry.scheduler.carry_out(ExcludeNext(("n1",)))
    assert entry.notes[1:] == ["n1 cannot be added to what job 8 excludes"]


def test_the_successor_is_cancelled_and_forgotten(site: Any) -> None:
    entry = site(sbatch="echo 8")
    entry.answer(QueueNext(()))
    entry.scheduler.carry_out(DropNext())
    assert entry.calls()[2:] == ["scancel 8"]
    assert not os.path.exists(entry.paths.next)


def test_a_successor_that_cannot_be_cancelled_stays_recorded(site: Any) -> None:
    entry = site(sbatch="echo 8", scancel="exit 1")
    entry.answer(QueueNext(()))
    entry.scheduler.carry_out(DropNext())
    entry.calls()
    assert os.path.exists(entry.paths.next)
    assert entry.notes[1:] == [
        "job 8 could not be taken back (the program exited with code 1); it will end at once"
    ]


def test_a_successor_is_cancelled_later_if_the_controller_is_unreachable(site: Any) -> None:
    away = 'echo "Unable to contact slurm controller" >&2; exit 1'
    away = f'[ -e "$0.back" ] && exit 0; touch "$0.back"; {away}'
    entry = site(sbatch="echo 8", scancel=away)
    entry.answer(QueueNext(()))
    entry.scheduler.carry_out(DropNext())
    assert entry.scheduler._takes_back
    assert entry.calls()[2:] == ["scancel 8", "scancel 8"]
    assert (entry.notes, entry.scheduler._takes_back, os.path.exists(entry.paths.next)) == (
        [QUEUED],
        False,
        False,
    )


def test_this_job_is_requeued_without_bad_nodes(site: Any) -> None:
    entry = site()
    assert entry.answer(Requeue(("n1",))) == HandedOver()
    assert entry.calls() == ["scontrol requeue 7", "scontrol update JobId=7 ExcNodeList=n9,n1"]


def test_a_refused_requeue_returns_the_reason_and_updates_nothing(site: Any) -> None:
    entry = site(scontrol="echo 'Requested operation is presently disabled' >&2; exit 1")
    assert entry.answer(Requeue(("n1",))) == HandedOver(
        "the program exited with code 1: Requested operation is presently disabled"
    )
    assert [call.split()[0] for call in entry.calls()] == ["scontrol", "squeue"]


@pytest.mark.parametrize("script, message", [
    ("echo 4711", ("4711", "")),
    ("echo '4711;cluster'", ("4711", "")),
    ("echo 'sbatch: a warning' >&2; echo 12", ("12", "")),
    ("echo no; exit 0", ("", "the program exited with code 0: no")),
    ("echo 5; exit 1", ("", "the program exited with code 1: 5")),
    ("kill -6 $$", ("", "the program was killed by signal 6 (SIGABRT)")),
])  # fmt: skip
def test_the_new_job_is_the_number_that_was_printed_by_a_program_that_ended_well(
    site: Any, script: str, message: tuple[str, str]
) -> None:
    entry = site()
    assert entry.answer(Resubmit(("sh", "-c", script), ())) == Resubmitted(*message)


def test_no_setting_of_this_job_steers_the_new_one(site: Any, tmp_path: Path) -> None:
    entry, out = site(), tmp_path / "environment"
    argv = ("sh", "-c", f"env >{out}; echo 1")
    assert entry.answer(Resubmit(argv, ())) == Resubmitted("1")
    names = {line.partition("=")[0] for line in out.read_text().splitlines()}
    assert names & {"SLURM_NTASKS", "SLURM_CONF", "MINE"} == {"SLURM_CONF", "MINE"}


def test_a_missing_program_is_an_answer(site: Any) -> None:
    entry = site()
    answer = entry.answer(Resubmit(("/no/such/sbatch",), ()))
    assert answer.job_id == "" and "'/no/such/sbatch' cannot be executed" in answer.why


def test_a_program_that_does_not_answer_in_time_is_killed_with_its_children(site: Any) -> None:
    entry = site()
    messages: list[CommandDone] = []
    entry.commands.run(("sh", "-c", "sleep 100 & wait"), 0.3, messages.append)
    result = entry.heard(messages)
    assert (result.code, result.why) == (-9, "it did not answer in time")


def test_a_program_that_the_scheduler_terminates_with_the_job_still_answers(site: Any) -> None:
    entry = site()
    argv = ("sh", "-c", "kill -TERM $$; echo said")
    messages: list[CommandDone] = []
    entry.commands.run(argv, 60.0, messages.append)
    assert entry.heard(messages) == CommandDone(0, ("said", ""), "")


def test_an_option_without_a_value_is_left_out() -> None:
    assert filled(ARGV, (), "") == ("sbatch", "--parsable", "--dependency=", "script.sh")
    assert filled(ARGV, ("n1",), "7") == (
        *("sbatch", "--parsable", "--exclude=n9,n1"),
        *("--dependency=", "--dependency=afterany:7", "script.sh"),
    )
