"""The scripts of COMMAND are read: names of their own output, and a requeue that Slurm would refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun.model.frozen import replace
from clusterrun.model.spec import JobSpec
from clusterrun.script.script_texts import job_number_notices, lightning_notices, script_habits


@pytest.mark.parametrize("line", [
    "echo two > /dev/stderr",
    "echo 4 | tee /dev/stderr",
    "echo 3 >/dev/stdout",
    "curl -o /dev/fd/1 example.org",
    "echo 1 > /proc/self/fd/2",
    "echo 1 > /proc/$$/fd/2",
    "./helper.sh",
    "python3 helper.py --log x",
    'source "$(dirname "$0")/lib/log.sh"',
    ". $HERE/log.sh",
])  # fmt: skip
def test_a_name_of_the_own_output_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "helper.sh").write_text("cat data >/dev/stdout\n")
    (tmp_path / "helper.py").write_text("open('/dev/stderr', 'w').write('x')\n")
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\n{line}\n")
    for command in (("./run.sh",), ("bash", "-e", "run.sh"), ("sh", "-c", line), ("sh", "-c", "./run.sh 1")):
        assert script_habits(JobSpec(command, cwd=str(tmp_path))).opens_own_output


@pytest.mark.parametrize("line", ["echo two >&2", "exec 2>/dev/null", "echo 3 > /dev/stdoutx", "./loop.sh"])
def test_other_commands_write_straight_to_their_logs(tmp_path: Path, line: str) -> None:
    (tmp_path / "loop.sh").write_text("./loop.sh; ./run.sh; ./binary\n")
    (tmp_path / "binary").write_bytes(b"\0/dev/stderr")
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\n{line}\n")
    assert not script_habits(JobSpec(("./run.sh",), cwd=str(tmp_path))).opens_own_output


def test_a_long_argument_is_read_once(tmp_path: Path) -> None:
    """A pattern that tries each of its characters as a beginning takes hours."""
    (tmp_path / "run.sh").write_text("echo > /dev/stdout\n")
    long_word = "y" * 2_000_000
    for last, expected in (("x", False), ("./run.sh", True)):
        assert (
            script_habits(JobSpec(("./t", long_word, last), cwd=str(tmp_path))).opens_own_output is expected
        )


def test_the_file_of_a_module_is_read(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/train.py").write_text("open('/dev/stderr', 'w')\n")
    assert script_habits(JobSpec(("-m", "package.train"), cwd=str(tmp_path))).opens_own_output
    assert script_habits(JobSpec(("python", "-u", "-m", "package.train"), cwd=str(tmp_path))).opens_own_output
    assert not script_habits(JobSpec(("-m", "package"), cwd=str(tmp_path))).opens_own_output


@pytest.mark.parametrize("typed", ["code/train.py", "python3 code/train.py", "-m code.train"])
def test_modules_beside_the_script_are_read_and_others_are_not(tmp_path: Path, typed: str) -> None:
    (tmp_path / "code/parts").mkdir(parents=True)
    place = "code." if typed.startswith("-m") else ""
    (tmp_path / "code/train.py").write_text(f"import os, json\nfrom {place}parts import first\n")
    (tmp_path / "code/parts/first.py").write_text(
        f"def f():\n    from .second import log\nimport {place}lone\n"
    )
    spec = JobSpec(tuple(typed.split()), cwd=str(tmp_path))
    opens = "FileHandler('/dev/stdout')\n"
    for name, is_read in (("other", False), ("parts/third", False), ("parts/second", True), ("lone", True)):
        path = tmp_path / f"code/{name}.py"
        path.write_text(opens + "import lightning\n")
        assert (script_habits(spec).opens_own_output, script_habits(spec).lightning) == (is_read, ""), name
        path.unlink()


def test_a_script_with_very_many_words_costs_few_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.sh").write_text("\n".join(f"./part{number}.sh" for number in range(10_000)))
    looks: list[str] = []
    monkeypatch.setattr("os.path.isfile", lambda path: looks.append(path) or path.endswith("run.sh"))
    assert not script_habits(JobSpec(("./run.sh",), cwd=str(tmp_path))).opens_own_output
    assert len(looks) == 500


@pytest.mark.parametrize(
    ("text", "has_notice"),
    [
        ("os.system('scontrol show job; echo requeue')", False),
        ("import lightning as L", True),
        ("from pytorch_lightning import Trainer", True),
        ("import lightning as L\nL.Trainer(plugins=[SLURMEnvironment()])", False),
        ("import lightning as L\nL.Trainer(plugins=[SLURMEnvironment(auto_requeue=False)])", True),
    ],
)
def test_lightning_needs_a_plugin_to_react_to_a_signal(tmp_path: Path, text: str, has_notice: bool) -> None:
    (tmp_path / "t.py").write_text(f"import os\n{text}\n")
    for command in (("t.py",), ("bash", "-c", "exec python t.py --x 1")):
        spec = JobSpec(command, str(tmp_path))
        habits = script_habits(spec)
        assert bool(habits.lightning) == has_notice
        signalled = replace(spec, sbatch=("signal=SIGUSR1@90",))
        notices = lightning_notices(signalled, habits.lightning)
        assert ["SLURMEnvironment" in notice for notice in notices] == [True] * has_notice
        for other in (spec, replace(signalled, requeue=True)):
            assert lightning_notices(other, habits.lightning) == ()


def test_a_script_that_reads_the_number_of_its_job_gets_a_notice(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text('folder = "runs/" + os.environ["SLURM_JOB_ID"]')
    (tmp_path / "plain.py").write_text('folder = "runs/" + os.environ["MY_SLURM_JOB_ID_2"]')
    (notice,) = job_number_notices(JobSpec(("t.py",), cwd=str(tmp_path)))
    assert notice.startswith("t.py reads SLURM_JOB_ID")
    assert job_number_notices(JobSpec(("plain.py",), cwd=str(tmp_path))) == ()
