"""`exec` and `shell` beside a run on this machine: where a command lands, what it finds, how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine

LIMIT = 120.0


@pytest.mark.parametrize(
    ("where", "rank", "node"),
    [
        ((), "0", "local-0"),
        (("--node", "1"), "2", "local-1"),
        (("--node", "local-1"), "2", "local-1"),
        (("--rank", "3"), "3", "local-1"),
    ],
)
def test_a_command_lands_beside_the_rank_that_was_meant(live, where, rank, node) -> None:
    result = live("exec", "stays", *where, "--", "printenv", "RANK", "CLUSTERRUN_NODE_NAME", "PWD")
    assert (result.code, result.out.splitlines()[:2]) == (0, [rank, node])


def test_exec_uses_the_folder_and_environment_of_the_rank_and_names_its_process(live) -> None:
    script = "import json, os; pid = os.environ['CLUSTERRUN_RANK_PID']; print(json.dumps([os.getcwd(), "
    script += "open(f'/proc/{pid}/cmdline').read().split(chr(0)), dict(os.environ)]))"
    result = live("exec", "--rank", "1", "--", sys.executable, "-c", script)
    folder, command, environment = json.loads(result.out)
    assert (folder, command[-3:-1], environment["WORLD_SIZE"], environment["LOCAL_RANK"]) == (
        str(live.folder),
        ["train.py", "wait"],
        "4",
        "1",
    )
    assert "CLUSTERRUN_STEP" not in environment  # what is swept with the run is the run's, this is the user's


def test_exec_passes_arguments_after_the_dashes_and_returns_the_exit_code(live) -> None:
    result = live("exec", "--", "sh", "-c", 'echo "$1 $2"; exit 7', "sh", "--node", "a b; $HOME")
    assert (result.code, result.out) == (7, "--node a b; $HOME\n")


def test_a_shell_reads_its_input_and_exits_with_its_code(live) -> None:
    process = live.start("shell", "--rank", "2")
    process.communicate(timeout=LIMIT)
    assert process.returncode == 0  # end of input at once: a shell that had nothing to do
    result = subprocess.run(
        [sys.executable, "-m", "clusterrun", "shell", "--rank", "2"],
        input="echo rank $RANK\nexit 4\n",
        cwd=live.folder,
        env=live.environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert (result.returncode, result.stdout) == (4, "rank 2\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("exec", "--rank", "9", "--", "true"), "there is no rank 9 in "),
        (("exec", "--node", "n7", "--", "true"), "there is no node 'n7' in "),
        (("exec", "--node", "5", "--", "true"), "its nodes are local-0, local-1"),
        (("exec", "--node", "1", "--rank", "1", "--", "true"), "two ways to say where"),
        (("exec", "stays", "true"), "say what to run after two dashes"),
        (("exec", "stays", "--"), "say what to run after two dashes"),
        (("shell", "--rank", "-1"), "-1 is not in the range"),
    ],
)
def test_an_unknown_node_or_rank_is_bad_usage_and_the_valid_ones_are_listed(live, arguments, message) -> None:
    result = live(*arguments)
    assert (result.code, result.out, message in result.err) == (2, "", True), result.err


def test_a_missing_program_is_named_with_its_node(live) -> None:
    result = live("exec", "--node", "1", "--", "no-such-program")
    assert (result.code, result.err.splitlines()[0]) == (
        127,
        "clusterrun: 'no-such-program' cannot be started on local-1: No such file or directory",
    )


def test_exec_refuses_a_run_that_has_ended(ended) -> None:
    result = ended("exec", "--", "true")
    assert (result.code, "has ended (COMPLETED): it has no nodes any more" in result.err) == (2, True)


def test_exec_runs_if_the_folder_of_the_rank_was_removed(clusterrun: CommandLine) -> None:
    folder = Path(clusterrun.folder, "passing")
    folder.mkdir()
    (folder / "train.py").write_text((clusterrun.folder / "train.py").read_text())
    moved = CommandLine(folder, clusterrun.environment)
    assert moved("submit", "train.py", "wait").code == 0
    end = time.monotonic() + LIMIT
    while "training" not in moved("status", "--json").out:
        assert time.monotonic() < end
    (folder / "train.py").unlink()
    folder.rmdir()
    result = clusterrun("exec", "--", "printenv", "RANK")
    assert (result.code, result.out) == (0, "0\n"), result.err
