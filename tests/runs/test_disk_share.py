"""One program for many runs: linked where the file system can, copied where it cannot."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from clusterrun.runs.private_files import DiskRefused, share


def test_a_shared_file_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"x")
    share(str(tmp_path / "program"), str(tmp_path / "run"))
    assert os.path.samefile(tmp_path / "program", tmp_path / "run")


def test_a_file_that_cannot_be_linked_is_copied_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: str) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "program").write_bytes(b"x")
    share(str(tmp_path / "program"), str(tmp_path / "run"))
    assert ((tmp_path / "run").read_bytes(), (tmp_path / "run").stat().st_mode & 0o777) == (b"x", 0o600)
    with pytest.raises(DiskRefused):
        share(str(tmp_path / "missing"), str(tmp_path / "another"))
