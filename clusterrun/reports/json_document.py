"""Render a pre-flight report as the JSON document that scripts read (``--json``). Reads no file."""

from __future__ import annotations

import time

from clusterrun.model.document import encode
from clusterrun.model.preflight_report import Grade
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
    ViewField("message", "What was seen, with the number and its limit.", former="said"),
    ViewField("remedy", "What to do about it."),
)
NODE = View(
    "A node.",
    ViewField("verdict", "The verdict on this node.", one_of(Grade)),
    ViewField("role", "The role of the node in this run."),
    ViewField("findings", "Worst first.", many(FINDING)),
)
REPORT = View(
    "The output of `report --json` and `check --json`.",
    ViewField("verdict", "The verdict of the whole check.", one_of(Grade)),
    ViewField("seconds", "How long it took.", NUMBER),
    ViewField("rounds", "Rounds of collective tests.", INTEGER),
    ViewField("world", "The nodes that may train, in rank order.", many(TEXT, "A node.")),
    ViewField("excluded", "The nodes that must not train.", many(TEXT, "A node.")),
    ViewField(
        "nodes",
        "Every requested node, by name.",
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
                ViewField("b", "The other end."),
                ViewField("direction", "The direction of the finding."),
                ViewField("verdict", "The verdict on this link.", one_of(Grade)),
                ViewField("message", "What was seen.", former="said"),
                ViewField("remedy", "What to do about it."),
            )
        ),
    ),
    ViewField(
        "tests",
        "Every measurement.",
        many(MEASUREMENT, "One test: the nodes that took part and the measured values."),
    ),
    ViewField(
        "quantities",
        "The best measured numbers of each GPU, pair of GPUs and rail.",
        many(
            View(
                "A measured number.",
                ViewField("node", "The node."),
                ViewField("part", "The GPU, the pair of GPUs or the rail."),
                ViewField("name", "What was measured."),
                ViewField("value", "The number.", NUMBER),
                ViewField("unit", "Its unit."),
            )
        ),
    ),
    ViewField(
        "table",
        "Collectives of the whole set by size (`--table`).",
        many(
            View(
                "A collective of one size.",
                ViewField("operation", "The collective."),
                ViewField("bytes", "The larger of input and output of a rank.", INTEGER),
                ViewField("microseconds", "The time of the slowest rank.", NUMBER),
                ViewField("algorithm_gigabytes_per_second", "Bytes by time.", NUMBER),
                ViewField("gigabytes_per_second", "The bus bandwidth, as nccl-tests defines it.", NUMBER),
            )
        ),
    ),
    ViewField("run_id", "The run."),
    ViewField("cluster", "The cluster's name."),
    ViewField("level", "The extent of the check.", one_of(("full", "quick"))),
    ViewField("at", "The time of the verdict.", SECOND),
    ViewField("budget", "The limit for the whole check in seconds.", NUMBER),
    ViewField("backend", "`nccl` or `gloo`; empty if no collective was tested."),
    ViewField("spares", "Fit nodes that do not train yet.", many(TEXT, "A node.")),
    ViewField(
        "set",
        "The finding about all nodes together; empty if there is none.",
        read=lambda report: report.set_message,
    ),
    ViewField("notices", "Remarks on the check.", many(TEXT, "A sentence.")),
)
