"""A pre-flight report as the document that scripts read (``--json``); pure, knows no file."""

from __future__ import annotations

import time
from typing import Any

from clusterrun.model.document import encode
from clusterrun.model.preflight_report import Report

FIELDS = (
    *("verdict", "seconds", "rounds", "world", "excluded", "nodes", "links", "tests", "run_id", "cluster"),
    *("level", "at", "budget", "backend", "spares", "notices"),
)


def document(report: Report) -> dict[str, Any]:
    """The report with its nodes by name; the fields that scripts rely on come first."""
    told = {name: encode(getattr(report, name)) for name in FIELDS}
    for node in told["nodes"]:
        node.pop("node")
    return {
        **told,
        "nodes": dict(zip((node.node for node in report.nodes), told["nodes"])),
        "at": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(report.at)),
        "set": report.set_said,
    }
