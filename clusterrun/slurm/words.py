"""Slurm's state words, one row each, and what they mean for a run; knows no program and no query."""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.model.states import State


@frozen
class Word:
    """One state word: in full, as its short code, what the run's state is then, and a sentence for people."""

    full: str
    short: str
    state: State
    said: str = ""


WORDS = (
    # The twelve base states.
    Word("PENDING", "PD", State.PENDING),
    Word("RUNNING", "R", State.RUNNING),
    Word(
        "SUSPENDED",
        "S",
        State.RUNNING,
        "suspended by Slurm: it keeps its nodes, and goes on when it is resumed",
    ),
    Word("COMPLETED", "CD", State.COMPLETED),
    Word("CANCELLED", "CA", State.CANCELLED),
    Word("FAILED", "F", State.FAILED),
    Word("TIMEOUT", "TO", State.TIMEOUT, "its time limit was reached"),
    Word("NODE_FAIL", "NF", State.NODE_FAIL, "a node was lost"),
    Word("PREEMPTED", "PR", State.PREEMPTED, "another job took its nodes"),
    Word("BOOT_FAIL", "BF", State.NODE_FAIL, "a node did not boot"),
    Word("DEADLINE", "DL", State.TIMEOUT, "its deadline passed"),
    Word("OUT_OF_MEMORY", "OOM", State.OUT_OF_MEMORY, "a process was killed for want of memory"),
    # The thirteen flags that Slurm prints in place of a base state.
    Word("COMPLETING", "CG", State.RUNNING, "Slurm is clearing its nodes"),
    Word("CONFIGURING", "CF", State.PENDING, "its nodes are being made ready"),
    Word("EXPEDITING", "EX", State.PENDING, "requeued with priority: it waits for its nodes"),
    Word("REQUEUED", "RQ", State.PENDING, "put back into the queue"),
    Word("REQUEUE_FED", "RF", State.PENDING, "put back into the queue of a federation"),
    Word("REQUEUE_HOLD", "RH", State.PENDING, "put back into the queue and held"),
    Word("RESIZING", "RS", State.RUNNING, "its size is being changed"),
    Word("RESV_DEL_HOLD", "RD", State.PENDING, "held: its reservation was deleted"),
    Word("REVOKED", "RV", State.UNKNOWN, "moved to another cluster of the federation"),
    Word("SIGNALING", "SI", State.RUNNING, "Slurm is signalling it"),
    Word("SPECIAL_EXIT", "SE", State.PENDING, "put back into the queue and held, after a special exit code"),
    Word("STAGE_OUT", "SO", State.RUNNING, "its files are being copied out"),
    Word(
        "STOPPED",
        "ST",
        State.RUNNING,
        "stopped by a signal: it keeps its nodes, and goes on when it is resumed",
    ),
)

HALTED = ("SUSPENDED", "STOPPED")
"""None of the job's processes runs, and none of them can say a word."""
_BY_NAME = {name: word for word in WORDS for name in (word.full, word.short)}


def read(text: str) -> Word:
    """The row for a state as Slurm prints it (``CANCELLED by 1000``, ``COMPLETED+``, ``CG``).

    A word that stands in no row is UNKNOWN and keeps its name.
    """
    name = text.split(" ")[0].rstrip("+").upper()
    return _BY_NAME.get(name) or Word(name, name, State.UNKNOWN, f"Slurm says {name}, which is new here")
