"""The laws of the files of a run: whole or not at all, ours alone, and no disk ends a run."""

from __future__ import annotations

import errno
import json
import os
import types
from functools import partial
from pathlib import Path

import pytest

from clusterrun.agent.log_tail import with_last_words
from clusterrun.coordinator.io import run_directory
from clusterrun.coordinator.io.run_directory import RunLog
from clusterrun.model.frozen import replace
from clusterrun.model.paths import RunPaths
from clusterrun.model.record import Attempt, RunState
from clusterrun.model.states import Phase, State
from clusterrun.protocol.messages import RankExited
from clusterrun.runtime import run_files
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.run_files import (
    BadRunDirectory,
    GrowthIndex,
    check_run_directory,
    claim_attempt,
    highest_attempt,
    open_log,
    patiently,
    read_state,
    write_whole,
)

STATE = RunState("r", 0, State.RUNNING, Phase.TRAINING, "", "h", 1, 2.0)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return RunPaths(str(folder))


@pytest.fixture(autouse=True)
def any_umask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: str) -> dict[str, str]:
    return {path.name: oct(path.stat().st_mode & 0o7777) for path in Path(folder).rglob("*")}


def test_an_attempt_is_created_once_and_is_private(paths: RunPaths) -> None:
    assert highest_attempt(paths) == -1
    assert [claim_attempt(paths, 0), claim_attempt(paths, 0), claim_attempt(paths, 1)] == [True, False, True]
    os.close(open_log(paths.attempt(0).out(3)))
    write_whole(paths.state, b"x")
    assert highest_attempt(paths) == 1
    assert modes(paths.run_dir) == {
        "attempts": "0o700", "000": "0o700", "001": "0o700", "00003.out": "0o600", "state.json": "0o600",
    }  # fmt: skip


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "open"])
def test_a_write_that_fails_anywhere_leaves_the_old_content_and_no_draft(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The call is made to fail, because a disk that fails on demand is not at hand."""
    write_whole(paths.state, b"old")

    def full(*args: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(run_files.os, call, full)
        with pytest.raises(OSError, match="No space left"):
            write_whole(paths.state, b"new")
    assert Path(paths.state).read_bytes() == b"old" and os.listdir(paths.run_dir) == ["state.json"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EDQUOT, errno.ENOSPC, errno.EROFS])
def test_a_file_system_in_trouble_is_tried_again_and_the_file_is_named(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries: list[int] = []
    monkeypatch.setattr(run_files.time, "sleep", tries.append)

    def look() -> str:
        if len(tries) < 3:
            raise OSError(number, os.strerror(number), "/home/ada/orders.json")
        return "read"

    assert patiently(look) == "read" and len(tries) == 3
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and f"/home/ada/orders.json: {os.strerror(number)}" in output


@pytest.mark.parametrize("number, seconds", [(errno.EIO, 0.0), (errno.ENOENT, 60.0), (errno.ENOTDIR, 60.0)])
def test_a_wrong_place_and_an_expired_limit_are_reported_at_once(number: int, seconds: float) -> None:
    def look() -> None:
        raise BadRunDirectory("seen") from OSError(number, os.strerror(number), "/x")

    with pytest.raises(BadRunDirectory):
        patiently(look, seconds)


def test_an_attempt_whose_folder_was_created_is_ours_despite_later_failures(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is made to fail, because a disk that fails on demand is not at hand."""

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(run_files.os, "fsync", fails)
    assert [claim_attempt(paths, 0), claim_attempt(paths, 0)] == [True, False]


def test_a_run_that_ends_before_its_attempts_were_read_keeps_them(paths: RunPaths) -> None:
    attempts = (Attempt(0, "first start", ("n0",), 1.0, outcome="FAILED"),)
    run_files.write_state(paths, replace(STATE, attempts=attempts, started_at=1.0, excluded=("n7",)))
    ending = run_directory.StateWriter(EventLoop(), paths, lambda arguments: None)
    ended = replace(STATE, state=State.CANCELLED, phase=Phase.ENDED, reason="cancelled by request")
    ending.save(ended)
    ending.finish()
    assert read_state(paths) == replace(ended, attempts=attempts, started_at=1.0, excluded=("n7",))


def test_a_link_in_the_place_of_a_file_is_never_followed(paths: RunPaths, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    os.symlink(target, paths.state)
    write_whole(paths.state, b"state")
    assert target.read_text() == "mine" and not os.path.islink(paths.state)
    os.symlink(target, os.path.join(paths.run_dir, "log"))
    with pytest.raises(OSError, match="symbolic links"):
        open_log(os.path.join(paths.run_dir, "log"))


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_directory_that_others_may_write_is_refused(paths: RunPaths, mode: int) -> None:
    check_run_directory(paths.run_dir)
    os.chmod(paths.run_dir, mode)
    with pytest.raises(BadRunDirectory, match="may be written by, somebody else"):
        check_run_directory(paths.run_dir)


def test_a_directory_that_this_node_does_not_see_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(BadRunDirectory) as caught:
        check_run_directory(str(tmp_path / "none"))
    assert os.uname().nodename in caught.value.seen and "CLUSTERRUN_HOME" in caught.value.remedy


def test_a_log_ends_at_its_limit_with_a_notice(paths: RunPaths) -> None:
    log = RunLog(paths, most=100)
    log.note("line 0 \udcff")  # before the attempt has its folder
    claim_attempt(paths, 0)
    log.begin(0)
    for number in range(1, 100):
        log.note(f"line {number}")
    log.close()
    written = Path(paths.attempt(0).coordinator_log).read_text()
    lines = written.splitlines()
    assert lines[0].endswith(" line 0 \\udcff") and lines[1].endswith(" line 1")
    assert lines[-1] == "this log has reached its limit; nothing further is written"
    assert len(written) < 200


def test_the_index_dates_bytes_of_files_that_grew(paths: RunPaths) -> None:
    claim_attempt(paths, 0)
    attempt = paths.attempt(0)
    logs = {
        (rank, stream): open_log(attempt.out(rank) if stream == "o" else attempt.err(rank))
        for rank in (2, 3)
        for stream in "oe"
    }
    index = GrowthIndex(attempt, 1, logs)
    index.note(10.0)
    os.write(logs[2, "o"], b"abc")
    index.note(10.5)
    index.note(11.0)
    os.write(logs[2, "o"], b"d")
    os.write(logs[3, "e"], b"e" * 7)
    index.note(1700000000.1234)
    index.close()
    written = Path(attempt.index(1)).read_text()
    assert written == "10.500 2 o 3\n1700000000.123 2 o 4\n1700000000.123 3 e 7\n"


def test_an_index_that_cannot_be_written_now_is_written_later(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is made to fail, because a file system that fails on demand is not at hand."""
    claim_attempt(paths, 0)
    log = open_log(paths.attempt(0).out(0))
    index = GrowthIndex(paths.attempt(0), 0, {(0, "o"): log})
    os.write(log, b"abc")
    for call in ("fstat", "write"):
        with monkeypatch.context() as patch:
            patch.setattr(
                run_files.os, call, lambda *_: (_ for _ in ()).throw(OSError(errno.ESTALE, "stale"))
            )
            index.note(1.0)
    index.note(2.0)
    index.close()
    assert Path(paths.attempt(0).index(0)).read_text() == "2.000 0 o 3\n"


END = partial(RankExited, 0, 0, 1, 0.0)
"""The exit of rank 0. Further arguments: last lines, traceback, whether two programs collided."""


@pytest.mark.parametrize("out, err, document, arguments", [
    ("o1\no2", "", None, END(("o1", "o2"))),
    ("o", "e\n" * 50, None, END(("e",) * 20)),
    ("o\n" * 50, "e\n" * 50, None, END(("e",) * 20)),
    ("o\n" * 50, "e1\ne2", None, END((*("o",) * 18, "e1", "e2"))),
    ("address already in use", "e", None,
     END(("address already in use", "e"), error="address already in use")),
    ("", "EADDRINUSE, port 4", None, END(("EADDRINUSE, port 4",), "", True, error="EADDRINUSE, port 4")),
    ("", "", {"message": {"message": "m", "extraInfo": {"py_callstack": "Trace"}}}, END((), "Trace")),
    ("", "", {"message": {"message": "m"}}, END((), "m")),
    ("", "", {"message": "plain"}, END((), "plain")),
    ("", "", "not JSON: Address already in use", END((), "not JSON: Address already in use", True)),
    ("", "", [1, 2], END((), "[1, 2]")),
])  # fmt: skip
def test_the_last_output_is_stderr_or_else_stdout_with_the_traceback(
    paths: RunPaths, out: str, err: str, document: object, arguments: RankExited
) -> None:
    claim_attempt(paths, 0)
    attempt = paths.attempt(0)
    Path(attempt.out(0)).write_text(out)
    Path(attempt.err(0)).write_text(err)
    if document is not None:
        Path(attempt.error(0)).write_text(document if isinstance(document, str) else json.dumps(document))
    assert with_last_words(END(), attempt) == arguments


def test_the_last_output_of_both_streams_is_ordered_by_time(paths: RunPaths) -> None:
    claim_attempt(paths, 0)
    attempt = paths.attempt(0)
    logs = {(0, stream): open_log(path) for stream, path in (("o", attempt.out(0)), ("e", attempt.err(0)))}
    index = GrowthIndex(attempt, 0, logs)
    for at, (stream, line) in enumerate(
        (("e", "warming up"), ("o", "step 6"), ("e", "slow"), ("o", "empty: leaving"))
    ):
        os.write(logs[0, stream], f"{line}\n".encode())
        index.note(float(at))
    index.close()
    lines = with_last_words(END(), attempt, index.grown).last_lines
    assert lines == ("warming up", "step 6", "slow", "empty: leaving")


def test_a_truncated_log_is_reported_once(paths: RunPaths) -> None:
    claim_attempt(paths, 0)
    attempt = paths.attempt(0)
    log = open_log(attempt.out(0))
    index = GrowthIndex(attempt, 0, {(0, "o"): log})
    notices = []
    for text in ("a long line\n", "short\n", "x\n"):
        os.truncate(attempt.out(0), 0)
        os.write(log, text.encode())
        index.note(1.0)
        notices.append(Path(attempt.out(0)).read_text().removeprefix(text))
    index.close()
    assert [notice.startswith("clusterrun: this log was emptied") for notice in notices] == [
        False,
        True,
        False,
    ]
    assert notices[::2] == ["", ""]


HEADER = "Traceback (most recent call last):"
HANDLING = "During handling of the above exception, another exception occurred:"
PEER = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.3]:4711. This is typically"


@pytest.mark.parametrize(("code", "lines", "noticed"), [
    (1, [PEER], True),
    (-6, ["terminate called after", PEER], True),
    (1, ["torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was closed."], True),
    (1, [HEADER, PEER, "", HANDLING, "", HEADER, "TrainerError: step failed"], True),
    (1, [HEADER, "KeyError: 'vocab'", "", HANDLING, "", HEADER, PEER], False),
    (1, [HEADER, "ValueError: bad", PEER], False),
    (-9, [PEER], False),
    (1, ["loss 0.3"], False),
    (1, [], False),
])  # fmt: skip
def test_a_rank_that_only_reports_a_lost_peer_is_an_observer(
    paths: RunPaths, code: int, lines: list[str], noticed: bool
) -> None:
    claim_attempt(paths, 0)
    attempt = paths.attempt(0)
    Path(attempt.err(0)).write_text("\n".join(lines))
    assert with_last_words(RankExited(0, 0, code), attempt).noticed is noticed


CAUSED = "The above exception was the direct cause of the following exception:"


@pytest.mark.parametrize(("lines", "lost"), [
    ([HEADER, "ConnectionError: peer gone"], True),
    ([HEADER, "EOFError"], True),
    ([HEADER, "[rank3]: requests.exceptions.ConnectionError: HTTPSConnectionPool"], True),
    ([HEADER, "BrokenPipeError: [Errno 32]", "", CAUSED, "", HEADER, "RuntimeError: no step"], True),
    ([HEADER, "KeyError: 'x'", "", HANDLING, "", HEADER, "ConnectionResetError: [Errno 104]"], False),
    ([HEADER, "ConnectionError: retried", "epoch 3", HEADER, "ValueError: bad"], False),
    (["loss: 0.3"], False),
])  # fmt: skip
def test_a_rank_lost_a_connection_if_its_last_exception_began_with_a_lost_connection(
    paths: RunPaths, lines: list[str], lost: bool
) -> None:
    claim_attempt(paths, 0)
    attempt = paths.attempt(0)
    Path(attempt.err(0)).write_text("\n".join(lines))
    assert with_last_words(RankExited(0, 0, 1), attempt).lost_connection is lost


def test_a_full_disk_differs_from_a_disk_with_space(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_files.no_room(paths.run_dir) == ""
    assert run_files.no_room(paths.run_dir + "/gone") == "No such file or directory"
    real_disk = os.statvfs(paths.run_dir)
    for free in ({"f_bavail": 0}, {"f_favail": 0, "f_files": 9}):
        values = {name: getattr(real_disk, name) for name in ("f_bavail", "f_frsize", "f_files", "f_favail")}
        disk = types.SimpleNamespace(**{**values, **free})
        monkeypatch.setattr(run_files.os, "statvfs", lambda _, disk=disk: disk)
        assert run_files.no_room(paths.run_dir) == "No space left on device"


def test_only_the_last_state_of_a_progress_bar_is_stored(paths: RunPaths) -> None:
    claim_attempt(paths, 0)
    attempt = paths.attempt(0)
    Path(attempt.err(0)).write_bytes(b"begun\r\n\r 1/9\r 2/9\r 3/9\nKeyError: 'label'\n\r 4/9\r")
    assert with_last_words(END(), attempt).last_lines == ("begun", " 3/9", "KeyError: 'label'", " 4/9")


@pytest.mark.parametrize("count, is_found", [(100, True), (20_000, True), (-100, False)])
def test_an_error_is_found_above_a_message_of_many_lines_and_not_above_other_output(
    paths: RunPaths, count: int, is_found: bool
) -> None:
    """torch reports a line for each weight whose size differs."""
    claim_attempt(paths, 0)
    attempt = paths.attempt(0)
    head = ["Traceback (most recent call last):", '  File "/p/t.py", line 3, in <module>', "    load()"]
    indent = "\t" if count > 0 else ""
    rest = [f"{indent}layers.{number}: a param of shape [2], here [3]" for number in range(abs(count))]
    Path(attempt.err(0)).write_text("\n".join([*head, "RuntimeError: state_dict of Net:", *rest, ""]))
    end = with_last_words(END(), attempt)
    assert end.error.startswith("RuntimeError: state_dict of Net:") == is_found
    assert (end.place, end.last_lines[-1]) == ("/p/t.py:3 <module>" if is_found else "", rest[-1])


@pytest.mark.parametrize("line, is_collision", [
    ("DistNetworkError: failed to listen. port: 29507, code: -98, name: EADDRINUSE", True),
    ("bind: Address already in use", True),
    ("failed to bind to [::]:12355 (errno: 98 - Address already in use)", False),
    ("OSError: [Errno 98] error while attempting to bind on 0.0.0.0:6006: address already in use", False),
])  # fmt: skip
def test_a_port_of_the_script_is_no_collision_with_the_port_of_rank_0(
    paths: RunPaths, line: str, is_collision: bool
) -> None:
    claim_attempt(paths, 0)
    attempt = paths.attempt(0)
    Path(attempt.err(0)).write_text(f"{line}\n")
    assert with_last_words(END(), attempt, port=29500).collision == is_collision


def test_the_last_output_is_bounded_keeps_foreign_bytes_and_waits_for_no_pipe(paths: RunPaths) -> None:
    claim_attempt(paths, 0)
    attempt = paths.attempt(0)
    Path(attempt.err(0)).write_bytes(b"\xff" * 10_000_000 + b"\nlast\x1b[0m")
    os.mkfifo(attempt.error(0))
    arguments = with_last_words(END(), attempt)
    both_ends = "\udcff" * 500 + " … " + "\udcff" * 500
    assert arguments.last_lines == (both_ends, "last\x1b[0m") and arguments.traceback == ""


def test_at_most_five_states_a_second_and_always_the_last_are_written(paths: RunPaths) -> None:
    claim_attempt(paths, 0)
    loop, notes, written = EventLoop(), [], []
    supervisor = run_directory.StateWriter(loop, paths, notes.append)
    supervisor.epoch, began = 0, steady()
    for number in range(50):
        supervisor.save(RunState("r", 0, State.RUNNING, Phase.TRAINING, str(number), "h", 1, 2.0))
        loop.wait(steady() + 0.001)
        state = read_state(paths)
        written.append(state.reason if state else "")
    most = 2 + 5 * (steady() - began)
    supervisor.finish()
    final = read_state(paths)
    assert written[0] == "0" and len(set(written)) <= most and final and final.reason == "49" and notes == []


def test_the_state_of_a_newer_coordinator_is_never_overwritten(paths: RunPaths) -> None:
    claim_attempt(paths, 0)
    messages: list[int] = []
    supervisor = run_directory.StateWriter(EventLoop(), paths, lambda text: None)
    supervisor.epoch, supervisor.superseded = 0, messages.append
    claim_attempt(paths, 1)
    supervisor.save(STATE)
    supervisor.finish()
    assert messages == [1] and read_state(paths) is None


def test_another_attempt_is_searched_once_before_ranks_start(paths: RunPaths) -> None:
    claim_attempt(paths, 0)
    messages: list[int] = []
    supervisor = run_directory.StateWriter(EventLoop(), paths, lambda text: None)
    supervisor.epoch, supervisor.superseded = 0, messages.append
    assert not supervisor.taken_over(0)
    claim_attempt(paths, 1)
    assert not supervisor.taken_over(0)
    assert supervisor.taken_over(1) and supervisor.taken_over(1) and messages == [1]
