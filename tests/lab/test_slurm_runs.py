"""Whole runs on real Slurm through the command line: what was typed arrives, what is cancelled is gone."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterrun.lab.lab import Lab
from clusterrun.slurm.client import SlurmClient
from clusterrun.system import Completed
from tests.lab.test_slurm_words import OnLogin
from tests.lab_fixture import MakeLab

pytestmark = pytest.mark.lab

PROGRAM = str(Path(sys.executable).with_name("clusterrun"))
TELL = """
import json, os, sys
seen = {"argv": sys.argv[1:], "cwd": os.getcwd(), "environ": dict(os.environ), "umask": os.umask(0)}
print(json.dumps(seen))
"""
STAY = """
import signal, sys, time
if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("here", flush=True)
time.sleep(600)
"""


class Site:
    """A lab, a home for runs, and a project folder; ``run`` is the command line on the login host."""

    def __init__(self, lab: Lab, home: Path, project: Path) -> None:
        self.lab, self.home, self.project = lab, home, project

    def run(self, *arguments: str, limit: float = 120, **environment: str) -> Completed:
        environment = {"CLUSTERRUN_HOME": str(self.home), "NO_COLOR": "1", **environment}
        return self.lab.exec([PROGRAM, *arguments], env=environment, cwd=str(self.project), timeout=limit)

    def submit(self, *arguments: str, **environment: str) -> dict[str, Any]:
        result = self.run("submit", "--json", *arguments, **environment)
        assert result.code == 0, result.err
        answer: dict[str, Any] = json.loads(result.out)
        return answer

    def status(self, run_id: str) -> dict[str, Any]:
        (result,) = json.loads(self.run("status", "--json", run_id).out)["runs"]
        return dict(result)

    def outputs(self, answer: dict[str, Any], attempt: int = 0) -> dict[int, str]:
        folder = Path(answer["run_dir"], "attempts", f"{attempt:03d}")
        return {int(path.stem): path.read_text(errors="surrogateescape") for path in folder.glob("*.out")}

    def told(self, answer: dict[str, Any]) -> dict[int, Any]:
        assert self.run("wait", answer["run_id"]).code == 0, Path(answer["run_dir"], "job.out").read_text()
        return {rank: json.loads(text) for rank, text in self.outputs(answer).items()}


def until(true: Callable[[], bool], limit: float = 90.0) -> None:
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, "not within the limit"
        time.sleep(0.05)


def site(lab: Lab, tmp_path: Path, home: str = "home") -> Site:
    project = tmp_path / "my project"
    project.mkdir()
    (project / "tell.py").write_text(TELL)
    (project / "stay.py").write_text(STAY)
    return Site(lab, tmp_path / home, project)


@pytest.fixture
def on_slurm(lab: Lab, tmp_path: Path) -> Site:
    return site(lab, tmp_path)


def test_the_home_may_have_any_name(lab: Lab, tmp_path: Path) -> None:
    local = site(lab, tmp_path, "a b%j back\\slash new\nline")
    observed = local.told(local.submit("--nodes", "2", "--name", "n $(id) \n x", "tell.py", "a b"))
    assert {rank: message["argv"] for rank, message in observed.items()} == {0: ["a b"], 1: ["a b"]}
    assert {message["environ"]["CLUSTERRUN_RUN_NAME"] for message in observed.values()} == {"n $(id) \n x"}


def test_every_rank_of_a_node_sees_all_its_gpus_and_the_nodes_are_the_allocated_ones(on_slurm: Site) -> None:
    answer = on_slurm.submit("--nodes", "4", "--gpus", "8", "tell.py")
    observed = on_slurm.told(answer)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "CUDA_VISIBLE_DEVICES")
    assert {
        rank: tuple(message["environ"][name] for name in names) for rank, message in observed.items()
    } == {rank: (str(rank), str(rank % 8), "32", str(rank // 8), "0,1,2,3,4,5,6,7") for rank in range(32)}
    status = on_slurm.status(answer["run_id"])
    assert (status["state"], status["exit_code"], status["job_id"]) == ("COMPLETED", 0, answer["job_id"])


@pytest.mark.parametrize("wish, observed", [((), ""), (("--sbatch", "gres=gpu:2"), "0,1")])
def test_a_rank_sees_a_gpu_only_if_it_was_requested(
    on_slurm: Site, wish: tuple[str, ...], observed: str
) -> None:
    message = on_slurm.told(on_slurm.submit(*wish, "tell.py"))
    assert message[0]["environ"]["CUDA_VISIBLE_DEVICES"] == observed


def test_files_of_ranks_get_the_mode_that_their_user_wants_and_the_run_directory_is_private(
    on_slurm: Site,
) -> None:
    answer = on_slurm.submit("tell.py")
    mine = os.umask(0o022)
    os.umask(mine)
    assert {message["umask"] for message in on_slurm.told(answer).values()} == {mine}
    folder = Path(answer["run_dir"])
    modes = {
        path: path.stat().st_mode & 0o077 for path in (folder, folder / "orders.json", folder / "agent.pyz")
    }
    assert set(modes.values()) == {0}


def test_variables_of_a_surrounding_job_do_not_reach_the_new_job(on_slurm: Site) -> None:
    remaining = {"SBATCH_EXPORT": "NONE", "SLURM_CPU_BIND": "map_cpu:0", "PET_NNODES": "7"}
    answer = on_slurm.submit("tell.py", **remaining)
    environ = on_slurm.told(answer)[0]["environ"]
    assert ("SBATCH_EXPORT" in environ, "PET_NNODES" in environ) == (False, False)
    notices = on_slurm.run("submit", "tell.py", **remaining).err
    assert all(name in notices for name in remaining), notices


def test_variables_of_sbatch_set_the_options_that_they_set_for_sbatch(on_slurm: Site) -> None:
    shell = {"SBATCH_TIMELIMIT": "7", "SBATCH_JOB_NAME": "shell", "SBATCH_MEM_PER_NODE": "100M"}
    shell["SBATCH_GRES"] = "gpu:2"
    plain = on_slurm.lab.exec(["sbatch", "--parsable", "--hold", "--wrap=true"], env=shell).out.strip()
    ours = on_slurm.submit("--sbatch", "hold", "--name", "typed", "tell.py", **shell)["job_id"]
    listed = on_slurm.lab.exec(
        ["squeue", "--noheader", f"--jobs={plain},{ours}", "--format=%l %m %b %j", "-Si"]
    )
    assert on_slurm.lab.exec(["scancel", plain, ours]).code == 0
    plain_row, our_row = (line.split() for line in listed.out.splitlines())
    assert (plain_row[:2], plain_row[3], our_row) == (["7:00", "100M"], "shell", [*plain_row[:3], "typed"])
    assert "gpu:2" in our_row[2]


def test_an_own_template_and_passed_options_take_effect(on_slurm: Site) -> None:
    (on_slurm.project / "mine.j2").write_text(
        '{% extends "job.sbatch.j2" %}{% block setup %}'
        'echo "by the template"\n{{ super() | raw }}{% endblock %}'
    )
    options = (
        "--template",
        "mine.j2",
        "--setup",
        "export SAID='a b'",
        "--srun",
        "overlap",
        "--sbatch",
        "comment=mine",
    )
    answer = on_slurm.submit(*options, "tell.py")
    assert on_slurm.told(answer)[0]["environ"]["SAID"] == "a b"
    assert Path(answer["run_dir"], "job.out").read_text().startswith("by the template\n")
    rows = SlurmClient({}, OnLogin(on_slurm.lab), user=0).jobs()
    (comment,) = [row.comment for row in rows if row.job_id == answer["job_id"]]
    assert re.fullmatch(rf"clusterrun:{answer['run_id']}:[0-9a-f]{{16}} mine", comment)


def test_runs_after_a_failed_run_are_cancelled_or_reported_as_never_starting(on_slurm: Site) -> None:
    """Slurm takes half a minute to notice; all of them wait for the same run."""
    first = on_slurm.submit("--sbatch", "hold", "--name", "first", "tell.py")
    second = on_slurm.submit("--after", "first", "--name", "second", "tell.py")
    third = on_slurm.submit("--after", "second", "tell.py")
    queued = on_slurm.submit("--after", "first", "--sbatch", "kill-on-invalid-dep=no", "tell.py")
    assert on_slurm.run("cancel", "first").code == 0
    result = on_slurm.run("wait", second["run_id"], third["run_id"])
    assert (result.code, result.out) == (1, f"{second['run_id']} CANCELLED\n{third['run_id']} CANCELLED\n")
    assert f"  never started: first ({first['run_id']}) was CANCELLED\n" in result.err
    assert f"  never started: second ({second['run_id']}) was CANCELLED\n" in result.err
    result = on_slurm.run("wait", queued["run_id"])
    assert (result.code, result.out) == (1, f"{queued['run_id']} PENDING\n")
    assert f"  will never start: first ({first['run_id']}) was CANCELLED\n" in result.err
    assert f"clusterrun cancel {queued['run_id']}\n" in result.err
    assert on_slurm.run("logs", "-f", queued["run_id"]).code == 1
    assert on_slurm.run("cancel", queued["run_id"]).code == 0


def test_an_impossible_request_is_not_waited_for(on_slurm: Site) -> None:
    followed = on_slurm.run("submit", "--follow", "--sbatch", "cpus-per-task=99", "tell.py")
    if on_slurm.lab.state.slurm_version.startswith("24.11"):  # it refuses what others queue
        refused = "Requested node configuration is not available" in followed.err
        assert (followed.code, refused) == (4, True), followed
        return
    why = "  will never start: it asks for more than the partition has"
    assert (followed.code, followed.err.count(why)) == (1, 1), followed
    assert on_slurm.run("cancel", "last").code == 0


def test_a_python_that_the_nodes_lack_is_named_with_a_node(on_slurm: Site) -> None:
    answer = on_slurm.submit("--python", "/nowhere/python", "--setup", "true", "tell.py")
    assert on_slurm.run("wait", answer["run_id"]).code == 1
    message = Path(answer["run_dir"], "job.out").read_text()
    node = message.removeprefix("clusterrun: node ").split(" ")[0]
    assert (node in on_slurm.lab.nodes, message) == (
        True,
        f"clusterrun: node {node} cannot use /nowhere/python;"
        " see --python and --setup, or CLUSTERRUN_HOME for the run directory\n",
    )
    assert [on_slurm.status(answer["run_id"])["nodelist"] for _ in range(2)] == [node, node]


def test_a_setup_line_that_fails_ends_the_job_before_any_rank(on_slurm: Site) -> None:
    answer = on_slurm.submit("--setup", "echo loading", "--setup", "(exit 9)", "tell.py")
    waited = on_slurm.run("wait", answer["run_id"])
    assert (waited.code, "put || : behind it" in waited.err) == (1, True)
    status = on_slurm.status(answer["run_id"])
    assert (status["state"], status["reason"]) == (
        "FAILED",
        f"ended before any rank: --setup ended with exit code 9 on {status['nodelist']}: (exit 9); "
        "mend this line, or put || : behind it if it may fail",
    )
    assert not Path(answer["run_dir"], "attempts").exists()


def test_a_full_run_directory_on_the_first_node_is_reported_as_one_cause(on_slurm: Site) -> None:
    on_slurm.home.mkdir(mode=0o700)
    with_node = ("--nodelist", "n0001", "--wait", "tell.py")
    try:
        on_slurm.lab.fault("disk-full", "n0001", path=str(on_slurm.home))
        result = on_slurm.run("submit", *with_node)
    finally:
        on_slurm.lab.heal()
    assert (result.code, "cannot write there (a full disk, a quota, read-only)" in result.err) == (1, True), (
        result
    )


def test_the_environment_that_setup_activates_is_that_of_all_ranks(on_slurm: Site) -> None:
    own = on_slurm.project / "venv"
    (own / "bin").mkdir(parents=True)
    (own / "pyvenv.cfg").write_text(f"home = {os.path.dirname(sys.executable)}\n")
    (own / "bin/python").symlink_to(sys.executable)
    (own / "bin/activate").write_text('export PATH="$PWD/venv/bin:$PATH"\n')
    (on_slurm.project / "where.py").write_text("import json, sys; print(json.dumps(sys.prefix))\n")
    answer = on_slurm.submit("--nodes", "2", "--setup", "source venv/bin/activate", "where.py")
    assert on_slurm.told(answer) == {0: str(own), 1: str(own)}
    displayed = on_slurm.run("status", answer["run_id"]).out
    assert f"python     {own}/bin/python (Python 3." in displayed


def test_a_rank_on_a_gpu_gets_its_share_of_the_nodes_cpus(on_slurm: Site) -> None:
    answer = on_slurm.submit("--gpus", "2", "tell.py")
    assert {observed["environ"]["OMP_NUM_THREADS"] for observed in on_slurm.told(answer).values()} == {"1"}
    displayed = on_slurm.lab.exec(["scontrol", "show", "job", answer["job_id"]]).out
    assert "CPUs/Task=4 " in displayed
    dry = on_slurm.run("submit", "--dry-run", "--gpus", "8", "tell.py")
    share = "CPUs per rank: 2 (a GPU's share of the node's; --cpus-per-rank asks for another number)\n"
    assert (dry.code, share in dry.err, "#SBATCH --cpus-per-task=16\n" in dry.out) == (0, True, True)
    too_many = on_slurm.run("submit", "--cpus-per-rank", "99", "tell.py")
    assert (too_many.code, "--cpus-per-rank 99: a node has at most 16 CPUs" in too_many.err) == (2, True)


def test_an_impossible_share_of_cpus_is_not_requested(make_lab: MakeLab, tmp_path: Path) -> None:
    local = site(make_lab(nodes=1, settings={"DefMemPerCPU": "6000"}), tmp_path)
    answer = local.run("submit", "--gpus", "8", "--wait", "tell.py")
    notice = "1 CPU per rank requested: Slurm refuses 2, a GPU's share of the node's ("
    assert (answer.code, notice in answer.err) == (0, True), answer.err


def test_a_rank_gets_the_cpus_that_are_not_reserved_for_the_system(make_lab: MakeLab, tmp_path: Path) -> None:
    """A node of 16 CPUs keeps 2 for the system: its 4 GPUs have 3 each, not 4."""
    local = site(make_lab(nodes=1, gpus=4, settings={"NodeName": "DEFAULT CoreSpecCount=2"}), tmp_path)
    dry = local.run("submit", "--gpus", "4", "--dry-run", "tell.py")
    notice = "3 CPUs per rank requested: Slurm refuses 4, a GPU's share of the node's ("
    assert (dry.code, notice in dry.err, "#SBATCH --cpus-per-task=12\n" in dry.out) == (0, True, True), (
        dry.err
    )


def test_a_gpu_type_that_no_node_has_is_refused_without_a_word_about_cpus(on_slurm: Site) -> None:
    result = on_slurm.run("submit", "--gpus", "h100:2", "tell.py")
    assert (result.code, result.out, result.err.splitlines()[0]) == (
        4,
        "",
        "error: Slurm refused the job: Batch job submission failed:"
        " Requested node configuration is not available",
    )
    dry = on_slurm.run("submit", "--gpus", "h100:2", "--dry-run", "tell.py")
    message = "Slurm could not start this job as its nodes are now: allocation failure: Requested node"
    assert (dry.code, message in dry.err, "1 CPU per rank requested" in dry.err) == (0, True, False)


def test_a_job_that_waits_for_a_drained_node_is_reported(on_slurm: Site) -> None:
    on_slurm.lab.fault("drain", "n0002", reason="fan")
    try:
        dry = on_slurm.run("submit", "--gpus", "8", "--nodelist", "n0002", "--dry-run", "tell.py")
        waiting = on_slurm.submit("--nodes", "4", "tell.py")["run_id"]
        until(lambda: "n0002: fan" in on_slurm.status(waiting)["reason"], 30)
        on_slurm.run("cancel", waiting)
    finally:
        on_slurm.lab.heal()
    message = "this job waits for n0002: down, drained or reserved; sinfo -R: fan"
    assert (dry.code, message in dry.err, "could not start" in dry.err) == (0, True, False), dry.err


def test_a_job_that_is_submitted_just_after_the_controller_starts_is_not_called_impossible(
    on_slurm: Site,
) -> None:
    """No node has registered yet, so `sbatch --test-only` refuses what sbatch queues and Slurm starts."""
    on_slurm.lab.fault("controller")
    on_slurm.lab.heal()
    result = on_slurm.run("submit", "--preflight", "off", "--gpus", "8", "--wait", "tell.py")
    assert (result.code, "start this job" in result.err) == (0, False), result.err
    assert on_slurm.lab.wait_idle(60)


FILTER = 'exec > >(while read -r line; do sleep 0.01; echo "$line"; done) 2>&1; seq 30'
SCRIPTS = {
    "a slow filter of its output": FILTER,
    "a filter, and a failure": f"{FILTER}; exit 3",
    "an upload in the background": "(sleep 2; echo uploaded) & echo trained",
    "work at its end": 'trap "(sleep 2; echo synced) &" EXIT; echo trained',
    "its own output by name": "echo 1; echo 2 >/dev/stderr; echo 3 >/dev/stdout; echo 4 | tee /dev/stderr",
    # This name is unknown before the script runs. Plain srun gives each rank a file too, with ``%t``.
    "a name from the run": "name=/dev/std$(echo err); echo 1 >&2; echo 2 >$name; echo 3 >&2",
}


def test_shell_scripts_print_the_same_as_under_plain_srun(lab: Lab, tmp_path: Path) -> None:
    on_slurm = site(lab, tmp_path)
    plain_lines, run_ids, folders = [], {}, {}
    for number, (name, text) in enumerate(SCRIPTS.items()):
        script = on_slurm.project / f"script{number}.sh"
        script.write_text(f"#!/bin/bash\n{text}\n")
        script.chmod(0o755)
        # Plain srun has one file for both streams, except where the ranks open it by a name from the run.
        files = f"-o plain{number}.out.%t -e plain{number}.out.%t" if name == "a name from the run" else ""
        plain_lines.append(f"sbatch --wait -o plain{number}.out --wrap 'srun -n1 {files} ./{script.name}' &")
        answer = on_slurm.submit("--preflight", "off", f"./{script.name}")
        run_ids[name], folders[name] = answer["run_id"], Path(answer["run_dir"], "attempts/000")
    batch = ["bash", "-c", "\n".join((*plain_lines, "wait"))]
    assert lab.exec(batch, cwd=str(on_slurm.project), timeout=240).code == 0
    for number, name in enumerate(SCRIPTS):
        printed = "".join(path.read_text() for path in on_slurm.project.glob(f"plain{number}.out*"))
        plain = [line for line in printed.splitlines() if not line.startswith("srun: ")]
        assert on_slurm.run("wait", run_ids[name]).code == (1 if "failure" in name else 0)
        ours = "".join((folders[name] / f"00000.{stream}").read_text() for stream in ("out", "err"))
        lines = [line for line in ours.splitlines() if "log was emptied" not in line]
        assert sorted(lines) == sorted(plain), name


def test_functions_setup_lines_and_input_work_as_under_plain_sbatch(lab: Lab, tmp_path: Path) -> None:
    on_slurm = site(lab, tmp_path)
    (on_slurm.project / "sub").mkdir()
    functions = {
        f"BASH_FUNC_{name}%%": f"() {{ echo {name} >&2; false; }}" for name in ("exec", "srun", "printf")
    }
    arguments = (
        "--nodes",
        "2",
        "--preflight",
        "off",
        "--wait",
        "--setup",
        "cd sub",
        "bash",
        "-c",
        "pwd; echo $PWD",
    )
    answer = on_slurm.submit(*arguments, **functions)
    assert on_slurm.outputs(answer) == dict.fromkeys((0, 1), f"{on_slurm.project}/sub\n" * 2)
    (on_slurm.project / "script").write_text('echo "$1 $RANK"\n')
    answer = on_slurm.submit(
        "--nodes", "2", "--preflight", "off", "--wait", "--input", "script", "bash", "-s", "said"
    )
    assert on_slurm.outputs(answer) == {rank: f"said {rank}\n" for rank in (0, 1)}
