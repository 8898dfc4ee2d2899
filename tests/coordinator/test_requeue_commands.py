"""Jobs that go on with a run: what is queued, what is asked first, what a lost answer does.

Slurm's own programs are stand-ins here: real ones cannot be made to lose one answer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterrun.coordinator.io.report_files import ReportFiles
from clusterrun.coordinator.io.requeue_commands import RequeueCommands, filled
from clusterrun.model.paths import RunPaths
from clusterrun.runtime.commands import CommandDone, CommandRunner
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.processes import ended_children
from tests.coordinator.tapes import ORDERS

ARGV = ("sbatch", "--parsable", "--exclude=n9,{excluded}", "--dependency=", "{dependency}", "script.sh")


class Site:
    """A scheduler of shell scripts that write down how they were called."""

    def __init__(self, folder: Path, **programs: str) -> None:
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
        self.succession = RequeueCommands(self.commands, files, "7", "r", self.notes.append)
        self.loop.every(0.02, self.reap)

    def reap(self) -> None:
        for child in ended_children():
            self.commands.reaped(child)

    def answer(self, ask: Callable[[Callable[..., None]], None]) -> Any:
        told: list[Any] = []
        ask(lambda *said: told.append(said))
        until = steady() + 60.0
        while not told:
            assert steady() < until
            self.loop.wait(steady() + 0.05)
        return told[0]

    def calls(self) -> list[str]:
        self.commands.finish(60.0)
        return self.called.read_text().splitlines()


@pytest.fixture
def site(tmp_path: Path) -> Any:
    return lambda **programs: Site(tmp_path, **programs)


LOOK = "squeue -h --me -t PENDING -o %i|%E|%k"
QUEUE = "sbatch --parsable --dependency= --dependency=afterany:7 script.sh"


def test_a_job_is_queued_that_waits_for_the_end_of_this_one(site: Any) -> None:
    one = site(sbatch="echo 8")
    assert one.answer(lambda told: one.succession.queue(ARGV, (), told)) == ("8", "")
    assert one.calls() == [LOOK, QUEUE]
    assert json.loads(Path(one.paths.next).read_text()) == {"job_id": "8", "excluded": []}


def test_a_job_of_this_run_that_waits_already_is_the_one(site: Any) -> None:
    other = "echo '5|afterany:77(unfulfilled)|clusterrun:r:x'; echo '4|afterany:7(unfulfilled)|mine'; "
    one = site(squeue=other + "echo '9|afterany:7(unfulfilled)|clusterrun:r:x'")
    assert one.answer(lambda told: one.succession.queue(ARGV, (), told)) == ("9", "")
    assert one.calls() == [LOOK]


def test_a_job_whose_number_was_lost_on_the_way_is_found_and_not_queued_twice(site: Any) -> None:
    marks = "[ -e $(dirname $0)/taken ] && echo '9|afterany:7(unfulfilled)|clusterrun:r:x'; true"
    one = site(squeue=marks, sbatch="touch $(dirname $0)/taken; echo 'Socket timed out' >&2; exit 1")
    assert one.answer(lambda told: one.succession.queue(ARGV, (), told)) == ("9", "")
    assert one.calls() == [LOOK, QUEUE, LOOK]


def test_a_job_that_cannot_be_queued_is_an_answer_too(site: Any) -> None:
    one = site(sbatch="echo 'QOSMaxSubmitJobPerUserLimit' >&2; exit 1")
    job_id, why = one.answer(lambda told: one.succession.queue(ARGV, (), told))
    assert (job_id, why) == ("", "the program exited with code 1: QOSMaxSubmitJobPerUserLimit")
    assert not os.path.exists(one.paths.next)


def test_the_waiting_job_is_kept_off_bad_nodes_beside_those_of_its_user(site: Any) -> None:
    one = site(sbatch="echo 8")
    one.answer(lambda told: one.succession.queue(ARGV, (), told))
    one.succession.exclude(ARGV, ("n1", "n2", "no such name"))
    assert one.calls()[2:] == ["scontrol update JobId=8 ExcNodeList=n9,n[1-2]"]
    assert one.notes == []


def test_where_nothing_can_be_added_to_what_is_excluded_that_is_said(site: Any) -> None:
    one = site(sbatch="echo 8")
    one.answer(lambda told: one.succession.queue(("sbatch", "x"), (), told))
    one.succession.exclude(("sbatch", "x"), ("n1",))
    assert one.notes == ["n1 cannot be added to what job 8 excludes"]


def test_the_waiting_job_is_taken_back_and_forgotten(site: Any) -> None:
    one = site(sbatch="echo 8")
    one.answer(lambda told: one.succession.queue(ARGV, (), told))
    one.succession.drop()
    assert one.calls()[2:] == ["scancel 8"]
    assert not os.path.exists(one.paths.next)


def test_one_that_cannot_be_taken_back_stays_known(site: Any) -> None:
    one = site(sbatch="echo 8", scancel="exit 1")
    one.answer(lambda told: one.succession.queue(ARGV, (), told))
    one.succession.drop()
    one.calls()
    assert os.path.exists(one.paths.next)
    assert one.notes == [
        "job 8 could not be taken back (the program exited with code 1); it will end at once"
    ]


def test_one_that_a_controller_which_is_away_cannot_take_back_is_taken_back_later(site: Any) -> None:
    away = 'echo "Unable to contact slurm controller" >&2; exit 1'
    away = f'[ -e "$0.back" ] && exit 0; touch "$0.back"; {away}'
    one = site(sbatch="echo 8", scancel=away)
    one.answer(lambda told: one.succession.queue(ARGV, (), told))
    one.succession.drop()
    assert one.succession.takes_back
    assert one.calls()[2:] == ["scancel 8", "scancel 8"]
    assert (one.notes, one.succession.takes_back, os.path.exists(one.paths.next)) == ([], False, False)


def test_this_job_is_given_back_and_kept_off_bad_nodes(site: Any) -> None:
    one = site()
    assert one.answer(lambda told: one.succession.requeue(ARGV, ("n1",), told)) == ("",)
    assert one.calls() == ["scontrol requeue 7", "scontrol update JobId=7 ExcNodeList=n9,n1"]


def test_a_requeue_that_is_refused_says_why_and_updates_nothing(site: Any) -> None:
    one = site(scontrol="echo 'Requested operation is presently disabled' >&2; exit 1")
    assert one.answer(lambda told: one.succession.requeue(ARGV, ("n1",), told)) == (
        "the program exited with code 1: Requested operation is presently disabled",
    )
    assert one.calls() == ["scontrol requeue 7"]


@pytest.mark.parametrize("script, said", [
    ("echo 4711", ("4711", "")),
    ("echo '4711;cluster'", ("4711", "")),
    ("echo 'sbatch: a warning' >&2; echo 12", ("12", "")),
    ("echo no; exit 0", ("", "the program exited with code 0: no")),
    ("echo 5; exit 1", ("", "the program exited with code 1: 5")),
    ("kill -6 $$", ("", "the program was killed by signal 6 (SIGABRT)")),
])  # fmt: skip
def test_the_new_job_is_the_number_that_was_printed_by_a_program_that_ended_well(
    site: Any, script: str, said: tuple[str, str]
) -> None:
    one = site()
    assert one.answer(lambda told: one.succession.resubmit(("sh", "-c", script), told)) == said


def test_nothing_of_this_job_steers_the_new_one(site: Any, tmp_path: Path) -> None:
    one, out = site(), tmp_path / "environment"
    argv = ("sh", "-c", f"env >{out}; echo 1")
    assert one.answer(lambda told: one.succession.resubmit(argv, told)) == ("1", "")
    names = {line.partition("=")[0] for line in out.read_text().splitlines()}
    assert names & {"SLURM_NTASKS", "SLURM_CONF", "MINE"} == {"SLURM_CONF", "MINE"}


def test_a_program_that_is_not_there_is_an_answer_too(site: Any) -> None:
    one = site()
    job_id, why = one.answer(lambda told: one.succession.resubmit(("/no/such/sbatch",), told))
    assert job_id == "" and "'/no/such/sbatch' cannot be executed" in why


def test_a_program_that_does_not_answer_in_time_is_killed_with_what_it_started(site: Any) -> None:
    one = site()
    done: CommandDone = one.answer(
        lambda told: one.commands.run(("sh", "-c", "sleep 100 & wait"), 0.3, told)
    )[0]
    assert (done.code, done.why) == (-9, "it did not answer in time")


def test_a_program_that_a_scheduler_terminates_with_the_whole_job_still_answers(site: Any) -> None:
    one = site()
    argv = ("sh", "-c", "kill -TERM $$; echo said")
    done: CommandDone = one.answer(lambda told: one.commands.run(argv, 60.0, told))[0]
    assert done == CommandDone(0, ("said", ""), "")


def test_a_word_for_which_there_is_nothing_is_left_out() -> None:
    assert filled(ARGV, (), "") == ("sbatch", "--parsable", "--dependency=", "script.sh")
    assert filled(ARGV, ("n1",), "7") == (
        *("sbatch", "--parsable", "--exclude=n9,n1"),
        *("--dependency=", "--dependency=afterany:7", "script.sh"),
    )
