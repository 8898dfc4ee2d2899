"""What NCCL's own service says is passed on, within limits. The program is played: only NCCL brings it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterrun.watch import children


def program(folder: Path, text: str) -> str:
    path = folder / children.RAS_PROGRAM
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return f"/nowhere{os.pathsep}{folder}{os.pathsep}relative"


def test_its_lines_are_told_without_empty_ones_and_cut(tmp_path: Path) -> None:
    path = program(
        tmp_path, 'test "$1" = -v || exit 3; printf "  NCCL 2.27\\n\\n"; printf "%0400d\\n" 7; seq 100'
    )
    found = children.nccl_ras(path)
    assert found[:3] == ("NCCL 2.27", "0" * children.MOST_CHARACTERS, "1")
    assert len(found) == children.MOST_LINES


@pytest.mark.parametrize("text", ["exit 1", "exec sleep 600"])
def test_where_it_fails_or_hangs_nothing_is_told(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "ANSWER_SECONDS", 1.0)
    assert children.nccl_ras(program(tmp_path, text)) == ()


def test_where_it_is_missing_nothing_is_told(tmp_path: Path) -> None:
    assert children.nccl_ras(str(tmp_path)) == ()
