"""Asking and submitting, with the real programs: what users type arrives, what others type forges nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterrun.lab.lab import Lab
from clusterrun.model.states import State
from clusterrun.script import quoting
from clusterrun.slurm.client import SlurmClient
from clusterrun.slurm.queries import JobRow, PartitionOffer
from clusterrun.system import Completed

pytestmark = pytest.mark.lab


class OnLogin:
    """Runs programs on the lab's login host."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def __call__(
        self,
        argv: Sequence[str],
        timeout: float,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Completed:
        return self._lab.exec(list(argv), timeout=timeout, env=dict(env or {}), cwd=cwd)


@pytest.fixture
def slurm(lab: Lab) -> Iterator[SlurmClient]:
    yield SlurmClient({}, OnLogin(lab), user=0)
    lab.exec(["scancel", "--quiet", "--user=root"])
    lab.exec(["scancel", "--quiet", "--user=alice"])


def held(lab: Lab, *options: str, user: str = "") -> str:
    result = lab.exec(["sbatch", "--parsable", "--hold", *options, "--wrap", "true"], cwd="/tmp", user=user)
    assert result.code == 0, result.err
    return result.out.strip()


def row(slurm: SlurmClient, job_id: str) -> JobRow:
    return next(row for row in slurm.jobs() if row.job_id == job_id)


def test_a_job_is_read_as_slurm_has_it(lab: Lab, slurm: SlurmClient) -> None:
    job_id = held(lab, "--job-name=a b", "--comment=clusterrun:r:tok", "--nodes=2")
    result = row(slurm, job_id)
    assert (result.state, result.explained, result.name, result.comment, result.nodes) == (
        State.PENDING,
        "is held by its owner",
        "a b",
        "clusterrun:r:tok",
        2,
    )
    assert (slurm.find("tok"), slurm.find("nowhere")) == (job_id, "")


def test_no_name_and_no_user_can_forge_a_row(lab: Lab, slurm: SlurmClient) -> None:
    forged = "x\n[<MARK>]77<MARK>COMPLETED<MARK>\n77|COMPLETED|\x1b[2J"
    mine = held(lab, f"--job-name={forged}", "--comment=mine")
    held(lab, f"--job-name={forged}", "--comment=clusterrun:r:stolen", user="alice")
    rows = [row for row in slurm.jobs() if not row.state.ended]
    assert [(row.job_id, row.name) for row in rows] == [(mine, forged)]
    assert slurm.find("stolen") == ""


def test_the_sizes_of_the_partition_are_reported(slurm: SlurmClient) -> None:
    assert slurm.partitions() == (
        PartitionOffer(
            "debug", "up", True, "infinite", nodes=4, cpus=16, memory=64000, gpus=8, kinds=((8, 16),)
        ),
    )


def test_a_cancelled_job_is_recognized_and_can_be_cancelled_again(lab: Lab, slurm: SlurmClient) -> None:
    job_id = held(lab)
    slurm.cancel((job_id,))
    slurm.cancel((job_id, "999999"))
    assert row(slurm, job_id).state is State.CANCELLED


def test_no_finished_job_is_listed_without_accounting(slurm: SlurmClient) -> None:
    assert slurm.finished(("1",)) == ()


TEXT = st.text(
    st.sampled_from("ab$`\"'\\!#%*?~ ;&|<>(){}[]=-@:,é")
    | st.characters(codec="utf-8", exclude_categories=["C"]),
    min_size=1,
    max_size=40,
).filter(quoting.carries)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=TEXT, comment=TEXT)
def test_sbatch_reads_every_directive_as_it_was_meant(
    lab: Lab, slurm: SlurmClient, name: str, comment: str
) -> None:
    # squeue itself shows an empty comment, and only that, as "(null)".
    lines = quoting.sbatch((f"--job-name={name}", f"--comment=c{comment}", "--hold", "--output=/dev/null"))
    result = lab.exec(["sbatch", "--parsable"], stdin=f"#!/bin/bash\n{lines}\ntrue\n", cwd="/tmp")
    assert result.code == 0, result.err
    actual = row(slurm, result.out.strip())
    lab.exec(["scancel", actual.job_id])
    assert (actual.name, actual.comment) == (name, f"c{comment}")
