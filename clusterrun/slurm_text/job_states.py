"""Map Slurm's job states to states of a run and to sentences for users."""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.model.states import State


@frozen
class JobState:
    """One job state of Slurm."""

    full: str  # Slurm's long word
    short: str  # Slurm's short code
    state: State  # state of the run
    meaning: str = ""  # sentence for users


_KEEPS_NODES = "it keeps its nodes, and continues when it is resumed"
WORDS = (
    # The twelve base states.
    JobState("PENDING", "PD", State.PENDING),
    JobState("RUNNING", "R", State.RUNNING),
    JobState("SUSPENDED", "S", State.RUNNING, f"suspended by Slurm: {_KEEPS_NODES}"),
    JobState("COMPLETED", "CD", State.COMPLETED),
    JobState("CANCELLED", "CA", State.CANCELLED),
    JobState("FAILED", "F", State.FAILED),
    JobState("TIMEOUT", "TO", State.TIMEOUT, "its time limit was reached"),
    JobState("NODE_FAIL", "NF", State.NODE_FAIL, "a node was lost"),
    JobState("PREEMPTED", "PR", State.PREEMPTED, "another job took its nodes"),
    JobState("BOOT_FAIL", "BF", State.NODE_FAIL, "a node did not boot"),
    JobState("DEADLINE", "DL", State.TIMEOUT, "its deadline passed"),
    JobState("OUT_OF_MEMORY", "OOM", State.OUT_OF_MEMORY, "a process was killed for lack of memory"),
    # The thirteen flags that Slurm prints in place of a base state.
    JobState("COMPLETING", "CG", State.RUNNING, "Slurm is clearing its nodes"),
    JobState("CONFIGURING", "CF", State.PENDING, "its nodes are being made ready"),
    JobState("EXPEDITING", "EX", State.PENDING, "requeued with priority: it waits for its nodes"),
    JobState("REQUEUED", "RQ", State.PENDING, "put back into the queue"),
    JobState("REQUEUE_FED", "RF", State.PENDING, "put back into the queue of a federation"),
    JobState("REQUEUE_HOLD", "RH", State.PENDING, "put back into the queue and held"),
    JobState("RESIZING", "RS", State.RUNNING, "its size is being changed"),
    JobState("RESV_DEL_HOLD", "RD", State.PENDING, "held: its reservation was deleted"),
    JobState("REVOKED", "RV", State.UNKNOWN, "moved to another cluster of the federation"),
    JobState("SIGNALING", "SI", State.RUNNING, "Slurm is signalling it"),
    JobState(
        "SPECIAL_EXIT", "SE", State.PENDING, "put back into the queue and held, after a special exit code"
    ),
    JobState("STAGE_OUT", "SO", State.RUNNING, "its files are being copied out"),
    JobState("STOPPED", "ST", State.RUNNING, f"stopped by a signal: {_KEEPS_NODES}"),
)

# No process of the job runs, so none can report anything.
HALTED = ("SUSPENDED", "STOPPED")
# The job has its nodes, and is not being ended.
HOLDS_NODES = ("CONFIGURING", *(w.full for w in WORDS if w.state is State.RUNNING and w.full != "COMPLETING"))
_BY_NAME = {name: word for word in WORDS for name in (word.full, word.short)}


def read(text: str) -> JobState:
    """Return the row of a state as Slurm prints it, or UNKNOWN.

    Slurm prints ``CANCELLED by 1000``, ``COMPLETED+``, ``CG``.
    """
    name = text.split(" ")[0].rstrip("+").upper()
    meaning = f"Slurm says {name}, which this version does not know"
    return _BY_NAME.get(name) or JobState(name, name, State.UNKNOWN, meaning)
