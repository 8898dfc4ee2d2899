"""When the observer says by itself how the ranks fare: soon, then once a period, however short that is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun.diagnosis.evidence import Digest, Pulse
from clusterrun.model.orders import WatchOrders
from clusterrun.model.paths import RunPaths
from clusterrun.model.usage import GpuUse
from clusterrun.monitor import heartbeat
from clusterrun.monitor.heartbeat import Digests
from clusterrun.monitor.observer import _period
from clusterrun.monitor.rank_channels import RankChannel


@pytest.mark.parametrize(
    ("hang", "times"),
    [
        (0.0, [2.0, 5.0, 10.0, 20.0]),
        (600.0, [2.0, 5.0, 10.0, 20.0]),
        (40.0, [2.0, 5.0, 10.0, 20.0]),
        (12.0, [2.0, 3.0, 6.0, 9.0]),
        (8.0, [2.0, 4.0, 6.0, 8.0]),
        (2.0, [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_whatever_the_limit_of_a_hang_is_ranks_are_looked_at_in_time(
    tmp_path: Path, hang: float, times: list[float]
) -> None:
    part = Digests(_period(WatchOrders(on=True, hang_seconds=hang)))
    assert part.wakes_at() is None
    part.started(100.0, RunPaths(str(tmp_path)).attempt(0), {})
    results = []
    for _ in times:
        at = part.wakes_at()
        assert at is not None
        results.append(at - 100.0)
        part.run(at)
    assert results == times


def test_leftovers_of_an_ended_rank_are_reported_without_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "facts", lambda *arguments: pytest.fail("a rank was asked"))
    attempt = RunPaths(str(tmp_path)).attempt(0)
    Path(attempt.folder).mkdir(parents=True)
    Path(attempt.beside("00003.farewell.json")).write_text('{"alone": true}')
    part = Digests(10.0)
    part.started(0.0, attempt, {3: 1 << 30})
    (body,) = part.ended(1.0)
    assert [(entry["rank"], entry["alone"]) for entry in json.loads(body)["digest"]["ranks"]] == [(3, True)]


@pytest.mark.parametrize(
    ("job", "age", "threads", "blocked"),
    [("5", 0.0, 0, (0,)), ("5", 600.0, 0, ()), ("", 0.0, 0, ()), ("5", 0.0, 1, ())],
)
def test_a_rank_is_blocked_while_an_srun_below_it_waits_long_for_a_step_of_the_job(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    age: float,
    threads: int,
    blocked: tuple[int, ...],
) -> None:
    monkeypatch.setattr(heartbeat, "_STEP_SECONDS", age)
    monkeypatch.setenv("SLURM_JOB_ID", "5") if job else monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    part = Digests(10.0)
    program = tmp_path / "srun"
    program.symlink_to(os.path.realpath(sys.executable))
    start = f"[t.Thread(target=input).start() for _ in range({threads})]"
    code = f"import threading as t; {start}; print(1, flush=True); t.Event().wait()"
    command = [str(program), "-S", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as srun:
        try:
            assert srun.stdout is not None and srun.stdout.readline() == b"1\n"
            part.started(0.0, RunPaths(str(tmp_path)).attempt(0), {0: os.getpid()})
            assert part.digest(asks=False).blocked == blocked
        finally:
            srun.kill()
    assert part.digest(asks=False).blocked == ()


def test_digests_are_more_frequent_where_a_group_times_out_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Digests(10.0)
    part.started(100.0, RunPaths(str(tmp_path)).attempt(0), {})
    soon = Digest((Pulse(0, 1, "S", 1.0, 0, timeout=30.0), Pulse(1, 2, "S", 1.0, 0, timeout=1800.0)))
    monkeypatch.setattr(part, "digest", lambda: soon)
    for at in (102.0, 105.0, 110.0):
        assert part.wakes_at() == at
        part.run(at)
    assert part.wakes_at() == 113.75


SHELL, LAUNCHER, INNER = 500, 501, 1000


def processes_below(monkeypatch: pytest.MonkeyPatch, pids: list[int]) -> None:
    """Let ``pids`` be below ``SHELL``: a launcher with the variables of rank 4, and two ranks below it."""
    variables = b"RANK=%d\0MASTER_ADDR=n1\0MASTER_PORT=%d\0"
    environs = dict.fromkeys((SHELL, LAUNCHER), variables % (4, 1))
    environs |= {INNER + rank: variables % (rank, 2) for rank in (0, 1)}
    contents = {f"/proc/{pid}/environ": content for pid, content in environs.items()}
    monkeypatch.setattr(heartbeat.proc, "below", lambda *arguments, **options: [*pids])
    monkeypatch.setattr(heartbeat.proc, "content", lambda path: contents.get(path, b""))


def test_ranks_below_a_launcher_are_reported_when_they_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank is a shell: it has no channel itself. Its launcher starts two processes after 3 s."""
    below = [LAUNCHER]
    processes_below(monkeypatch, below)
    monkeypatch.setattr(heartbeat, "channel", lambda pid: None)
    monkeypatch.setattr(heartbeat.proc, "find_alive", lambda pid: True)
    part = Digests(10.0)
    part.started(100.0, RunPaths(str(tmp_path)).attempt(0), {4: SHELL})
    monkeypatch.setattr(part, "digest", lambda: Digest((), 0, part._inner_ranks))
    digests = []
    while (at := part.wakes_at()) is not None and at <= 106.0:
        if at == 103.0:
            below += [INNER, INNER + 1]
        digests += [(at, json.loads(body)["digest"].get("inner_ranks")) for body in part.run(at)]
    inner_ranks = [[4, 0, "n1:2"], [4, 1, "n1:2"]]
    assert digests == [(102.0, []), (103.0, inner_ranks), (105.0, inner_ranks)]


@pytest.mark.parametrize(
    ("answer", "may_have_launched"),
    [
        ({"torch": False}, True),
        ({"torch": True, "groups": [{"size": 8, "default": True}]}, False),
        ({"problem": "no torch"}, False),
        ({}, False),
    ],
)
def test_ranks_below_a_python_script_are_reported_unless_it_trains_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: dict[str, object], may_have_launched: bool
) -> None:
    processes_below(monkeypatch, [LAUNCHER, INNER, INNER + 1])
    python = RankChannel(4, SHELL, 3, 4, 5, "")
    monkeypatch.setattr(heartbeat, "rank_processes", lambda pids: {4: (SHELL, python)})
    monkeypatch.setattr(heartbeat, "facts", lambda *arguments: {SHELL: answer} if answer else {})
    part = Digests(10.0)
    part.started(100.0, RunPaths(str(tmp_path)).attempt(0), {4: SHELL})
    inner_ranks = ((4, 0, "n1:2"), (4, 1, "n1:2")) if may_have_launched else ()
    assert part.digest().inner_ranks == inner_ranks


def test_a_digest_reports_whether_the_gpus_in_use_work(tmp_path: Path) -> None:
    """GPU 1 is never used. GPU 0 works, then waits, then is not reported."""
    unused, waiting = gpu_use(1, 0.0, 0.0), gpu_use(0, 100.0, 0.0)
    looks = iter(
        [(unused,), (gpu_use(0, 100.0, 40.0), unused), (waiting, unused), (gpu_use(0, 0.0, 0.0),), ()]
    )
    part = Digests(10.0, lambda: next(looks))
    part.started(100.0, RunPaths(str(tmp_path)).attempt(0), {})
    assert [part.digest().gpus_work for _ in range(5)] == [None, True, False, False, None]


def gpu_use(index: int, busy: float, memory_busy: float) -> GpuUse:
    return GpuUse(index, busy, 1.0, 2.0, 150.0, 50.0, "", memory_busy, 700.0)
