"""The client's status of runs on a real Slurm that is silent, forgets jobs, or has newer facts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from threading import Thread

import pytest

from clusterrun.lab.lab import Lab
from tests.lab.test_slurm_runs import Site, site, until
from tests.lab_fixture import make_anew, strangers

pytestmark = pytest.mark.lab


@pytest.fixture
def on_slurm(lab: Lab, tmp_path: Path) -> Site:
    return site(lab, tmp_path)


def training(on_slurm: Site, run_id: str) -> bool:
    return bool(on_slurm.status(run_id)["phase"] == "training")


def test_status_shows_all_of_a_run_while_it_trains_and_later(on_slurm: Site) -> None:
    answer = on_slurm.submit("--nodes", "2", "--gpus", "2", "stay.py")
    until(lambda: training(on_slurm, answer["run_id"]))
    live = on_slurm.status(answer["job_id"])
    assert {
        name: live[name] for name in ("state", "nodes", "gpus_per_node", "world_size", "attempt", "exit_code")
    } == {
        "state": "RUNNING",
        "nodes": 2,
        "gpus_per_node": 2,
        "world_size": 4,
        "attempt": 0,
        "exit_code": None,
    }
    assert live["nodelist"].startswith("n[")
    on_slurm.run("cancel", "last")
    ended = on_slurm.status(answer["run_id"])
    assert (ended["state"], ended["reason"]) == ("CANCELLED", "by clusterrun cancel")


def shown(site: Site, run_id: str) -> str:
    """Return the notices of the status of a run that trains. Slurm's last answer may serve at first."""
    requested = site.run("status", "--json", run_id)
    (observed,) = json.loads(requested.out)["runs"]
    assert (requested.code, observed["state"], observed["phase"]) == (0, "RUNNING", "training")
    return requested.err


def test_a_controller_that_is_down_hides_no_run(on_slurm: Site) -> None:
    answer = on_slurm.submit("stay.py")
    until(lambda: training(on_slurm, answer["run_id"]))
    on_slurm.lab.fault("controller")
    until(lambda: "the answer comes from the run directories" in shown(on_slurm, answer["run_id"]))
    cancelled = on_slurm.run("cancel", answer["run_id"], limit=200)
    assert (cancelled.code, cancelled.out) == (0, f"{answer['run_id']} CANCELLED\n")
    on_slurm.lab.heal()
    until(lambda: {stranger.name for stranger in strangers(on_slurm.lab)} <= {"slurmstepd"})
    make_anew(on_slurm.lab)  # a step that found no controller tells its end again after a minute


def test_a_run_after_another_waits_for_it_and_starts_when_it_ended_well(on_slurm: Site) -> None:
    first = on_slurm.submit("stay.py")
    second = on_slurm.submit("--after", first["run_id"], "tell.py")
    waiting = on_slurm.status(second["run_id"])
    assert waiting["state"] == "PENDING" and first["run_id"] in waiting["reason"]
    third = on_slurm.submit("tell.py")
    assert on_slurm.run("wait", third["run_id"]).code == 0
    assert on_slurm.run("wait", on_slurm.submit("--after", third["run_id"], "tell.py")["run_id"]).code == 0
    on_slurm.run("cancel", first["run_id"], second["run_id"])
    refused = on_slurm.run("submit", "--after", first["run_id"], "tell.py")
    assert (refused.code, "has ended as CANCELLED" in refused.err) == (2, True)


def test_a_run_with_a_failed_batch_step_names_its_output(on_slurm: Site) -> None:
    result = on_slurm.run("submit", "--wait", "--setup", "echo no such module >&2; exit 3", "tell.py")
    assert result.code == 1
    assert "FAILED" in result.err and "job.out" in result.err and "no such module" in result.err


@pytest.mark.parametrize("requested", [("--gpus", "64"), ("--nodes", "99")])
def test_a_request_that_no_node_can_meet_is_refused_with_the_sizes_of_nodes(
    on_slurm: Site, requested: tuple[str, str]
) -> None:
    refused = on_slurm.run("submit", *requested, "tell.py")
    assert (refused.code, refused.out) == (2, "")
    assert f"error: {' '.join(requested)}: " in refused.err
    assert "partition debug (default): 4 nodes, up to 8 GPUs" in refused.err
    assert not on_slurm.home.exists()


def test_a_job_that_clusterrun_did_not_start_is_described(on_slurm: Site) -> None:
    """Plain sbatch queues the job. Every command that names it describes it and shows another command."""
    output = on_slurm.project / "plain.out"
    errors = on_slurm.project / "plain.err"
    files = (f"--output={output}", f"--error={errors}")
    wrapped = ("sbatch", "--parsable", "--job-name=plain job", *files, "--wrap", "sleep 600")
    job_id = on_slurm.lab.exec(wrapped).out.strip()
    on_slurm.submit("stay.py")  # no start of its id may be meant by the number of the job
    until(lambda: "RUNNING" in on_slurm.lab.exec(["squeue", "-h", "-j", job_id, "-o", "%T"]).out)
    for command in ("status", "logs", "wait", "cancel", "report"):
        refused = on_slurm.run(command, job_id)
        assert (refused.code, refused.out) == (5, ""), command
        assert (
            f"clusterrun did not start Slurm job {job_id} ('plain job' of root, RUNNING on n0" in refused.err
        )
        assert f"tail -f '{output}' '{errors}'\n" in refused.err
        assert f"scontrol show job {job_id}\n" in refused.err
    on_slurm.lab.exec(["scancel", job_id])
    until(lambda: "CANCELLED" in on_slurm.run("status", job_id).err)
    assert "the job was cancelled" in on_slurm.run("diagnose", job_id).out
    output = on_slurm.project / "failing.out"
    failing = "echo start; python3 -c 'import nothing_like_this'"
    wrapped = ("sbatch", "--parsable", f"--output={output}", "--wrap", failing)
    failed = on_slurm.lab.exec(wrapped).out.strip()
    until(lambda: "FAILED" in on_slurm.run("status", failed).err)
    diagnosis = json.loads(on_slurm.run("diagnose", "--json", failed).out)
    assert "ModuleNotFoundError: No module named 'nothing_like_this'" in diagnosis["said"]
    assert any(str(output) in line for line in diagnosis["evidence"])
    output.unlink()
    ended = on_slurm.run("diagnose", failed)
    assert ended.code == 5 and f"its output is not on this machine ({output})" in ended.err
    for word in (f"{job_id}.0", f"{job_id}.batch", f"{job_id}_[0-3%2]"):
        assert f"clusterrun did not start Slurm job {job_id} (" in on_slurm.run("status", word).err
    unknown = on_slurm.run("status", "99999.0")
    assert (unknown.code, "and Slurm knows no job 99999" in unknown.err) == (5, True)
    on_slurm.run("cancel", "last")


def test_a_check_that_waits_for_a_drained_node_has_the_reason_of_slurm(on_slurm: Site) -> None:
    on_slurm.lab.fault("drain", "n0003", reason="GPU 3 fell off")
    run_id = on_slurm.submit("--nodelist", "n0003", "stay.py")["run_id"]
    until(lambda: "sinfo -R: GPU 3 fell off" in on_slurm.status(run_id)["reason"])
    on_slurm.run("cancel", run_id)
    on_slurm.lab.heal()


def test_an_option_that_another_one_replaces_is_named_before_any_allocation(on_slurm: Site) -> None:
    options = ("--mem", "1G", "--sbatch", "mem=2G", "--sbatch", "mail-user=a", "--sbatch", "mail-user=b")
    for command in (("alloc", "--dry-run", *options), ("submit", "--dry-run", *options, "stay.py")):
        message = on_slurm.run(*command).err
        assert "--sbatch mem takes the place of --mem" in message
        assert "--sbatch mail-user=a has no effect" in message


def test_a_script_finds_its_own_folder_as_with_plain_srun(on_slurm: Site) -> None:
    (on_slurm.project / "sub").mkdir()
    run_sh = on_slurm.project / "sub" / "run.sh"
    run_sh.write_text('#!/bin/bash\ncd /\necho "$0"\n')
    run_sh.chmod(0o755)
    (on_slurm.project / "link.sh").symlink_to("sub/run.sh")
    for word in ("./link.sh", "sub/run.sh", "./sub/../link.sh"):
        plain = on_slurm.lab.exec(["srun", word], cwd=str(on_slurm.project)).out
        answer = on_slurm.submit(word)
        on_slurm.run("wait", answer["run_id"])
        assert on_slurm.outputs(answer)[0] == plain


@pytest.mark.slow
def test_a_time_limit_is_reported_as_the_reason(on_slurm: Site) -> None:
    result = on_slurm.run("submit", "--wait", "--json", "--time", "1", "stay.py", limit=240)
    run_id = json.loads(result.out)["run_id"]
    assert (result.code, on_slurm.status(run_id)["state"]) == (1, "TIMEOUT")
    assert "TIMEOUT" in result.err


def questions(site: Site) -> int:
    """Return the number of queries about jobs that the controller has answered so far."""
    output = site.lab.exec(["sdiag"]).out
    return sum(map(int, re.findall(r"REQUEST_JOB_(?:INFO|USER_INFO|INFO_SINGLE)\s.*?count:(\d+)", output)))


def test_many_commands_at_once_send_one_request_to_slurm(on_slurm: Site) -> None:
    answer = on_slurm.submit("--sbatch", "hold", "stay.py")
    before, codes = questions(on_slurm), list[int]()

    def ask() -> None:
        codes.append(on_slurm.run("status", answer["run_id"], limit=200, CLUSTERRUN_SLURM_EVERY="300").code)

    threads = [Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert (codes, questions(on_slurm) - before) == ([0] * 8, 1)
    assert on_slurm.run("cancel", answer["run_id"], limit=200).code == 0
