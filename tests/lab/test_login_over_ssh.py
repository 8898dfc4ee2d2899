"""From a laptop to a real Slurm: an sshd on the lab's login host that takes each code once."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from clusterrun.lab.spec import LOGIN
from tests.sshd_fixture import Far

PAM = """auth requisite pam_exec.so quiet expose_authtok {check}
auth required pam_permit.so
account required pam_permit.so
session required pam_permit.so
"""
CHECK = """#!/bin/sh
code=$(tr -d '\\0')
[ -n "$code" ] && [ -e {codes}/"$code" ] && rm {codes}/"$code"
"""
ASKS = (
    "UsePAM yes",
    "PubkeyAuthentication no",
    "PasswordAuthentication no",
    "KbdInteractiveAuthentication yes",
    "MaxSessions 1",
)


@pytest.fixture
def cluster(lab, make_far, tmp_path_factory) -> Iterator[Far]:
    """The lab behind an sshd that asks for a one-time code, and allows one session at a time."""
    place = tmp_path_factory.mktemp("codes")
    check, codes, project = place / "check", place / "codes", place / "project"
    codes.mkdir()
    project.mkdir()
    check.write_text(CHECK.format(codes=codes))
    check.chmod(0o755)
    written = lab.exec(["tee", "/etc/pam.d/sshd"], stdin=PAM.format(check=check))
    assert written.code == 0, written.err
    front, environment = lab.entering(LOGIN, {}, str(project))
    there = {name: environment[name] for name in ("PATH", "SLURM_CONF") if name in environment}
    far = make_far(*ASKS, front=front, variables={**there, "CLUSTERRUN_CLUSTER": "slurm"})
    far.codes = codes
    yield far
    far.end()


def test_a_one_time_code_is_typed_once_for_all_commands(cluster):
    (cluster.codes / "246810").touch()
    before = cluster.logins
    code, seen = cluster.terminal(
        *("--host", "cluster", "status", "--json"), answers=[(r"[Pp]assword:", "246810\n")]
    )
    assert code == 0, seen + (cluster.folder / "sshd.log").read_text()
    made = cluster.there("submit", "--nodes", "2", "--wait", "--json", "sh", "-c", "echo on $(hostname)")
    assert made.returncode == 0, made.stderr
    (run,) = json.loads(cluster.there("status", "--json", "last").stdout)["runs"]
    assert (run["cluster"], run["state"], run["world_size"]) == ("slurm", "COMPLETED", 2)
    assert cluster.there("logs", "--raw").stdout.count("on n0") == 2
    assert cluster.logins == before + 1
    assert list(cluster.codes.iterdir()) == []


def test_a_code_that_was_used_is_refused_in_plain_words(cluster, tmp_path):
    code, seen = cluster.terminal(
        *("--host", "cluster", "status"),
        answers=[(r"[Pp]assword:", "246810\n")] * 3,
        CLUSTERRUN_HOME=str(tmp_path),
    )
    assert code == 1
    assert "cluster refused the login" in seen
