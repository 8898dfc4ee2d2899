"""Declares the JSON document of `diagnose --log`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterrun.diagnosis.stacks import function_of, line_of
from clusterrun.model.frozen import fields
from clusterrun.reports.view import BOOLEAN, INTEGER, TEXT, View, ViewField, many

if TYPE_CHECKING:
    from clusterrun.diagnosis.job_log import LogError
    from clusterrun.operations.diagnose_log import LogReport

CULPRIT = View(
    "A rank, node or link that is to blame.",
    ViewField("rank", "-1 for a node or a link.", INTEGER),
    ViewField("node", "The node."),
    ViewField("why", "The fault."),
)


def _place(log_error: LogError) -> tuple[str, int]:
    file, _, number = line_of(log_error.error.frame).rpartition(":")
    return file, int(number) if number.isdecimal() else 0


LOG_FILE = View(
    "A log file.",
    ViewField("path", "The file; `stdin` for standard input."),
    ViewField("size", "Its bytes.", INTEGER),
    ViewField("read", "Bytes of which every line was read.", INTEGER),
    ViewField("scanned", "Bytes that were only searched for errors.", INTEGER),
    ViewField("skipped", "Bytes that were not read.", INTEGER),
)
LOG_ERROR = View(
    "An error in the log.",
    ViewField("rank", "The rank that printed it; -1 if the log does not show it.", INTEGER),
    ViewField("node", "The node of the rank; empty if the log does not show it."),
    ViewField("text", "The error as it was printed.", TEXT, lambda log_error: log_error.error.text),
    ViewField(
        "file",
        "The file of the user's code; empty without one.",
        TEXT,
        lambda log_error: _place(log_error)[0],
    ),
    ViewField(
        "line", "The line in that file; 0 without one.", INTEGER, lambda log_error: _place(log_error)[1]
    ),
    ViewField("function", "The function.", TEXT, lambda log_error: function_of(log_error.error.frame)),
    ViewField(
        "is_consequence",
        "Whether the rank only noticed the end of another one.",
        BOOLEAN,
        lambda log_error: log_error.error.is_consequence,
    ),
)
LOG_DIAGNOSIS = View(
    "The output of `diagnose --log --json`.",
    ViewField("files", "The files, in the order in which they were read.", many(LOG_FILE)),
    ViewField("verdict", "One of the [verdicts](diagnose.md#the-verdicts)."),
    ViewField("message", "The verdict as a sentence.", former="said"),
    ViewField("culprits", "Empty if nothing is blamed.", many(CULPRIT)),
    ViewField("errors", "At most 64 errors, in the order of the lines.", many(LOG_ERROR)),
    ViewField("more_errors", "Errors beyond these.", INTEGER),
    ViewField(
        "evidence", "The facts that lead to the verdict, and what was not read.", many(TEXT, "A sentence.")
    ),
    ViewField("remedy", "The next step for the user."),
)


def log_document(report: LogReport) -> dict[str, object]:
    """Return the JSON document."""
    diagnosis = fields(report.diagnosis)
    return LOG_DIAGNOSIS.document({**diagnosis, **fields(report), "verdict": report.diagnosis.verdict.value})
