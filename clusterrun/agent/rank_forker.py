"""Start the ranks of a node in its container on an order from its standard input, and report their ends.

It kills all ranks and exits when its input ends, so it outlives neither the agent nor the attempt.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from clusterrun import container_runtimes
from clusterrun.agent.log_pipes import start_with_pipes
from clusterrun.atomic_file import write_all
from clusterrun.model import contract
from clusterrun.model.frozen import Any, replace
from clusterrun.runtime.event_loop import EventLoop
from clusterrun.runtime.kill_tree import below, sweep
from clusterrun.runtime.processes import NotStarted, Program, become_subreaper, ended_children, start_all
from clusterrun.runtime.run_files import in_words, open_log

_PIECE = 65536
_KILL_SECONDS = 2.0
# A scheduler sends these signals to all processes of a step. The agent passes them on to the ranks.


def main(environment: Mapping[str, str]) -> int:
    """Serve one order. ``environment`` is the environment that the runtime made."""
    become_subreaper()
    out = os.dup(1)
    os.dup2(2, 1)
    for number in contract.OUTSIDE_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    loop, line, pids = EventLoop(), bytearray(), []
    over = False

    def heard(mask: int) -> None:
        nonlocal over
        data = os.read(0, _PIECE)
        over = not data
        line.extend(data)
        if line.endswith(b"\n"):
            pids.extend(_begin(out, json.loads(json.loads(line)["body"]), environment))
            line.clear()

    loop.watch(0, heard)
    loop.catch((signal.SIGCHLD,), lambda number: _tell_ends(out, pids))
    while not over:
        loop.wait(None)
    sweep(lambda: below(os.getpid()), partial(_tell_ends, out, pids), _KILL_SECONDS)
    return 0


def _begin(out: int, message: dict[str, Any], environment: Mapping[str, str]) -> list[int]:
    try:
        start = start_with_pipes if message["pipes"] else start_all
        pids = start([_program(rank, message, environment) for rank in message["ranks"]])
    except NotStarted as error:
        _say(out, {"failed": f"in the container: {error.seen}; {error.remedy}"})
        return []
    except OSError as error:
        _say(out, {"failed": f"in the container, a file cannot be opened: {in_words(error)}"})
        return []
    _say(out, {"pids": pids, "space": os.readlink("/proc/self/ns/pid"), "forker": os.getpid()})
    return pids


def _program(rank: dict[str, Any], message: dict[str, Any], environment: Mapping[str, str]) -> Program:
    rank_environment = container_runtimes.merged_environment(
        environment, {**message["common"], **rank["environment"]}
    )
    stdin = os.open(message["input"] or os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    descriptors = (stdin, open_log(rank["out"]), open_log(rank["err"]))
    program = Program(
        tuple(rank["argv"]), tuple(rank_environment.items()), message["cwd"], *descriptors, signal.SIGKILL
    )
    return replace(program, cpus=frozenset(rank.get("cpus", ())))


def _tell_ends(out: int, pids: list[int]) -> None:
    for child in ended_children():
        if child.pid in pids:
            _say(out, {"ended": child.pid, "code": child.code})


def _say(out: int, body: dict[str, Any]) -> None:
    with suppress(OSError):  # the agent has ended, which ends this process
        write_all(out, json.dumps({"number": 0, "body": json.dumps(body)}).encode() + b"\n")
