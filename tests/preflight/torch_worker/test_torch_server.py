"""The laws of real torch workers: sound ones pass, a failure is reported with the stage it reached."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.model.frozen import replace
from clusterrun.preflight.tasks import CPU_WAIT
from clusterrun.preflight.torch_worker.torch_server import CORRUPT_VARIABLE, ListeningPorts
from tests.preflight.torch_worker.nodes import Node, alive, begin, group, partner, results, running, until

PAIR_RATES = {"all_reduce", "send", "receive"}


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """Yield three nodes. One of them corrupts its results."""
    with running("n1", "n2", "bad", environment={CORRUPT_VARIABLE: "bad,worse"}) as started:
        yield started


def test_a_torch_worker_reports_its_python_and_packages(nodes) -> None:
    import torch

    observed = dict(nodes[0].up.versions)
    assert observed["torch"] == torch.__version__
    assert observed["python"] == sys.version.split()[0]
    assert (nodes[0].up.backend, nodes[0].up.devices) == ("gloo", 0) or nodes[0].up.backend == "nccl"


def test_a_sound_pair_passes_on_both_sides_with_a_rate_for_each_way(nodes) -> None:
    for result in results(*nodes[:2]):
        assert (result.passed, result.stage, result.wrong, result.why, result.late) == (
            True,
            "done",
            "",
            "",
            False,
        )
        rates = dict(result.rates)
        assert rates.keys() == {*PAIR_RATES, CPU_WAIT}
        assert min(rates[name] for name in PAIR_RATES) > 0
        assert 0 <= rates[CPU_WAIT] <= 1


def test_ranks_of_a_node_test_their_paths_at_once_and_report_separately(nodes) -> None:
    for result in results(*nodes[:2], ranks=2):
        assert (result.passed, result.stage) == (True, "done")
        rates = dict(result.rates)
        by_rank = {f"{name}:{rank}" for name in PAIR_RATES for rank in (0, 1)}
        assert rates.keys() == {*PAIR_RATES, *by_rank, CPU_WAIT}
        assert rates["send"] == rates["send:0"] + rates["send:1"]
        assert rates["all_reduce"] == min(rates["all_reduce:0"], rates["all_reduce:1"])


def test_a_set_passes_together_and_a_node_alone_too(nodes) -> None:
    for result in results(*nodes[:2], kind="set", ranks=2):
        assert (result.passed, result.stage, set(dict(result.rates)) >= {"all_reduce"}) == (
            True,
            "done",
            True,
        )
    alone = results(nodes[0], kind="set")[0]
    assert (alone.passed, alone.stage, alone.rates) == (True, "done", ())


def test_a_rank_with_a_wrong_summand_is_named_by_both_sides(nodes) -> None:
    for result in results(nodes[0], nodes[2]):
        assert (result.passed, result.stage) == (False, "done")
        assert "int64 sum: element 5461 is " in result.wrong
        assert "what bad gave arrived changed at element" in result.wrong
        assert "n1 gave" not in result.wrong


def test_the_product_is_the_same_on_all_nodes_to_the_bit(nodes) -> None:
    first, second = (results(node, kind="product")[0] for node in nodes[:2])
    assert (first.passed, second.passed) == (True, True)
    assert first.fingerprint == second.fingerprint != ""
    assert dict(first.rates)["product"] > 0


def test_a_port_is_used_once_and_then_replaced(nodes) -> None:
    host_store, other = results(*nodes[:2])
    assert (len(host_store.ports), other.ports) == (1, ())
    task = group(*nodes[:2])
    begin(task, *nodes[:2])
    assert task.port not in nodes[0].answer().ports
    assert nodes[1].answer().passed


def test_a_scanner_on_the_port_does_no_harm(nodes) -> None:
    task = group(*nodes[:2])
    remote = ("127.0.0.1", task.port)
    with socket.create_connection(remote) as silent, socket.create_connection(remote) as rude:
        rude.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        socket.create_connection(remote).close()
        begin(task, *nodes[:2])
        assert [node.answer().passed for node in nodes[:2]] == [True, True]
        silent.close()


def test_a_node_can_be_in_two_tests_at_once(nodes) -> None:
    first, second = nodes[:2]
    begin(group(first, second, test=1), first, second)
    begin(group(second, first, test=2), second, first)
    answers = [node.answer() for node in (first, first, second, second)]
    assert sorted((answer.test, answer.passed) for answer in answers) == [
        (1, True),
        (1, True),
        (2, True),
        (2, True),
    ]


def test_a_missing_partner_is_reported_with_the_stage_and_torchs_message(nodes) -> None:
    begin(group(*nodes[:2], limit=5.0), nodes[0])
    result = nodes[0].answer()
    assert (result.passed, result.stage, result.wrong) == (False, "group", "")
    assert result.why


def test_a_missing_store_is_reported_as_such(nodes) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        task = group(*nodes[:2], limit=3.0, port=taken.getsockname()[1])
        nodes[1].ask(replace(task, place=1))
        result = nodes[1].answer()
    assert (result.passed, result.stage) == (False, "store")
    assert result.why


def test_a_port_in_use_is_an_answer_and_ends_nothing(nodes) -> None:
    others = ListeningPorts()
    nodes[0].ask(group(*nodes[:2], port=others.fill()[0]))
    result = nodes[0].answer()
    assert (result.passed, result.stage) == (False, "store")
    assert result.why.startswith("the test could not be started")


@pytest.mark.parametrize("deed", ["dies", "stops"])
def test_a_partner_lost_during_the_test_is_reported_with_the_stage(nodes, deed) -> None:
    task = group(*nodes[:2], limit=8.0)
    with partner(task.port, deed):
        nodes[0].ask(task)
        result = nodes[0].answer()
    assert (result.passed, result.stage) == (False, "exact")
    assert result.why


def test_a_test_past_its_limit_is_killed_and_late(nodes) -> None:
    nodes[0].idle()
    nodes[0].ask(group(*nodes[:2], limit=4.0))
    until(lambda: bool(nodes[0].children()), "the test runs")
    os.kill(nodes[0].children()[0], signal.SIGSTOP)
    result = nodes[0].answer()
    assert (result.passed, result.late) == (False, True)
    assert result.why.startswith("killed after ")
    nodes[0].idle()


def test_a_test_that_crashes_is_an_answer(nodes) -> None:
    nodes[0].idle()
    nodes[0].ask(group(*nodes[:2]))
    until(lambda: bool(nodes[0].children()), "the test runs")
    os.kill(nodes[0].children()[0], signal.SIGSEGV)
    result = nodes[0].answer()
    assert (result.passed, result.late) == (False, False)
    assert result.why.startswith("the test's process died")


def test_many_tests_leave_no_process_and_no_descriptor(nodes) -> None:
    results(nodes[0], kind="set")
    nodes[0].idle()
    before = nodes[0].descriptors()
    for _ in range(40):
        alone = results(nodes[0], kind="set", megabytes=0.1)[0]
        assert (alone.passed, len(alone.ports)) == (True, 1)
    nodes[0].idle()
    # The first test's may still have been open when they were counted.
    until(lambda: nodes[0].descriptors() <= before, "the last test's descriptors are closed")


def test_a_gpu_that_torch_does_not_see_is_reported_at_once(nodes) -> None:
    if nodes[0].up.backend != "gloo":
        pytest.skip("this machine has a GPU")
    result = results(nodes[0], kind="set", backend="nccl")[0]
    assert (result.passed, result.stage) == (False, "store")
    assert result.why == "local rank 0 has no GPU: torch sees 0"


def test_the_worker_ends_with_its_input() -> None:
    with running("n1") as (node,):
        node.ask(group(node, node))
        until(lambda: bool(node.children()), "the test runs")
        remaining = node.children()
        assert node.process.stdin
        node.process.stdin.close()
        assert node.process.wait(60) == 0
        until(lambda: not alive(remaining), "the test's process is gone")


def test_a_killed_workers_tests_end() -> None:
    with running("n1") as (node,):
        node.ask(group(node, node))
        until(lambda: bool(node.children()), "the test runs")
        remaining = node.children()
        node.process.kill()
        until(lambda: not alive(remaining), "the test's process is gone")


def test_a_torch_that_cannot_be_imported_is_reported_with_the_last_line_with_a_fake_torch(
    tmp_path: Path,
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('many words\\nlibcudnn.so.9: cannot open')\n")
    node = Node("n1", {"PYTHONPATH": str(tmp_path)})
    try:
        assert (node.up.up, node.up.why) == (False, "ImportError: libcudnn.so.9: cannot open")
        assert node.process.wait(60) == 1
    finally:
        node.end()
