"""A rehearsal of real scripts: what is planted is found, what is right is not accused."""

from __future__ import annotations

import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterrun import system
from clusterrun.model.errors import BadInput
from clusterrun.model.states import State
from clusterrun.rehearse import working_copy
from clusterrun.rehearse.control_runs import no_steps, too_slow
from clusterrun.rehearse.rank_trace import RankTrace, SavedFile, Start
from clusterrun.rehearse.working_copy import copy_folder, moved, new_files, outside
from tests.hostile.conftest import ROOT, Person
from tests.rehearse.planted import BUGS, CORRECT, Patch
from tests.rehearse.test_causes import step

pytest.importorskip("torch", reason="a rehearsed script trains")
pytestmark = pytest.mark.slow

NAMED = (
    "numpy's random state not restored",
    "one file, written in place",
    "meta.json is overwritten in place beside a whole checkpoint",
    "the handler's flag is not tested",
    "a link that a restart cannot make again",
)


@pytest.fixture
def person(tmp_path: Path) -> Person:
    """Return a user on a machine without Slurm."""
    return Person(tmp_path)


@pytest.mark.parametrize("patch", [p for p in BUGS if p.name in NAMED] + [CORRECT[1]], ids=lambda p: p.name)
def test_only_planted_faults_are_found(patch: Patch) -> None:
    from benchmarks.bench_rehearse_bugs import named, rehearsed

    result = named(rehearsed(patch))
    assert result[:1] == list(patch.causes[:1]), result


def test_the_command_tells_it_in_every_form_and_leaves_nothing(person: Person) -> None:
    script = next(patch for patch in BUGS if patch.name == "optimizer not loaded").text
    work = person.folder / "work"
    work.mkdir()
    (work / "train.py").write_text(script)
    arguments = (
        "--nodes",
        "1",
        "--ranks-per-node",
        "1",
        "--faults",
        "kill",
        "--json",
        "--junit",
        "r.xml",
        "--html",
        "r.html",
    )
    more = {"CLUSTERRUN_HOME": str(person.home), "PYTHONPATH": ROOT, "TMPDIR": str(person.folder)}
    argv = [sys.executable, "-m", "clusterrun", "rehearse", *arguments, "train.py"]
    result = system.run(argv, 600, env={**os.environ, **more}, cwd=work)
    document = json.loads(result.out)
    assert (result.code, document["ok"]) == (1, False), result.err
    causes = {row["fault"]: [finding["cause"] for finding in row["findings"]] for row in document["results"]}
    assert causes == {"control": [""], "kill": ["optimizer-not-restored"]}
    (case,) = (
        finding
        for finding in ElementTree.parse(work / "r.xml").getroot()
        if finding.find("failure") is not None
    )
    assert case.get("name") == "killed rank"
    assert re.findall("<polyline", (work / "r.html").read_text())
    assert sorted(os.listdir(work)) == ["r.html", "r.xml", "train.py"]
    assert [name for name in os.listdir(person.folder) if name.startswith("clusterrun-rehearse-")] == []
    from tests.cli.test_schemas import problems

    assert problems("rehearse", document) == []


def test_a_script_without_steps_is_reported() -> None:
    from benchmarks.bench_rehearse_bugs import rehearsed

    (control,) = rehearsed(
        Patch("no GPU", (("def main():\n", "def main():\n    raise RuntimeError('No CUDA GPUs')\n"),))
    )
    (entry,) = control.findings
    assert (entry.cause.value, entry.message.partition(" at ")[0]) == (
        "no-steps",
        "the script ends before its first step",
    )
    assert "RuntimeError: No CUDA GPUs" in entry.message
    assert "--gpus" in entry.remedy


def test_a_script_that_exits_before_its_first_step_is_not_accused_of_hiding_them() -> None:
    """As for a wrong option, where argparse exits with code 2 and raises nothing that a hook sees."""
    status: Any = SimpleNamespace(state=State.FAILED, reason="rank 0 on local-0 exited with code 2")
    message, remedy = no_steps(Start({0: RankTrace(0, {}, ())}), status)
    assert message == "the script ends before its first step: rank 0 on local-0 exited with code 2"
    assert "--keep" in remedy
    raised = RankTrace(0, {}, (step(1),), error=("main.py:237", "ValueError", "no such file"))
    message, _ = no_steps(Start({0: raised}), status)
    assert message == "the script ends after 1 steps at main.py:237: ValueError: no such file"


def test_checkpoints_outside_of_the_copy_are_refused(tmp_path: Path) -> None:
    from benchmarks.bench_rehearse_bugs import rehearsed

    with pytest.raises(BadInput, match="outside of its working directory"):
        rehearsed(Patch("elsewhere", (('"checkpoints", 2,', f'"{tmp_path}/elsewhere", 2,'),)))


def test_paths_of_the_command_lead_into_the_copy_or_are_reported() -> None:
    assert moved("/home/a/data", "/home/a", "/copy") == "/copy/data"
    assert moved("/home/ab", "/home/a", "/copy") == "/home/ab"
    assert outside(("--data=/big/set", "/home/a/x", "lr"), "/home/a") == ("/big/set",)


def test_a_copy_omits_files_that_are_no_part_of_a_script(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("a/b.py", ".git/config", "env/pyvenv.cfg", "__pycache__/x.pyc"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("x")
    with open(source / "large.bin", "wb") as file:
        file.truncate(64 << 20)
    copy_folder(str(source), str(source / "kept/copy"))
    (source / "kept/copy").rename(tmp_path / "copy")
    result = sorted(str(p.relative_to(tmp_path / "copy")) for p in (tmp_path / "copy").rglob("*"))
    assert result == ["a", "a/b.py", "large.bin"]
    assert os.readlink(tmp_path / "copy" / "large.bin") == str(source / "large.bin")
    with pytest.raises(BadInput, match="/gone cannot be copied: No such file or directory"):
        copy_folder(str(tmp_path / "gone"), str(tmp_path / "copy"))


def test_a_script_that_loads_a_file_at_its_start_is_reported_once(tmp_path: Path) -> None:
    for name in ("source", "copy/data", "copy/checkpoints"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("copy/data/set.bin", "copy/checkpoints/1.pt", "copy/checkpoints/1.json"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(11 << 20)
    save = SavedFile(1, 0, str(tmp_path / "copy/checkpoints/1.pt"), "", 1, 0.1, "")
    life = Start({0: RankTrace(0, {}, (), (save,))})
    assert list(new_files(str(tmp_path / "source"), str(tmp_path / "copy"), life)) == [
        ("data/set.bin", 11 << 20)
    ]


def test_a_trial_that_the_budget_ends_is_reported_with_its_pace() -> None:
    assert too_slow(Start({}), 40.0).message == "no optimizer step within --budget 40 s"
    from tests.rehearse.test_causes import life

    slow = too_slow(life(0, 5), 40.0)  # a step a second
    assert slow.message == "5 steps of 1 s and 0 checkpoints within --budget 40 s: too few"
    assert "--steps" in slow.remedy


def test_missing_gpus_are_refused_before_the_start(person: Person) -> None:
    result = person.types("rehearse", "--gpus", "64", "train.py")
    assert (result.code, "2 nodes of 64 GPUs are wanted; this machine has" in result.err) == (2, True), (
        result.err
    )


def test_an_unknown_fault_is_refused(person: Person) -> None:
    result = person.types("rehearse", "--faults", "kill,flood", "train.py")
    assert (result.code, "there is no fault flood" in result.err) == (2, True)


def test_a_linked_folder_becomes_a_folder_of_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script reads the files there. A file that it writes is not the user's."""
    data, source, copy = tmp_path / "data", tmp_path / "work", tmp_path / "copy"
    (data / "train").mkdir(parents=True)
    (data / "train/a.txt").write_text("rows")
    (source / "step_5").mkdir(parents=True)
    for name, target in (("data", data), ("latest", "step_5"), ("up", tmp_path)):
        (source / name).symlink_to(target)
    copy_folder(str(source), str(copy))
    assert (copy / "data/train/a.txt").read_text() == "rows"
    assert not (copy / "data/train").is_symlink() and (copy / "data/train/a.txt").is_symlink()
    assert (copy / "latest").resolve() == copy / "step_5"
    assert (copy / "up").resolve() == tmp_path
    monkeypatch.setattr(working_copy, "MOST_LINKS", 2)
    copy_folder(str(source), str(tmp_path / "second"))
    assert (tmp_path / "second/data").resolve() == data
