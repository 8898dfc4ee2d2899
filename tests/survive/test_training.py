"""The shipped training script, disturbed, ends with the weights of an undisturbed training, to the bit."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from clusterrun import proc
from clusterrun.model.document import decode
from clusterrun.model.record import RunState
from tests.hostile.conftest import Person, logs, marked, until

ROOT = Path(__file__).resolve().parents[2]
STEPS, EVERY = 30, 5
OPTIONS = ("--nodes", "2", "--gpus", "0", "--max-restarts", "3", "--name", "t")


@pytest.fixture
def person(tmp_path: Path) -> Person:
    """Return a user on a machine without Slurm."""
    return Person(tmp_path)


def trained(person: Person, name: str) -> Path:
    """Submit a training and return its run directory."""
    how = ("--steps", str(STEPS), "--checkpoint-every", str(EVERY), "--resume", "--deterministic")
    retained = ("--checkpoint-dir", str(person.folder / name))
    return person.submits(*OPTIONS, str(ROOT / "jobs" / "train.py"), *how, *retained)


def weights(run: Path) -> list[str]:
    """Return the line of the weights of each attempt that reached its end."""
    messages = [path.read_text() for attempt in range(4) for path in logs(run, attempt)[:1]]
    return [line for text in messages for line in text.splitlines() if line.startswith("weights ")]


def lineage(run: Path) -> list[tuple[int, str, str, str, str]]:
    """Return each attempt with its cause and end; of a failed rank also the last output."""
    state = decode(RunState, json.loads((run / "state.json").read_text()))
    return [
        (a.epoch, a.cause, a.outcome, a.failure.why if a.failure else "", _last_words(run, a.epoch))
        for a in state.attempts
    ]


def _last_words(run: Path, attempt: int) -> str:
    errors = sorted((run / "attempts" / f"{attempt:03}").glob("*.err"))
    return "\n".join(path.read_text(errors="replace")[-1500:] for path in errors)


def rank(run: Path, number: int) -> int:
    """Return the process of a rank."""
    results = [p.pid for p in marked(run) if proc.environment(p.pid).get("RANK") == str(number)]
    return min(results, default=0)


def test_a_rank_that_is_killed_changes_no_weight(person: Person) -> None:
    calm, wild = trained(person, "calm"), trained(person, "wild")
    until(lambda: list((person.folder / "wild").glob("step-*")), "a checkpoint", 240)
    os.kill(rank(wild, 1), signal.SIGKILL)
    for run in (calm, wild):
        person.reaches(run, "COMPLETED", 240)
    assert [(entry[1], entry[2]) for entry in lineage(calm)] == [("first", "COMPLETED")], lineage(calm)
    assert [entry[2] for entry in lineage(wild)] == ["FAILED", "COMPLETED"], lineage(wild)
    assert weights(wild) == weights(calm) != [], (lineage(calm), lineage(wild))
    assert marked(wild) == []
