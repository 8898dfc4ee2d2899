"""`run` in a real allocation: what the ranks get, what ends the run, and that the allocation outlives it."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.lab.test_slurm_runs import PROGRAM, Site, on_slurm, until

pytestmark = pytest.mark.lab
ROOT = Path(__file__).resolve().parents[2]
__all__ = ["on_slurm"]

IN_SALLOC = f"""
set -m
starts() {{ for _ in $(seq 900); do grep -q here "$1" && return; sleep 0.1; done; echo "$1 never started"; }}
run="{PROGRAM} run --preflight off"
srun --nodes=1 --ntasks=1 $run tell.py 2>/dev/null >in-a-step; echo "in a step $?"
$run --nodes 1 --max-restarts 1 stay.py >first 2>&1 & first=$!
starts first
$run --nodes 2 tell.py 2>refused; echo "too many $?"
$run --nodes 1 --gpus 1 stay.py >second 2>&1 & second=$!
starts second
kill -INT $first; wait $first; echo "interrupted $?"
{PROGRAM} cancel last 2>/dev/null; wait $second; echo "cancelled $?"
$run bash -c 'exit 7' 2>/dev/null; echo "failed $?"
$run bash -c 'kill -SEGV $$' 2>/dev/null; echo "killed $?"
$run --nodes 3 true 2>/dev/null; echo "larger $?"
$run --time 5 true 2>/dev/null; echo "for sbatch $?"
$run --nodes 1 stay.py >third 2>&1 & third=$!
starts third
kill -TERM $third; wait $third; echo "terminated $?"
$run --nodes 1 stay.py >fourth 2>&1 & fourth=$!
starts fourth
kill -KILL $fourth
{PROGRAM} wait last 2>/dev/null
squeue --noheader --jobs=$SLURM_JOB_ID --format=%T
exit 7
"""


def test_an_allocation_survives_each_end_of_its_ranks(on_slurm: Site) -> None:
    work = IN_SALLOC
    if on_slurm.lab.state.slurm_version.startswith("20.11"):  # the step there keeps its GPUs from all others
        work = work.replace("srun --nodes=1 --ntasks=1 $run", "$run")
    (on_slurm.project / "work.sh").write_text(work)
    result = on_slurm.run("alloc", "--nodes", "2", "--gpus", "2", "bash", "work.sh", limit=500)
    cancelled, killed = [line for line in result.out.splitlines() if line.endswith("-stay CANCELLED")]
    lines = result.out.replace(cancelled, "…", 1).replace(killed, "…", 1).splitlines()
    assert lines == [
        *("in a step 0", "too many 2", "interrupted 130", "…", "cancelled 1", "failed 7"),
        *("killed 139", "larger 2"),
        *("for sbatch 2", "terminated 1", "…", "RUNNING"),
    ], result.err
    assert result.code == 7
    (job_id,) = re.findall(r"Granted job allocation (\d+)", result.err)
    state = on_slurm.lab.exec(["squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T"]).out
    assert state.strip() in ("COMPLETING", "FAILED", "COMPLETED"), "the shell has ended"
    environment = (on_slurm.project / "in-a-step").read_text()
    assert environment.count('"WORLD_SIZE": "4"') == environment.count('"CUDA_VISIBLE_DEVICES": "0,1"') == 4
    assert "other runs have n" in (on_slurm.project / "refused").read_text()
    assert "by Ctrl-C or clusterrun cancel" in (on_slurm.project / "first").read_text()


AGAIN = f"""
export CLUSTERRUN_PREFLIGHT=quick
run() {{
    {PROGRAM} run --nodes 1 "$@" >out 2>said
    echo "ended $? $(grep -c 'pre-flight not repeated: n0001 passed' said)"
}}
run true; run true; run --preflight quick --dry-run true
run --preflight off false; run --dry-run true
"""


def test_a_check_runs_once_in_an_allocation_until_a_run_fails(on_slurm: Site) -> None:
    (on_slurm.project / "again.sh").write_text(AGAIN)
    result = on_slurm.run("alloc", "--nodes", "1", "bash", "again.sh", limit=240)
    expected = ["ended 0 0", "ended 0 1", "ended 0 0", "ended 1 0", "ended 0 0"]
    assert result.out.splitlines() == expected, result.err + (on_slurm.project / "said").read_text()


SAVES = """import os, signal, sys, time
def save(number, frame):
    for part in range(3):
        print("saved", part, flush=True)
        time.sleep(0.5)
    sys.exit(0)
signal.signal(signal.SIGUSR1, lambda number, frame: print("got USR1", flush=True))
signal.signal(signal.SIGTERM, save)
print("started", flush=True)
while True:
    time.sleep(0.1)
"""
LAUNCHERS = {
    "srun": "srun --ntasks-per-node=1 python3 saves.py",
    "clusterrun": f"{PROGRAM} run --preflight off --ranks-per-node 1 saves.py",
}
OF_A_LAUNCHER = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --output={launcher}.out
trap 'kill -USR1 $launched' USR1
{line} & launched=$!
wait $launched; wait $launched
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_of_a_batch_script_get_the_signals_and_the_time_that_they_have_below_srun(
    on_slurm: Site, launcher: str
) -> None:
    project, lab, home = on_slurm.project, on_slurm.lab, {"CLUSTERRUN_HOME": str(on_slurm.home)}
    (project / "saves.py").write_text(SAVES)
    (project / "job.sbatch").write_text(OF_A_LAUNCHER.format(launcher=launcher, line=LAUNCHERS[launcher]))
    job_id = lab.exec(["sbatch", "--parsable", "job.sbatch"], env=home, cwd=str(project)).out.strip()
    output = project / f"{launcher}.out"

    def printed(text: str) -> bool:
        return output.exists() and output.read_text().count(text) == 2

    until(lambda: printed("started"), 60)
    lab.exec(["scancel", "--batch", "--signal=USR1", job_id])
    until(lambda: printed("got USR1"), 60)
    lab.exec(["scancel", job_id])
    until(lambda: printed("saved 2"), 60)
    if launcher == "clusterrun":
        assert on_slurm.run("wait", "last").code == 1
        (run,) = json.loads(on_slurm.run("status", "--json").out)["runs"]
        assert (run["state"], run["job_id"]) == ("CANCELLED", job_id)
        assert "through the scheduler" in run["reason"]


BESIDE_SRUN = f"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=1 --job-name=beside --wait --output=job.out
srun bash -c 'env >srun.$SLURM_PROCID'
{PROGRAM} run --preflight off --ranks-per-node 1 bash -c 'env >run.$SLURM_PROCID'
"""


def test_ranks_of_a_batch_script_have_the_variables_of_the_job_that_srun_gives(on_slurm: Site) -> None:
    (on_slurm.project / "job.sbatch").write_text(BESIDE_SRUN)
    home = {"CLUSTERRUN_HOME": str(on_slurm.home)}
    on_slurm.lab.exec(["sbatch", "job.sbatch"], env=home, cwd=str(on_slurm.project), timeout=240)
    of_the_job = ("SLURM_JOB_", "SLURM_SUBMIT_", "SLURM_CLUSTER_NAME=")
    below_srun, in_a_rank = [
        {line for line in (on_slurm.project / name).read_text().splitlines() if line.startswith(of_the_job)}
        for name in ("srun.1", "run.1")
    ]
    assert {"SLURM_JOB_NAME=beside", f"SLURM_SUBMIT_DIR={on_slurm.project}"} < below_srun == in_a_rank


IN_A_BATCH_SCRIPT = f"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --wait --output=job.out
eval "$({PROGRAM} check --export --level quick 2>check.err)"; echo "checked $?"
echo "fit $CLUSTERRUN_FIT_NODELIST unfit '$CLUSTERRUN_UNFIT_NODELIST'"
srun --nodelist=$CLUSTERRUN_FIT_NODELIST --ntasks-per-node=1 hostname | sort
{PROGRAM} gpus --json >gpus.json; echo "gpus $?"
mkdir new; cd new; {PROGRAM} init --yes 2>/dev/null
{PROGRAM} config show 2>/dev/null | grep -c 'partition .*new/clusterrun.toml'; cd ..
eval "$({PROGRAM} check --export --nodes 1 --check-command 'echo bad disk; false' 2>>check.err)"
echo "checked $?, unfit $CLUSTERRUN_UNFIT_NODELIST"
eval "$({PROGRAM} check --export --level quick --check-command '[ $SLURMD_NODENAME = n0002 ]' 2>>check.err)"
srun --nodelist=$CLUSTERRUN_FIT_NODELIST hostname; echo "$SLURM_NNODES $SLURM_NTASKS $SLURM_JOB_NODELIST"
{PROGRAM} run --preflight off --ranks-per-node 1 hostname 2>run.err; grep -c CLUSTERRUN_ run.err
{PROGRAM} check --time 5 2>/dev/null; echo "for sbatch $?"
squeue --noheader --me --format=%i | wc -l
"""


def test_a_check_in_any_batch_script_looks_at_the_nodes_of_that_job(on_slurm: Site) -> None:
    (on_slurm.project / "job.sbatch").write_text(IN_A_BATCH_SCRIPT)
    home = {"CLUSTERRUN_HOME": str(on_slurm.home)}
    result = on_slurm.lab.exec(["sbatch", "job.sbatch"], env=home, cwd=str(on_slurm.project), timeout=240)
    printed = (on_slurm.project / "job.out").read_text().splitlines()
    assert printed == [
        *("checked 0", "fit n[0001-0002] unfit ''", "n0001", "n0002", "gpus 0", "1"),
        *("checked 3, unfit n0001", "n0002", "1 1 n0002", "n0002 r0 | n0002", "0", "for sbatch 2", "1"),
    ], result.err + (on_slurm.project / "check.err").read_text()
    report = (on_slurm.project / "check.err").read_text()
    assert "bad disk" in report
    assert report.count("--nodelist=$CLUSTERRUN_FIT_NODELIST") == 1, "nodes were left out once"
    (row,) = json.loads((on_slurm.project / "gpus.json").read_text())["gpus"]
    assert row["free"] == row["total"] > 0


def test_the_batch_script_of_the_guide_trains_on_the_fit_nodes(on_slurm: Site) -> None:
    guide = (ROOT / "docs" / "preflight.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```bash\n(#!.*?)```", guide, re.DOTALL)
    small = script.replace("--nodes=5 --gpus-per-node=8", "--nodes=3 --gpus-per-node=1 --output=job.out")
    (on_slurm.project / "job.sbatch").write_text(small.replace("--nproc_per_node 8", "--nproc_per_node 1"))
    (on_slurm.project / "train.py").write_text(
        "import os, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.barrier()\n"
        "print(os.environ['SLURMD_NODENAME'], dist.get_world_size(), flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    environ = {
        "CLUSTERRUN_HOME": str(on_slurm.home),
        "CLUSTERRUN_CHECK_COMMAND": "[ $SLURMD_NODENAME != n0001 ]",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    argv = ["sbatch", "--wait", "job.sbatch"]
    result = on_slurm.lab.exec(argv, env=environ, cwd=str(on_slurm.project), timeout=240)
    output = (on_slurm.project / "job.out").read_text()
    assert (result.code, set(re.findall(r"^n000\d 2$", output, re.MULTILINE))) == (0, {"n0002 2", "n0003 2"})


def test_the_submitit_line_of_the_guide_starts_nothing_beside_an_unfit_node(on_slurm: Site) -> None:
    guide = (ROOT / "docs" / "preflight.md").read_text(encoding="utf-8")
    (setup,) = re.findall(r"slurm_setup=(\[.*?\])\)", guide)
    (on_slurm.project / "launch.py").write_text(
        "import os, submitit, subprocess, time\n"
        "executor = submitit.AutoExecutor('logs', cluster='slurm')\n"
        f"executor.update_parameters(nodes=2, tasks_per_node=1, slurm_setup={setup})\n"
        "job = executor.submit(os.mkdir, 'started')\n"
        "while subprocess.check_output(['squeue', '--noheader', '--me']):\n"
        "    time.sleep(0.2)\n"
    )
    environ = {
        "CLUSTERRUN_HOME": str(on_slurm.home),
        "CLUSTERRUN_CHECK_COMMAND": "[ $SLURMD_NODENAME != n0001 ]",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    argv = [sys.executable, "launch.py"]
    result = on_slurm.lab.exec(argv, env=environ, cwd=str(on_slurm.project), timeout=240)
    (log,) = (on_slurm.project / "logs").glob("*_0_log.err")
    started = (on_slurm.project / "started").exists()
    assert (result.code, "n0001 is unfit" in log.read_text(), started) == (0, True, False)
