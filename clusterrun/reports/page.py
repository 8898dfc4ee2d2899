"""A pre-flight report as one self-contained page for a browser; pure, knows no file."""

from __future__ import annotations

import html

from clusterrun.model.report import Report
from clusterrun.reports.screen import headline, screen


def page(report: Report) -> str:
    """The page: what the screen shows, in one column."""
    lines = "\n".join(html.escape(line.text) for line in screen(report))
    title = html.escape(headline(report))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
        f"<body><pre>{lines}</pre></body></html>\n"
    )
