"""What srun's messages say about the nodes of a step."""

from __future__ import annotations

from clusterrun.slurm_text.srun_messages import cancelled_step, failed_nodes, memory_kill

CANCELLED = "slurmstepd-n1: error: *** STEP 21.0 ON n1 CANCELLED AT 2026-11-27T09:39:51 ***"
UNREACHED = (
    "srun: error: Task launch for StepId=21.0 failed on node n2: Communication connection failure",
    "srun: error: Application launch failed: Communication connection failure",
)

OVER_MEMORY = "slurmstepd-n2: error: StepId=3.0 exceeded memory limit (698724352 > 629145600), being killed"


def test_the_node_of_a_memory_kill_is_read_in_the_words_of_each_way_to_kill() -> None:
    killed = {
        OVER_MEMORY: "n2",
        "slurmstepd: error: Step 7.0 exceeded virtual memory limit (9 > 8), being killed": "",
        "slurmstepd-n3: error: Detected 1 oom_kill event in StepId=3.0. Some of the step tasks": "n3",
        "slurmstepd: error: Detected 2 oom-kill event(s) in StepId=4.0 cgroup. Some of your": "",
        "srun: error: n4: task 0: Out Of Memory": "n4",
        # Slurm prints this on every node of the job.
        "slurmstepd-n1: error: Exceeded job memory limit": None,
        "srun: error: n2: task 1: Killed": None,
    }
    assert {line: memory_kill(line) for line in killed} == killed


def test_a_step_that_exceeded_its_memory_was_cancelled_by_nobody() -> None:
    assert cancelled_step((OVER_MEMORY, CANCELLED)) == ""


def test_a_step_that_srun_cancels_as_it_does_not_reach_a_node_was_cancelled_by_nobody() -> None:
    assert cancelled_step((CANCELLED,)) == "21.0"
    assert cancelled_step((*UNREACHED, CANCELLED)) == ""


def test_nodes_that_slurm_takes_out_of_the_job_are_read() -> None:
    lines = ("srun: error: Node failure on n0006", "srun: error: n0007: task 1: Killed", "")
    assert failed_nodes(lines) == ["n0006"]
