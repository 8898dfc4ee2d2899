"""`clusterrun lab` as typed: what goes to stdout and stderr, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.lab_fixture import MakeLab

NAME = f"c{os.getpid()}"


def typed(*arguments: str, timeout: float = 60) -> tuple[int, str, str]:
    argv = [sys.executable, "-m", "clusterrun.cli.main", "lab", *arguments]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=timeout)
    return result.returncode, result.stdout, result.stderr


@pytest.fixture
def up(make_lab: MakeLab) -> Iterator[str]:
    """Yield a lab that the command line started."""
    code, out, err = typed("up", "--name", NAME, "--nodes", "2", "--gpus", "2")
    assert (code, out) == (0, "")
    yield err
    typed("down", "--name", NAME)


@pytest.mark.lab
def test_a_users_first_minutes(up: str) -> None:
    assert f"clusterrun lab exec --name {NAME} -- sinfo" in up
    assert typed("exec", "--name", NAME, "--", "srun", "-N2", "true") == (0, "", "")
    assert typed("exec", "--name", NAME, "--", "sh", "-c", "exit 7")[0] == 7
    assert typed("fault", "cut", "n0001", "--to", "n0002", "--name", NAME)[2] == (
        "in force: cut n0001 to=n0002 rule=1000\n"
    )
    output = typed("status", "--name", NAME)[1]
    assert "2 nodes × 2 GPUs" in output and "fault: cut n0001 to=n0002" in output
    document = json.loads(typed("status", "--name", NAME, "--json")[1])["labs"][0]
    assert document["nodes"] == {"n0001": "idle", "n0002": "idle"}
    assert document["faults"] == [{"kind": "cut", "host": "n0001", "to": "n0002", "rule": "1000"}]
    assert typed("fault", "heal", "--name", NAME)[2] == "healed: cut n0001 to=n0002 rule=1000\n"
    assert typed("fault", "heal", "--name", NAME)[2] == "there was nothing to heal\n"
    inside = ("exec", "--name", NAME, "--", sys.executable, "-m", "clusterrun.cli.main", "lab")
    outside = ("exec", "--name", NAME, "--", "env", "-u", "SLURM_CONF", *inside[4:])
    for arguments in (("down", "--name", NAME), ("up", "--name", NAME), ("down",), ("up",)):
        code, out, err = typed(*outside, *arguments)
        assert (code, out, f"this is a host of the lab '{NAME}'" in err) == (2, "", True), err
    for arguments in (("fault", "heal"), ("fault", "heal", "--name", NAME), ("status",)):
        code, out, err = typed(*inside, *arguments)
        message = f"this is a host of the lab '{NAME}', and lab commands work only outside of it\n"
        assert (code, out, message in err) == (2, "", True)
    code, _, again = typed("up", "--name", NAME)
    assert (code, "is already up" in again) == (2, True)
    assert typed("down", "--name", NAME)[2] == f"the lab '{NAME}' is gone\n"
    assert typed("down", "--name", NAME)[2] == f"there was no lab '{NAME}'\n"


@pytest.mark.lab
@pytest.mark.parametrize("arguments", [("cut", "--both"), ("slow", "--rate", "5mbit")])
def test_a_fault_between_two_groups_affects_each_pair(lab, arguments: tuple[str, ...]) -> None:
    kind, *more = arguments
    typed("fault", kind, "n[0001-0002]", "--to", "n[0003-0004]", *more, "--name", lab.name)
    between = [(entry.host, entry.get("to")) for entry in lab.faults]
    assert typed("fault", "heal", "--name", lab.name)[0] == 0
    assert between == [(entry, other) for entry in ("n0001", "n0002") for other in ("n0003", "n0004")]


@pytest.mark.lab
@pytest.mark.parametrize(
    ("fault", "undo"),
    [
        ("freeze n0002", "thaw n0002"),
        ("kill n0002", "heal"),
        ("drain n0002 --reason bad-cable", "resume n0002"),
        ("controller stop", "controller start"),
        ("slow n0002 --rate 50mbit", "heal"),
        ("gpu n0002 --count 0", "heal"),
        ("gpu n0002 --hang", "heal"),
        ("name n0001=10.9.9.9", "heal"),
        ("name n0001=10.9.9.9 --host n0002", "heal"),
        ("disk-full n0002 /tmp", "heal"),
    ],
)
def test_every_fault_can_be_typed_and_undone(lab, fault: str, undo: str) -> None:
    code, _, message = typed("fault", *fault.split(), "--name", lab.name)
    assert (code, message.startswith("in force: "), len(lab.faults)) == (0, True, 1)
    assert typed("fault", *undo.split(), "--name", lab.name)[2].startswith("healed: ")
    assert lab.faults == () and lab.wait_idle(90)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("up", "--nodes", "0"), "--nodes must not be 0"),
        (("up", "--set", "KillWait"), "is not a setting"),
        (("exec", "--name", "nonesuch", "--", "true"), "no lab named 'nonesuch' is up"),
        (("status", "--name", "nonesuch"), "clusterrun lab up --name nonesuch"),
        (("fault", "kill", "n0001", "--name", "nonesuch"), "no lab named 'nonesuch' is up"),
        (("fault", "cut", "n0001", "--both"), "--both needs --to HOST"),
        (("fault", "name", "n0001"), "is not NAME=ADDRESS"),
    ],
)
def test_wrong_arguments_of_lab_are_refused_with_a_remedy(arguments: tuple[str, ...], message: str) -> None:
    code, out, err = typed(*arguments)
    assert (code, out, message in err, "Traceback" in err) == (2, "", True, False)
