"""Declares the JSON documents of `sweep` and the table of all sweeps."""

from __future__ import annotations

from clusterrun.reports.view import (
    INTEGER,
    TEXT,
    TIME,
    View,
    ViewField,
    any_of,
    by_name,
    many,
    one_of,
    optional,
)

SWEEP = View(
    "A sweep.",
    ViewField("sweep_id", "The sweep.", header="SWEEP"),
    ViewField("name", "Its name."),
    ViewField("submitted_at", "When it was begun.", TIME),
    ViewField("age", kind=None, header="AGE"),
    ViewField("points", "How many points it has.", INTEGER, header="POINTS"),
    ViewField("runs", "How many of its runs are in which state, in words.", header="RUNS"),
)
SWEEPS = View(
    "The output of `sweep list --json`.", ViewField("sweeps", "The sweeps, newest first.", many(SWEEP))
)
POINT = View(
    "A point.",
    ViewField("run_id", "The run of the point; null: not queued.", optional(TEXT)),
    ViewField("point", "Each name of the sweep with its value.", by_name(TEXT)),
)
STARTED = View(
    "The output of `sweep --json` once its points are queued.",
    ViewField("sweep_id", "The sweep."),
    ViewField("name", "Its name."),
    ViewField("job_id", "The newest array; empty without Slurm."),
    ViewField("points", "The points, in their order.", many(POINT)),
)
RESULT = View(
    "A point.",
    ViewField("name", "The name of the run."),
    ViewField("run_id", "The run; null: not queued.", optional(TEXT)),
    ViewField("state", "Its state, or REMOVED, or NOT QUEUED."),
    ViewField("point", "Each name of the sweep with its value.", by_name(TEXT)),
    ViewField(
        "reported",
        "The results of the run; null for a number that is not finite.",
        by_name(any_of("string", "number", "boolean", "null")),
    ),
    ViewField("reason", "Why the run is in that state; empty if it completed."),
)
RESULTS = View(
    "What `sweep results --json` prints, best first.",
    ViewField("sweep_id", "The sweep."),
    ViewField("by", "The result that the runs are sorted by; empty: none was reported."),
    ViewField(
        "best",
        "Which value of it comes first.",
        one_of(("smallest", "largest")),
    ),
    ViewField("results", "The points, best first.", many(RESULT)),
)
