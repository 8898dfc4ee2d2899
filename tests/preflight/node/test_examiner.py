"""Real examiners on the loopback: what they answer, what strangers get, and that they leave nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.model.frozen import replace
from clusterrun.model.preflight_report import Grade
from clusterrun.preflight import registry, tasks
from clusterrun.preflight.tasks import (
    DialTask,
    ExchangeTask,
    GroupMember,
    GroupTask,
    ListenAnswer,
    ListenTask,
    LocalTask,
    RunNeeds,
    StartTorch,
    Target,
)
from tests.preflight.loopback import Loopback, Node, loopback_orders, run_directory
from tests.preflight.node.test_forked_call import eventually, is_gone

NOWHERE = "192.0.2.7"
"""An address that exists nowhere (RFC 5737)."""
NONCE = "c0ffee"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return run_directory(tmp_path)


@pytest.fixture
def two(run_dir: Path) -> Iterator[tuple[Node, Node]]:
    nodes = Node(run_dir, "n1"), Node(run_dir, "n2")
    yield nodes
    assert [node.end() for node in nodes] == [0, 0]


def target(
    node: int, listening: ListenAnswer, ports: tuple[int, ...] = (), address: str = "127.0.0.1"
) -> Target:
    return Target(node, f"n{node}", address, ports or listening.ports, listening.udp_port)


def test_two_nodes_reach_each_other_on_all_ports_with_large_packets_and_datagrams(two) -> None:
    entry, other = two
    task = ListenTask(NONCE)
    first, second = entry.ask(1, task), other.ask(1, task)
    assert len(set(first.ports)) == 8 and not set(first.ports) & set(second.ports)
    dial = DialTask(NONCE, 0, (target(1, second),), 30.0)
    answer = entry.ask(2, dial)
    (actual,) = answer.dialled
    assert (actual.node, actual.refused, actual.silent, actual.large, actual.why) == (1, (), (), True, "")
    back = DialTask(NONCE, 1, (target(0, first),), 30.0)
    assert other.ask(2, back).heard == (0,)


def test_a_node_listens_on_the_port_of_torchrun_until_messages_are_exchanged(two) -> None:
    entry, other = two
    with socket.socket() as program:
        program.bind(("127.0.0.1", 0))
        port = program.getsockname()[1]
        program.listen()
        assert not entry.ask(1, ListenTask(NONCE, port)).holds_port  # it is the program's
    assert entry.ask(2, ListenTask(NONCE, port)).holds_port
    assert not other.ask(2, ListenTask(NONCE, port)).holds_port
    sweep = DialTask("", 1, (Target(0, "n1", "127.0.0.1", (port,), 0),), 30.0, closed=True)
    assert other.ask(3, sweep).dialled[0].refused == ()
    assert entry.ask(3, ExchangeTask(NONCE, 0, (), 0.0)).exchanged == ()
    assert other.ask(4, sweep).dialled[0].refused == (port,)


def test_messages_pass_both_ways_from_the_first_watch_task_and_both_ends_count(two) -> None:
    entry, other = two
    first, second = entry.ask(1, ListenTask(NONCE)), other.ask(1, ListenTask(NONCE))
    assert entry.ask(2, ExchangeTask(NONCE, 0, (target(1, second),), 0.0)).exchanged[0].node == 1
    assert other.ask(2, ExchangeTask(NONCE, 1, (target(0, first),), 0.0)).exchanged

    def enough() -> bool:
        numbers.append(numbers[-1] + 1)
        observed = [
            node.ask(numbers[-1], ExchangeTask(NONCE, at, (), 0.1)).exchanged for at, node in enumerate(two)
        ]
        assert all({line.node for line in own} == {1 - at} for at, own in enumerate(observed))
        return all(len(own) == 2 and all(line.sent >= 5 for line in own) for own in observed)

    numbers = [2]
    eventually(enough)


def test_a_silent_or_refusing_port_costs_one_limit(two) -> None:
    entry, _ = two
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        shut = nobody.getsockname()[1]
        local = entry.ask(1, ListenTask(NONCE))
        goals = (target(5, local, (shut,)), target(6, local, (9, 10), NOWHERE))
        answer = entry.ask(2, DialTask(NONCE, 0, goals, 1.0))
    refused, silent = answer.dialled
    assert (refused.refused, refused.silent) == ((shut,), ())
    assert set(silent.silent) | set(silent.refused) == {9, 10}


def test_a_dialler_without_the_nonce_is_a_stranger(two) -> None:
    entry, other = two
    ports = other.ask(1, ListenTask(NONCE)).ports
    local = entry.ask(1, ListenTask(NONCE))
    answer = entry.ask(2, DialTask("wrong", 0, (Target(1, "n2", "127.0.0.1", ports[:1], 9),), 2.0))
    assert answer.dialled[0].refused == ports[:1]
    for port in ports:
        with socket.create_connection(("127.0.0.1", port)) as guest:
            guest.sendall(b"GET / HTTP/1.0\r\n" * 50)
    again = DialTask(NONCE, 1, (target(0, local),), 30.0)
    assert other.ask(3, again).dialled[0].silent == ()


def asked(run_dir: Path) -> RunNeeds:
    return RunNeeds(str(run_dir), "", "/", 0, 1)


def test_checks_run_in_children_and_an_unknown_one_is_reported(two, run_dir) -> None:
    answer = two[0].ask(1, LocalTask(asked(run_dir), ("shared-memory", "of-tomorrow")))
    readings = {reading.check: reading for reading in answer.readings}
    assert json.loads(readings["shared-memory"].value)["size"] > 0
    assert (readings["of-tomorrow"].value, readings["of-tomorrow"].why) == (
        "",
        "this node's version has no such check",
    )


def test_checks_that_others_have_done_long_ago_can_be_called_late_before_their_limit(
    run_dir, tmp_path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    node = Node(run_dir, "n1", {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"})
    try:
        task = LocalTask(asked(run_dir), ("gpus", "nvlink", "shared-memory"))
        node.tell(1, tasks.message_text(task))
        results = {value.check: value for value in node.ask(1, replace(task, limit=5.0)).readings}
    finally:
        node.end()
    assert {name: value.late for name, value in results.items()} == {
        "gpus": True,
        "nvlink": True,
        "shared-memory": False,
    }
    assert "sleep" in results["gpus"].why


def test_lines_that_are_no_task_are_skipped(two) -> None:
    entry, _ = two
    entry.stdin.write(b"nonsense\n{}\n" + b'{"number": 1, "body": "[]"}\n')
    assert entry.ask(4, ListenTask(NONCE)).ports


def test_a_test_without_a_torch_worker_fails_at_once_with_a_reason(two) -> None:
    entry, _ = two
    members = (GroupMember(0, "n1", "127.0.0.1"), GroupMember(1, "n2", "127.0.0.1"))
    result = entry.ask(1, GroupTask(7, "pair", members, 0, 1, 0, "", 5.0))
    assert (result.test, result.passed, result.stage) == (7, False, "warm")
    up = entry.ask(2, StartTorch("/nowhere/python", "/"))
    assert (up.up, "No such file" in up.why) == (False, True)


def test_an_examiner_ends_with_all_it_started_when_its_input_closes(run_dir) -> None:
    node = Node(run_dir, "n1")
    node.ask(1, StartTorch(sys.executable, "/"))
    below = [
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(pid) == node.process.pid
    ]
    assert below
    assert node.end() == 0
    eventually(lambda: all(map(is_gone, below)))


def test_a_killed_examiner_ends_its_children(run_dir) -> None:
    node = Node(run_dir, "n1")
    node.ask(1, StartTorch(sys.executable, "/"))
    below = [
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(pid) == node.process.pid
    ]
    node.process.kill()
    node.end()
    eventually(lambda: all(map(is_gone, below)))


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.fixture
def no_checks(monkeypatch):
    """Leave out the checks of this machine."""
    monkeypatch.setattr(registry, "check_names", lambda *_, **__: ())


def test_a_complete_check_by_three_real_examiners_passes(run_dir, no_checks) -> None:
    nodes = Loopback(run_dir, loopback_orders(3), {})
    try:
        outcome = nodes.outcome()
    finally:
        nodes.end()
    assert {entry.verdict for entry in outcome.report.nodes} == {Grade.PASS}
    assert (outcome.fit, outcome.world, outcome.report.backend) == (True, (0, 1, 2), "gloo")
    assert {test.outcome for test in outcome.report.tests} == {"passed"}
    assert outcome.environment == (("GLOO_SOCKET_IFNAME", "lo"), ("NCCL_SOCKET_IFNAME", "=lo"))


def test_a_real_node_that_adds_wrongly_is_named(run_dir, no_checks) -> None:
    hook = {node: {"CLUSTERRUN_TEST_CORRUPT_NODE": "n1"} for node in range(3)}
    nodes = Loopback(run_dir, loopback_orders(3), hook)
    try:
        outcome = nodes.outcome()
    finally:
        nodes.end()
    failed = {
        entry.node: [f.check for f in entry.findings] for entry in outcome.report.nodes if entry.findings
    }
    assert (outcome.fit, outcome.excluded, failed) == (False, ("n1",), {"n1": ["sums"]})


def test_a_real_examiner_that_is_stopped_is_named(run_dir, no_checks) -> None:
    nodes = Loopback(run_dir, loopback_orders(3), {})
    nodes.nodes[2].process.send_signal(signal.SIGSTOP)
    try:
        outcome = nodes.outcome()
    finally:
        nodes.end()
    assert (outcome.fit, outcome.excluded, outcome.world) == (False, ("n2",), (0, 1))
