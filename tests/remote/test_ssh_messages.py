"""Messages of ssh become a sentence and the next command. They were recorded from OpenSSH 9.2."""

from __future__ import annotations

import pytest

from clusterrun.remote.connection import explained

CHANGED = """@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\r
Offending ED25519 key in /home/me/.ssh/known_hosts:3\r
Host key for [127.0.0.1]:2299 has changed and you have requested strict checking.\r
Host key verification failed.\r
"""


@pytest.mark.parametrize(
    ("message", "observed", "remedy"),
    [
        (CHANGED, "not the one known", "ssh-keygen -f /home/me/.ssh/known_hosts -R '[127.0.0.1]:2299'"),
        (
            "ssh: Could not resolve hostname login1: Name or service not known\r\n",
            "not in ssh_config",
            "ssh login1",
        ),
        (
            "No ED25519 host key is known for x\r\nHost key verification failed.\r\n",
            "not accepted",
            "ssh login1",
        ),
        ("me@login1: Permission denied (publickey,password).\r\n", "refused the login", "ssh login1"),
        ("ssh: connect to host login1 port 22: Connection refused\r\n", "cannot be reached", "VPN"),
        ("ssh: connect to host login1 port 22: Connection timed out\r\n", "cannot be reached", "VPN"),
        ("something new\r\nand its end\r\n", "and its end", "ssh login1"),
        ("", "no reason", "ssh login1"),
    ],
)
def test_a_message_of_ssh_is_shown_with_the_next_command(message, observed, remedy) -> None:
    result = explained("cluster", "login1", message)
    assert observed in result[0]
    assert "cluster" in result[0]
    assert remedy in result[1]
