"""`--host` over a real sshd: commands there as if here, one login, and plain words where it cannot be."""

from __future__ import annotations

import json
import os
import signal


def test_a_command_there_has_its_output_and_its_exit_code(far):
    done = far.there("status", "--json")
    assert (done.returncode, json.loads(done.stdout)["runs"] is not None) == (0, True), done.stderr
    assert far.there("logs", "no-such-run").returncode == 5
    assert far.there("status", "--nonsense").returncode == 2


def test_all_commands_share_one_login(far):
    before = far.logins
    for _ in range(2):
        assert far.there("status").returncode == 0
    assert far.logins == before


def test_without_connection_and_terminal_the_command_to_type_is_told(make_far):
    far = make_far()
    before = far.logins
    done = far.there("status")
    assert done.returncode != 0
    assert "clusterrun --host cluster\n" in done.stderr
    assert "ssh -fN -M -S " in done.stderr
    assert far.logins == before
    far.open()
    assert far.there("status").returncode == 0
    (master,) = far.masters()
    os.kill(master, signal.SIGKILL)
    before = far.logins
    killed = far.there("status")
    assert "there is no connection to cluster" in killed.stderr, killed.stderr
    assert far.logins == before, "a stale socket never becomes a connection of its own"
