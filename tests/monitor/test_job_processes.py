"""Which processes of a job are ranks, by the variables and arguments that each launcher gives them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun import proc
from clusterrun.diagnosis.job_looks import DRIVER
from clusterrun.monitor.job_processes import JobProcess, JobProcesses, of_job, sorted_out

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
PYTHON = ("/venv/bin/python", "train.py")
TORCHRUN = (
    *(
        "/venv/bin/python",
        "/venv/bin/torchrun",
        "--nnodes",
        "2",
        "--rdzv-endpoint=n1:29500",
        "--rdzv_id",
        "7",
    ),
    "train.py",
)


def process(
    pid: int,
    parent: int,
    arguments: tuple[str, ...] = PYTHON,
    program: str = "python3.11",
    **environment: str,
) -> JobProcess:
    return JobProcess(
        proc.Process(pid, program, "S", parent, 1, 1),
        environment,
        arguments,
        program,
        environment.get("SLURM_STEP_ID", ""),
    )


def ranks(*processes: JobProcess, torch: tuple[int, ...] = ()) -> list[tuple[int, str, int, int]]:
    """Return process, variable, number and size of each rank."""
    return named(sorted_out(processes, lambda pid: pid in torch))


def named(result: JobProcesses) -> list[tuple[int, str, int, int]]:
    return [(rank.pid, rank.name.variable, rank.name.rank, rank.name.size) for rank in result.ranks]


def test_the_workers_of_torchrun_are_ranks_but_not_torchrun_or_data_loaders() -> None:
    task = {**STEP, "SLURM_PROCID": "1"}
    worker = {
        **task,
        "WORLD_SIZE": "4",
        "TORCHELASTIC_RUN_ID": "x",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "29500",
    }
    result = sorted_out(
        [
            process(10, 1, TORCHRUN, **task),
            process(11, 10, RANK="2", **worker),
            process(12, 10, RANK="3", **worker),
            process(13, 12, RANK="3", **worker),
            process(
                14,
                11,
                ("python", "-c", "from multiprocessing.resource_tracker import main"),
                RANK="2",
                **worker,
            ),
        ],
        lambda pid: False,
    )
    assert named(result) == [(11, "RANK", 2, 4), (12, "RANK", 3, 4)]
    (launcher,) = result.launchers
    assert (launcher.pid, launcher.launcher, launcher.least_nodes) == (10, "torchrun", 2)
    assert (launcher.rendezvous("endpoint"), launcher.rendezvous("id")) == ("n1:29500", "7")
    assert [(rank.name.address, rank.name.step, rank.name.task) for rank in result.ranks] == [
        ("n1:29500", "0", -1)
    ] * 2


def test_a_background_monitor_of_a_ranks_shell_is_no_rank() -> None:
    first, second = ({**STEP, "SLURM_PROCID": number} for number in "01")
    monitor = process(20, 1, ("python", "monitor.py"), **first)
    tail = process(21, 1, ("tail", "-f", "log"), "tail", **second)
    trainers = [process(11, 5, **first), process(12, 6, **second)]
    assert [rank[0] for rank in ranks(*trainers, monitor, tail, torch=(11, 12))] == [11, 12]
    assert len(ranks(*trainers, monitor, torch=())) == 3


def test_a_launcher_that_has_started_no_rank_is_none_itself() -> None:
    result = sorted_out([process(10, 1, TORCHRUN, **STEP, SLURM_PROCID="0")], lambda pid: True)
    assert (result.ranks, [launcher.launcher for launcher in result.launchers]) == ((), ["torchrun"])


def test_a_task_of_srun_is_the_python_below_its_shell() -> None:
    task = {**STEP, "SLURM_PROCID": "1"}
    shell = process(20, 1, ("/bin/bash", "run.sh"), "bash", **task)
    assert ranks(shell, process(21, 20, **task), process(22, 21, **task)) == [(21, "SLURM_PROCID", 1, 2)]


# In Slurm 26.05 the batch script has the number of its step.
@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "-5"}])
def test_a_background_process_of_the_batch_script_is_no_srun_task(step: dict[str, str]) -> None:
    batch = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", **step}
    script = process(30, 1, ("/bin/bash", "slurm_script"), "bash", **batch)
    srun = process(31, 30, ("srun", "python", "train.py"), "srun", **batch)
    assert ranks(script, srun) == []
    trains = process(32, 30, **batch)
    assert ranks(script, trains, torch=(32,)) == [(32, "", -1, 0)]
    assert ranks(script, srun, trains) == []


def test_without_torch_and_a_launcher_the_python_of_the_batch_script_is_a_rank() -> None:
    batch = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}
    script = process(30, 1, ("/bin/bash", "slurm_script"), "bash", **batch)
    assert ranks(script, process(31, 30, **batch), process(32, 31, **batch)) == [(31, "", -1, 0)]


def test_ranks_of_mpi_have_its_numbers_and_not_those_of_the_step_that_started_its_daemon() -> None:
    task = {**STEP, "SLURM_PROCID": "1"}
    mpi = {**task, "OMPI_COMM_WORLD_SIZE": "4"}
    daemon = process(40, 1, ("orted", "-mca"), "orted", **task)
    result = ranks(
        daemon,
        process(41, 40, OMPI_COMM_WORLD_RANK="2", **mpi),
        process(42, 40, OMPI_COMM_WORLD_RANK="3", **mpi),
    )
    assert result == [(41, "OMPI_COMM_WORLD_RANK", 2, 4), (42, "OMPI_COMM_WORLD_RANK", 3, 4)]


def test_lightnings_own_ranks_are_numbered_by_node_and_place() -> None:
    own = {"NODE_RANK": "1", "WORLD_SIZE": "4"}
    result = ranks(process(50, 1), process(51, 50, LOCAL_RANK="1", **own), torch=(50, 51))
    assert sorted(result) == [(50, "LOCAL_RANK", 2, 4), (51, "LOCAL_RANK", 3, 4)]


def test_the_outermost_torch_processes_are_ranks_without_any_variable() -> None:
    ray = process(60, 1, ("raylet",), "raylet")
    result = ranks(
        ray, process(61, 60), process(62, 60), process(63, 62), process(64, 60), torch=(61, 62, 63)
    )
    assert result == [(61, "", -1, 0), (62, "", -1, 0)]


def test_accelerate_and_deepspeed_are_launchers_by_their_modules() -> None:
    accelerate = process(70, 1, ("python", "-m", "accelerate.commands.launch", "train.py"))
    deepspeed = process(71, 1, ("python", "-u", "-m", "deepspeed.launcher.launch", "train.py"))
    module = process(72, 1, ("python", "-m", "torch.distributed.run", "train.py"))
    names = [launcher.launcher for launcher in (accelerate, deepspeed, module)]
    assert names == ["accelerate", "deepspeed", "torchrun"]


def test_a_program_that_a_rank_started_is_no_rank_though_it_has_the_number() -> None:
    task = {**STEP, "SLURM_PROCID": "1"}
    program = process(81, 80, ("sh", "-c", "yes"), "sh", RANK="1", WORLD_SIZE="2", **task)
    assert ranks(process(80, 1, **task), program, torch=(80,)) == [(80, "SLURM_PROCID", 1, 2)]
    plot = process(82, 80, ("python", "plot.py"), RANK="1", WORLD_SIZE="2", **task)
    assert ranks(process(80, 1, **task), plot, torch=(80,)) == [(80, "SLURM_PROCID", 1, 2)]


def test_a_python_that_starts_python_with_numbers_is_a_launcher() -> None:
    task = {**STEP, "SLURM_PROCID": "1"}
    started = [process(pid, 85, RANK=str(pid - 84), WORLD_SIZE="4", **task) for pid in (86, 87)]
    expected = [(86, "RANK", 2, 4), (87, "RANK", 3, 4)]
    assert ranks(process(85, 1, **task), *started, torch=(85, 86, 87)) == expected
    assert ranks(process(85, 1, **task), *started) == expected


def test_ray_workers_have_no_task_number_and_the_driver_is_seen_where_no_worker_trains() -> None:
    task = {**STEP, "SLURM_PROCID": "1"}
    start = process(90, 1, ("/venv/bin/python", "/venv/bin/ray", "start", "--block"), **task)
    raylet = process(91, 90, ("/venv/ray/raylet",), "raylet", **task)
    agent = process(92, 91, ("/venv/bin/python", "agent.py"), **task)
    workers = [process(pid, 91, ("ray::Worker",), **task) for pid in (93, 94)]
    program = process(95, 93, ("sh", "-c", "yes"), "sh", RANK="2", **task)
    started = (start, raylet, agent, *workers, program)
    assert ranks(*started, torch=(93, 94)) == [(93, "", -1, 0), (94, "", -1, 0)]
    driver = process(96, 1, SLURM_JOB_ID="7")
    own = [process(97, 1, ("/venv/ray/raylet",), "raylet"), process(98, 97, ("ray::Worker",))]
    assert ranks(driver, *own, torch=(96, 98)) == [(98, "", -1, 0)]
    assert ranks(driver, own[0], torch=(96,)) == [(96, DRIVER, -1, 0)]
    shell = process(99, 1, ("bash", "job.sh"), "bash")
    assert ranks(start, raylet, agent, shell, process(100, 99)) == [(100, DRIVER, -1, 0)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--rank", "1", "--world-size=4"), (9, "--rank", 1, 4)),
        (("--rank", "16"), (9, "SLURM_PROCID", 0, 2)),  # of LoRA
        (("--rank=16", "--world_size=4"), (9, "SLURM_PROCID", 0, 2)),
    ],
)
def test_the_arguments_of_a_script_number_it_if_they_name_the_world_too(arguments, expected) -> None:
    assert ranks(process(9, 1, (*PYTHON, *arguments), **STEP, SLURM_PROCID="0")) == [expected]


def test_a_process_with_an_empty_environment_belongs_to_the_step_of_its_daemon(tmp_path: Path) -> None:
    daemon = tmp_path / "slurmstepd"
    daemon.symlink_to("/bin/bash")
    # It prints its number when its environment is empty.
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(300)"
    script = f"env -i {sys.executable} -Sc '{program}' & wait"
    argv = ["slurmstepd: [99991.3]", "-c", script]
    with subprocess.Popen(argv, executable=daemon, stdout=subprocess.PIPE, start_new_session=True) as started:
        try:
            assert started.stdout is not None
            pid = int(started.stdout.readline())
            (sleeping,) = of_job("99991", "4", "n1")
            assert (sleeping.pid, sleeping.step) == (pid, "3")
            assert of_job("99991", "3", "n1") == of_job("9999", "4", "n1") == []
        finally:
            os.killpg(started.pid, 9)
