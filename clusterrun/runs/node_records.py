"""The findings of earlier pre-flight checks about the nodes of a cluster, as files.

``$CLUSTERRUN_HOME/findings/<cluster>/`` holds a copy of each report with findings, written by the
coordinators. It holds a ``<node>.forgotten`` for each node whose older findings no longer count. That file
has the time (seconds since the epoch) before which findings are ignored.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Report
from clusterrun.runs.private_files import names_in, write_whole
from clusterrun.runs.run_documents import MOST_REPORT_BYTES, read_document

FORGOTTEN = ".forgotten"
# Seconds by which the clocks of nodes and file servers may differ. A file is skipped only if it is older
# still.
SLACK = 86400.0


@frozen
class NodeRecords:
    """The reports about the nodes of one cluster."""

    reports: tuple[Report, ...]  # oldest first
    # Nodes, each with the time before which findings do not count.
    forgotten: tuple[tuple[str, float], ...] = ()
    damaged: tuple[str, ...] = ()  # messages about damaged files


def findings_folder(home: str, cluster: str) -> str:
    """Return the folder of the findings of a cluster. Its name is escaped."""
    return os.path.join(home, "findings", _safe(cluster or "cluster"))


def _safe(name: str) -> str:
    """Return a file name for ``name``. Different names have different file names."""
    # As urllib.parse.quote, whose import costs each submission 2 ms.
    escaped = re.sub(
        rb"[^A-Za-z0-9_.~-]", lambda match: b"%%%02X" % match[0][0], name.encode("utf-8", "surrogateescape")
    )
    text = escaped.decode()
    return text.replace(".", "%2E") if set(text) <= {"."} else text


def clusters(home: str) -> tuple[str, ...]:
    """Return the clusters with findings, by the names of their folders."""
    folder = os.path.join(home, "findings")
    return tuple(name for name in sorted(names_in(folder)) if os.path.isdir(os.path.join(folder, name)))


def recall(folder: str, since: float) -> NodeRecords:
    """Return the reports in ``folder`` from ``since`` (seconds since the epoch) on; none without a folder."""
    reports, forgotten, damaged = [], [], []
    for name in sorted(names_in(folder)):
        path = os.path.join(folder, name)
        if name.endswith(FORGOTTEN):
            moment = 0.0
            with suppress(OSError, ValueError), open(path, encoding="ascii") as file:
                moment = float(file.read(64))
            forgotten.append((name.removesuffix(FORGOTTEN), moment))
        if not name.endswith(".json"):
            continue
        written_at = 0.0
        with suppress(OSError):
            written_at = os.stat(path).st_mtime
        if written_at < since - SLACK:
            continue
        try:
            report = read_document(Report, path, MOST_REPORT_BYTES)
        except ClusterrunError as error:
            damaged.append(error.seen)
            continue
        if report is not None and report.at >= since:
            reports.append(report)
    reports.sort(key=lambda report: report.at)
    return NodeRecords(tuple(reports), tuple(forgotten), tuple(damaged))


def forget(folder: str, node: str, now: float) -> None:
    """Ignore the findings about ``node`` up to ``now``. Raise ``DiskRefused``."""
    write_whole(os.path.join(folder, _safe(node) + FORGOTTEN), f"{now}\n")


def forgotten_at(memory: NodeRecords, node: str) -> float:
    """Return the time before which findings about ``node`` do not count; 0 by default."""
    return dict(memory.forgotten).get(_safe(node), 0.0)
