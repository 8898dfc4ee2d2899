"""`exec` beside a job on real Slurm: on the rank's node, with its GPUs, while the ranks hold everything."""

from __future__ import annotations

import threading

import pytest

from tests.lab.test_slurm_runs import Site, on_slurm, until

pytestmark = pytest.mark.lab
__all__ = ["on_slurm"]


def test_a_command_runs_beside_ranks_that_hold_every_gpu_and_ends_with_the_job(on_slurm: Site) -> None:
    answer = on_slurm.submit("--nodes", "2", "--gpus", "2", "stay.py")
    until(lambda: list(on_slurm.outputs(answer).values()) == ["here\n"] * 4)
    script = 'echo "$RANK $CLUSTERRUN_NODE_NAME $(hostname) $CUDA_VISIBLE_DEVICES"; exit 7'
    result = on_slurm.run("exec", "--rank", "3", "--", "sh", "-c", script)
    last = on_slurm.run("exec", "--node", "1", "--", "hostname").out.strip()
    assert (result.code, result.out) == (7, f"3 {last} {last} 0,1\n"), result.err

    beside: list[int] = []
    waiting = threading.Thread(
        target=lambda: beside.append(
            on_slurm.run("exec", "--", "sh", "-c", "echo up >beside; sleep 300").code
        )
    )
    waiting.start()
    until(lambda: (on_slurm.project / "beside").exists())
    assert on_slurm.run("cancel", answer["run_id"]).code == 0
    waiting.join(60)
    assert [code != 0 for code in beside] == [True]


def test_exec_refuses_a_job_that_has_not_started(on_slurm: Site) -> None:
    answer = on_slurm.submit("--sbatch", "hold", "stay.py")
    result = on_slurm.run("exec", answer["run_id"], "--", "true")
    assert (result.code, f"{answer['run_id']} has not started" in result.err) == (2, True), result.err
    assert on_slurm.run("cancel", answer["run_id"]).code == 0
