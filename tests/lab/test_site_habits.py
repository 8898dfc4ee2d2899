"""Habits of sites and of shells beyond those of test_sites.py, on one lab; docs/sites.md names each."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest

from clusterrun.lab import conf
from clusterrun.lab.place import LabPlace
from clusterrun.lab.spec import LabSpec, Layout
from tests.lab.test_sites import NODES, PARTITIONS, SIZE, SYSTEM_PYTHON, Trained, project, script
from tests.lab.test_slurm_runs import PROGRAM, Site, until
from tests.lab_fixture import MakeLab, leftovers

pytestmark = pytest.mark.lab

GRES = conf.gres_conf
STAY = (*SIZE, "--python", SYSTEM_PYTHON, "--preflight", "off", "work.py", "stay")


def in_upper_case(spec: LabSpec, layout: Layout) -> str:
    named = f"NodeName=GPU-A[1-{spec.nodes}] NodeHostname={layout.node_range}"
    return NODES(spec, layout).replace(f"NodeName={layout.node_range}", named)


def shared_and_of_a_group(spec: LabSpec, layout: Layout) -> str:
    line = PARTITIONS(spec, layout).replace(f"Nodes={layout.node_range}", f"Nodes=GPU-A[1-{spec.nodes}]")
    debug = line.rstrip("\n") + " OverSubscribe=FORCE:1 AllowGroups=root DefCpuPerGPU=3\n"
    return debug + debug.replace("debug Default=YES PriorityTier=1", "urgent Default=NO PriorityTier=10")


def second_node_first(spec: LabSpec, place: LabPlace) -> str:
    """Set switches in whose order Slurm 26.05 numbers tasks, and nodes in the order of the job's list."""
    switches = ("s1 Nodes=GPU-A2", "s2 Nodes=GPU-A1", "top Switches=s[1-2]")
    (place.conf / "topology.conf").write_text("".join(f"SwitchName={line}\n" for line in switches))
    return GRES(spec, place)


HEALTH = (
    "read -r host name SLURM_CONF 2>/dev/null <{0} || exit 0",
    "export SLURM_CONF",
    '[ "$host" != "$(hostname)" ] || /usr/bin/scontrol update "nodename=$name" state=drain reason=ecc',
)
SETTINGS = {
    "LaunchParameters": "use_interactive_step,enable_nss_slurm",
    "InteractiveStepOptions": '"--interactive --preserve-env --pty --mpi=none $SHELL"',
    "MpiDefault": "pmix",
    "KillWait": "120",
    "FirstJobId": "67040000",
    "MaxTasksPerNode": "1",
    "SelectTypeParameters": "CR_Core",
    "TaskPlugin": "task/affinity",
    "TaskPluginParam": "Cores,Verbose",
    "TopologyPlugin": "topology/tree",
    "UsePAM": "Yes",
    "HealthCheckInterval": "2",
    "HealthCheckNodeState": "ANY",
    "PreemptMode": "SUSPEND,GANG",
    "PreemptType": "preempt/partition_prio",
    "VSizeFactor": "200",
    "CompleteWait": "2",
    "JobFileAppend": "1",
    "KillOnBadExit": "1",
    "Licenses": "matlab:2",
    "MaxStepCount": "50",
    "MinJobAge": "2",
    "PropagateResourceLimits": "NONE",
    "RequeueExit": "1-99",
    "RequeueExitHold": "100-255",
    "SchedulerParameters": "defer",
    "UnkillableStepTimeout": "10",
    "WaitTime": "2",
}


@pytest.fixture(scope="module")
def habits(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Make a site with all the settings of real sites that steer jobs implicitly."""
    folder = tmp_path_factory.mktemp("habits")
    folder.chmod(0o755)
    health = script(folder, "health", *(line.format(folder / "ill") for line in HEALTH))
    patch = pytest.MonkeyPatch()
    patch.setattr(conf, "_nodes", in_upper_case)
    patch.setattr(conf, "_partitions", shared_and_of_a_group)
    patch.setattr(conf, "gres_conf", second_node_first)
    try:
        lab = make_lab(nodes=2, gpus=2, settings={**SETTINGS, "HealthCheckProgram": health})
    finally:
        patch.undo()
    return project(lab, folder)


@pytest.fixture(scope="module")
def trained(habits: Site) -> Trained:
    return Trained(habits)


def training(lab_site: Site, **shell: str) -> dict[str, Any]:
    """Return the status of a run whose four ranks train."""
    answer = lab_site.submit(*STAY, **shell)
    until(lambda: len(list(filter(None, lab_site.outputs(answer).values()))) == 4)
    until(lambda: lab_site.status(answer["run_id"])["phase"] == "training")
    return answer


@pytest.mark.parametrize(
    "trait",
    [
        *(
            "LaunchParameters",
            "MpiDefault",
            "KillWait",
            "MaxTasksPerNode",
            "TaskPluginParam",
            "TopologyPlugin",
        ),
        *("UsePAM", "HealthCheckInterval", "PreemptMode", "VSizeFactor"),
        *("CompleteWait", "JobFileAppend", "KillOnBadExit", "Licenses", "MaxStepCount", "MinJobAge"),
        *(
            "PropagateResourceLimits",
            "RequeueExit",
            "RequeueExitHold",
            "SchedulerParameters",
            "UnkillableStepTimeout",
            "WaitTime",
        ),
    ],
)
def test_a_run_works_with_this_setting_of_slurm(trained: Trained, trait: str) -> None:
    output = trained.here.lab.exec(["scontrol", "show", "config"]).out
    (result,) = re.findall(rf"(?mi)^{trait}\s*= (.*)$", output)
    expected = {word.lower() for word in SETTINGS[trait].split(",")}
    assert expected <= set(re.split(r"[\s,()]+", result.lower())), result
    trained.check()
    assert int(trained.answer["job_id"]) >= int(SETTINGS["FirstJobId"])


def test_ranks_follow_nodes_if_slurm_numbers_tasks_in_another_order(trained: Trained) -> None:
    """Since 26.05 a task's number (SLURM_PROCID) follows the switches, its node's the list of nodes."""
    trained.check()
    hosts = {"GPU-A1": "n0001", "GPU-A2": "n0002"}
    first, second = trained.status["attempts"]
    assert {rank: value["node"] for rank, value in trained.ranks.items()} == {
        rank: hosts[second["nodes"][rank // 2]] for rank in range(4)
    }
    assert (first["failure"]["rank"], first["failure"]["node"]) == (3, first["nodes"][1])


SHELL = {
    "SQUEUE_PARTITION": "urgent",
    "SQUEUE_STATES": "SUSPENDED",
    "SQUEUE_FORMAT": "%A",
    "SQUEUE_SORT": "-i",
    "SCANCEL_STATE": "SUSPENDED",
    "SCANCEL_INTERACTIVE": "1",
    "SINFO_PARTITION": "urgent",
    "SACCT_FORMAT": "JobID",
    "SBATCH_EXPORT": "NONE",
    "SLURM_EXPORT_ENV": "NONE",
    "SBATCH_ARRAY_INX": "1-3",
    "SBATCH_WAIT": "1",
    "SRUN_CPUS_PER_TASK": "1",
    "SLURM_HINT": "nomultithread",
    "SLURM_MPI_TYPE": "pmi2",
    "SLURM_NTASKS": "7",
    "SLURM_TIME_FORMAT": "relative",
    "SLURM_CLUSTERS": "elsewhere",
}


def test_variables_for_programs_of_slurm_hide_no_run_and_keep_none_alive(habits: Site) -> None:
    queued = habits.submit("--sbatch", "hold", *STAY, **SHELL)
    listed = json.loads(habits.run("status", "--json", queued["run_id"], **SHELL).out)["runs"]
    assert [entry["state"] for entry in listed] == ["PENDING"]
    result = habits.run("cancel", queued["run_id"], **SHELL)
    remaining = habits.lab.exec(["squeue", "--noheader", f"--jobs={queued['job_id']}"])
    assert (result.code, result.out, remaining.out) == (0, f"{queued['run_id']} CANCELLED\n", ""), result
    answer = training(habits, **SHELL)
    output = habits.run("status", answer["run_id"], **SHELL)
    assert "state      RUNNING, training\n" in output.out, output
    result = habits.run("cancel", answer["run_id"], **SHELL)
    assert (result.code, result.out, leftovers(habits.lab)) == (0, f"{answer['run_id']} CANCELLED\n", [])


def test_wrappers_of_slurms_programs_that_print_more_text_hide_no_run(habits: Site) -> None:
    folder = habits.project.parent / "wrappers"
    folder.mkdir()
    for program in ("sbatch", "squeue", "scancel", "sinfo", "scontrol"):
        real = f'/usr/bin/{program} "$@"; code=$?'
        around = (
            "echo '*** 3000 core-hours left ***'",
            real,
            f"echo Thank you for using {program}",
            "exit $code",
        )
        script(folder, program, *around)
    shell = {"PATH": f"{folder}:{os.environ['PATH']}"}
    answer = training(habits, **shell)
    output = habits.run("status", "--json", answer["run_id"], **shell)
    assert (json.loads(output.out)["runs"][0]["state"], output.err) == ("RUNNING", "")
    result = habits.run("cancel", answer["run_id"], **shell)
    assert (result.code, result.out, leftovers(habits.lab)) == (0, f"{answer['run_id']} CANCELLED\n", [])


def test_a_suspended_run_continues_after_the_job_of_a_higher_partition(habits: Site) -> None:
    answer = training(habits)
    urgent = ("sbatch", "--parsable", "-p", "urgent", "-N2", "-c16", "-o/dev/null", "--wrap=sleep 600")
    taken = habits.lab.exec(urgent).out.strip()
    until(lambda: "suspended" in habits.status(answer["run_id"])["reason"])
    assert habits.lab.exec(["scancel", taken]).code == 0
    until(lambda: "suspended" not in habits.status(answer["run_id"])["reason"])
    assert habits.status(answer["run_id"])["state"] == "RUNNING"
    assert habits.run("cancel", answer["run_id"]).code == 0
    assert [attempt["cause"] for attempt in habits.status(answer["run_id"])["attempts"]] == ["first"]


def test_a_run_continues_if_a_health_check_drains_its_node(habits: Site) -> None:
    ill, lab = habits.project.parent / "ill", habits.lab
    answer = training(habits)
    ill.write_text(f"n0002 GPU-A2 {lab.slurm_conf}\n")
    until(lambda: "drain" in lab.exec(["sinfo", "-h", "-N", "-o", "%T"]).out)
    ill.unlink()
    try:
        assert habits.status(answer["run_id"])["state"] == "RUNNING"
        assert habits.run("cancel", answer["run_id"]).code == 0
    finally:
        assert lab.exec(["scontrol", "update", "nodename=GPU-A2", "state=resume"]).code == 0
    assert [attempt["cause"] for attempt in habits.status(answer["run_id"])["attempts"]] == ["first"]


def test_a_user_ends_ranks_that_ignore_sigterm_before_the_two_minutes_of_killwait(habits: Site) -> None:
    answer = habits.submit(*SIZE, "--python", SYSTEM_PYTHON, "--preflight", "off", "stay.py", "--stubborn")
    until(lambda: len(list(filter(None, habits.outputs(answer).values()))) == 4)
    result = habits.run("cancel", "--kill-wait", "3s", answer["run_id"], limit=100)
    assert (result.code, leftovers(habits.lab)) == (0, []), result


def ended(habits: Site, job_id: str) -> str:
    """Return the state of the ended job after its nodes are cleared; '' if Slurm no longer lists it."""

    def state() -> str:
        return habits.lab.exec(
            ["squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T"]
        ).out.strip()

    until(lambda: state() not in ("RUNNING", "COMPLETING"))
    return state()


@pytest.mark.parametrize("code", [1, 120])
def test_slurm_queues_a_plain_job_again_for_its_exit_code(habits: Site, code: int) -> None:
    # Slurm 24.11 and 26.05 queue a job with --no-requeue no more.
    argv = ["sbatch", "--parsable", "--requeue", "--output=/dev/null", f"--wrap=exit {code}"]
    job_id = habits.lab.exec(argv).out.strip()

    def is_queued_again() -> bool:
        job = habits.lab.exec(["scontrol", "show", "job", job_id]).out
        return "SPECIAL_EXIT" in job or re.search(r"Restarts=[1-9]", job) is not None

    try:
        until(is_queued_again)
    finally:
        habits.lab.exec(["scancel", job_id])


@pytest.mark.parametrize(
    ("options", "command", "attempts"),
    [
        ([], ["-c", "raise SystemExit(1)"], 1),
        ([], ["-c", "raise SystemExit(120)"], 1),
        (["--max-restarts", "1"], ["-c", "raise SystemExit(1)"], 2),
        (["--max-restarts", "3"], ["-c", "a_name_that_nothing_has"], 1),
        (["--max-restarts", "3"], ["shard.py"], 2),
        (["--setup", "exit 7"], ["-c", "pass"], 0),
    ],
)
def test_slurm_never_queues_a_failed_run_again_for_its_exit_code(
    habits: Site, options: list[str], command: list[str], attempts: int
) -> None:
    arguments = (*SIZE, "--python", SYSTEM_PYTHON, "--preflight", "off", *options)
    (habits.project / "shard.py").write_text("raise ValueError('bad shard')")
    answer = habits.submit(*arguments, SYSTEM_PYTHON, *command)
    assert habits.run("wait", answer["run_id"]).code == 1
    assert ended(habits, answer["job_id"]) in ("FAILED", "")
    status = habits.status(answer["run_id"])
    assert (status["state"], len(status["attempts"])) == ("FAILED", attempts), status["reason"]


FILTER = """
function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, offset)
  print("Welcome: quotas change on Monday")
  slurm.log_info("words of a site")
  if options["job-name"] == "long" then
    slurm.log_error("Name no job long.")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_cli_post_submit(offset, job, step) return slurm.SUCCESS end
return slurm.SUCCESS
"""


def test_a_site_filter_that_prints_and_a_partition_with_whole_nodes_work(habits: Site) -> None:
    lab, partition = habits.lab, "gpu-a100.long_1+x"
    whole = ["scontrol", "create", f"partition={partition}", "nodes=ALL", "OverSubscribe=EXCLUSIVE"]
    assert lab.exec(whole).code == 0
    if not lab.state.graft:  # whose Slurm lies over another distribution's files, which lack its Lua
        (lab.place.conf / "cli_filter.lua").write_text(FILTER)
        with open(lab.slurm_conf, "a", encoding="utf-8") as file:
            file.write("CliFilterPlugins=lua\n")
        assert "Monday" in lab.exec(["srun", "--mpi=none", "true"]).out
        refused = habits.run("submit", "--name", "long", *STAY)
        assert "lua: Name no job long.; cli_filter plugin terminated with error" in refused.err
        assert "a rule of this site refuses the job: do what its words ask for" in refused.err
    Trained(habits, "--partition", partition, "--sbatch", "licenses=matlab:1").check()


def test_a_run_works_in_the_interactive_step_of_salloc(habits: Site) -> None:
    typed = f"{PROGRAM} run --preflight off work.py | tee told\nhostname >where\nexit\n"
    alloc = f"env -u SHELL {PROGRAM} alloc {' '.join(SIZE)}"
    argv = ["script", "--quiet", "--return", "--command", alloc, "/dev/null"]
    shell = {"CLUSTERRUN_HOME": str(habits.home)}
    result = habits.lab.exec(argv, stdin=typed, env=shell, cwd=str(habits.project), timeout=180)
    assert result.code == 0, result
    text = (habits.project / "told").read_text()
    assert (text.count('"WORLD_SIZE": "4"'), (habits.project / "where").read_text()) == (4, "n0001\n"), result
