"""The documentation is built as a site without a warning, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(name, reason=f"{name} is of the extra docs, for Python 3.11 and newer")
    place = tmp_path_factory.mktemp("site")
    options = ["-W", "--keep-going", "-q", "-d", str(place / "doctrees"), "-c", str(ROOT / "website")]
    arguments = [
        sys.executable,
        "-m",
        "sphinx",
        *options,
        "-b",
        "html",
        str(ROOT / "docs"),
        str(place / "html"),
    ]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        arguments, capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert (result.returncode, result.stderr) == (0, "")
    return place / "html"


def test_every_page_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    index = (site / "index.html").read_text(encoding="utf-8")
    assert [name for name in PAGES if not (site / f"{name}.html").exists()] == []
    assert [name for name in PAGES if name != "index" and f'href="{name}.html"' not in index] == []


def test_the_site_is_read_without_a_network(site: Path) -> None:
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|source|iframe)[^>]+src="([^"]+)"|<link[^>]+href="([^"]+)"', text)
        assert [entry for pair in loaded for entry in pair if re.match(r"(?:https?:)?//", entry)] == [], (
            page.name
        )
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//|@import", sheet.read_text(encoding="utf-8")), sheet


def test_a_link_inside_the_site_leads_to_an_existing_anchor(site: Path) -> None:
    for page in site.glob("*.html"):
        body = page.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
        for target in re.findall(r'href="([^":]*)"', body):
            name, _, anchor = target.partition("#")
            remote = site / name if name else page
            assert remote.exists(), f"{page.name} → {target}"
            if anchor:
                assert f'id="{anchor}"' in remote.read_text(encoding="utf-8"), f"{page.name} → {target}"


def test_the_schemas_are_beside_the_site(site: Path) -> None:
    assert {path.name for path in (site / "schemas").iterdir()} == {
        path.name for path in (ROOT / "docs" / "schemas").iterdir()
    }


def test_help_lists_the_pages_and_shows_one_with_its_tables(clusterrun: CommandLine) -> None:
    listed = clusterrun("help")
    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == [p for p in PAGES if p != "index"]
    result = clusterrun("help", "options")
    assert (result.code, result.out.startswith("# Options\n")) == (0, True)
    assert "| `--ranks-per-node` `R` |" in result.out
    assert "<!--" not in result.out


def test_help_shows_the_help_of_a_command_and_searches_for_a_word(clusterrun: CommandLine) -> None:
    assert clusterrun("help", "bench", "scaling").out == clusterrun("bench", "scaling", "--help").out
    result = clusterrun("help", "notice.json")
    assert result.code == 0
    assert {line.split()[0] for line in result.out.splitlines()} >= {"survive", "run-directory"}


def test_help_of_an_unknown_word_suggests_a_page(clusterrun: CommandLine) -> None:
    result = clusterrun("help", "trubleshooting")
    assert (result.code, result.out) == (2, "")
    assert "Did you mean troubleshooting?" in result.err
    assert "clusterrun help lists the pages" in result.err


def test_messages_name_existing_pages() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "clusterrun").rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"clusterrun help ([a-z-]{4,})", text)}
    assert named >= {"preflight", "frameworks", "templates"}
    assert named - {*PAGES, "logs", "lists", "skill"} == set()
    assert not any(re.search(r"docs/[a-z-]+\.md (?:says|lists|shows|names)", text) for text in texts)
