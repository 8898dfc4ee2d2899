"""The user's own program with the news of a run: real processes, one after the other, none left."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterrun.coordinator.actions import Announce
from clusterrun.coordinator.io import event_hook as module
from clusterrun.coordinator.io.event_hook import EventHook
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Survival
from clusterrun.model.paths import RunPaths
from clusterrun.model.record import Attempt, Failure, RunState
from clusterrun.model.states import Phase, State
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.processes import ended_children
from clusterrun.runtime.run_files import claim_attempt
from tests.coordinator.tapes import ORDERS

FAILURE = Failure(3, "n1", 1, 2.0, "rank 3 on n1 exited with code 1", ("last words",))
STATE = RunState(
    run_id="r",
    epoch=0,
    state=State.FAILED,
    phase=Phase.ENDED,
    reason="rank 3 on n1 exited with code 1",
    host="login",
    pid=42,
    updated_at=1.0,
    attempts=(Attempt(0, "first start", ("n0", "n1"), 1.0, 2.0, "FAILED", FAILURE),),
)


class Told:
    """A run with ``command`` as its event hook."""

    def __init__(self, folder: Path, command: str, notify: tuple[str, ...] = ()) -> None:
        self.paths = RunPaths(str(folder))
        claim_attempt(self.paths, 0)
        self.notes: list[str] = []
        self.loop = EventLoop()
        orders = replace(ORDERS, survival=Survival(on_event=command, notify=notify))
        environment = {"PATH": os.defpath, "SLURM_JOB_ID": "7", "MINE": "x"}
        self.hooks = EventHook(self.loop, orders, self.paths, environment, self.notes.append)
        self.loop.every(0.02, self.reap)

    def reap(self) -> None:
        for child in ended_children():
            self.hooks.reaped(child)

    def tells(self, *events: str) -> None:
        for event in events:
            self.hooks.announce(Announce(event, STATE, 5.0))

    def waits_until(self, holds: Callable[[], Any], seconds: float = 60.0) -> None:
        until = steady() + seconds
        while not holds():
            assert steady() < until
            self.loop.wait(steady() + 0.05)


def test_the_hook_reads_the_facts_as_json_from_standard_input(tmp_path: Path) -> None:
    out = tmp_path / "out"
    message = Told(tmp_path, f"cat >>{shlex.quote(str(out))}; echo said $MINE $SLURM_JOB_ID")
    message.tells("failed", "ended")
    message.hooks.finish()
    facts = [json.loads(line) for line in out.read_text().splitlines()]
    assert [fact["event"] for fact in facts] == ["failed", "ended"]
    assert facts[0] == {
        "event": "failed",
        "run_id": "r",
        "name": "r",
        "job_id": "7",
        "attempt": 0,
        "state": "FAILED",
        "reason": "rank 3 on n1 exited with code 1",
        "nodes": ["n0", "n1"],
        "failure": {
            "rank": 3,
            "node": "n1",
            "why": "rank 3 on n1 exited with code 1",
            "error": "last words",
            "place": "",
        },
        "exit_code": None,
        "started_at": None,
        "run_dir": str(tmp_path),
        "at": 5.0,
    }
    assert Path(message.paths.attempt(0).hooks_log).read_text() == "said x 7\n" * 2
    assert message.notes == []


def test_hooks_run_in_order(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = f"""echo begin >>{out}; sleep 0.1; sed 's/.*"event": "//; s/".*//' >>{out}"""
    message = Told(tmp_path, command)
    message.tells("started", "failed", "restarted", "ended")
    message.hooks.finish()
    expected = [word for event in ("started", "failed", "restarted", "ended") for word in ("begin", event)]
    assert out.read_text().split() == expected


def test_a_program_that_never_ends_is_killed_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT_SECONDS", 0.5)
    pids = tmp_path / "pids"
    message = Told(tmp_path, f"sleep 100 & echo $! $$ >>{pids}; setsid sleep 100 & echo $! >>{pids}; wait")
    message.tells("started")
    message.waits_until(lambda: message.notes)
    message.waits_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in living(pids)))
    assert message.notes == ["the program for events was killed: it ran for 0.5 s"]


def living(pids: Path) -> list[str]:
    """Return the processes listed in the file that are not zombies."""
    results = []
    for pid in pids.read_text().split():
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        results += [] if state in "ZX" else [pid]
    return results


def test_the_end_of_a_run_waits_for_its_hook_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_SECONDS", 0.3)
    message = Told(tmp_path, "sleep 100")
    message.tells("started", "ended")
    began = time.monotonic()
    message.hooks.finish()
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(("command", "end"), [("exit 3", "code 3"), ("kill -SEGV $$", "SIGSEGV")])
def test_a_program_that_fails_costs_a_note(tmp_path: Path, command: str, end: str) -> None:
    message = Told(tmp_path, command)
    message.tells("ended")
    message.hooks.finish()
    (note,) = message.notes
    assert end in note and note.endswith("; see hooks.log")


def test_addresses_are_on_no_command_line_and_a_silent_server_delays_no_other_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program for nodes is a stand-in here that records how it was started, and then waits."""
    monkeypatch.setattr(module, "LAST_SECONDS", 0.3)
    message = Told(tmp_path, "", notify=("slack://T0/B0/s3cret",))
    commands = tmp_path / "seen"
    Path(message.paths.agent).write_text(
        "import json, os, sys, time\n"
        "line = open('/proc/self/cmdline').read()\n"
        f"with open({str(commands)!r}, 'a') as file:\n"
        "    file.write(json.dumps([line, os.environ.get('MINE'), json.load(sys.stdin)]) + '\\n')\n"
        "time.sleep(100)\n"
    )
    message.tells("failed", "ended")
    message.waits_until(lambda: commands.exists() and commands.read_text().count("\n") == 1)
    message.tells("ended")
    message.waits_until(lambda: commands.read_text().count("\n") == 2)
    message.hooks.finish()
    for line in commands.read_text().splitlines():
        command_line, mine, parcel = json.loads(line)
        assert "s3cret" not in command_line and mine == "x"
        assert (parcel["urls"], parcel["seconds"]) == (["slack://T0/B0/s3cret"], 8.0)
        assert (parcel["event"]["event"], parcel["event"]["state"]) == ("ended", "FAILED")
    assert message.notes == ["a message about 'ended' was not delivered; see notify.log"] * 2
    assert Path(message.paths.attempt(0).notify_log).stat().st_mode & 0o777 == 0o600


def test_no_hook_runs_without_an_order(tmp_path: Path) -> None:
    message = Told(tmp_path, "")
    message.tells("ended")
    message.hooks.finish()
    assert not Path(message.paths.attempt(0).hooks_log).exists()
