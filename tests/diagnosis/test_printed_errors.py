"""Errors as they are read from what ranks printed into their files."""

from __future__ import annotations

import os
from pathlib import Path

from clusterrun.model.paths import RunPaths
from clusterrun.operations.postmortem_input import errors

SAID = """Traceback (most recent call last):
  File "/home/me/train.py", line 93, in ask
    input("go on? ")
EOFError: EOF when reading a line
"""


def test_what_a_rank_prints_in_the_moment_of_its_traceback_does_not_become_the_error(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path))
    folder = Path(paths.attempt(0).folder)
    folder.mkdir(parents=True)
    for rank in (0, 1):
        (folder / f"{rank:05d}.err").write_text(SAID)
        (folder / f"{rank:05d}.out").write_text("up\ngo on? ")
        for stream in ("out", "err"):
            os.utime(folder / f"{rank:05d}.{stream}", (100.0, 100.0))
    told = "EOFError: EOF when reading a line, at train.py:93 (ask)"
    assert [(one.rank, one.message) for one in errors(paths, 0)] == [(0, told), (1, told)]
    assert [one.rank for one in errors(paths, 0, frozenset({1}))] == [1]
