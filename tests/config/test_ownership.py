"""A configuration file counts only where nobody but its reader and root can have written it."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path

import pytest

from clusterrun.config import profiles
from clusterrun.config.ownership import objection
from clusterrun.config.spec_fields import spec_of
from clusterrun.model.errors import BadInput
from clusterrun.model.spec import JobSpec
from clusterrun.operations.context import Context

ME, OTHER, ROOT = 1000, 2000, 0
MINE, TEAM = 1000, 500
"""Groups: one of this user alone, and one with more members."""


Entry = tuple[str, os.stat_result]


def entry(path: str, mode: int, uid: int, gid: int) -> Entry:
    return path, os.stat_result((mode, 0, 0, 1, uid, gid, 0, 0, 0, 0))


def refused(*entries: Entry) -> bool:
    return bool(objection(entries, ME, lambda gid: gid == MINE)[0])


def file(mode: int = 0o644, uid: int = ME, gid: int = MINE) -> Entry:
    return entry("/p/clusterrun.toml", stat.S_IFREG | mode, uid, gid)


def folder(mode: int = 0o755, uid: int = ME, gid: int = MINE) -> Entry:
    return entry("/p", stat.S_IFDIR | mode, uid, gid)


@pytest.mark.parametrize(
    "entries",
    [
        (file(), folder()),
        (file(uid=ROOT, gid=0), folder(uid=ROOT, gid=0)),
        (file(0o664), folder(0o775)),
        (file(), folder(0o2770, gid=MINE)),
        (file(), folder(0o1777, ROOT, 0)),
        (file(uid=ROOT, gid=0), folder(0o1777, ROOT, 0)),
        (file(0o664, ROOT, 0), folder(0o775, ROOT, 0)),
    ],
)
def test_a_file_that_only_this_user_or_root_can_write_is_read(entries: tuple[Entry, ...]) -> None:
    assert not refused(*entries)


@pytest.mark.parametrize(
    "entries",
    [
        (file(uid=OTHER), folder(0o1777, ROOT, 0)),
        (file(uid=OTHER), folder()),
        (file(0o666), folder()),
        (file(0o664, gid=TEAM), folder()),
        (file(), folder(0o777)),
        (file(), folder(0o2775, gid=TEAM)),
        (file(), folder(0o777, ROOT, 0)),
        (file(), folder(0o755, OTHER)),
        (file(uid=ROOT), folder(0o1777, OTHER)),
        (entry("/p/clusterrun.toml", stat.S_IFLNK | 0o777, OTHER, TEAM), file(), folder()),
    ],
)
def test_a_file_that_another_user_can_write_is_refused(entries: tuple[Entry, ...]) -> None:
    assert refused(*entries)


def test_no_combination_of_modes_lets_another_user_change_the_file() -> None:
    """Only this user, root, or a group of this user alone may write or replace the file."""
    owners = list(itertools.product((ME, OTHER, ROOT), (MINE, TEAM, 0)))
    modes = (0o600, 0o644, 0o664, 0o666, 0o755, 0o775, 0o777, 0o1775, 0o1777, 0o2775)
    for (file_uid, file_gid), (uid, gid) in itertools.product(owners, owners):
        for file_mode, mode in itertools.product(modes, modes):
            strange_file = file_uid == OTHER or file_mode & 0o002 or (file_mode & 0o020 and file_gid == TEAM)
            shared = mode & 0o002 or (mode & 0o020 and gid == TEAM)
            replaceable = uid == OTHER or (shared and not mode & 0o1000)
            message = refused(file(file_mode, file_uid, file_gid), folder(mode, uid, gid))
            assert message == bool(strange_file or replaceable), (
                file_mode,
                file_uid,
                file_gid,
                mode,
                uid,
                gid,
            )


TEXT = '[defaults]\npython = "/tmp/evil"\n'


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """Make a project below a shared folder with a file that anybody may have written."""
    shared = tmp_path / "scratch"
    shared.mkdir()
    (shared / "clusterrun.toml").write_text(TEXT)
    (shared / "clusterrun.toml").chmod(0o666)
    (shared / "me/project").mkdir(parents=True)
    return shared / "me/project"


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(folder / "xdg"), **more}


def test_a_planted_file_is_named_with_the_remedy_and_each_remedy_helps(planted: Path) -> None:
    path = planted.parents[1] / "clusterrun.toml"
    with pytest.raises(BadInput) as message:
        profiles.load(str(planted), environment(planted))
    assert str(path) in message.value.seen and "can be written by others (mode 0666)" in message.value.seen
    for word in (f"chmod go-w {path}", f"CLUSTERRUN_TRUST={path}", f'trust = ["{path}"]'):
        assert word in message.value.remedy
    for trusted in (str(path), str(path.parent)):
        read = profiles.load(str(planted), environment(planted, CLUSTERRUN_TRUST=trusted))
        assert dict(read[0].defaults.values)["python"] == "/tmp/evil"
    (planted / "xdg/clusterrun").mkdir(parents=True)
    (planted / "xdg/clusterrun/config.toml").write_text(f'[defaults]\ntrust = ["{path}"]\n')
    assert len(profiles.load(str(planted), environment(planted))) == 2
    (planted / "xdg/clusterrun/config.toml").unlink()
    (planted / "clusterrun.toml").write_text("")
    assert [entry.path for entry in profiles.load(str(planted), environment(planted))] == [
        str(planted / "clusterrun.toml")
    ]


def test_a_query_command_reports_once_that_it_ignores_the_file(
    planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(planted)
    messages: list[str] = []
    context = Context(
        {**environment(planted), "CLUSTERRUN_HOME": str(planted / "home")}, tell=messages.append
    )
    assert context.jobs() is context.jobs()
    (line,) = messages
    assert line.startswith(f"{planted.parents[1] / 'clusterrun.toml'} is not read: ")
    assert "can be written by others (mode 0666)" in line
    assert "\n" not in line


def test_a_folder_that_anybody_may_write_is_refused_unless_it_is_sticky(planted: Path) -> None:
    path = planted.parents[1] / "clusterrun.toml"
    path.chmod(0o644)
    path.parent.chmod(0o777)
    with pytest.raises(BadInput, match="mode 0777"):
        profiles.load(str(planted), environment(planted))
    path.parent.chmod(0o1777)
    assert profiles.load(str(planted), environment(planted))[0].path == str(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_file_or_a_link_of_another_user_is_refused(planted: Path) -> None:
    path = planted.parents[1] / "clusterrun.toml"
    path.chmod(0o644)
    os.chown(path, 54321, 54321)
    with pytest.raises(BadInput, match="belongs to another user \\(number 54321\\)"):
        profiles.load(str(planted), environment(planted))
    path.unlink()
    (planted / "mine.toml").write_text(TEXT)
    path.symlink_to(planted / "mine.toml")
    os.chown(path, 54321, 54321, follow_symlinks=False)
    with pytest.raises(BadInput, match="belongs to another user"):
        profiles.load(str(planted), environment(planted))


@pytest.mark.parametrize("table", ["[defaults]", "[profile.a]"])
def test_a_file_cannot_vouch_for_itself(tmp_path: Path, table: str) -> None:
    (tmp_path / "clusterrun.toml").write_text(f'{table}\ntrust = ["/"]\n')
    with pytest.raises(BadInput, match="trust does not count here"):
        profiles.load(str(tmp_path), environment(tmp_path))


@pytest.mark.parametrize(
    "option, seconds",
    [("time", 7200), ("preflight_budget", 120), ("hang_after", 120), ("notice", 120), ("bad_since", 120)],
)
def test_a_bare_number_is_minutes_for_a_time_limit_and_seconds_elsewhere(option: str, seconds: int) -> None:
    spec: JobSpec = spec_of(("a.py",), "/", {option: "120"})
    assert getattr(spec, option) == seconds
    assert getattr(spec_of(("a.py",), "/", {option: "3m"}), option) == 180
