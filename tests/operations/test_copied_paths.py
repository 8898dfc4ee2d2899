"""Every path of a submission that the copy of its code has leads into the copy; the others are reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterrun.model.errors import BadInput
from clusterrun.model.paths import RunPaths
from clusterrun.model.spec import JobSpec
from clusterrun.operations.copied_paths import MOST_FILES, SMALL_SCRIPT, missing, moved, moved_back
from clusterrun.runs.code_snapshot import Snapshot, look, take
from tests.runs.test_code_snapshot import git


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in (
        "scripts/train.py",
        "conf/a.yaml",
        "data/train.bin",
        "scratch/own.py",
        "setup/env.sh",
        ".venv/bin/python",
        ".venv/bin/activate",
        ".venv/pyvenv.cfg",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    (tmp_path / "common").mkdir()
    (root / ".gitignore").write_text("/data/\n/scratch/\n/setup/\n/.venv/\n")
    git(tmp_path, "init", "-q", "project")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


@pytest.fixture
def snapshot(project: Path) -> Snapshot:
    return look(str(project))


@pytest.mark.parametrize(
    ("word", "place"),
    [
        ("scripts/train.py", "scripts/train.py"),
        ("{project}/scripts/train.py", "/copy/scripts/train.py"),
        ("--config={project}/conf/a.yaml", "--config=/copy/conf/a.yaml"),
        ("{project}/data/train.bin", "{project}/data/train.bin"),
        ("--out={project}/conf", "--out={project}/conf"),
        ("../common", "{project}/../common"),
        ("--data=../common/new", "--data={project}/../common/new"),
        ("../common/", "{project}/../common/"),
        ("scripts/../../common", "{project}/../common"),
        ("..", "{parent}"),
        ("scripts/", "scripts/"),
        ("lr=1e-3", "lr=1e-3"),
        ("-x", "-x"),
    ],
)
def test_a_file_of_the_copy_is_named_there_and_a_path_outside_the_project_stays(
    project: Path, snapshot: Snapshot, word: str, place: str
) -> None:
    spec = JobSpec(command=("python3", word.format(project=project)), cwd=str(project))
    outside = str(project.parent / "common")
    (word,) = moved(spec, snapshot, "/copy").command[1:]
    place = place.format(project=project, parent=project.parent)
    assert word == place.replace(f"{project}/../common", outside)


def test_a_path_through_a_link_of_the_project_leads_into_the_copy(project: Path) -> None:
    (project / "settings").symlink_to("conf")
    paths = ("settings/a.yaml", f"{project}/settings/a.yaml")
    spec = JobSpec(command=("train.py", *paths), cwd=str(project))
    snapshot = look(str(project))
    assert moved(spec, snapshot, "/copy").command[1:] == ("settings/a.yaml", "/copy/conf/a.yaml")
    assert missing(spec, snapshot) == ()


def test_the_line_that_submits_a_copied_run_again_has_the_paths_of_the_project(
    project: Path, snapshot: Snapshot
) -> None:
    paths = RunPaths(str(project.parent / "run"))
    os.mkdir(paths.run_dir)
    take(snapshot, paths.snapshot, paths.snapshot_note)
    spec = JobSpec(command=(f"{project}/scripts/train.py", "../common/"), cwd=str(project))
    recorded = moved(spec, snapshot, paths.snapshot)
    assert recorded.cwd == paths.snapshot and recorded.command[0].startswith(paths.snapshot)
    again = moved_back(recorded, paths)
    assert (again.cwd, again.command[0]) == (spec.cwd, spec.command[0])


def test_directory_python_and_variables_move_with_the_code(project: Path, snapshot: Snapshot) -> None:
    own = (("CONFIG", f"{project}/conf/a.yaml"), ("CLUSTERRUN_GIT_COMMIT", "mine"))
    spec = JobSpec(
        command=("train.py",), cwd=str(project / "scripts"), python="../.venv/bin/python", environment=own
    )
    copy = moved(spec, snapshot, "/copy")
    assert (copy.cwd, copy.python) == ("/copy/scripts", f"{project}/scripts/../.venv/bin/python")
    assert dict(copy.environment) == {
        "CLUSTERRUN_CODE_ORIGINAL": str(project),
        "CLUSTERRUN_CODE_COPY": "/copy",
        "CLUSTERRUN_GIT_COMMIT": "mine",
        "CLUSTERRUN_GIT_DIRTY": "0",
        "CONFIG": "/copy/conf/a.yaml",
    }
    assert moved(JobSpec(command=("x",), cwd=str(project / "data")), snapshot, "/copy").cwd == "/copy/data"


@pytest.mark.parametrize(
    "changes",
    [
        {"command": ("scratch/own.py",)},
        {"command": ("python3", "-u", "scratch/own.py")},
        {"setup": ("module load x && source setup/env.sh",)},
        {"setup": (". setup/env.sh; true",)},
        {"setup": ("source ../common",)},
    ],
)
def test_a_script_that_the_copy_lacks_is_refused(
    project: Path, snapshot: Snapshot, changes: dict[str, tuple[str, ...]]
) -> None:
    with pytest.raises(BadInput, match="not in the copy") as refused:
        missing(JobSpec(**{"command": ("scripts/train.py",), "cwd": str(project), **changes}), snapshot)  # type: ignore[arg-type]
    assert "--snapshot-include" in refused.value.remedy


@pytest.mark.parametrize(
    ("arguments", "notice"),
    [
        (("data/train.bin",), "data/train.bin is not in the copy"),
        (("--data=data",), "data is not in the copy"),
        (("{project}/conf",), "stays the folder of the original"),
        (("conf/a.yaml", "../common", "new", "--lr", "1"), ""),
    ],
)
def test_other_paths_that_the_copy_lacks_are_reported(
    project: Path, snapshot: Snapshot, arguments: tuple[str, ...], notice: str
) -> None:
    command = ("scripts/train.py", *(word.format(project=project) for word in arguments))
    setup = ("source .venv/bin/activate", "mkdir -p data/out", "it's unbalanced")
    notices = missing(JobSpec(command=command, cwd=str(project), setup=setup), snapshot)
    assert [notice in line for line in notices] == ([True] if notice else [])


SCRIPT = """#!/usr/bin/env bash
# {project}/scripts/train.py
cd "$HOME"
export PYTHONPATH=$PYTHONPATH:{project}/conf
python {project}/scripts/train.py --data={project}/data/train.bin
python "{project}/scripts/train.py"
python scripts/train.py "$ROOT{project}/scripts/train.py"
"""
LIVE = [
    "{name}, line 4 names {project}/conf: that is the live folder, not the copy: write it relative (conf)",
    "{name}, line 5 names {project}/scripts/train.py: that is the live file, not the copy:"
    " write it relative (scripts/train.py)",
]


@pytest.mark.parametrize(
    "command",
    [("bash", "{name}"), ("bash", "-x", "{name}", "1"), ("./{name}",), ("env", "A=1", "bash", "{name}")],
)
@pytest.mark.parametrize("name", ["run.sh", "run"])
def test_a_shell_script_that_names_a_live_file_is_reported_with_its_line(
    project: Path, name: str, command: tuple[str, ...]
) -> None:
    (project / name).write_text(SCRIPT.format(project=project))
    arguments = tuple(word.format(name=name) for word in command)
    notices = missing(JobSpec(command=arguments, cwd=str(project)), look(str(project)))
    script = next(word for word in arguments if word.endswith(name))
    assert [*notices] == [line.format(name=script, project=project) for line in LIVE]


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"command": ("bash", "-c", "A=1 python {project}/scripts/train.py")}, "the shell line"),
        ({"command": ("sh", "-c", 'ssh x "python {project}/scripts/train.py"')}, "the shell line"),
        ({"setup": ("cp {project}/scripts/train.py /tmp",)}, "--setup 'cp {project}/scripts/train.py /tmp'"),
    ],
)
def test_a_shell_line_that_names_a_live_file_is_reported(
    project: Path, snapshot: Snapshot, changes: dict[str, tuple[str, ...]], place: str
) -> None:
    lines = {
        field: tuple(word.format(project=project) for word in tokens) for field, tokens in changes.items()
    }
    spec = JobSpec(**{"command": ("scripts/train.py",), "cwd": str(project), **lines})  # type: ignore[arg-type]
    (notice,) = missing(spec, snapshot)
    assert notice.startswith(f"{place.format(project=project)} names {project}/scripts/train.py: ")


def test_a_variable_of_the_shell_that_names_a_live_file_is_reported(
    project: Path, snapshot: Snapshot
) -> None:
    environ = {
        "CONF": f"{project}/conf/a.yaml",
        "OURS": f"{project}/conf/a.yaml",
        "PATH": f"{project}/.venv/bin:/bin",
        "PWD": str(project),
        "PYTHONPATH": f"{project}/scripts",
    }
    spec = JobSpec(command=("true",), cwd=str(project), environment=(("OURS", "conf/a.yaml"),))
    (notice,) = missing(spec, snapshot, environ)
    assert "CONF" in notice and "OURS" not in notice


def test_other_programs_and_long_scripts_are_not_read_for_live_files(project: Path) -> None:
    text = f"python {project}/scripts/train.py\n"
    (project / "long.sh").write_text(text + "#" * SMALL_SCRIPT)
    (project / "notes.txt").write_text(text)
    (project / "prog.sh").write_bytes(b"\x7fELF\0\n" + text.encode())
    spec = JobSpec(command=("env", "long.sh", "notes.txt", "prog.sh"), cwd=str(project))
    assert missing(spec, look(str(project))) == ()


NAMES_ITSELF = """# {project}/scripts/train.py
import sys
sys.path.insert(0, "{start}/scripts")
open("{project}-data/conf/a.yaml"), open("{project}/data/train.bin")
open(f"{{x}}{project}/conf/a.yaml")
"""


@pytest.mark.parametrize("start", ["{project}", "~/project", "$HOME/project", "{link}"])
@pytest.mark.parametrize("name", ["scripts/lib.py", "conf/env.sh", "conf/b.yaml", ".env"])
def test_a_copied_file_that_names_a_live_file_is_reported_with_its_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str, start: str
) -> None:
    """It may be imported, sourced or read. ``~`` and the path that the shell shows lead there too."""
    link = project.parent / "link"
    link.symlink_to(project)
    monkeypatch.setenv("HOME", str(project.parent))
    path = start.format(project=project, link=link)
    (project / name).write_text(NAMES_ITSELF.format(project=project, start=path))
    spec = JobSpec(command=("train.py",), cwd=str(project / "scripts"))
    (notice,) = missing(spec, look(str(project)), {"PWD": str(link / "scripts")})
    full_path = path.replace("~", str(project.parent)).replace("$HOME", str(project.parent))
    place = f"{os.path.relpath(name, 'scripts')}, line 3"
    assert notice == (
        f"{place} names {full_path}/scripts: that is the live folder, not the copy: write it relative (.)"
    )


@pytest.mark.parametrize("name", ["scripts/lib.py", "scripts/run.sh", "conf/b.yaml"])
def test_a_relative_path_that_leaves_the_project_is_reported_with_its_line(project: Path, name: str) -> None:
    (project.parent / "data").mkdir()
    (project / name).write_text("A=../conf/a.yaml B=../../nothing C=x../../data\nD=../../data/\n")
    spec = JobSpec(command=("bash", "run.sh"), cwd=str(project / "scripts"))
    (notice,) = missing(spec, look(str(project)))
    assert notice.startswith(f"{os.path.relpath(name, 'scripts')}, line 2 names ../../data/, ")
    assert notice.endswith(f"write {project.parent}/data/")


def test_a_few_of_many_files_with_live_paths_are_reported_and_the_others_counted(project: Path) -> None:
    for number in range(MOST_FILES + 2):
        (project / f"m{number}.py").write_text(f"A = '{project}/conf/a.yaml'\nB = '{project}/conf'\n")
    (project / "notes.md").write_text(f"see {project}/conf\n")
    (project / ".vscode").mkdir()
    (project / ".vscode/settings.json").write_text(f'{{"x": "{project}/conf"}}')
    script = f"m{MOST_FILES + 1}.py"
    notices = missing(JobSpec(command=("python3", script), cwd=str(project)), look(str(project)))
    assert [notice.partition(",")[0] for notice in notices[:-1]] == [
        script,
        *(f"m{number}.py" for number in range(MOST_FILES - 1)),
    ]
    assert notices[-1].endswith(": 2")
