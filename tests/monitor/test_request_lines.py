"""The source of a rank shows the sends and receives whose requests it waits for."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from clusterrun.diagnosis.evidence import MainCall, PostedOp
from clusterrun.diagnosis.spied_process import SpiedProcess
from clusterrun.monitor.request_lines import AwaitedRequests, ScriptFrame, awaited_request

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

def named(x, y):
    first, second = dist.isend(x, right), dist.irecv(y, src=0)
    first.wait()
    second.wait()  # named

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

def phases(x, up, down):
    for turn in range(9):
        requests = [dist.isend(x, up)]
        [request.wait() for request in requests]  # phases
        requests = [dist.irecv(x, down)]

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
    frames = [ScriptFrame(ast.parse(SCRIPT), at(line), values) for line in lines]
    return AwaitedRequests(frames, 1, 4).awaited(half)


@pytest.mark.parametrize(
    ("lines", "values", "call"),
    [
        (["alone", "joined"], {}, MainCall()),
        (["right).wait()"], {}, MainCall("send", "send", 2)),
        (["# helper", "[dist.P2POp(dist", "    send()"], {"stage": 1}, MainCall("send", "send", 2, 5)),
        (["# helper", "[dist.P2POp(dist", "    send()"], {}, MainCall("send", "send", -1, 5)),
        (["# named"], {}, MainCall("wait", "recv", 0)),
        (["right).wait()", "    alone(x)"], {}, MainCall("wait", "send", 2)),
        (["# gathered"], {"peer": 3}, MainCall("wait", "recv", 3)),
        (["# counted"], {"peer": 3}, MainCall("wait", "recv", -1)),
        (["# phases"], {"up": 3, "down": 0}, MainCall("send", "send", 3)),
        (["# late"], {}, MainCall()),
        (["# joined"], {}, MainCall()),
    ],
)
def test_a_request_is_that_of_the_call_that_began_it(
    lines: list[str], values: dict[str, object], call: MainCall
) -> None:
    assert awaited(*lines, **values) == call


def test_operations_whose_conditions_hold_are_posted_together() -> None:
    call = awaited("# helper", "helper(batch_isend_irecv(operations))")
    assert call == MainCall("wait", posts=(PostedOp("recv", 0), PostedOp("send", 2)))
    halved = awaited("# helper", "helper(batch_isend_irecv(operations))", half="recv")
    assert (halved.function, halved.peer) == ("recv", 0)


def test_the_stack_of_a_process_shows_the_frames(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    main = (f"{file}:{at('# phases')} <listcomp>", f"{file}:{at('# phases')} phases")
    spied = SpiedProcess(main=main, variables=((), (("up", 2),)))
    assert awaited_request(os.getpid(), spied, 1, 4).peer == 2
