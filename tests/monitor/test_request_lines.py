"""The source of a rank shows the sends and receives whose requests it waits for."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from clusterrun.diagnosis.evidence import MainCall
from clusterrun.diagnosis.spied_process import SpiedFrame, SpiedProcess
from clusterrun.monitor.request_lines import awaited_request
from clusterrun.monitor.script_lines import ScriptFrame, script_frames

# Each ``wait`` is in a line of its own. Rank 1 of 4 is in it.
SCRIPT = """\
rank, n = dist.get_rank(), dist.get_world_size()
right = (rank + 1) % n

def alone(x):
    dist.isend(x, right).wait()

def helper(requests):
    for request in requests:
        request.wait()  # helper

def single(x, stage):
    def send():
        helper([dist.irecv(x, stage)])
        dist.irecv(x, stage).wait()
        helper(dist.batch_isend_irecv([dist.P2POp(dist.isend, x, stage + 1, tag=5)]))
    send()

def both(x, y):
    operations = []
    if rank > 0:
        operations.append(P2POp(dist.irecv, y, rank - 1))
    if rank > 1:
        operations.append(P2POp(dist.irecv, y, rank - 2))
    operations += [P2POp(dist.isend, x, peer=right)]
    helper(batch_isend_irecv(operations))

def outer(x):
    request = dist.isend(x, right)
    alone(x)

def gathered(bufs, sizes):
    works = [(peer, dist.irecv(bufs[peer], src=peer)) for peer in range(n)]
    for peer, work in works:
        work.wait()  # gathered

def counted(bufs):
    works = [dist.irecv(bufs[peer], src=peer) for peer in range(n)]
    for peer, work in enumerate(works):
        work.wait()  # counted

def listed(x, up, peers):
    for turn in range(9):
        requests = [dist.isend(x, up)]
        [request.wait() for request in requests]  # listed

def turns(x, peers):
    for peer in peers:
        request = dist.irecv(x, peer)
        request.wait()  # turns

def former(x, peers):
    for peer in peers:
        if peer > 1:
            request = dist.irecv(x, peer)
        request.wait()  # former

def buffered(x, peers):
    previous = None
    for peer in peers:
        request = dist.irecv(x, peer)
        if previous:
            previous.wait()  # buffered
        previous = request

def pending(x, peer):
    global former_request
    if former_request:
        former_request.wait()  # pending
    former_request = dist.isend(x, peer)

def labels(requests):
    for peer, request in requests:
        request.wait()  # labels

def labelled(x, peers):
    labels([(peer, dist.irecv(x, peer)) for peer in peers])

def broken(x, peer):
    helper(  # broken
        [dist.irecv(x, peer)],
    )

def other_ranks(x, groups):
    first, second = *groups, 1
    dist.irecv(x, groups[0].get_rank()).wait()

def stale(x, peers):
    for peer in peers:
        peer + 1
    helper([dist.irecv(x, peer) for peer in peers])

def filled(x):
    requests = [dist.isend(x, 2)]
    begin_others(requests)
    helper(requests)

def nested(peer, x):
    def receive():
        dist.irecv(x, peer - 1).wait()
    receive()

def late(x):
    request = dist.irecv(x, 0)
    for turn in range(9):
        request.wait()  # late
        request = dist.irecv(x, 2)

def joined(thread):
    thread.wait()  # joined
"""
LINES = SCRIPT.splitlines()


def at(text: str) -> int:
    return next(number for number, line in enumerate(LINES, 1) if text in line)


def awaited(*lines: str, half: str = "", **values: object) -> MainCall:
    """Return the request that the innermost line waits for. ``values`` are the variables of all frames."""
    frames = [ScriptFrame(f"/me/train.py:{at(line)} step", ast.parse(SCRIPT), values) for line in lines]
    return awaited_request(frames, 1, 4, half)


@pytest.mark.parametrize(
    ("lines", "values", "call"),
    [
        (["alone", "joined"], {}, MainCall()),
        (["right).wait()"], {}, MainCall("send", "send", 2)),
        (["# helper", "[dist.P2POp(dist", "    send()"], {"stage": 1}, MainCall("send", "send", 2, 5)),
        (["# helper", "[dist.P2POp(dist", "    send()"], {}, MainCall("send", "send", -1, 5)),
        (["right).wait()", "    alone(x)"], {}, MainCall("wait", "send", 2)),
        (["# gathered"], {"peer": 3}, MainCall("wait", "recv", 3)),
        (["# counted"], {"peer": 3}, MainCall("wait", "recv", -1)),
        (["# listed"], {"up": 3}, MainCall("send", "send", 3)),
        (["# turns"], {"peer": 3}, MainCall("recv", "recv", 3)),
        (["# helper", "# broken"], {"peer": 3}, MainCall("recv", "recv", 3)),
        (["# buffered"], {"peer": 3}, MainCall("recv", "recv", -1)),
        (["# pending"], {"peer": 3}, MainCall()),
        (["# labels", "    labels("], {"peer": 3}, MainCall("wait", "recv", -1)),
        (["[0].get_rank()"], {}, MainCall("recv", "recv", -1)),
        (["# former"], {"peer": 3}, MainCall("recv", "recv", -1)),
        (["# helper", "helper([dist.irecv(x, peer)"], {"peer": 3}, MainCall("wait", "recv", -1)),
        (["# helper", "    helper(requests)"], {}, MainCall()),
        (["# late"], {}, MainCall("wait")),
        (["# joined"], {}, MainCall()),
    ],
)
def test_a_request_is_that_of_the_call_that_began_it(
    lines: list[str], values: dict[str, object], call: MainCall
) -> None:
    assert awaited(*lines, **values) == call


def test_native_frames_tell_apart_requests_that_began_together() -> None:
    helper = ("# helper", "helper(batch_isend_irecv(operations))")
    assert awaited(*helper) == MainCall("wait")
    assert (awaited(*helper, half="send").peer, awaited(*helper, half="recv").peer) == (2, -1)


def test_a_nested_function_has_the_variables_of_the_frames_around_it() -> None:
    tree = ast.parse(SCRIPT + "def main(stage):\n    nested(stage + 1, x)\n")
    lines = [at("peer - 1).wait()"), at("    receive()"), len(LINES) + 2]
    frames = [
        ScriptFrame(f"/me/train.py:{line} step", tree, values)
        for line, values in zip(lines, [{}, {}, {"stage": 2}], strict=True)
    ]
    assert awaited_request(frames, 1, 4).peer == 2


def test_the_stack_of_a_process_shows_the_frames(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    inner = SpiedFrame(f"{file}:{at('# listed')} <listcomp>")
    outer = SpiedFrame(f"{file}:{at('# listed')} listed", (("up", 2),))
    spied = SpiedProcess(script=(inner, outer))
    assert awaited_request(script_frames(os.getpid(), spied), 1, 4).peer == 2
