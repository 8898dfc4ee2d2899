"""Habits of users: sbatch's short options, GPUs with their type, q in a live display."""

from __future__ import annotations

import json
import os
import pty
import select
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CommandLine

LIMIT = 90.0
SLURMS = {
    "-p": ("gpu", "partition"),
    "-A": ("lab", "account"),
    "-q": ("high", "qos"),
    "-w": ("n[1-2]", "nodelist"),
    "-x": ("n3", "exclude"),
    "-C": ("a100", "constraint"),
}


def record(context: CommandLine, run_id: str) -> dict[str, Any]:
    path = Path(context.environment["CLUSTERRUN_HOME"], "runs", run_id, "record.json")
    result: dict[str, Any] = json.loads(path.read_text())["spec"]
    return result


def test_short_options_of_sbatch_are_those_of_submit(clusterrun: CommandLine) -> None:
    short = [word for name, (value, _) in SLURMS.items() for word in (name, value)]
    result = clusterrun(
        "submit", *short, "-t", "90", "-J", "mine", "-N", "2", "--wait", "train.py", "-p", "x"
    )
    assert result.code == 0, result
    spec = record(clusterrun, result.out.strip())
    assert {name: spec[name] for _, name in SLURMS.values()} == {
        name: value for value, name in SLURMS.values()
    }
    assert (spec["time"], spec["name"], spec["nodes"], spec["command"]) == (
        5400,
        "mine",
        2,
        ["train.py", "-p", "x"],
    )


@pytest.mark.parametrize("command", [("check", "--dry-run"), ("bench", "scaling", "--dry-run")])
def test_other_commands_that_start_jobs_take_them_too(
    clusterrun: CommandLine, command: tuple[str, ...]
) -> None:
    short = [word for name, (value, _) in SLURMS.items() for word in (name, value)]
    assert clusterrun(*command, *short, "-t", "10").code == 0


def test_a_module_is_found_behind_short_options(clusterrun: CommandLine) -> None:
    result = clusterrun("submit", "-ft", "90", "-J", "m", "-m", "train", "-t", "5")
    assert result.out == "local-0 r0 | rank 0 of 1 '-t' '5'\n"


@pytest.mark.parametrize(
    "typed",
    [
        "--ntasks 4 -o log --array=0-3 --sbatch error=e --srun label train.py --wrap x",
        "--srun=label -n4 --output=log -a 0-3 --nodes 2 --sbatch=error=e -m train --wrap x",
        "-n 4 -fo log --sbatch error=e -a0-3 --srun label -- train.py --wrap x",
    ],
)
def test_all_options_that_submit_lacks_or_refuses_are_named_at_once(
    clusterrun: CommandLine, typed: str
) -> None:
    result = clusterrun("submit", *typed.split())
    words = ("--ranks-per-node", "clusterrun logs", "sweep --set", "--sbatch error", "--srun label", "--wrap")
    assert (result.code, [word in result.err for word in words]) == (2, [True] * 5 + [False]), result.err


@pytest.mark.parametrize(
    "arguments",
    [("--gpus", "h100:2"), ("--gpus-per-node", "h100:2"), ("--gres", "gpu:h100:2"), ("--gpus=h100:2",)],
)
@pytest.mark.parametrize("where", ["submit", "check"])
def test_gpus_with_a_type_are_requested_in_each_usual_form(
    clusterrun: CommandLine, where: str, arguments: tuple[str, ...]
) -> None:
    command = ["train.py"] if where == "submit" else []
    result = clusterrun(where, *arguments, "--dry-run", *command)
    assert result.code == 0
    assert "2 GPUs requested, and this machine has none: 2 CPU ranks on each simulated node" in result.err


def test_a_configuration_names_the_type_too(clusterrun: CommandLine) -> None:
    (clusterrun.folder / "clusterrun.toml").write_text('[defaults]\ngpus = "h100:2"\n')
    assert "none: 2 CPU ranks" in clusterrun("submit", "--dry-run", "train.py").err
    assert "h100:2" in clusterrun("config", "show").out


def test_a_script_with_a_launcher_that_is_not_executable_is_refused_with_the_line(
    clusterrun: CommandLine,
) -> None:
    (clusterrun.folder / "run.sh").write_text("#!/bin/bash\ntorchrun --nproc_per_node=2 train.py --lr 1\n")
    result = clusterrun("submit", "run.sh")
    assert result.code == 2 and " train.py --lr 1" in result.err.splitlines()[-1]


def test_follow_prints_the_run_id_first(clusterrun: CommandLine) -> None:
    result = clusterrun("submit", "-f", "train.py")
    (run_id,) = os.listdir(Path(clusterrun.environment["CLUSTERRUN_HOME"], "runs"))
    assert (result.err.split("\n")[0], result.out) == (f"run {run_id}", "local-0 r0 | rank 0 of 1\n")


def test_every_default_is_shown_with_its_value(clusterrun: CommandLine) -> None:
    rows = {
        line.split()[0]: line.split(None, 1)[1] for line in clusterrun("config", "show").out.splitlines()[1:]
    }
    assert [
        rows[name].rsplit(None, 1)[0].strip() for name in ("nodes", "ranks-per-node", "max-restarts", "mem")
    ] == ["1", "1", "0; 3 with --spares or --requeue", "the partition's"]
    message = {"home", "cluster", "preflight"}
    assert {row.rsplit(None, 1)[-1] for name, row in rows.items() if name not in message} == {"default"}
    assert all(len(row.split()) > 1 for row in rows.values()), "a value that is not said"


def typed(context: CommandLine, *arguments: str, keys: bytes, once: bytes) -> tuple[int, bytes]:
    """Return the exit code of ``words`` on a terminal, and the picture.

    ``keys`` are typed when ``once`` appears. Without ``keys`` the terminal is closed then.
    """
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(context.folder)
        environment = {**context.environment, "TERM": "xterm"}
        os.execve(sys.executable, [sys.executable, "-m", "clusterrun", *arguments], environment)
    observed, sent, until = b"", False, time.monotonic() + LIMIT
    try:
        while not (sent and not keys):
            assert time.monotonic() < until, observed
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            observed += os.read(terminal, 65536)
            if once in observed and not sent:
                sent = True
                os.write(terminal, keys)
    except OSError:
        pass  # the end of a terminal
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), observed


@pytest.mark.parametrize(
    "arguments, code",
    [(("top", "stays"), 0), (("status", "--watch"), 0), (("status", "--watch", "stays"), 130)],
)
@pytest.mark.parametrize("keys", [b"q", b"\x03"], ids=["q", "Ctrl-C"])
def test_q_ends_a_live_display_as_ctrl_c_does_and_the_terminal_is_as_before(
    live: CommandLine, arguments: tuple[str, ...], code: int, keys: bytes
) -> None:
    ended, observed = typed(live, *arguments, keys=keys, once=b"RUNNING")
    assert (ended, observed.count(b"\x1b[?1049h"), observed.count(b"\x1b[?1049l")) == (code, 1, 1)
    assert live("status", "--json", "stays").out.count('"RUNNING"') == 1


def test_keys_are_neither_echoed_nor_passed_to_the_shell(live: CommandLine) -> None:
    ended, observed = typed(live, "top", "stays", keys=b"zzzq", once=b"RUNNING")
    assert (ended, b"zzz" in observed) == (0, False)


def test_a_closed_terminal_ends_top_and_removes_its_question(live: CommandLine) -> None:
    typed(live, "top", "stays", keys=b"", once=b"RUNNING")  # its exit code: that nobody reads what it prints
    (run_dir,) = Path(live.environment["CLUSTERRUN_HOME"], "runs").iterdir()
    assert os.listdir(run_dir / "asks") == []
