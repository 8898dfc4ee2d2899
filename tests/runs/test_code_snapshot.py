"""A snapshot is the code as it is now: committed or not, and nothing that git ignores."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from clusterrun.model.errors import BadInput
from clusterrun.runs import code_snapshot
from clusterrun.runs.code_snapshot import look, take


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
        monkeypatch.setattr(code_snapshot, name, value)
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


@pytest.fixture
def with_data(tmp_path: Path) -> Path:
    """A project like many: data and outputs are ignored, and lie beside code in the same folders."""
    root = tmp_path / "project"
    for name, size in {
        "train.py": 10,
        "data/small/prepare.py": 10,
        "data/small/train.bin": 3_000_000,
        "data/small/meta.pkl": 1000,
        "data/big/train.bin": 5_000_000,
        "out/ckpt.pt": 2_000_000,
        "__pycache__/train.pyc": 9_000_000,
        ".cache/x": 9_000_000,
        "env/pyvenv.cfg": 1,
        "env/lib/torch.so": 9_000_000,
        "a.egg-info/PKG-INFO": 9_000_000,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        with (root / name).open("wb") as file:
            file.truncate(size)
    ignored = "*.bin\n*.pkl\nout/\n__pycache__/\n.cache/\nenv/\n*.egg-info/\n"
    (root / ".gitignore").write_text(ignored)
    git(tmp_path, "init", "-q", "project")
    return root


CODE = {".gitignore", "train.py", "data/small/prepare.py"}


def test_what_git_ignores_is_counted_and_the_largest_is_named(with_data: Path) -> None:
    found = look(str(with_data))
    assert set(found.files) == CODE
    assert str(found.left_out) == (
        "4 files that git ignores are not in it (10.0 MB; the largest is data/big/train.bin, 5.0 MB): "
        "--snapshot-include PATH takes them along"
    )


@pytest.mark.parametrize(
    "include, more, left",
    [
        (("data/small",), {"data/small/train.bin", "data/small/meta.pkl"}, 2),
        (("data",), {"data/small/train.bin", "data/small/meta.pkl", "data/big/train.bin"}, 1),
        (("out",), {"out/ckpt.pt"}, 3),
        (("out/ckpt.pt", "data/small/meta.pkl"), {"out/ckpt.pt", "data/small/meta.pkl"}, 2),
        (("train.py",), set(), 4),
    ],
)
def test_a_path_that_is_included_is_copied_with_all_that_git_ignores_below_it(
    with_data: Path, tmp_path: Path, include: tuple[str, ...], more: set[str], left: int
) -> None:
    found = look(str(with_data), include)
    assert (set(found.files), found.links, found.left_out.files) == (CODE | more, (), left)
    take(found, str(tmp_path / "copy"), str(tmp_path / "note"))
    for name in more:
        assert (tmp_path / "copy" / name).stat().st_size == (with_data / name).stat().st_size


def test_what_is_too_large_to_copy_is_linked_to_beside_the_code(
    with_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_snapshot, "LIMIT", 4_000_000)
    found = look(str(with_data / "data"), ("../out", "small", "big"))
    assert set(found.links) == {"data/small/train.bin", "data/big"} and found.left_out.files == 0
    take(found, str(tmp_path / "copy"), str(tmp_path / "note"))
    assert os.readlink(tmp_path / "copy/data/small/train.bin") == str(with_data / "data/small/train.bin")
    assert (tmp_path / "copy/data/big/train.bin").stat().st_size == 5_000_000
    assert (tmp_path / "copy/data/small/prepare.py").is_file()


def test_a_path_that_is_not_there_is_refused(with_data: Path) -> None:
    with pytest.raises(BadInput, match="dta: there is no such file or folder"):
        look(str(with_data), ("dta",))
