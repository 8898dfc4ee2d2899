"""`clusterrun convert` prints a line, names what is not in it, and writes a configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterrun.cli.main import main

SCRIPT = """#!/bin/bash
#SBATCH -N 2 -p gpu --gres=gpu:4 --ntasks-per-node=4
module load "a 'b'"
srun python train.py --lr 1
python evaluate.py
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sbatch").write_text(SCRIPT)
    return tmp_path


def test_the_line_is_printed_alone_and_the_rest_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "job.sbatch"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("clusterrun submit") == 1 and printed.out.endswith("train.py --lr 1\n")
    assert "line 5: python evaluate.py" in printed.err and "--after" in printed.err


@pytest.mark.parametrize(("variable", "is_named"), [("SBATCH_X", True), ("SBATCH_IGNORE_PBS", False)])
def test_options_of_pbs_are_comments_if_the_shell_has_sbatch_ignore_them(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    variable: str,
    is_named: bool,
) -> None:
    monkeypatch.setenv(variable, "")
    (folder / "job.pbs").write_text("#!/bin/bash\n#PBS -N pbs\nsrun python t.py\n")
    assert main(["convert", "job.pbs"]) == 0
    assert ("#PBS -N pbs" in capsys.readouterr().err) is is_named


def test_the_json_has_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "--json", "job.sbatch"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {part["outcome"] for part in document["parts"]} == {"option", "setup", "command", "not translated"}
    assert "\n" not in document["line"]


def test_the_written_configuration_applies_to_the_short_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "--write", "job.sbatch"]) == 0
    assert capsys.readouterr().out == "clusterrun submit train.py --lr 1\n"
    assert main(["config", "show", "--json"]) == 0
    options = {option["name"]: option for option in json.loads(capsys.readouterr().out)["options"]}
    assert options["gpus"]["value"] == 4
    assert options["setup"]["value"] == ["module load \"a 'b'\""]
    assert options["partition"]["origin"].startswith(str(folder / "clusterrun.toml"))


def test_the_program_and_its_arguments_stay_in_the_short_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "job.sh").write_text("#!/bin/bash\nmodule load a\npython t.py --lr $(cat lr)\n")
    assert main(["convert", "--write", "job.sh"]) == 0
    assert "t.py --lr" in capsys.readouterr().out
    assert "t.py" not in (folder / "clusterrun.toml").read_text()


def test_all_words_behind_the_script_are_its_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "job.sh").write_text('#!/bin/bash\npython t.py "$@"\n')
    assert main(["convert", "job.sh", "--debug", "--json", "--", "-h"]) == 0
    assert capsys.readouterr().out.endswith(" t.py --debug --json -- -h\n")


def test_no_configuration_has_the_value_of_a_sweep(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH -p gpu --array=0-3\nA=(1 2 3 4)\npython t.py ${A[$SLURM_ARRAY_TASK_ID]}\n"
    )
    assert main(["convert", "--write", "job.sh"]) == 0
    assert "--setup 'export SLURM_ARRAY_TASK_ID={task}'" in capsys.readouterr().out
    assert (folder / "clusterrun.toml").read_text() == '[defaults]\npartition = "gpu"\n'


@pytest.mark.parametrize(
    ("options", "lines", "at"),
    [
        ("", "", "scripts"),
        ("", "", ""),
        ("#SBATCH --chdir=work", "", "work"),
        ("", "cd work", "work"),
        ("", "cd $SLURM_SUBMIT_DIR", ""),
    ],
)
def test_a_script_that_is_started_is_read_where_slurm_finds_it(
    folder: Path, capsys: pytest.CaptureFixture[str], options: str, lines: str, at: str
) -> None:
    (folder / "scripts").mkdir()
    (folder / at).mkdir(exist_ok=True)
    (folder / at / "run.sh").write_text("torchrun --nproc_per_node 2 train.py\n")
    job = f"#!/bin/bash\n#SBATCH -N 2 --gres=gpu:2\n{options}\n{lines}\nsrun bash run.sh\n"
    (folder / "scripts/job.sbatch").write_text(job)
    assert main(["convert", "scripts/job.sbatch"]) == 0
    assert capsys.readouterr().out.split()[-1] == "train.py"


def test_srun_finds_a_script_in_its_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run.sh").write_text("python train.py\n")
    (folder / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -N 2\nsrun -N2 run.sh --lr 1\n")
    assert main(["convert", "job.sbatch"]) == 0
    assert capsys.readouterr().out.split()[-3:] == ["./run.sh", "--lr", "1"]


def test_dos_line_ends_are_named_and_the_line_has_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "dos.sbatch").write_bytes(b"#!/bin/bash\r\n#SBATCH -N 2\r\nbash run.sh\r\n")
    (folder / "run.sh").write_bytes(b"module load a\r\nsrun python train.py\r\n")
    assert main(["convert", "dos.sbatch"]) == 0
    printed = capsys.readouterr()
    assert "DOS line ends" in printed.err and "\r" not in printed.out


def test_an_existing_configuration_is_not_overwritten(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "clusterrun.toml").write_text("")
    assert main(["convert", "--write", "job.sbatch"]) == 2
    assert 'partition = "gpu"' in capsys.readouterr().err
    assert (folder / "clusterrun.toml").read_text() == ""


@pytest.mark.parametrize("name", ["missing.sbatch", "."])
def test_a_file_that_cannot_be_read_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", name]) == 2
    assert name in capsys.readouterr().err


@pytest.mark.parametrize(
    "script",
    [
        'J=$(sbatch --parsable prep.sh "$1")\nsbatch --dependency=afterok:$J train.sh "$1"',
        "for lr in 1 2; do\n sbatch train.sh $lr\ndone",
    ],
)
@pytest.mark.parametrize("options", [[], ["--json"], ["--write"]])
def test_a_script_that_only_queues_jobs_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], script: str, options: list[str]
) -> None:
    (folder / "pipeline.sh").write_text(f"#!/bin/bash\n{script}\n")
    assert main(["convert", *options, "pipeline.sh"]) == 2
    printed = capsys.readouterr()
    assert not printed.out and "COMMAND" not in printed.err
    assert printed.err.count("--after") == 1 and not (folder / "clusterrun.toml").exists()


@pytest.mark.parametrize(
    ("lines", "is_more", "code"),
    [
        ("srun -n1 python serve.py &\npython ask.py", True, 0),
        ("source steps.sh\nfirst\nsecond", True, 1),
        ("module load x\npython train.py", False, 0),
        ('"$@"', False, 1),
    ],
)
def test_a_script_that_is_more_than_one_launch_is_named_so_first(
    folder: Path, capsys: pytest.CaptureFixture[str], lines: str, is_more: bool, code: int
) -> None:
    (folder / "job.sh").write_text(f"#!/bin/bash\n{lines}\n")
    # A line with COMMAND in the place of the program cannot be typed.
    assert main(["convert", "job.sh"]) == main(["convert", "--json", "job.sh"]) == code
    first, second = capsys.readouterr().err.splitlines()[:2]
    assert ("does more than start one program" in first) == is_more
    assert ("clusterrun run" in second) == is_more


def test_a_sweep_of_a_batch_script_is_shown_to_convert(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "job.sh").write_text("#!/bin/bash\n#SBATCH --array=0-4\npython t.py $SLURM_ARRAY_TASK_ID\n")
    assert main(["sweep", "job.sh", "--lr", "1"]) == 2
    assert "clusterrun convert job.sh --lr 1" in capsys.readouterr().err
