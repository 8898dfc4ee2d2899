"""The runs on disk: ids, records written whole, words that mean a run, folders nobody else may write."""

from __future__ import annotations

import errno
import itertools
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.model.document import BadDocument, encode
from clusterrun.model.errors import NoSuchRun
from clusterrun.model.frozen import replace
from clusterrun.model.run_words import RUN_ID, shadowed_by, slurm_job
from clusterrun.runs import private_files, store
from clusterrun.runs.private_files import DiskRefused, write_whole
from clusterrun.runs.store import EndedRun, Store, SuccessorJobs, run_id
from tests.operations.test_run_state import evidence, judge
from tests.operations.values import ATTEMPT, NOW, RECORD, STATE, row, state

# Runs of the same millisecond need different ids.
_NUMBERS = itertools.count()


@pytest.fixture
def home(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "home"))


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def add(home: Store, name: str, at: float = NOW, **changes: Any) -> str:
    chosen = run_id(name, at, bytes(divmod(next(_NUMBERS), 32)))
    home.claim(chosen)
    home.save(replace(RECORD, run_id=chosen, name=name, **changes))
    return chosen


def test_a_run_id_shows_its_time_and_its_name() -> None:
    assert run_id("train", NOW + 0.5, b"\x00\x1f") == "20270115-080000-g00z-train"


@given(
    st.lists(st.floats(NOW, NOW + 1e8), min_size=2, unique_by=lambda t: int(t * 1000)), st.text(max_size=5)
)
def test_run_ids_sort_by_time(moments: list[float], name: str) -> None:
    ids = [run_id(name, moment, b"zz") for moment in sorted(moments)]
    assert ids == sorted(ids)


@given(st.text(max_size=80))
def test_any_name_becomes_a_safe_file_name(name: str) -> None:
    chosen = run_id(name, NOW, b"\0\0")
    assert RUN_ID.fullmatch(chosen) and len(chosen) < 64 and os.path.basename(chosen) == chosen


@pytest.mark.usefixtures("open_umask")
def test_run_directories_are_closed_to_others_whatever_the_umask(home: Store) -> None:
    paths = home.paths(add(home, "train"))
    modes = {p: stat.S_IMODE(os.stat(p).st_mode) for p in (home.home, home.runs, paths.run_dir, paths.record)}
    assert list(modes.values()) == [0o700, 0o700, 0o700, 0o600]


def test_a_record_comes_back_as_it_was_written(home: Store) -> None:
    chosen = add(home, "train")
    assert home.read(chosen) == replace(RECORD, run_id=chosen)


def test_a_home_that_others_may_write_is_refused(home: Store) -> None:
    os.makedirs(home.home)
    os.chmod(home.home, 0o770)
    with pytest.raises(DiskRefused, match="can be written by others") as refused:
        home.claim("20270115-080000-0000-x")
    assert refused.value.remedy == f"chmod go-w {home.home}"


def test_a_run_directory_that_is_a_link_is_refused(home: Store, tmp_path: Path) -> None:
    chosen = add(home, "train")
    os.rename(home.paths(chosen).run_dir, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", home.paths(chosen).run_dir)
    with pytest.raises(DiskRefused, match="is a link"):
        home.read(chosen)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_run_directory_of_another_user_is_refused(home: Store) -> None:
    chosen = add(home, "train")
    os.chown(home.paths(chosen).run_dir, 65534, 65534)
    with pytest.raises(DiskRefused, match="belongs to another user"):
        home.read(chosen)


def test_a_home_that_cannot_be_created_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskRefused, match=r"not a directory|file exists"):
        Store(str(tmp_path / "file" / "home")).claim("20270115-080000-0000-x")


def test_a_full_disk_leaves_neither_a_partial_nor_a_temporary_file(
    home: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = add(home, "train")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(private_files.os, "fsync", full)
    with pytest.raises(DiskRefused, match="no space left") as refused:
        home.save(replace(RECORD, run_id=chosen, job_id=""))
    assert "free some space" in refused.value.remedy
    assert home.read(chosen).job_id == "41"
    assert os.listdir(home.paths(chosen).run_dir) == ["record.json"]


@pytest.mark.parametrize("word", ["20270115-", "last", "train", "41", "20270115-080000"])
def test_a_run_is_found_by_id_job_name_start_and_last(home: Store, word: str) -> None:
    chosen = add(home, "train")
    folder = home.paths(chosen).run_dir
    assert {home.find(word) for word in (chosen, word, folder, folder + "/")} == {chosen}


def test_a_name_means_the_newest_run_of_that_name(home: Store) -> None:
    add(home, "train", NOW)
    newer = add(home, "train", NOW + 1)
    add(home, "tr@in", NOW + 2)
    assert [home.find("train"), home.find("tr@in")[:15]] == [newer, "20270115-080002"]


def test_a_run_is_selected_by_its_name_and_by_the_name_in_its_id(home: Store) -> None:
    other = add(home, "pkg_train", NOW)
    altered = add(home, "pkg/train", NOW + 1)
    assert [home.find("pkg/train"), home.find("pkg_train")] == [altered, other]
    longest = add(home, "train-with-a-name-of-more-than-32-characters", NOW + 2)
    assert home.find(store.name_of(longest)) == longest


@pytest.mark.parametrize(
    "name, is_shadowed",
    [
        ("last", True),
        ("41", True),
        ("41_7", True),
        ("2610.1234", True),
        ("20270115-080000-g00z-train", True),
        ("last-one", False),
        ("41b", False),
        ("v1.5", False),
        ("20270115", True),
        ("20270115-train", False),
    ],
)
def test_a_name_that_means_another_run_is_shadowed(name: str, is_shadowed: bool) -> None:
    assert bool(shadowed_by(name)) == is_shadowed


@pytest.mark.parametrize(
    ("word", "job"), [("41", "41"), ("41_7.batch", "41_7"), ("41_[0-3%2]", "41"), ("0", ""), ("train", "")]
)
def test_a_word_names_a_slurm_job_from_1_on(word: str, job: str) -> None:
    assert slurm_job(word) == job


@pytest.mark.parametrize(
    "word, message, hint",
    [
        ("trian", "there is no run 'trian'", "did you mean train?"),
        ("12.py", "there is no run '12.py'", "did you mean run-12?"),
        ("src/eval.py", "there is no run 'src/eval.py'", "did you mean eval?"),
        ("20270115-", "'20270115-' is the start of 3 run ids", "give more of the id"),
        ("2", "there is no run '2'", "clusterrun status"),
        ("20270115", "there is no run '20270115'", "clusterrun status"),
        ("99", "there is no run '99'", "clusterrun status"),
        ("", "there is no run ''", "clusterrun status"),
        ("../runs", "there is no run '../runs'", "clusterrun status"),
    ],
)
def test_a_word_that_means_no_run_gets_a_hint(home: Store, word: str, message: str, hint: str) -> None:
    add(home, "train")
    add(home, "eval", NOW + 1)
    add(home, "run-12", NOW + 2)
    with pytest.raises(NoSuchRun) as refused:
        home.find(word)
    assert message in refused.value.seen and hint in refused.value.remedy


def test_last_names_no_run_if_there_are_none(home: Store) -> None:
    with pytest.raises(NoSuchRun, match="there are no runs yet"):
        home.find("last")


@pytest.mark.parametrize(
    "content, said_of_it",
    [
        ("", "is damaged"),
        ("{", "is damaged"),
        ("\x00\x00", "is damaged"),
        ("[]", "expected an object"),
        ('{"format": 99, "whatever": 1}', "has format 99, of a newer clusterrun"),
        ('{"run_id": 3}', "expected str"),
    ],
)
def test_a_damaged_record_is_named_and_never_a_traceback(home: Store, content: str, said_of_it: str) -> None:
    chosen = add(home, "train")
    Path(home.paths(chosen).record).write_text(content)
    with pytest.raises(BadDocument, match=said_of_it):
        home.read(chosen)


def test_a_file_that_is_larger_than_any_document_is_damaged(home: Store) -> None:
    chosen = add(home, "train")
    with open(home.paths(chosen).state, "wb") as file:
        file.truncate(300 << 20)
    with pytest.raises(BadDocument, match=r"state\.json is damaged: it has more than 64 MB"):
        home.state(chosen)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_home_whose_file_system_cannot_sync_folders_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(code, os.strerror(code))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    home = Store(str(tmp_path / "home"))
    chosen = add(home, "train")
    assert home.read(chosen).run_id == chosen


def test_a_disk_error_is_not_taken_for_a_missing_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(DiskRefused):
        add(Store(str(tmp_path / "home")), "train")


def test_a_damaged_record_does_not_hide_other_runs_of_its_name(home: Store) -> None:
    good = add(home, "train", NOW)
    bad = add(home, "train", NOW + 1)
    Path(home.paths(bad).record).write_text("{")
    assert home.find("train") == good


def test_a_record_of_another_run_is_refused(home: Store) -> None:
    run, other = add(home, "train"), add(home, "train", NOW + 1)
    Path(home.paths(run).record).write_text(Path(home.paths(other).record).read_text())
    with pytest.raises(BadDocument, match="record of another run"):
        home.read(run)


def test_live_runs_are_current_however_old_and_settled_ones_only_while_new(home: Store) -> None:
    ids = [add(home, "train", NOW + n) for n in range(5)]
    for settled in (ids[1], ids[3], ids[4]):
        home.settle(replace(judge(evidence(row=row("COMPLETED"), state=state())), run_id=settled), NOW, "41")
    assert home.current(2) == [ids[4], ids[3], ids[2], ids[0]]


def test_the_final_state_of_a_run_stays(home: Store) -> None:
    chosen = add(home, "train")
    word = replace(judge(evidence(row=row("TIMEOUT"), state=state())), run_id=chosen)
    home.settle(word, NOW, "41")
    assert home.ended(chosen) == EndedRun(NOW, word, "41")


def test_a_discarded_run_leaves_nothing(home: Store) -> None:
    home.discard(add(home, "train"))
    assert [home.ids(), os.listdir(home.live)] == [[], []]


def test_listing_opens_no_record(home: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [add(home, "train", NOW + n) for n in range(3)]
    monkeypatch.setattr(store, "read_document", lambda cls, path: pytest.fail(f"opened {path}"))
    assert [home.ids(), home.find("last")] == [ids[::-1], ids[-1]]


def test_strange_entries_beside_the_runs_are_passed_over(home: Store) -> None:
    chosen = add(home, "train")
    for name in ("README", ".nfs0001", "20270115-080000"):
        Path(home.runs, name).write_text("")
    assert home.ids() == [chosen]


def test_a_file_is_replaced_atomically_without_its_old_mode(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")
    path.chmod(0o644)
    write_whole(str(path), "new \udcff")
    assert [path.read_bytes(), stat.S_IMODE(path.stat().st_mode)] == [b"new \xff", 0o600]


def test_a_record_with_foreign_bytes_survives(home: Store) -> None:
    spec = replace(RECORD.spec, environment=(("A", "\udcff\n$(x)"),))
    chosen = add(home, "tr\udcffain", spec=spec)
    assert json.loads(Path(home.paths(chosen).record).read_text())["name"] == "tr\udcffain"
    assert home.read(chosen).spec == spec


def test_the_job_of_a_run_is_the_newest_and_both_numbers_select_the_run(home: Store) -> None:
    chosen = add(home, "train", job_id="41")
    write_whole(home.paths(chosen).successor, '{"job_id": "57", "excluded": ["n0003"]}')
    assert (home.read(chosen).job_id, home.find("41"), home.find("57")) == ("57", chosen, chosen)


@pytest.mark.parametrize("word", ["41", "41.0", "41.batch", "41.extern", "41+0", "41+0.3"])
def test_a_step_of_a_job_means_the_run_of_the_job(home: Store, word: str) -> None:
    chosen = add(home, "train", job_id="41")
    add(home, "point", NOW + 1, job_id="41_7")
    add(home, "local", NOW + 2, job_id="41.7")
    assert home.find(word) == chosen


@pytest.mark.parametrize("word, name", [("41_7", "point"), ("41_7.batch", "point"), ("41.7", "local")])
def test_an_array_task_and_a_local_job_are_no_step(home: Store, word: str, name: str) -> None:
    add(home, "train", job_id="41")
    runs = {
        "point": add(home, "point", NOW + 1, job_id="41_7"),
        "local": add(home, "local", NOW + 2, job_id="41.7"),
    }
    assert home.find(word) == runs[name]


def test_a_job_of_this_cluster_has_priority_over_the_same_number_elsewhere(home: Store) -> None:
    own_run = add(home, "train", NOW, job_id="1", slurm="a@ctl")
    other_run = add(home, "train", NOW + 1, job_id="1", slurm="b@ctl")
    alone = add(home, "train", NOW + 2, job_id="2", slurm="b@ctl")
    on_a = Store(home.home, lambda record: record.slurm.removeprefix("a@ctl"))
    assert (home.find("1"), on_a.find("1"), on_a.find("2")) == (other_run, own_run, alone)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "null",
        "[]",
        '{"job_id": 57}',
        '{"job_id": "57 58"}',
        '{"job_id": "--user=root"}',
        '{"job_id": ""}',
        '{"job_id": "\\u0665"}',
        '{"job_id": "' + "5" * 21 + '"}',
    ],
)
@pytest.mark.parametrize("file", ["successor", "next"])
def test_a_damaged_successor_file_is_named_and_hides_no_run(home: Store, file: str, text: str) -> None:
    chosen = add(home, "train", job_id="41")
    paths = home.paths(chosen)
    other = paths.next if file == "successor" else paths.successor
    write_whole(getattr(paths, file), text)
    write_whole(other, '{"job_id": "57"}')
    further = home.further_jobs(chosen)
    assert file in further.damage and "57" in (further.job_id, further.waiting)
    assert home.read(chosen).job_id == ("41" if file == "successor" else "57")


def test_an_entry_that_is_no_file_is_ignored(home: Store) -> None:
    chosen = add(home, "train", job_id="41")
    os.mkdir(home.paths(chosen).successor)
    os.mkfifo(home.paths(chosen).next)
    assert (home.read(chosen).job_id, home.further_jobs(chosen).waiting) == ("41", "")


def test_every_job_of_a_chain_leads_to_its_run(home: Store) -> None:
    chosen = add(home, "train", job_id="41")
    attempts = tuple(replace(ATTEMPT, epoch=n, job_id=job) for n, job in enumerate(("41", "42", "43")))
    write_whole(
        home.paths(chosen).state, json.dumps(encode(replace(STATE, run_id=chosen, attempts=attempts)))
    )
    write_whole(home.paths(chosen).successor, '{"job_id": "43"}')
    write_whole(home.paths(chosen).next, '{"job_id": "44"}')
    assert [home.find(word) for word in ("41", "42", "43", "44")] == [chosen] * 4
    assert home.further_jobs(chosen) == SuccessorJobs("43", "44")
