"""Many runs as a table: filters, widths, watching, and what bad input is answered with."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterrun.cli.status_view import RUN
from clusterrun.model.document import encode
from clusterrun.model.frozen import replace
from clusterrun.model.record import RunRecord, RunState
from clusterrun.model.spec import JobSpec
from clusterrun.model.states import Phase, State
from clusterrun.runs.store import Store, run_id
from clusterrun.runs.sweep_records import SweepPoint, SweepRecord, Sweeps
from tests.cli.conftest import CommandLine
from tests.cli.test_terminal import on_terminal

# Runs of the same millisecond need different ids.
_NUMBERS = itertools.count()

SPEC = JobSpec(command=("train.py",), cwd="/tmp", nodes=4, gpus=8)
LONG = "rank 17 on a-node-with-a-long-name exited with code 7, which is a long story told in many words"
LIMIT = 120.0


def add(
    context: CommandLine, name: str, word: State = State.COMPLETED, ago: float = 60.0, reason: str = ""
) -> str:
    """Add a local run in the state of its files. The coordinator of a live run is on another machine."""
    store, at = Store(context.environment["CLUSTERRUN_HOME"]), time.time() - ago
    chosen = run_id(name, at, bytes(divmod(next(_NUMBERS), 32)))
    store.claim(chosen)
    store.save(RunRecord(chosen, name, "local", "token", replace(SPEC, name=name), at, "1.1", "elsewhere"))
    os.unlink(os.path.join(store.live, chosen))  # nothing of it lives that the fixture could end
    phase = Phase.ENDED if word.ended else Phase.TRAINING
    ended, code = (at + 9, 0) if word.ended else (None, None)
    tell(context, RunState(chosen, 0, word, phase, reason, "n1", 7, time.time(), (), at, ended, code))
    return chosen


def tell(context: CommandLine, state: RunState) -> None:
    path = Path(Store(context.environment["CLUSTERRUN_HOME"]).paths(state.run_id).state)
    path.with_name("new").write_text(json.dumps(encode(state)))
    path.with_name("new").rename(path)


def end(context: CommandLine, chosen: str, word: State) -> None:
    store = Store(context.environment["CLUSTERRUN_HOME"])
    state = store.state(chosen)
    assert state is not None
    now = time.time()
    tell(context, replace(state, state=word, phase=Phase.ENDED, ended_at=now, exit_code=1, updated_at=now))


def names(context: CommandLine, *args: str) -> list[str]:
    result = context("status", "--json", *args)
    assert result.code == 0, result.err
    return [run["name"] for run in json.loads(result.out)["runs"]]


@pytest.fixture
def three(clusterrun: CommandLine) -> CommandLine:
    add(clusterrun, "old-train", State.FAILED, ago=3 * 86400, reason=LONG)
    add(clusterrun, "train", State.COMPLETED, ago=7200)
    add(clusterrun, "eval", State.RUNNING)
    return clusterrun


@pytest.mark.parametrize(
    "args, found",
    [
        ([], ["eval", "train", "old-train"]),
        (["--state", "failed,running"], ["eval", "old-train"]),
        (["--state", "completed", "--state", "FAILED"], ["train", "old-train"]),
        (["--state", "live"], ["eval"]),
        (["--state", "ended"], ["train", "old-train"]),
        (["--name", "*train"], ["train", "old-train"]),
        (["--name", "tr?in"], ["train"]),
        (["--since", "1d"], ["eval", "train"]),
        (["--since", "90m"], ["eval"]),
        (["--since", "2020-01-01", "--state", "timeout"], []),
        (["train", "--state", "failed"], []),
    ],
)
def test_a_filter_leaves_the_runs_that_are_like_it(
    three: CommandLine, args: list[str], found: list[str]
) -> None:
    assert names(three, *args) == found


def test_a_filter_searches_all_runs_and_not_only_the_newest(clusterrun: CommandLine) -> None:
    for number in range(30):
        add(clusterrun, f"run{number:02}", State.FAILED if number == 0 else State.COMPLETED, ago=600 - number)
    assert names(clusterrun, "--state", "failed") == ["run00"]
    assert "30 older" not in clusterrun("status", "--all").err
    assert "10 older runs: clusterrun status --all" in clusterrun("status").err


def test_the_row_of_a_sweep_counts_its_older_runs(clusterrun: CommandLine) -> None:
    store = Store(clusterrun.environment["CLUSTERRUN_HOME"])
    ids = [
        add(clusterrun, f"s.{number}", State.FAILED if number == 0 else State.COMPLETED)
        for number in range(25)
    ]
    for chosen in ids:
        record = replace(store.read(chosen), sweep="20260101-000000-s")
        Path(store.paths(chosen).record).write_text(json.dumps(encode(record)))
    points = tuple(SweepPoint((("n", chosen),), chosen) for chosen in ids)
    Sweeps(store).save(SweepRecord("20260101-000000-s", "s", SPEC, points, time.time()))
    (row,) = [line for line in clusterrun("status").out.splitlines() if "20260101-000000-s" in line]
    assert "24 COMPLETED, 1 FAILED" in row and "FAILED" in row.partition("sweep:")[0].split()


def test_ended_runs_are_read_from_one_file_until_something_changes(clusterrun: CommandLine) -> None:
    ids = [add(clusterrun, f"run{number:02}", ago=600 - number) for number in range(20)]
    home = Path(clusterrun.environment["CLUSTERRUN_HOME"])
    first = clusterrun("status", "--all", "--json").out
    for chosen in ids:  # as if they had lain there for long
        for path in (home / "runs" / chosen / "state.json", home / "runs" / chosen):
            os.utime(path, (time.time() - 60,) * 2)
    assert clusterrun("status", "--all", "--json").out == first
    assert (home / "cache/ended.json").stat().st_mode & 0o777 == 0o600
    (home / "runs" / ids[0] / "record.json").write_text("{")  # known, so not read
    assert clusterrun("status", "--all", "--json").out == first
    (home / "runs" / ids[1] / "state.json").write_text("{")
    Store(str(home)).discard(ids[2])
    results = {
        run["run_id"]: run["state"] for run in json.loads(clusterrun("status", "--all", "--json").out)["runs"]
    }
    assert [results[ids[0]], results[ids[1]], ids[2] in results] == ["COMPLETED", "UNKNOWN", False]
    (home / "cache/ended.json").write_text('{"format": 1, "runs": {"x": 3}}')
    assert clusterrun("status", "--all").code == 0


@pytest.mark.parametrize(
    "args, arguments",
    [
        (["--state", "faild"], "did you mean 'FAILED'?"),
        (["--since", "yesterday"], "'yesterday' is neither a duration nor a date"),
        (["--watch", "--json"], "--watch and --json do not go together"),
    ],
)
def test_a_filter_that_is_none_is_refused(three: CommandLine, args: list[str], arguments: str) -> None:
    result = three("status", *args)
    assert (result.code, result.out) == (2, "") and arguments in result.err


def test_a_filter_that_matches_no_run_is_reported(three: CommandLine) -> None:
    result = three("status", "--name", "nothing")
    assert (result.code, result.out) == (0, "") and "no run matches" in result.err


@pytest.mark.parametrize("columns", [80, 120])
def test_a_long_reason_is_shown_below_the_row_and_hides_no_column(three: CommandLine, columns: int) -> None:
    output = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(three, "status", columns=columns)).splitlines()
    heads = output[0].split()
    headers = [field.header for field in RUN.columns]
    assert heads == [head for head in headers if head in heads] and max(map(len, output)) <= columns
    assert {"RUN", "STATE"} <= {*heads} and ("REASON" in heads) == (columns > 80)
    whole = " ".join(line.strip() for line in output)
    row = re.compile(r"\d{8}-\d{6}-\w{4}-old-train  1\.1  FAILED .*  4×8 .* 9 s\b")
    assert row.match(output[1]) and all(word in whole for word in LONG.split())


def test_a_small_terminal_shows_20_runs_with_the_live_and_newest_last(clusterrun: CommandLine) -> None:
    alive = add(clusterrun, "alive", State.RUNNING, ago=7200)
    for number in range(19):
        add(clusterrun, f"run{number:02}", State.COMPLETED, 600 - number, "every rank exited 0")
    output = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(clusterrun, "status", columns=80, errors=True))
    lines = output.splitlines()
    assert len(lines) <= 23 and max(map(len, lines)) <= 80
    assert [lines[20].split()[0], lines[19].split()[0][-5:]] == [alive, "run18"]
    in_pipe = clusterrun("status").out.splitlines()
    assert "every rank exited 0" in in_pipe[1] and in_pipe[20].startswith(alive)


def test_a_narrow_terminal_names_the_columns_that_it_hides(three: CommandLine) -> None:
    output = on_terminal(three, "status", columns=60, errors=True, NO_COLOR="1").splitlines()
    left_out = re.fullmatch(r"no room for (.*): a wider terminal shows more", output[-1])
    assert left_out
    headers = {field.header for field in RUN.columns} - {"REASON"}
    assert {*left_out[1].split(", ")} == headers - {*output[0].split()}


def test_the_table_shows_when_a_run_failed(clusterrun: CommandLine) -> None:
    clusterrun("submit", "--wait", "--preflight", "off", "--nodes", "2", "train.py", "fail")
    output = clusterrun("status").out
    at = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d"
    assert re.search(rf"rank 1 on local-1 exited with code 7 at {at}; printed last: about to fail\n", output)
    result = json.loads(clusterrun("status", "--json").out)["runs"][0]
    assert result["reason"] == "rank 1 on local-1 exited with code 7"


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def test_watching_in_a_pipe_prints_changes_and_ends_with_the_named_runs(clusterrun: CommandLine) -> None:
    chosen = add(clusterrun, "train", State.RUNNING)
    process = clusterrun.start("status", "--watch", chosen)
    assert process.stdout is not None
    lines = [process.stdout.readline(), process.stdout.readline()]
    end(clusterrun, chosen, State.FAILED)
    out, _ = finish(process)
    lines += out.splitlines()
    assert [re.sub(r"\S+  ", "", line, count=1).split()[0] for line in lines] == ["RUN", chosen, chosen]
    assert ["RUNNING" in lines[1], "FAILED" in lines[2], process.returncode] == [True, True, 0]


@pytest.mark.parametrize("named, code", [(True, 130), (False, 0)])
def test_ctrl_c_ends_the_watching_with_130_if_runs_were_named(
    clusterrun: CommandLine, named: bool, code: int
) -> None:
    chosen = add(clusterrun, "train", State.RUNNING)
    process = clusterrun.start("status", "--watch", *([chosen] if named else []))
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = finish(process)
    assert process.returncode == code and "Traceback" not in err
    assert ("the runs continue" in err) is named


def watched(context: CommandLine, chosen: str, act: Callable[[], None], rows: int = 24) -> tuple[str, int]:
    """Return output and exit code of ``status --watch``. ``act`` is called when the run is on the screen."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
    process: subprocess.Popen[Any] = subprocess.Popen(
        [sys.executable, "-m", "clusterrun", "status", "--watch", chosen],
        cwd=context.folder,
        env={**context.environment, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    observed, result, until = b"", False, time.monotonic() + LIMIT
    try:
        while time.monotonic() < until:
            if not select.select([ours], [], [], 1.0)[0]:
                continue
            observed += os.read(ours, 65536)
            if b"RUNNING" in observed and not result:
                result = True
                act()
    except OSError:
        pass  # the end of a terminal
    finally:
        os.close(ours)
        process.kill() if process.poll() is None and time.monotonic() >= until else None
    return observed.decode(), process.wait(LIMIT)


def test_watching_uses_the_other_screen_and_leaves_the_last_state(clusterrun: CommandLine) -> None:
    chosen = add(clusterrun, "train", State.RUNNING)
    observed, code = watched(clusterrun, chosen, lambda: end(clusterrun, chosen, State.FAILED))
    assert code == 0 and observed.startswith("\x1b[?1049h\x1b[?25l")
    before, after = observed.split("\x1b[?25h\x1b[?1049l")
    assert "RUNNING" in before and "\x1b[2J" not in observed
    assert chosen in after and "FAILED" in after


def test_watching_reports_a_deleted_run_and_restores_the_terminal(clusterrun: CommandLine) -> None:
    chosen = add(clusterrun, "train", State.RUNNING)
    store = Store(clusterrun.environment["CLUSTERRUN_HOME"])
    observed, code = watched(clusterrun, chosen, lambda: store.discard(chosen))
    assert code == 5 and observed.split("\x1b[?1049l")[1].endswith(
        "clusterrun status shows the runs there are\r\n"
    )


def test_a_run_with_a_damaged_state_still_has_its_detail_and_logs(clusterrun: CommandLine) -> None:
    run_id = clusterrun("submit", "--wait", "train.py").out.strip()
    run = Path(clusterrun.environment["CLUSTERRUN_HOME"]) / "runs" / run_id
    (run / "state.json").write_text("{")
    output, printed = clusterrun("status", run_id), clusterrun("logs", run_id)
    assert output.code == 0 and "state.json is damaged" in output.out and "train.py" in output.out
    assert (printed.code, printed.out) == (0, "node0 r0 | rank 0 of 1\n")


def test_a_run_that_has_ended_shows_the_line_that_submits_it_again(ended: CommandLine) -> None:
    again = "clusterrun submit --nodes 2 --ranks-per-node 3 --cluster local --preflight off train.py"
    assert ended("status", "last").out.endswith(f"\nagain      {again}\n")


def test_the_line_that_submits_a_run_again_keeps_line_breaks(clusterrun: CommandLine) -> None:
    line = 'export A="1 \\\n  2"'
    clusterrun("submit", "--wait", "--setup", line, "true")
    again = clusterrun("status", "last").out.partition("\nagain ")[2]
    assert line in shlex.split(again)
