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
    (root / "data").mkdir()
    (root / "data/large").write_text("ignored")
    (root / "gone.py").unlink()
    (root / "link.py").symlink_to("train.py")
    (root / "train.py").chmod(0o755)
    return root


def copied(target: Path) -> dict[str, str]:
    files = [path for path in sorted(target.rglob("*")) if path.is_file() and ".git" not in path.parts]
    return {str(path.relative_to(target)): path.read_text() for path in files}


def test_uncommitted_changes_are_in_it_and_ignored_files_are_not(project: Path, tmp_path: Path) -> None:
    take(look(str(project / "sub")), str(tmp_path / "copy"), str(tmp_path / "note"))
    assert copied(tmp_path / "copy") == {
        ".gitignore": "data\n",
        "link.py": "changed\n",
        "new é\n.py": "new\n",
        "sub/model.py": "2\n",
        "train.py": "changed\n",
    }
    assert sorted(path.name for path in (tmp_path / "copy").iterdir() if path.is_dir()) == [
        ".git",
        "data",
        "sub",
    ]
    assert os.readlink(tmp_path / "copy/link.py") == "train.py"
    assert stat.S_IMODE((tmp_path / "copy/train.py").stat().st_mode) == 0o755


def test_the_note_has_the_commit_and_the_differences(project: Path, tmp_path: Path) -> None:
    snapshot = look(str(project))
    take(snapshot, str(tmp_path / "copy"), str(tmp_path / "note"))
    note = (tmp_path / "note").read_text()
    assert f"commit {snapshot.commit}\n" in note and "+changed" in note and len(snapshot.commit) == 40


def test_the_whole_folder_is_copied_without_git(tmp_path: Path) -> None:
    root = tmp_path / "plain"
    (root / "sub/__pycache__").mkdir(parents=True)
    (root / "sub/a.py").write_text("a")
    (root / "sub/__pycache__/a.pyc").write_text("x")
    (root / "sub/loop").symlink_to("..")
    os.mkfifo(root / "pipe")
    (root / "logs/new").mkdir(parents=True)
    snapshot = look(str(root))
    take(snapshot, str(tmp_path / "copy"), str(tmp_path / "note"))
    assert (snapshot.files, snapshot.commit) == (("sub/a.py", "sub/loop"), "")
    assert os.readlink(tmp_path / "copy/sub/loop") == ".."
    assert snapshot.special == ("pipe",)
    assert list((tmp_path / "copy/logs").rglob("*")) == [tmp_path / "copy/logs/new"]
    assert "not in the copy: pipe: not a file" in str(snapshot)


@pytest.mark.parametrize("limit", [{"LIMIT": 1 << 20}, {"MOST": 2}])
def test_data_beside_the_code_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]
) -> None:
    for name, value in limit.items():
        monkeypatch.setattr(code_snapshot, name, value)
    for number in range(3):
        (tmp_path / f"data{number}").write_bytes(bytes(1 << 20))
    with pytest.raises(BadInput, match=r"up to data[12]: that is more than code") as refused:
        look(str(tmp_path))
    assert ".gitignore" in refused.value.remedy


def test_paths_inside_move_into_the_copy_and_others_stay(project: Path) -> None:
    snapshot = look(str(project))
    moved = [
        snapshot.inside(path, "/copy")
        for path in (str(project), str(project / "sub/model.py"), "/usr/bin/env")
    ]
    assert moved == ["/copy", "/copy/sub/model.py", "/usr/bin/env"]


@pytest.fixture
def with_data(tmp_path: Path) -> Path:
    """Make a typical project: data and outputs are ignored, and lie beside code in the same folders."""
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


def test_ignored_files_are_counted_and_named_files_first(with_data: Path) -> None:
    snapshot = look(str(with_data))
    assert set(snapshot.files) == CODE
    assert list(snapshot.lines())[1:] == [
        "not in the copy: the Python environment env: "
        "ranks use the original, so later changes there reach them",
        "not in the copy: 4 files that git ignores "
        "(9.5 MiB; data/small/meta.pkl, data/small/train.bin, data/big/ and 1 more): "
        "no relative path leads to them; --snapshot-include PATH takes them along",
    ]
    (with_data / ".gitignore").write_text(".env\ndata/\nout/\n.cache/\n")
    (with_data / ".env").write_text("TOKEN=1\n")
    assert look(str(with_data)).ignored.names == (".env", "data/", "out/")


def test_an_ignored_link_is_a_link_in_the_copy(with_data: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (with_data / "inputs").symlink_to("../scratch")
    with (with_data / ".gitignore").open("a") as file:
        file.write("inputs\n")
    snapshot = look(str(with_data))
    take(snapshot, str(tmp_path / "copy"), str(tmp_path / "note"))
    assert os.readlink(tmp_path / "copy/inputs") == str(tmp_path / "scratch")
    assert f"inputs → {tmp_path}/scratch" in str(snapshot) and snapshot.ignored.files == 4


def test_the_links_of_a_strict_editable_install_lead_into_the_copy(with_data: Path, tmp_path: Path) -> None:
    package = with_data / "out/__editable__.pkg-0.1/pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").symlink_to(with_data / "train.py")
    take(look(str(with_data)), str(tmp_path / "copy"), str(tmp_path / "note"))
    assert os.readlink(tmp_path / "copy/out/__editable__.pkg-0.1/pkg/__init__.py") == str(
        tmp_path / "copy/train.py"
    )


def test_a_hook_of_git_copies_its_folder_and_leaves_its_repository_alone(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q", "other")
    for name, value in {"GIT_DIR": "", "GIT_WORK_TREE": "", "GIT_INDEX_FILE": "/index"}.items():
        monkeypatch.setenv(name, f"{tmp_path}/other{'/.git' if name == 'GIT_DIR' else value}")
    snapshot = look(str(project))
    take(snapshot, str(tmp_path / "copy"), str(tmp_path / "note"))
    assert "train.py" in snapshot.files and (tmp_path / "copy/.git/HEAD").is_file()
    assert not (tmp_path / "other/index").exists()


@pytest.mark.parametrize(
    "include, more, ignored",
    [
        (("data/small",), {"data/small/train.bin", "data/small/meta.pkl"}, 2),
        (("data",), {"data/small/train.bin", "data/small/meta.pkl", "data/big/train.bin"}, 1),
        (("out",), {"out/ckpt.pt"}, 3),
        (("out/ckpt.pt", "data/small/meta.pkl"), {"out/ckpt.pt", "data/small/meta.pkl"}, 2),
        (("train.py",), set(), 4),
    ],
)
def test_a_path_that_is_included_is_copied_with_all_that_git_ignores_below_it(
    with_data: Path, tmp_path: Path, include: tuple[str, ...], more: set[str], ignored: int
) -> None:
    snapshot = look(str(with_data), include)
    assert (set(snapshot.files), snapshot.links, snapshot.ignored.files) == (CODE | more, (), ignored)
    take(snapshot, str(tmp_path / "copy"), str(tmp_path / "note"))
    for name in more:
        assert (tmp_path / "copy" / name).stat().st_size == (with_data / name).stat().st_size


def test_content_that_is_too_large_to_copy_is_linked(
    with_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_snapshot, "LIMIT", 4_000_000)
    snapshot = look(str(with_data / "data"), ("../out", "small", "big"))
    assert set(snapshot.links) == {"data/small/train.bin", "data/big"} and snapshot.ignored.files == 0
    take(snapshot, str(tmp_path / "copy"), str(tmp_path / "note"))
    assert os.readlink(tmp_path / "copy/data/small/train.bin") == str(with_data / "data/small/train.bin")
    assert (tmp_path / "copy/data/big/train.bin").stat().st_size == 5_000_000
    assert (tmp_path / "copy/data/small/prepare.py").is_file()


def test_a_missing_path_is_refused(with_data: Path) -> None:
    with pytest.raises(BadInput, match="dta: there is no such file or folder"):
        look(str(with_data), ("dta",))


# --- what lies in a project beside its own code ---


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    """Make a project with a submodule, a nested clone, an environment, generated modules, and links."""
    for name in ("module", "clone", "project"):
        (tmp_path / name).mkdir()
        git(tmp_path, "init", "-q", name)
    for name in ("module", "clone"):
        (tmp_path / name / f"in_{name}.py").write_text("")
        git(tmp_path / name, "add", "-A")
        git(tmp_path / name, "commit", "-qm", "first")
    root = tmp_path / "project"
    git(
        root,
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "add",
        "-q",
        str(tmp_path / "module"),
        "third/module",
    )
    git(root, "clone", "-q", str(tmp_path / "clone"), "clone")
    (root / ".venv").mkdir()
    (root / "package").mkdir()
    (tmp_path / "shared.yaml").write_text("a: 1\n")
    for name, text in {
        ".gitignore": "/.venv/\n/data/\n_version.py\n*.so\n",
        ".venv/pyvenv.cfg": "home = /usr/bin\n",
        "package/__init__.py": "from package._version import VERSION\n",
        "package/_version.py": "VERSION = 1\n",
        "package/_native.so": "",
    }.items():
        (root / name).write_text(text)
    (root / "outside.yaml").symlink_to("../shared.yaml")
    (root / "absolute.py").symlink_to(root / "package/__init__.py")
    git(root, "add", ".gitignore", "package", "outside.yaml", "absolute.py", "third")
    git(root, "commit", "-qm", "first")
    return root


def output(folder: Path, *args: str) -> str:
    argv = ["git", "-C", str(folder), *args]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def test_submodules_clones_and_generated_modules_are_copied_and_links_still_lead_somewhere(
    nested: Path, tmp_path: Path
) -> None:
    snapshot = look(str(nested))
    copy = tmp_path / "copy"
    take(snapshot, str(copy), str(tmp_path / "note"))
    for name in (
        "third/module/in_module.py",
        "clone/in_clone.py",
        "package/_version.py",
        "package/_native.so",
    ):
        assert (copy / name).is_file() and not (copy / name).is_symlink(), name
    assert os.readlink(copy / ".venv") == str(nested / ".venv")
    assert os.readlink(copy / "outside.yaml") == str(tmp_path / "shared.yaml")
    assert os.readlink(copy / "absolute.py") == str(copy / "package/__init__.py")
    live = "ranks use the original, so later changes there reach them"
    assert list(snapshot.lines())[1:] == [
        f"not in the copy: the Python environment .venv: {live}",
        f"not in the copy: the target of 1 link (5 B; outside.yaml → {tmp_path}/shared.yaml): {live}",
    ]


def test_git_answers_the_same_in_the_copy(nested: Path, tmp_path: Path) -> None:
    git(nested, "tag", "v1")
    (nested / ".git/info/exclude").write_text("/clone/\n")
    snapshot = look(str(nested))
    copy = tmp_path / "copy"
    take(snapshot, str(copy), str(tmp_path / "note"))
    assert snapshot.commit == output(nested, "rev-parse", "HEAD") and not snapshot.is_dirty
    for question in (
        ["rev-parse", "HEAD"],
        ["rev-parse", "--abbrev-ref", "HEAD"],
        ["describe", "--tags", "--dirty"],
        ["status", "--porcelain"],
        ["-C", "third/module", "rev-parse", "HEAD"],
    ):
        assert output(copy, *question) == output(nested, *question), question
    (copy / "package/__init__.py").write_text("")
    assert output(copy, "status", "--porcelain") == "M package/__init__.py"
    git(nested, "commit", "-q", "--allow-empty", "-m", "second")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{nested}", "shallow")
    take(look(str(tmp_path / "shallow")), str(tmp_path / "second"), str(tmp_path / "note"))
    assert output(tmp_path / "second", "log", "--format=%s") == "second"


@pytest.mark.parametrize("has_commit", [True, False])
def test_staged_changes_are_staged_in_the_copy_too(project: Path, tmp_path: Path, has_commit: bool) -> None:
    if not has_commit:
        git(project, "update-ref", "-d", "HEAD")
    git(project, "add", "train.py", "link.py")
    if has_commit:
        git(project, "mv", "sub/model.py", "sub/net.py")
    copy = tmp_path / "copy"
    take(look(str(project)), str(copy), str(tmp_path / "note"))
    for question in (["status", "--porcelain", "--branch"], ["diff", "--cached"], ["diff"]):
        assert output(copy, *question) == output(project, *question), question


@pytest.mark.parametrize("change", ["edited", "new"])
def test_uncommitted_changes_make_it_dirty(nested: Path, change: str) -> None:
    (nested / ("package/__init__.py" if change == "edited" else "new.py")).write_text("")
    assert look(str(nested)).is_dirty


def test_a_nested_clone_that_is_more_than_code_is_linked_to(
    nested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nested / "clone/large.bin").write_bytes(bytes(1 << 20))
    monkeypatch.setattr(code_snapshot, "LIMIT", 1 << 20)
    snapshot = look(str(nested))
    assert (snapshot.links, snapshot.repositories) == (("clone",), ("third/module",))
    take(snapshot, str(tmp_path / "copy"), str(tmp_path / "note"))
    assert (tmp_path / "copy/clone/large.bin").stat().st_size == 1 << 20


def test_a_submodule_without_content_is_reported(nested: Path) -> None:
    git(nested, "submodule", "deinit", "-f", "third/module")
    snapshot = look(str(nested))
    assert snapshot.empty_submodules == ("third/module",)
    assert any("third/module: empty here" in line for line in snapshot.lines())


def test_an_environment_that_git_does_not_ignore_is_not_copied_either(nested: Path) -> None:
    (nested / ".gitignore").write_text("")
    snapshot = look(str(nested))
    assert snapshot.environments == (".venv",) and not any(
        name.startswith(".venv") for name in snapshot.files
    )


def test_environments_of_any_name_are_not_copied_without_git(tmp_path: Path) -> None:
    for name in ("env/pyvenv.cfg", "conda/conda-meta/history", "train.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    snapshot = look(str(tmp_path))
    assert (snapshot.files, sorted(snapshot.environments)) == (("train.py",), ["conda", "env"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_an_error_of_git_is_shown_and_not_taken_for_a_folder_without_git(project: Path) -> None:
    for path in (project, project / ".git"):
        os.chown(path, 65534, 65534)
    with pytest.raises(BadInput, match=r"dubious ownership.*safe.directory"):
        look(str(project))


def test_a_repository_on_a_machine_without_git_is_copied_whole_with_a_notice(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    snapshot = look(str(project))
    assert snapshot.lacks_git and "data/large" in snapshot.files
    assert any("no git" in line for line in snapshot.lines())


def test_a_path_through_a_link_to_the_project_is_inside(project: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(project)
    snapshot = look(str(project))
    assert snapshot.inside(str(tmp_path / "alias/sub/model.py"), "/copy") == "/copy/sub/model.py"


def test_a_folder_in_the_place_of_a_tracked_file_is_copied_and_no_submodule(
    project: Path, tmp_path: Path
) -> None:
    (project / "train.py").unlink()
    (project / "train.py").mkdir()
    (project / "train.py/part.py").write_text("3\n")
    snapshot = look(str(project))
    assert "train.py/part.py" in snapshot.files and not snapshot.empty_submodules


def test_git_answers_in_the_copy_after_the_original_has_lost_its_commit(
    project: Path, tmp_path: Path
) -> None:
    take(look(str(project)), str(tmp_path / "copy"), str(tmp_path / "note"))
    questions = (["rev-parse", "HEAD"], ["status", "--short"], ["describe", "--always", "--dirty"])
    answers = [output(tmp_path / "copy", *question) for question in questions]
    git(project, "commit", "-qa", "--amend", "-m", "another")
    git(project, "reflog", "expire", "--expire=now", "--all")
    git(project, "gc", "-q", "--prune=now")
    assert output(project, "rev-parse", "HEAD") != answers[0]
    assert [output(tmp_path / "copy", *question) for question in questions] == answers


def test_a_missing_filter_program_hides_the_difference_and_no_file(project: Path, tmp_path: Path) -> None:
    (project / ".gitattributes").write_text("*.py filter=lfs\n")
    git(project, "config", "filter.lfs.clean", "no-such-program")
    git(project, "config", "filter.lfs.required", "true")
    (project / "train.py").write_text("of another size\n")
    snapshot = look(str(project))
    take(snapshot, str(tmp_path / "copy"), str(tmp_path / "note"))
    assert copied(tmp_path / "copy")["train.py"] == "of another size\n"
    assert "no-such-program" in snapshot.not_compared and snapshot.commit
    assert snapshot.not_compared in (tmp_path / "note").read_text()


@pytest.mark.parametrize("is_repository", [True, False])
def test_the_folder_of_all_runs_is_never_copied(project: Path, tmp_path: Path, is_repository: bool) -> None:
    root = project if is_repository else tmp_path / "plain"
    runs = root / "work/runs/20261120-074500-k3f9-train"
    runs.mkdir(parents=True)
    (root / "train.py").write_text("1\n")
    (runs / "record.json").write_text("{}\n")
    link = tmp_path / "link"
    link.symlink_to(root)
    for number, folder in enumerate((root, link)):
        copy = tmp_path / f"copy{number}"
        snapshot = look(str(folder), home=str(root / "work"))
        take(snapshot, str(copy), str(tmp_path / "note"))
        assert "train.py" in snapshot.files
        assert not (copy / "work").exists()
