"""What srun's messages say about the nodes of a step."""

from __future__ import annotations

from clusterrun.slurm_text.srun_messages import cancelled_step, failed_nodes

CANCELLED = "slurmstepd-n1: error: *** STEP 21.0 ON n1 CANCELLED AT 2026-11-27T09:39:51 ***"
UNREACHED = (
    "srun: error: Task launch for StepId=21.0 failed on node n2: Communication connection failure",
    "srun: error: Application launch failed: Communication connection failure",
)


def test_a_step_that_srun_cancels_as_it_does_not_reach_a_node_was_cancelled_by_nobody() -> None:
    assert cancelled_step((CANCELLED,)) == "21.0"
    assert cancelled_step((*UNREACHED, CANCELLED)) == ""


def test_nodes_that_slurm_takes_out_of_the_job_are_read() -> None:
    lines = ("srun: error: Node failure on n0006", "srun: error: n0007: task 1: Killed", "")
    assert failed_nodes(lines) == ["n0006"]
