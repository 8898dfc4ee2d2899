"""The pre-flight check on this machine, as a person sees it: live on a terminal, in lines in a pipe."""

from __future__ import annotations

import json
import re
import signal

import pytest

from clusterrun.cli.check import step_sizes
from clusterrun.model.hostlist import expand
from tests.cli.conftest import CommandLine
from tests.cli.test_terminal import on_terminal

BUDGET = ("--preflight-budget", "3m")


def test_a_terminal_shows_a_check_live_and_keeps_its_report(clusterrun: CommandLine) -> None:
    observed = on_terminal(clusterrun, "check", "--nodes", "2", *BUDGET, errors=True)
    output = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", observed)
    assert re.search(r"preflight .*\d+ s left .*\r", output), output
    assert re.search(
        r"PASS: all 2 nodes are fit\nfull check by gloo of \S+-check, \d+ rounds? of tests", output
    )
    assert output.endswith("\nfit: local-[0-1]\n")


def test_shell_lines_and_json_are_mutually_exclusive(clusterrun: CommandLine) -> None:
    result = clusterrun("check", "--export", "--json")
    assert (result.code, result.out, "give one of them" in result.err) == (2, "", True), result.err


@pytest.mark.parametrize(
    ("layout", "fit", "sizes"),
    [
        ("2(x3)", ["n1", "n2", "n3"], []),
        ("2(x3)", [], []),
        ("2(x3)", ["n1", "n3"], ["2", "4"]),
        ("1,3(x2)", ["n1", "n3"], ["2", "4"]),
        ("", ["n2"], ["1", None]),  # the script says nothing of tasks
    ],
)
def test_steps_of_a_batch_script_get_the_sizes_of_the_fit_nodes(
    layout: str, fit: list[str], sizes: list[str | None]
) -> None:
    environ = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": layout or "1(x3)"}
    environ.update({"SLURM_NTASKS": "6"} if layout else {})
    variables = step_sizes(environ, fit)
    assert [variables.get(name) for name in ("SLURM_NNODES", "SLURM_NTASKS") if variables] == sizes
    assert variables.get("SLURM_NODELIST") == variables.get("SLURM_JOB_NODELIST")
    assert expand(variables.get("SLURM_JOB_NODELIST", "")) == (tuple(fit) if sizes else ())
    assert step_sizes({**environ, **variables}, fit) == {}


def test_a_second_check_takes_tasks_from_the_sizes_of_the_first() -> None:
    environ = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "1,3,2", "SLURM_NTASKS": "6"}
    environ.update(step_sizes(environ, ["n2", "n3"]))
    assert step_sizes(environ, ["n3"])["SLURM_NTASKS"] == "2"


def test_follow_shows_the_findings_of_the_check_before_the_output_of_ranks(clusterrun: CommandLine) -> None:
    result = clusterrun("submit", "--preflight", "quick", *BUDGET, "-f", "train.py", limit=240)
    assert (result.code, result.out) == (0, "local-0 r0 | rank 0 of 1\n"), result.err
    assert "\npre-flight PASS: " in result.err
    assert json.loads(clusterrun("report", "--json").out)["level"] == "quick"


def test_ctrl_c_leaves_a_check_running_and_prints_the_next_command(clusterrun: CommandLine) -> None:
    process = clusterrun.start("check", "--nodes", "2", *BUDGET)
    assert process.stderr is not None
    while not (line := process.stderr.readline()).startswith("checks 2 nodes: "):
        assert line, "it ended without giving a reason"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    run_id = line.split()[-1]
    assert (process.returncode, f"clusterrun report {run_id}" in err) == (130, True)
    assert clusterrun("wait", run_id, limit=240).code == 0
    assert clusterrun("report", run_id).out.startswith("PASS: all 2 nodes are fit\n")
