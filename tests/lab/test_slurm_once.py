"""A job is submitted exactly once, whatever happens to the controller while it is being submitted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from clusterrun.lab.lab import Lab
from clusterrun.model.errors import SchedulerError, SchedulerUnreachable
from clusterrun.slurm import submit_once
from clusterrun.slurm.client import SlurmClient
from clusterrun.system import RealClock
from tests.lab.test_slurm_words import OnLogin
from tests.lab_fixture import MakeLab

pytestmark = pytest.mark.lab

FREEZES, AT_ONCE = 6, 8


@pytest.fixture(scope="module")
def impatient(make_lab: MakeLab) -> Iterator[Lab]:
    """Yield a lab whose programs wait for an answer for 2 s, not 10."""
    yield make_lab(nodes=1, gpus=1, settings={"MessageTimeout": "2"})


@pytest.fixture
def slurm(impatient: Lab) -> Iterator[SlurmClient]:
    yield SlurmClient({}, OnLogin(impatient), user=0)
    impatient.heal()
    impatient.exec(["scancel", "--quiet", "--user=root"])


def send(slurm: SlurmClient, token: str, message: Callable[[str], None] = lambda line: None) -> str:
    argv = ("sbatch", "--parsable", "--hold", f"--comment=clusterrun:r:{token}", "--wrap", "true")
    return submit_once.send(slurm, argv, "/tmp", token, "", RealClock(), message)


def carrying(slurm: SlurmClient, token: str) -> list[str]:
    return [row.job_id for row in slurm.jobs() if token in row.comment]


def answered(slurm: SlurmClient, token: str, limit: float = 30.0) -> list[str]:
    """Return the jobs with that token once the controller answers again."""
    until = time.monotonic() + limit
    while True:
        try:
            return carrying(slurm, token)
        except SchedulerError:
            assert time.monotonic() < until
            time.sleep(0.2)


def test_a_job_accepted_without_an_answer_is_recognized_and_not_submitted_again(
    impatient: Lab, slurm: SlurmClient
) -> None:
    messages: list[str] = []
    impatient.fault("freeze", "ctl", process="slurmctld")
    thaw = threading.Timer(6.0, impatient.heal)
    thaw.start()
    job_id = send(slurm, "late", messages.append)
    thaw.join()
    assert carrying(slurm, "late") == [job_id]
    assert [line for line in messages if "no clear answer" in line] == [
        "Slurm gave no clear answer (Batch job submission failed: Socket timed out on send/recv operation):"
        " searching the queue for the job"
    ]


def test_a_controller_that_never_answers_leaves_the_question_open_and_the_token_settles_it_later(
    impatient: Lab, slurm: SlurmClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit_once, "LOOK_SECONDS", 1.0)
    impatient.fault("freeze", "ctl", process="slurmctld")
    with pytest.raises(SchedulerUnreachable, match="it is not known whether the job is queued"):
        send(slurm, "open")
    impatient.heal()
    assert len(answered(slurm, "open")) == 1
    assert [slurm.find("open")] == carrying(slurm, "open")


def test_submit_reports_that_a_controller_that_is_down_queued_nothing(
    impatient: Lab, slurm: SlurmClient
) -> None:
    impatient.fault("controller")
    with pytest.raises(SchedulerError, match="nothing was queued") as caught:
        send(slurm, "down")
    assert not isinstance(caught.value, SchedulerUnreachable)
    with pytest.raises(
        SchedulerUnreachable, match=r"Slurm does not answer: .*Unable to contact slurm controller"
    ):
        slurm.jobs()
    impatient.heal()
    assert answered(slurm, "down") == []


@pytest.mark.slow
def test_each_job_sent_while_the_controller_freezes_is_counted_once(
    impatient: Lab, slurm: SlurmClient
) -> None:
    chance = random.Random(20260102)
    messages: dict[str, str] = {}

    def one(token: str, pause: float) -> None:
        time.sleep(pause)
        try:
            messages[token] = send(slurm, token)
        except SchedulerError as error:
            messages[token] = f"{type(error).__name__}: {error.seen}"

    for freeze in range(FREEZES):
        threads = [
            threading.Thread(target=one, args=(f"random-{freeze}-{number}.", chance.uniform(0, 0.3)))
            for number in range(AT_ONCE)
        ]
        for thread in threads:
            thread.start()
        time.sleep(chance.uniform(0, 0.3))
        impatient.fault("freeze", "ctl", process="slurmctld")
        time.sleep(chance.choice([0.1, 1.0, 3.0]))
        impatient.heal()
        for thread in threads:
            thread.join(60)
    assert len(messages) == FREEZES * AT_ONCE
    assert {token: carrying(slurm, token) for token in messages} == {
        token: [job] for token, job in messages.items()
    }
