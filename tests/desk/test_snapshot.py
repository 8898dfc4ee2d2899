"""A snapshot is the code as it is now: committed or not, and nothing that git ignores."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from clusterrun.model.errors import BadInput
from clusterrun.runs import snapshot
from clusterrun.runs.snapshot import look, take


def git(folder: Path, *args: str) -> None:
    who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    subprocess.run(["git", "-C", str(folder), *who, *args], check=True, capture_output=True, timeout=60)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    for name, text in {
        "train.py": "1\n",
        "sub/model.py": "2\n",
        "gone.py": "3\n",
        ".gitignore": "data\n",
    }.items():
        (root / name).write_text(text)
    git(tmp_path, "init", "-q", "project")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    (root / "train.py").write_text("changed\n")
    (root / "new é\n.py").write_text("new\n")
    (root / "data").write_text("ignored")
    (root / "gone.py").unlink()
    (root / "link.py").symlink_to("train.py")
    (root / "train.py").chmod(0o755)
    return root


def copied(target: Path) -> dict[str, str]:
    return {str(p.relative_to(target)): p.read_text() for p in sorted(target.rglob("*")) if p.is_file()}


def test_uncommitted_changes_are_in_it_and_ignored_files_are_not(project: Path, tmp_path: Path) -> None:
    take(look(str(project / "sub")), str(tmp_path / "copy"), str(tmp_path / "note"))
    assert copied(tmp_path / "copy") == {
        ".gitignore": "data\n",
        "link.py": "changed\n",
        "new é\n.py": "new\n",
        "sub/model.py": "2\n",
        "train.py": "changed\n",
    }
    assert os.readlink(tmp_path / "copy/link.py") == "train.py"
    assert stat.S_IMODE((tmp_path / "copy/train.py").stat().st_mode) == 0o755


def test_the_note_names_the_commit_and_holds_what_differs(project: Path, tmp_path: Path) -> None:
    found = look(str(project))
    take(found, str(tmp_path / "copy"), str(tmp_path / "note"))
    note = (tmp_path / "note").read_text()
    assert f"commit {found.commit}\n" in note and "+changed" in note and len(found.commit) == 40


def test_without_git_the_whole_folder_is_taken(tmp_path: Path) -> None:
    root = tmp_path / "plain"
    (root / "sub/__pycache__").mkdir(parents=True)
    (root / "sub/a.py").write_text("a")
    (root / "sub/__pycache__/a.pyc").write_text("x")
    (root / "sub/loop").symlink_to("..")
    found = look(str(root))
    take(found, str(tmp_path / "copy"), str(tmp_path / "note"))
    assert (found.files, found.commit) == (("sub/a.py", "sub/loop"), "")
    assert os.readlink(tmp_path / "copy/sub/loop") == ".."


@pytest.mark.parametrize("limit", [{"LIMIT": 1 << 20}, {"MOST": 2}])
def test_data_beside_the_code_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]
) -> None:
    for name, value in limit.items():
        monkeypatch.setattr(snapshot, name, value)
    for number in range(3):
        (tmp_path / f"data{number}").write_bytes(bytes(1 << 20))
    with pytest.raises(BadInput, match="that is more than code") as refused:
        look(str(tmp_path))
    assert ".gitignore" in refused.value.remedy


def test_paths_inside_move_into_the_copy_and_others_stay(project: Path) -> None:
    found = look(str(project))
    moved = [
        found.inside(path, "/copy") for path in (str(project), str(project / "sub/model.py"), "/usr/bin/env")
    ]
    assert moved == ["/copy", "/copy/sub/model.py", "/usr/bin/env"]
