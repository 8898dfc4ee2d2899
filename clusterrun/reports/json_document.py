"""A pre-flight report as the document that scripts read (``--json``); pure, knows no file."""

from __future__ import annotations

import time

from clusterrun.model.document import encode
from clusterrun.model.frozen import Any
from clusterrun.model.preflight_report import Grade, Report
from clusterrun.reports.view import INTEGER, NUMBER, TEXT, Kind, View, ViewField, by_name, many, one_of

SECOND = Kind(
    {"type": "string", "format": "date-time"},
    lambda moment: time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(moment)),
)
MEASUREMENT = Kind({"type": "object"}, encode)
FINDING = View(
    "What a check found.",
    ViewField("check", "The check."),
    ViewField("verdict", "`fail` makes the node unfit.", one_of(Grade)),
    ViewField("said", "What was seen, with the number and its limit."),
    ViewField("remedy", "What to do about it."),
)
NODE = View(
    "A node.",
    ViewField("verdict", "Of this node.", one_of(Grade)),
    ViewField("role", "What the node is for."),
    ViewField("findings", "Worst first.", many(FINDING)),
)
REPORT = View(
    "What `report --json` and `check --json` print.",
    ViewField("verdict", "Of the whole check.", one_of(Grade)),
    ViewField("seconds", "How long it took.", NUMBER),
    ViewField("rounds", "Rounds of collective tests.", INTEGER),
    ViewField("world", "The nodes that may train, in rank order.", many(TEXT, "A node.")),
    ViewField("excluded", "Those that may not.", many(TEXT, "A node.")),
    ViewField(
        "nodes",
        "By name: every node that was asked for.",
        by_name(NODE),
        lambda report: {node.node: node for node in report.nodes},
    ),
    ViewField(
        "links",
        "Links with a finding.",
        many(
            View(
                "A link with a finding.",
                ViewField("a", "One end."),
                ViewField("b", "The other."),
                ViewField("direction", "The direction that is meant."),
                ViewField("verdict", "Of this link.", one_of(Grade)),
                ViewField("said", "What was seen."),
                ViewField("remedy", "What to do about it."),
            )
        ),
    ),
    ViewField(
        "tests", "Every measurement.", many(MEASUREMENT, "One test: who took part, what was measured.")
    ),
    ViewField("run_id", "The run."),
    ViewField("cluster", "The cluster's name."),
    ViewField(
        "level",
        "How much was checked.",
        one_of(("full", "quick")),
    ),
    ViewField("at", "When the verdict was given.", SECOND),
    ViewField("budget", "Seconds it might have taken.", NUMBER),
    ViewField("backend", "`nccl` or `gloo`; empty where no collective was tried."),
    ViewField("spares", "Fit nodes that are left over.", many(TEXT, "A node.")),
    ViewField("set", "What was said of all nodes together.", read=lambda report: report.set_said),
    ViewField("notices", "What else should be known.", many(TEXT, "A sentence.")),
)


def document(report: Report) -> dict[str, Any]:
    """The report with its nodes by name."""
    return REPORT.document(report)
