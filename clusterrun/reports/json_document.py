"""A pre-flight report as the document that scripts read (``--json``); pure, knows no file."""

from __future__ import annotations

import time
from typing import Any

from clusterrun.model.document import encode
from clusterrun.model.preflight_report import NodeReport, Report


def document(report: Report) -> dict[str, Any]:
    """The report with its nodes by name; the fields that scripts rely on come first."""
    return {
        "verdict": report.verdict.value,
        "seconds": report.seconds,
        "rounds": report.rounds,
        "world": list(report.world),
        "excluded": list(report.excluded),
        "nodes": {node.node: _node(node) for node in report.nodes},
        "links": encode(report.links),
        "tests": encode(report.tests),
        "run_id": report.run_id,
        "cluster": report.cluster,
        "level": report.level,
        "at": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(report.at)),
        "budget": report.budget,
        "backend": report.backend,
        "spares": list(report.spares),
        "set": report.set_said,
        "notices": list(report.notices),
    }


def _node(node: NodeReport) -> dict[str, Any]:
    return {"verdict": node.verdict.value, "role": node.role, "findings": encode(node.findings)}
