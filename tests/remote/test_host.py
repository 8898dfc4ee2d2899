"""`--host` over a real sshd: commands there as if here, one login, and plain words where it cannot be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from functools import partial

import click
import pytest

from clusterrun.cli.host import FETCHED, _own
from clusterrun.cli.main import root
from tests.sshd_fixture import CLUSTERRUN, LIMIT, free_port, wait_until


def test_a_remote_command_returns_its_output_and_exit_code(far) -> None:
    result = far.there("status", "--json")
    assert (result.returncode, json.loads(result.stdout)["runs"] is not None) == (0, True), result.stderr
    assert far.there("logs", "no-such-run").returncode == 5
    assert far.there("status", "--nonsense").returncode == 2


def test_all_commands_share_one_login(far) -> None:
    before = far.logins
    for _ in range(2):
        assert far.there("status").returncode == 0
    assert far.logins == before


def test_the_command_to_type_is_printed_without_connection_and_terminal(make_far) -> None:
    far = make_far()
    before = far.logins
    result = far.there("status")
    assert result.returncode != 0
    assert "clusterrun --host cluster\n" in result.stderr
    assert "ssh -fN -M -S " in result.stderr
    assert far.logins == before
    far.open()
    assert far.there("status").returncode == 0
    (master,) = far.masters()
    os.kill(master, signal.SIGKILL)
    before = far.logins
    killed = far.there("status")
    assert "there is no connection to cluster" in killed.stderr, killed.stderr
    assert far.logins == before, "a stale socket never becomes a connection of its own"


def test_homes_with_names_too_long_for_a_socket_share_no_connection(make_far) -> None:
    far = make_far()
    homes = [str(far.folder / (letter * 90)) for letter in "ab"]
    far.environment["CLUSTERRUN_HOME"] = homes[0]
    far.open()
    assert [far.there("status", CLUSTERRUN_HOME=home).returncode != 0 for home in homes] == [False, True]


def test_uncommitted_code_is_sent_with_its_note(far, project) -> None:
    arguments = ("a b", "it's", "$HOME", "!", "\n")
    tokens = ("submit", "--json", "--wait", "it's.py", *arguments)
    result = far.there(*tokens, cwd=project / "sub")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    printed = far.there("logs", "--raw", document["run_id"])
    assert printed.stdout == f"changed {list(arguments)}\n"
    note = (far.home / "runs" / document["run_id"] / "snapshot.txt").read_text()
    assert note.startswith(f"root {project}\ncommit ")
    assert "+import sys; print('changed'" in note
    assert "clusterrun --host cluster logs" in far.there("submit", "true", cwd=project).stderr


def test_the_command_runs_in_the_remote_folder_without_a_snapshot(far, project) -> None:
    result = far.there("submit", "--no-snapshot", "--wait", "--json", "pwd", cwd=project)
    assert result.returncode == 0, result.stderr
    printed = far.there("logs", "--raw", json.loads(result.stdout)["run_id"])
    assert printed.stdout == f"{far.folder}/cluster\n"


def test_a_program_beside_a_run_has_our_streams(far, live) -> None:
    result = far.there("exec", live, "--", "sh", "-c", "cat; echo oops >&2; exit 7", stdin="through\n")
    assert (result.returncode, result.stdout, "oops" in result.stderr) == (7, "through\n", True), (
        result.stderr
    )


def test_a_remote_command_gets_standard_input_only_if_it_reads_it(far, project) -> None:
    result = far.there("submit", "--wait", "--json", "sh", stdin="echo from here\n", cwd=project)
    assert result.returncode == 0, result.stderr
    printed = far.there("logs", "--raw", json.loads(result.stdout)["run_id"])
    assert printed.stdout == "from here\n"
    refused = far.there("submit", "sh", stdin="", cwd=project)
    assert (refused.returncode, "standard input is empty" in refused.stderr) == (2, True), refused.stderr
    (project / "names").write_text("a\nb\n")
    loop = 'while read -r name; do "$@" && echo $name; done < names'
    result = subprocess.run(
        ("sh", "-c", loop, "sh", *CLUSTERRUN, "--host", "cluster", "status"),
        env=far.environment,
        cwd=project,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert [line for line in result.stdout.splitlines() if line in ("a", "b")] == ["a", "b"], result.stderr


def test_a_remote_terminal_has_the_local_size_and_keys(far, live) -> None:
    code, observed = far.terminal(
        *("--host", "cluster", "exec", live, "--", "sh", "-c", "stty size; read line; echo got $line"),
        answers=[(r"31 101", "typed\r")],
    )
    assert (code, "got typed" in observed) == (0, True), observed


def test_ctrl_c_detaches_from_a_remote_run(far, live) -> None:
    code, observed = far.terminal("--host", "cluster", "logs", "-f", live, answers=[(r"tick \d+", "\x03")])
    assert code == 130, observed
    assert f"clusterrun --host cluster logs -f {live}" in observed
    assert f'"run_id": "{live}"' in far.there("status", "--json", live).stdout


def test_a_remote_command_ends_if_nobody_reads_its_output(far, live) -> None:
    with far.started("exec", live, "--", "sh", "-c", "echo $$; exec sleep 600") as process:
        sleeper = int(process.stdout.readline())
        os.killpg(process.pid, signal.SIGTERM)
        wait_until(lambda: not os.path.exists(f"/proc/{sleeper}"))


def test_a_link_that_is_away_for_a_while_costs_no_line_of_the_logs(far, live) -> None:
    with far.started("logs", "-f", "--raw", "--tail", "1", live) as process:
        numbers = [int(process.stdout.readline().split()[1])]
        sessions = far.sessions()
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for session in sessions:
                os.kill(session, number)
            time.sleep(2.0 if number == signal.SIGSTOP else 0.0)  # so long the link is away
        numbers += [int(process.stdout.readline().split()[1]) for _ in range(40)]
    assert numbers == list(range(numbers[0], numbers[0] + 41))


def test_a_file_that_a_remote_command_writes_is_copied_back(far, project) -> None:
    result = far.there("submit", "--preflight", "quick", "--wait", "true", cwd=project)
    assert result.returncode == 0, result.stderr
    target = far.folder / "a report.html"
    result = far.there("report", "--html", str(target), result.stdout.strip())
    assert (result.returncode, target.read_text()[:9].lower()) == (0, "<!doctype"), result.stderr
    assert list((far.home / "outbox").iterdir()) == []


@pytest.mark.parametrize(
    "arguments, own",
    [
        ("report --html a.html last", 4),
        ("rehearse --html a.html train.py --html b.html", 3),
        ("bench scaling --plot=a.png", 3),
        ("sweep results --plot a.png mine", 5),
    ],
)
def test_arguments_of_a_script_are_not_options_of_the_command(arguments, own) -> None:
    assert _own(arguments.split(), partial(root.get_command, click.Context(root))) == own
    names = FETCHED.get(arguments.split()[0]) or FETCHED[" ".join(arguments.split()[:2])]
    assert {"--html", "--plot"} & set(names)


def test_a_limit_of_one_session_suffices_and_a_second_is_reported(make_far) -> None:
    far = make_far("MaxSessions 1")
    far.open()
    result = far.there("submit", "sh", "-c", "echo on; sleep 600")
    assert result.returncode == 0, result.stderr
    with far.started("logs", "-f", result.stdout.strip()) as process:
        assert "on" in process.stdout.readline()
        refused = far.there("status")
        assert "MaxSessions" in refused.stderr, refused.stderr
        assert refused.returncode == 1
    assert far.there("cancel", result.stdout.strip()).returncode == 0
    with far.started("submit", "--follow", "sh", "-c", "echo on; sleep 600") as process:
        assert "on" in process.stdout.readline()
        (master,) = far.masters()
        os.kill(master, signal.SIGKILL)
        assert process.wait(LIMIT) == 1
        message = process.stderr.read()
    assert "the connection to cluster was lost; what runs there continues" in message
    assert "clusterrun --host cluster status" in message
    far.open()
    assert far.there("cancel", "last").returncode == 0


def test_an_open_master_of_the_users_own_is_used(make_far) -> None:
    far = make_far()
    far.write_config(f"ControlPath {far.folder}/own-%n", "ControlMaster auto")
    tokens = ("ssh", "-fN", "-o", "ControlPersist=yes", "cluster")
    subprocess.run(tokens, env=far.environment, check=True, timeout=LIMIT, stderr=subprocess.DEVNULL)
    before = far.logins
    assert far.there("status").returncode == 0
    assert far.logins == before


def test_another_host_key_is_refused_with_the_command_that_follows(make_far) -> None:
    far = make_far()
    key = (far.folder / "laptop.id.pub").read_text()
    (far.folder / "known_hosts").write_text(f"[127.0.0.1]:{far.port} {key}")
    code, observed = far.terminal("--host", "cluster", "status")
    assert code == 1
    assert f"ssh-keygen -f {far.folder}/known_hosts -R '[127.0.0.1]:{far.port}'" in observed


def test_an_unknown_host_is_reported(far) -> None:
    code, observed = far.terminal("--host", "no-such-host.invalid", "status")
    assert (code, "not in ssh_config" in observed) == (1, True), observed


def test_a_mistake_is_reported_before_anything_is_sent(make_far) -> None:
    far = make_far()
    result = far.there("submit", "--nonsense", "train.py")
    assert (result.returncode, "there is no option --nonsense" in result.stderr) == (2, True), result.stderr
    assert far.run("--host=-oProxyCommand=id", "status").returncode == 2


def test_a_port_of_a_run_is_forwarded_until_the_command_ends(far, project) -> None:
    server = (
        "import socket; s = socket.create_server(('127.0.0.1', 0))\n"
        "print('port', s.getsockname()[1], flush=True)\n"
        "while True: c = s.accept()[0]; c.sendall(b'from the node'); c.close()\n"
    )
    (project / "server.py").write_text(server)
    run = far.there("submit", "server.py", cwd=project).stdout.strip()
    try:
        with far.started("logs", "-f", "--raw", run) as logs:
            port = logs.stdout.readline().split()[1]
        local = free_port()
        with far.started("forward", run, port, "--local", str(local)) as forward:
            assert forward.stdout.readline() == f"127.0.0.1:{local}\n"
            assert said_at(local) == b"from the node"
            forward.send_signal(signal.SIGINT)
            assert forward.wait(LIMIT) == 0
            with pytest.raises(ConnectionRefusedError):
                said_at(local)
    finally:
        far.there("cancel", run)
        (project / "server.py").unlink()


def test_a_port_without_a_server_is_reported_and_retried_at_each_connection(far, live) -> None:
    port, local = free_port(), free_port()
    with far.started("forward", live, str(port), "--local", str(local)) as forward:
        assert forward.stdout.readline() == f"127.0.0.1:{local}\n"
        message = "".join(forward.stderr.readline() for _ in range(2))
        assert "nothing listens there yet (Connection refused): every connection tries anew\n" in message
        assert said_at(local) == b""
        with socket.create_server(("127.0.0.1", port)) as server:
            answer = threading.Thread(target=lambda: server.accept()[0].sendall(b"later"), daemon=True)
            answer.start()
            assert said_at(local) == b"later"
            answer.join(LIMIT)
        forward.send_signal(signal.SIGINT)
        assert forward.wait(LIMIT) == 0


def said_at(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), LIMIT) as connection:
        return connection.recv(100)
