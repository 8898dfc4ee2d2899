"""After a crash at any moment every run told of is there, and no state is damaged or older than told."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterrun.config.spec_fields import spec_of
from clusterrun.coordinator.io.run_directory import ReportFiles
from clusterrun.model.errors import NoSuchRun
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Orders
from clusterrun.model.paths import RunPaths
from clusterrun.model.record import RunState, RunStatus
from clusterrun.model.states import Phase, State
from clusterrun.operations import submit
from clusterrun.operations.context import Context, quiet
from clusterrun.operations.run_files import RunFiles, read
from clusterrun.runs.node_records import findings_folder, forget, forgotten_at, recall
from clusterrun.runs.private_files import private_folder, write_whole
from clusterrun.runs.store import Store
from clusterrun.runtime import run_files
from clusterrun.script import pack
from clusterrun.training import files as checkpoints
from tests.operations.test_run_state import evidence, judge
from tests.operations.values import ID, NOW, RECORD, state
from tests.survive.crash import Recording, Tree, put, recorded, states

Found = Callable[[Recording], Iterator[tuple[frozenset[str], Path]]]
STATE = RunState("r", 0, State.RUNNING, Phase.TRAINING, "0", "h", 1, 2.0)


@pytest.fixture
def found() -> Iterator[Found]:
    """Yield each state that a crash may leave, as a folder in memory, with the acknowledged facts."""
    above = Path(tempfile.mkdtemp(dir="/dev/shm"))

    def each(recording: Recording) -> Iterator[tuple[frozenset[str], Path]]:
        folder = above / "found"
        for message, tree in states(recording.ops):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
            put(tree, folder)
            yield message, folder

    yield each
    shutil.rmtree(above)


def test_the_model_detects_files_that_are_overwritten_or_renamed_without_sync(tmp_path: Path) -> None:
    """A model of crashes that finds nothing anywhere would prove nothing."""

    def trees(write: Callable[[Path], None]) -> set[Tree]:
        folder = tmp_path / write.__name__
        folder.mkdir()
        with recorded(folder) as log:
            write(folder)
        return {tree for _, tree in states(log.ops)}

    def overwritten(folder: Path) -> None:
        for text in ("old!", "new!"):
            with open(folder / "f", "w") as file:
                file.write(text)

    def renamed(folder: Path) -> None:
        write_whole(str(folder / "f"), b"old!", sync=False)

    assert {(("f", b""),), (("f", b"ne"),), (("f", b"old!"),)} < trees(overwritten)
    assert (("f", bytes(4)),) in trees(renamed)


def test_a_run_that_was_queued_is_found_with_its_job_its_orders_and_its_program_after_any_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Found
) -> None:
    """Slurm's answer and the program are stand-ins: what counts is what the disk has when they come."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    context = Context({"CLUSTERRUN_HOME": str(home), "HOME": str(tmp_path)})
    spec = replace(spec_of(("true",), str(tmp_path), {"cluster": "local"}), name="r")
    monkeypatch.setattr(pack, "packed", lambda sources: b"program")
    with recorded(home) as log:

        def queue(*args: object) -> str:
            log.say("queued")
            return "4711"

        monkeypatch.setattr(submit, "queue", queue)
        record, _ = submit.send(spec, context, quiet)
        log.say("answered")
    remote = context.store.paths(record.run_id)
    whole = [Path(path).read_bytes() for path in (remote.orders, remote.agent)]
    for message, folder in found(log):
        store = Store(str(folder))
        if not message:
            assert all(readable(store, run_id) for run_id in store.ids())
            continue
        retained, paths = store.read(record.run_id), store.paths(record.run_id)
        assert replace(retained, job_id="4711") == record and retained.job_id in ("", "4711")
        assert [Path(path).read_bytes() for path in (paths.orders, paths.agent)] == whole
        assert "answered" not in message or retained.job_id == "4711"


def readable(store: Store, run_id: str) -> bool:
    """Return whether ``status`` has an answer for a run, also that it was never queued."""
    try:
        return isinstance(read(store, run_id), (RunFiles, RunStatus))
    except NoSuchRun:
        return False


def test_the_state_of_a_run_is_the_newest_or_the_previous_after_any_crash(
    tmp_path: Path, found: Found
) -> None:
    home = tmp_path / "run"
    home.mkdir(mode=0o700)
    with recorded(home) as log:
        paths = RunPaths(str(home))
        for number in range(3):
            run_files.write_state(paths, replace(STATE, reason=str(number)))
            log.say(str(number))
    for message, folder in found(log):
        state = run_files.read_state(RunPaths(str(folder)))
        newest = len(message) - 1
        assert state.reason in (str(newest), str(newest + 1)) if state else newest == -1


def test_the_successor_job_is_the_newest_or_the_previous_after_any_crash(
    tmp_path: Path, found: Found
) -> None:
    home = tmp_path / "run"
    home.mkdir(mode=0o700)
    notes: list[str] = []
    with recorded(home) as log:
        filing = ReportFiles(Orders("r", "r", 1, 1, 0, 1, ("true",), "/"), RunPaths(str(home)), notes.append)
        for number in range(3):
            filing.successor(str(number), ())
            log.say(str(number))
    assert notes == []
    for message, folder in found(log):
        path, newest = Path(RunPaths(str(folder)).successor), len(message) - 1
        job_id = json.loads(path.read_text())["job_id"] if path.exists() else "-1"
        assert int(job_id) in (newest, newest + 1)


def test_a_cancelled_run_stays_cancelled_and_a_forgotten_node_forgotten_after_any_crash(
    tmp_path: Path, found: Found
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with recorded(home) as log:
        store = Store(str(home))
        store.claim(ID)
        store.ask_cancel(ID)
        log.say("cancelled")
        folder = findings_folder(str(home), "cluster")
        private_folder(folder)
        forget(folder, "n1", 5.0)
        log.say("forgotten")
    for message, folder in found(log):
        again = Store(str(folder))
        memory = recall(findings_folder(str(folder), "cluster"), 0.0)
        assert "cancelled" not in message or again.cancel_asked(ID)
        assert "forgotten" not in message or forgotten_at(memory, "n1") == 5.0


def test_a_last_word_that_a_crash_has_damaged_is_none_and_is_found_out_again(
    tmp_path: Path, found: Found
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    store = Store(str(home))
    with recorded(home) as log:
        store.claim(ID)
        store.save(RECORD)
        log.say("queued")
        store.settle(judge(evidence(state=state(State.COMPLETED))), NOW, RECORD.job_id)
        log.say("settled")
    for message, folder in found(log):
        if message:
            case = read(Store(str(folder)), ID)
            assert isinstance(case, RunFiles)
            assert (case.record, case.ended is None or case.ended.status.state is State.COMPLETED) == (
                RECORD,
                True,
            )


def test_the_newest_complete_checkpoint_is_the_reported_or_a_later_one_after_any_crash(
    tmp_path: Path, found: Found
) -> None:
    home = tmp_path / "kept"
    home.mkdir(mode=0o700)
    with recorded(home) as log:
        for step in (1, 2, 3):
            mine = checkpoints.write(
                str(home), step, 0, lambda file, step=step: file.write(b"%d" % step), bool
            )
            checkpoints.drop_old(str(home), mine, 1, ())
            log.say(str(step))
    for message, folder in found(log):
        whole = [
            entry
            for entry in checkpoints.newest_first(str(folder))
            if not checkpoints.objection(str(folder), entry)
        ]
        assert (whole[0].step if whole else 0) >= len(message)
