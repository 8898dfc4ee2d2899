"""Standard input of submit, from end to end: passed on, refused, or left alone; never dropped unsaid."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CommandLine

LOOP = 'while read -r name; do "$0" -m clusterrun submit --name "$name" true || exit; done'


def run(context: CommandLine, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=context.folder,
        env=context.environment,
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def test_a_script_on_standard_input_reaches_every_rank_whole(clusterrun: CommandLine) -> None:
    arguments = ("submit", "-f", "--ranks-per-node", "2", "nice", "bash", "-s", "said")
    result = run(clusterrun, "-m", "clusterrun", *arguments, input="echo $RANK $1\necho last\n")
    assert (result.returncode, sorted(result.stdout.splitlines())) == (
        0,
        [f"local-0 r{rank} | {line}" for rank in (0, 1) for line in (f"{rank} said", "last")],
    ), result.stderr
    (run_dir,) = Path(clusterrun.environment["CLUSTERRUN_HOME"], "runs").iterdir()
    assert (run_dir / "stdin").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("stdin", ["null", "closed"])
def test_a_shell_that_would_read_nothing_is_refused_and_nothing_is_queued(
    clusterrun: CommandLine, stdin: str
) -> None:
    options = {"stdin": subprocess.DEVNULL} if stdin == "null" else {"preexec_fn": lambda: os.close(0)}
    result = run(clusterrun, "-m", "clusterrun", "submit", "bash", **options)
    assert (result.returncode, "standard input is" in result.stderr) == (2, True), result.stderr
    assert not Path(clusterrun.environment["CLUSTERRUN_HOME"], "live").exists()


def test_submit_in_a_loop_does_not_read_the_input_of_the_loop(clusterrun: CommandLine) -> None:
    (clusterrun.folder / "names").write_text("a\nb\nc\n")
    with open(clusterrun.folder / "names", encoding="utf-8") as names:
        result = subprocess.run(
            ["/bin/bash", "-c", LOOP, sys.executable],
            cwd=clusterrun.folder,
            env=clusterrun.environment,
            stdin=names,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert result.returncode == 0, result.stderr
    assert [line[-1] for line in result.stdout.splitlines()] == ["a", "b", "c"]
    assert "standard input" not in result.stderr


@pytest.mark.parametrize("before", ["", "timeout 60 "])
def test_a_file_that_is_redirected_to_submit_alone_is_named_as_not_passed_on(
    clusterrun: CommandLine, before: str
) -> None:
    (clusterrun.folder / "data").write_text("a\n")
    result = subprocess.run(
        [
            "/bin/bash",
            "-c",
            f'{before}"$0" -m clusterrun submit --dry-run true < data; exit $?',
            sys.executable,
        ],
        cwd=clusterrun.folder,
        env=clusterrun.environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (result.returncode, "left alone" in result.stderr) == (0, True)


@pytest.mark.parametrize("is_file", [True, False])
def test_a_script_on_standard_input_without_a_command_is_answered_with_the_line(
    clusterrun: CommandLine, is_file: bool
) -> None:
    text = "#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n"
    (clusterrun.folder / "my job.sh").write_text(text)
    with open(clusterrun.folder / "my job.sh", encoding="utf-8") as script:
        source: dict[str, Any] = {"stdin": script} if is_file else {"input": text}
        result = run(clusterrun, "-m", "clusterrun", "submit", "--nodes", "2", **source)
    line = "clusterrun submit --nodes 2 'my job.sh'" if is_file else "clusterrun submit --nodes 2 FILE"
    assert (result.returncode, line in result.stderr) == (2, True), result.stderr


def test_a_pipe_that_nobody_writes_to_holds_no_submission_up(clusterrun: CommandLine) -> None:
    reader, writer = os.pipe()
    try:
        result = run(clusterrun, "-m", "clusterrun", "submit", "--dry-run", "train.py", stdin=reader)
    finally:
        os.close(reader)
        os.close(writer)
    assert (result.returncode, "left alone" in result.stderr) == (0, False)
