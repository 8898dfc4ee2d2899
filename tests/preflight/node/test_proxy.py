"""An examiner that another one started, on a node that no agent reached: asked through it, and sent away."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.preflight import tasks
from clusterrun.preflight.node.proxy import RemoteExaminer, RemoteExaminers, RunningThrough
from clusterrun.preflight.session import absent_nodes
from clusterrun.preflight.session.node_state import NodeState
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import DialTask, ListenAnswer, ListenTask, Target, ThroughAnswer, ThroughTask
from clusterrun.runtime.machine_events import Now
from tests.preflight.loopback import Node, run_directory
from tests.preflight.node.test_forked_call import eventually, is_gone
from tests.preflight.simulated import name, orders

NONCE = "c0ffee"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return run_directory(tmp_path)


@pytest.fixture
def one(run_dir: Path) -> Iterator[Node]:
    node = Node(run_dir, "n1")
    yield node
    assert node.end() == 0


def through(argv: tuple[str, ...], body: str, limit: float = 60.0) -> ThroughTask:
    return ThroughTask("n2", argv, body, limit)


def examine(run_dir: Path) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", str(run_dir / "agent.pyz"), "examine", str(run_dir), "n2")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_node_is_asked_through_another_and_its_examiner_ends_on_dismissal(one, run_dir) -> None:
    argv = examine(run_dir)
    first = one.ask(1, through(argv, tasks.message_text(ListenTask(NONCE))))
    other_place = tasks.answer(ListenTask(NONCE), first.body)
    assert isinstance(other_place, ListenAnswer)
    (remote,) = children(one.process.pid)
    local = one.ask(2, ListenTask(NONCE))
    target = Target(1, "n1", "127.0.0.1", local.ports, local.udp_port)
    dial = DialTask(NONCE, 2, (target,), 30.0)
    met = tasks.answer(dial, one.ask(3, through(argv, tasks.message_text(dial))).body)
    assert (met.dialled[0].silent, met.dialled[0].refused, met.dialled[0].large) == ((), (), True)
    assert children(one.process.pid) == [remote], "it is started once"
    assert one.ask(4, through(argv, "")) == ThroughAnswer("")
    eventually(lambda: is_gone(remote))


@pytest.mark.parametrize(
    ("argv", "limit", "why"),
    [
        (("/bin/sh", "-c", "echo no such node; exit 1"), 60.0, "no such node"),
        (("/no/such/program",), 60.0, "/no/such/program: [Errno 2] No such file or directory"),
        (("/bin/sh", "-c", "exec sleep 100"), 1.0, "no answer within the limit"),
    ],
)
def test_an_examiner_that_cannot_start_is_the_answer(one, argv, limit, why) -> None:
    answer = one.ask(1, through(argv, tasks.message_text(ListenTask(NONCE)), limit))
    assert (answer.body, why in answer.why) == ("", True)


def test_a_program_that_exited_early_answers_with_its_last_output() -> None:
    readers = []
    remote = RemoteExaminer(
        ("/bin/sh", "-c", "echo no such node; exit 1"),
        os.environ,
        lambda fd, mask, read: readers.append(read),
    )
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    requested = RunningThrough(through((), "a task"), remote, "")
    while not requested.tick():
        readers[0](0)
    assert requested.answer() == ThroughAnswer("", "no such node")


def test_the_program_that_launches_agents_launches_an_examiner_on_one_node() -> None:
    launch = ("srun", "--nodes=5", "--ntasks=5", "--ntasks-per-node=1", "/py", "/a.pyz", "agent", "/run")
    assert absent_nodes.examiner_on(launch, "n3") == (
        *("srun", "--overlap", "--immediate=2", "--nodelist=n3", "--nodes=1", "--ntasks=1"),
        *("--ntasks-per-node=1", "/py", "/a.pyz", "examine", "/run", "n3"),
    )
    assert absent_nodes.examiner_on((), "n3") == ()


def test_an_examiner_uses_neither_nodes_nor_wait_of_the_allocation() -> None:
    launch = ("srun", "--immediate=100", "--nodelist=n[1-5]", "--nodes=5", "/py", "/a.pyz", "agent", "/run")
    assert absent_nodes.examiner_on(launch, "n3") == (
        *("srun", "--overlap", "--immediate=2", "--nodelist=n3", "--nodes=1"),
        *("/py", "/a.pyz", "examine", "/run", "n3"),
    )


def test_an_examiner_on_another_node_requests_no_memory_of_the_job() -> None:
    readers = []
    environment = {"PATH": os.environ["PATH"], "SLURM_MEM_PER_NODE": "1", "SLURM_JOB_ID": "7"}
    scouts = RemoteExaminers(environment, lambda fd, mask, read: readers.append(read))
    argv = ("/bin/sh", "-c", "echo $SLURM_JOB_ID:$SLURM_MEM_PER_NODE")
    requested = scouts.through(through(argv, "a task"))
    while not requested.tick():
        readers[0](0)
    assert requested.answer() == ThroughAnswer("", "7:")


def test_no_node_is_examined_through_another_if_all_are_one_machine() -> None:
    subjects = [NodeState(node, name(node), "127.0.0.1") for node in range(3)]
    case = SessionState(orders(3), subjects, Now(0.0, 0.0), "/r")
    assert list(absent_nodes.rounds_through(case, [])) == []
    assert case.asks == []
