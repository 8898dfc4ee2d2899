"""Compare kernel, C library, processor and Python between nodes."""

from __future__ import annotations

import os
import sys

from clusterrun.model import contract
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.majority import outlier_findings
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import text

NAME = "versions"
LIMIT = 10.0
LATE = Finding(NAME, Grade.UNDETERMINED, "the versions could not be read within 10 s", "")
_ONE_KIND = "ask for one kind of node (--constraint, --partition)"
_KINDS = {
    "clusterrun": ("clusterrun", Grade.WARN, "submit again: every node must run the same agent.pyz"),
    "machine": ("the processor's architecture", Grade.WARN, _ONE_KIND),
    "kernel": ("the kernel", Grade.PASS, ""),
    "libc": ("the C library", Grade.PASS, ""),
    "python": ("the Python that checks", Grade.PASS, ""),
}


def probe(request: RunNeeds) -> object:
    system = os.uname()
    return {
        "clusterrun": contract.VERSION,
        "machine": system.machine,
        "kernel": system.release,
        "libc": os.confstr("CS_GNU_LIBC_VERSION") or "" if "CS_GNU_LIBC_VERSION" in os.confstr_names else "",
        "python": "{}.{}.{}".format(*sys.version_info),
    }


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Warn if the agent or the architecture differs. Only note another kernel, C library or Python."""
    for kind, (subject, verdict, remedy) in _KINDS.items():
        values = {node: text(reading, kind) for node, reading in readings.items()}
        reported = {node: value for node, value in values.items() if value}
        yield from outlier_findings(NAME, subject, reported, verdict, remedy)
