"""Every test that docs/sites.md names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r"`(tests/\S+?\.py)(?:::(\w+))?`")


def test_every_test_that_the_page_of_sites_names_exists() -> None:
    named = NAMED.findall((ROOT / "docs/sites.md").read_text())
    assert len(named) > 10
    absent = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file() or name not in ("", *of(path))
    ]
    assert absent == []


def of(path: str) -> list[str]:
    tree = ast.parse((ROOT / path).read_text())
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def test_every_row_of_a_release_names_a_test_or_says_that_it_was_not_tried() -> None:
    text = (ROOT / "docs/sites.md").read_text()
    table = text.partition("| since | change |")[2].partition("\n\n")[0]
    rows = [line for line in table.splitlines()[2:] if line]
    assert len(rows) > 10
    assert [row for row in rows if not NAMED.search(row) and "not tried" not in row] == []
