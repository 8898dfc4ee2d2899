"""An ordinary user whose folder of logs has lost its rights: every command names it, none waits for it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.lab.lab import Lab
from clusterrun.system import Completed
from tests.lab.test_slurm_runs import until

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
WAITS = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\n"


PATHS = os.pathsep.join([str(ROOT), *(path for path in sys.path if path.endswith("-packages"))])


def python_for(lab: Lab, user: str) -> str:
    """Return a Python of the lab's hosts with clusterrun that this user may run. Skip if there is none."""
    own = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (os.path.realpath(sys.executable), own, "/usr/bin/python3"):
        argv = [python, "-m", "clusterrun", "--version"]
        if lab.exec(argv, user=user, cwd="/", timeout=60, env={"PYTHONPATH": PATHS}).code == 0:
            return python
    pytest.skip(f"{user} may run no Python with clusterrun here")


class Alice:
    """An ordinary user of the lab, in her home, with a run that waits."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.python = lab, python_for(lab, "alice")
        self.run_id, self.run_dir = "", Path()

    def does(self, *argv: str) -> Completed:
        return self.lab.exec(argv, user="alice", cwd="/", timeout=120, env={"PYTHONPATH": PATHS})

    def types(self, *arguments: str) -> Completed:
        return self.does(
            "env",
            "NO_COLOR=1",
            "sh",
            "-c",
            'cd && exec "$@"',
            "-",
            self.python,
            "-m",
            "clusterrun",
            *arguments,
        )

    def submits(self, script: str) -> None:
        assert self.does("sh", "-c", 'cd && rm -f go && printf %s "$1" > wait.py', "-", script).code == 0
        options = ("--nodes", "2", "--ranks-per-node", "1", "--gpus", "0", "--nodelist", "n0001,n0002")
        result = self.types("submit", "--cluster", "slurm", "--json", *options, "wait.py")
        assert result.code == 0, result.err
        answer = json.loads(result.out)
        self.run_id, self.run_dir = answer["run_id"], Path(answer["run_dir"])

    def up(self) -> bool:
        messages = [path.read_text() for path in self.run_dir.glob("attempts/000/*.out")]
        return messages == ["up\n"] * 2 and '"training"' in (self.run_dir / "state.json").read_text()


@pytest.fixture
def alice(lab: Lab) -> Iterator[Alice]:
    user = Alice(lab)
    user.submits(WAITS)
    until(user.up)
    yield user
    user.types("cancel", user.run_id)


def test_an_unreadable_folder_of_logs_is_named_and_the_rest_is_shown(alice: Alice) -> None:
    folder = alice.run_dir / "attempts"
    for bad in (folder / "000", folder):
        assert alice.does("chmod", "000", str(bad)).code == 0
        try:
            message = {
                arguments: alice.types(*arguments.split(), alice.run_id)
                for arguments in ("logs", "diagnose", "top --once", "status", "status --json")
            }
        finally:
            alice.does("chmod", "700", str(bad))
        refusal = f"error: {bad} is not readable\nas its owner: chmod u+rwX {bad}\n"
        for arguments in ("logs", "diagnose", "top --once"):
            assert (arguments, message[arguments].code, message[arguments].err) == (arguments, 1, refusal)
        assert message["status"].code == 0 and f"{bad}" in message["status"].out
        assert "RUNNING, training" in message["status"].out
        assert json.loads(message["status --json"].out)["runs"][0]["phase"] == "training"


def test_an_unreadable_log_file_is_named(alice: Alice) -> None:
    bad = alice.run_dir / "attempts/000/00001.out"
    assert alice.does("chmod", "000", str(bad)).code == 0
    message = alice.types("logs", alice.run_id)
    other = alice.types("logs", "--rank", "0", alice.run_id)
    assert (message.code, message.err) == (
        1,
        f"error: {bad} is not readable\nas its owner: chmod u+rwX {bad}\n",
    )
    assert (other.code, other.out) == (0, "n0001 r0 | up\n")


def test_the_run_of_somebody_else_is_nobody_s_to_see(alice: Alice) -> None:
    alice.does("chmod", "711", str(alice.run_dir.parents[2]))
    home = {"PYTHONPATH": PATHS, "CLUSTERRUN_HOME": str(alice.run_dir.parents[1])}
    argv = [alice.python, "-m", "clusterrun", "status", alice.run_id]
    arguments = ["env", *(f"{name}={value}" for name, value in home.items()), *argv]
    result = alice.lab.exec(arguments, user="bob", cwd="/", timeout=120)
    assert result.code != 0 and "Traceback" not in result.err and str(alice.run_dir.parents[1]) in result.err
