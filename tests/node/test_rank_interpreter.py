"""Which Python setup lines have brought: one that they put on PATH, not one that they laid bare."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun.model import contract
from clusterrun.model.orders import Orders
from clusterrun.node.rank_interpreter import brought, settled


@pytest.mark.parametrize(
    "before, after, chosen",
    [
        ("login system", "venv login system", "venv/python"),
        ("login system", "login system", ""),
        ("login system", "tools login system", ""),
        ("login system", "login module system", "module/python3"),
        ("login system", "system", ""),  # module purge, a fresh PATH
        ("venv login system", "login system", ""),
        ("login system", "module system", "module/python3"),
        ("only3 tools", "module only3 tools", "module/python3"),
        ("login venv system", "venv login system", "venv/python"),
        ("tools", "tools venv", "venv/python"),
        ("", "venv", "venv/python"),
        ("login system", "", ""),
    ],
)
def test_the_python_is_the_first_on_path(tmp_path: Path, before: str, after: str, chosen: str) -> None:
    holds = {"login": ("python",), "venv": ("python", "python3"), "module": ("python3",), "tools": ()}
    for folder, names in {**holds, "system": ("python3",), "only3": ("python3",)}.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).touch(0o755)
    paths = [":".join(str(tmp_path / word) for word in arguments.split()) for arguments in (before, after)]
    assert brought(*paths) == (str(tmp_path / chosen) if chosen else "")


@pytest.mark.parametrize(
    ("cwd", "place"),
    [
        ("original/sub", "copy/sub"),
        ("original", "copy"),
        ("original/ignored", "original/ignored"),
        ("", "copy"),
    ],
)
def test_ranks_stay_in_the_copy_of_the_code_if_the_setup_lines_enter_the_original(
    tmp_path: Path, cwd: str, place: str
) -> None:
    for folder in ("original/sub", "original/ignored", "copy/sub"):
        (tmp_path / folder).mkdir(parents=True)
    code = (
        (contract.CODE_ORIGINAL_VARIABLE, str(tmp_path / "original")),
        (contract.CODE_COPY_VARIABLE, str(tmp_path / "copy")),
    )
    orders = Orders("run", "train", 1, 1, 0, 1, ("true",), str(tmp_path / "copy"), environment=code)
    setup = {contract.SETUP_CWD_VARIABLE: str(tmp_path / cwd)} if cwd else {}
    assert settled(orders, setup).cwd == str(tmp_path / place)
