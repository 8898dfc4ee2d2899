"""What a rank under watch says of files that are deleted, by whichever call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun.rehearse.rank_trace import read

HOOK = Path(__file__).parents[2] / "clusterrun/rank_hooks/clusterrun_rehearsal.py"
WATCHED = """
import os, shutil, sys
hook, attempt, run, path = sys.argv[1:]
space = {"__name__": "clusterrun_rehearsal"}
exec(compile(open(hook).read(), hook, "exec"), space)
space["begin"](attempt, 0, run)
"""


@pytest.mark.parametrize(
    "remove",
    [
        "os.remove(path)",
        "os.unlink(os.path.basename(path), dir_fd=os.open(os.path.dirname(path), os.O_RDONLY))",
        "shutil.rmtree(os.path.dirname(path))",
    ],
)
def test_a_checkpoint_that_is_deleted_is_seen(tmp_path: Path, remove: str) -> None:
    attempt, path = tmp_path / "attempt", tmp_path / "checkpoint-4" / "optimizer.pt"
    for folder in (attempt, path.parent):
        folder.mkdir()
    path.touch()
    words = (
        sys.executable,
        "-c",
        WATCHED + remove,
        str(HOOK),
        str(attempt),
        str(tmp_path / "run"),
        str(path),
    )
    done = subprocess.run(
        words, env={"CLUSTERRUN_REHEARSAL": "{}"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not path.exists() and read(str(attempt)).dropped(str(path))
