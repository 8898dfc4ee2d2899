"""Children that may hang: their answers, their limits, and that nobody ever waits for them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterrun.preflight.node.forked_call import ForkedCall, call, execute

LIMIT = 60.0


def output(child: ForkedCall) -> list[bytes]:
    """Return every line until the child closes its output."""
    result: list[bytes] = []
    end = time.monotonic() + LIMIT
    while not child.closed:
        assert time.monotonic() < end, result
        select.select([child.output], [], [], 1.0)
        result += child.lines()
    return result


def exit_code(child: ForkedCall) -> int:
    end = time.monotonic() + LIMIT
    while (code := child.code()) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    return code


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def eventually(true: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_every_value_is_one_line_and_prints_go_elsewhere():
    def work() -> Iterator[object]:
        os.write(1, b"for the log\n")
        yield {"a": 1}
        yield [2]

    child = call(work, LIMIT)
    assert output(child) == [b'{"value": {"a": 1}}', b'{"value": [2]}']
    assert exit_code(child) == 0


def test_an_exception_of_a_child_is_its_answer():
    def work() -> Iterator[object]:
        raise FileNotFoundError("no such tool")
        yield

    assert output(call(work, LIMIT)) == [b'{"why": "FileNotFoundError: no such tool"}']


def test_a_value_that_json_cannot_hold_is_a_reason() -> None:
    (line,) = output(call(lambda: iter([{1, 2}]), LIMIT))
    assert line.startswith(b'{"why": "TypeError')


def test_a_child_and_its_children_are_killed_and_their_last_action_is_reported(tmp_path):
    mark = tmp_path / "pid"

    def work() -> Iterator[object]:
        sleeper = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
        )
        mark.write_text(str(sleeper.pid))
        time.sleep(600)
        yield

    child = call(work, LIMIT)
    eventually(lambda: mark.exists() and mark.read_text() != "")
    began = time.monotonic()
    arguments = child.kill()
    assert time.monotonic() - began < LIMIT
    assert "(" in arguments
    assert exit_code(child) == -signal.SIGKILL
    eventually(lambda: is_gone(int(mark.read_text())))


def test_a_stopped_child_is_killed_like_any_other():
    def work() -> Iterator[object]:
        os.kill(os.getpid(), signal.SIGSTOP)
        yield

    child = call(work, LIMIT)
    eventually(lambda: "T" in Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0])
    assert "(T" in child.kill()
    assert exit_code(child) == -signal.SIGKILL


def test_a_child_holds_none_of_our_descriptors(tmp_path) -> None:
    held = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(held, True)
    try:
        (line,) = output(call(lambda: iter([os.listdir("/proc/self/fd")]), LIMIT))
    finally:
        os.close(held)
    assert len(eval(line)["value"]) == 5  # 0, 1, 2, the pipe, and the listing itself


def test_children_die_with_their_parent(tmp_path) -> None:
    mark = tmp_path / "pid"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\n"
            "from clusterrun.preflight.node.forked_call import call\n"
            "child = call(lambda: iter([time.sleep(600)]), 600)\n"
            f"open({str(mark)!r}, 'w').write(str(child.pid))\n"
            "time.sleep(600)",
        ]
    )
    eventually(lambda: mark.exists() and mark.read_text() != "")
    parent.kill()
    parent.wait()
    eventually(lambda: is_gone(int(mark.read_text())))


def test_a_program_reads_its_input_and_its_output_comes_back(tmp_path) -> None:
    child, provided = execute([sys.executable, "-c", "print(input()[::-1], flush=True)"], {}, str(tmp_path))
    os.write(provided, b"abc\n")
    assert output(child) == [b"cba"]
    assert exit_code(child) == 0
    os.close(provided)


def test_a_program_that_cannot_be_executed_has_a_reason(tmp_path) -> None:
    child, provided = execute(["/nowhere/python", "x"], {}, str(tmp_path))
    assert output(child) == []
    assert child.rest == "/nowhere/python: [Errno 2] No such file or directory: '/nowhere/python'"
    os.close(provided)


@pytest.mark.parametrize("size", [10, 100_000])
def test_long_lines_arrive_complete(size) -> None:
    (line,) = output(call(lambda: iter(["x" * size]), LIMIT))
    assert len(line) == size + len('{"value": ""}')
