"""What earlier pre-flights found out about the nodes of a cluster, as files.

``$CLUSTERRUN_HOME/findings/<cluster>/`` holds a copy of each report that found something, written
by the coordinators, and a ``<node>.forgotten`` for each node whose past no longer counts: it has the
moment (seconds since the epoch) before which nothing is held against the node.
"""

from __future__ import annotations

import os
from contextlib import suppress
from urllib.parse import quote

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Report
from clusterrun.runs.private_files import names_in, write_whole
from clusterrun.runs.run_documents import MOST_REPORT_BYTES, read_document

FORGOTTEN = ".forgotten"
SLACK = 86400.0
"""Clocks of nodes and of file servers differ: a file is skipped unopened only if it is older by this too."""


@frozen
class NodeRecords:
    """The reports of one cluster, oldest first, when nodes were forgotten, and which files are damaged."""

    cluster: str
    reports: tuple[Report, ...]
    forgotten: tuple[tuple[str, float], ...] = ()
    damaged: tuple[str, ...] = ()


def findings_folder(home: str, cluster: str) -> str:
    """Where the findings of a cluster lie; a name is not a path."""
    return os.path.join(home, "findings", _safe(cluster or "cluster"))


def _safe(name: str) -> str:
    """``name`` as the name of a file, and no two names alike."""
    text = quote(name, safe="", errors="surrogateescape")
    return text.replace(".", "%2E") if set(text) <= {"."} else text


def clusters(home: str) -> tuple[str, ...]:
    """The clusters of which something is known, by the names of their folders."""
    folder = os.path.join(home, "findings")
    return tuple(name for name in sorted(names_in(folder)) if os.path.isdir(os.path.join(folder, name)))


def recall(folder: str, since: float) -> NodeRecords:
    """The reports in ``folder`` from ``since`` (seconds since the epoch) on; no folder: nothing is known."""
    reports, forgotten, damaged = [], [], []
    for name in sorted(names_in(folder)):
        path = os.path.join(folder, name)
        if name.endswith(FORGOTTEN):
            forgotten.append((name.removesuffix(FORGOTTEN), _moment_in(path)))
        if not name.endswith(".json") or _written(path) < since - SLACK:
            continue
        try:
            report = read_document(Report, path, MOST_REPORT_BYTES)
        except ClusterrunError as error:
            damaged.append(error.seen)
            continue
        if report is not None and report.at >= since:
            reports.append(report)
    reports.sort(key=lambda report: report.at)
    return NodeRecords(os.path.basename(folder), tuple(reports), tuple(forgotten), tuple(damaged))


def forget(folder: str, node: str, now: float) -> None:
    """Let nothing count that was found out about ``node`` up to ``now``. Raises ``DiskRefused``."""
    write_whole(os.path.join(folder, _safe(node) + FORGOTTEN), f"{now}\n")


def _moment_in(path: str) -> float:
    with suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        return float(file.read(64))
    return 0.0


def forgotten_at(memory: NodeRecords, node: str) -> float:
    """Up to when the past of ``node`` does not count; 0 by default."""
    return dict(memory.forgotten).get(_safe(node), 0.0)


def _written(path: str) -> float:
    with suppress(OSError):
        return os.stat(path).st_mtime
    return 0.0
