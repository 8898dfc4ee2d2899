"""How Sphinx makes the site from docs/: tables come from the program, and nothing is loaded from afar."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from clusterrun.cli import reference  # noqa: E402
from clusterrun.model.contract import VERSION  # noqa: E402

project = "clusterrun"
release = version = VERSION
copyright = "the clusterrun authors"
extensions = ["myst_parser"]
myst_heading_anchors = 4
highlight_language = "none"
nitpicky = True
smartquotes = False

exclude_patterns = ["skill"]  # a file for programs, no page

html_theme = "furo"
html_title = f"clusterrun {VERSION}"
html_static_path = [str(ROOT / "website" / "static")]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}


def _made_whole(app: Any, page: str, text: list[str]) -> None:
    """The tables are filled in; a file that is no page of the site is named, and no link."""
    whole = reference.expanded(text[0])
    text[0] = re.sub(r"\[([^\]]+)\]\((\.\./|schemas/)[^)]*\)", r"\1", whole)


def _with_schemas(app: Any, failure: Exception | None) -> None:
    if failure is None and app.builder.format == "html":
        shutil.copytree(ROOT / "docs" / "schemas", Path(app.outdir) / "schemas", dirs_exist_ok=True)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _made_whole)
    app.connect("build-finished", _with_schemas)
