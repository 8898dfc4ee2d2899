"""Find the links that experiment trackers print, in a limited part of the logs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterrun.atomic_file import end_of
from clusterrun.logs.attempt_logs import LogFile, LogSelection, attempts, log_files, read_at
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.model.paths import RunPaths

# Bytes of a file that are searched. Trackers print their link at their start, some also at their end.
BEGINNING, END = 256 << 10, 64 << 10
# Number of ranks. Usually rank 0 has the link. If every rank has its own, some are enough.
RANKS = 8
# Newest attempts that are searched. The latest one may not have printed its link yet.
ATTEMPTS = 3
MOST_LINKS = 8
LONGEST_LINE = 4096
_COLOURS = re.compile(r"\x1b\[[0-9;:]{0,40}m")
_URL = r"(https?://[^\s\"'<>]{1,1000})"
_FORMS = (
    ("", re.compile(rf"\bView run\b[^\n]{{0,300}}?\bat:? +{_URL}")),
    ("Comet", re.compile(rf"\bExperiment is live on comet\.(?:com|ml):? +{_URL}")),
    ("ClearML", re.compile(rf"\bClearML results page: +{_URL}")),
    ("Neptune", re.compile(rf"\bNeptune initialized\. Open in the app: +{_URL}")),
    (
        "Neptune",
        re.compile(r"^(https://app\.neptune\.ai/[^\s\"'<>]{1,1000}/e/[A-Za-z0-9_-]{1,100}\S{0,100})$"),
    ),
    ("TensorBoard", re.compile(rf"^TensorBoard \S{{1,40}} at {_URL}")),
)
_AIM, _OPEN = "Running Aim UI on repo", re.compile(rf"^Open {_URL}$")
_MLFLOW = re.compile(r"/experiments/[^/]+/runs/")
_LOGIN = re.compile(r"^(https?://)[^/@]*@")


@frozen
class TrackerLink:
    """A link that a tracker printed, and the rank in whose log it is. The text is foreign."""

    tool: str
    url: str
    rank: int


def tracker_links(paths: RunPaths) -> tuple[TrackerLink, ...]:
    """Return the distinct links of the newest attempt that has any; () if no log can be read."""
    try:
        for epoch in reversed(attempts(paths.attempts)[-ATTEMPTS:]):
            link_by_url: dict[str, TrackerLink] = {}
            files = log_files(paths.attempt(epoch).folder, LogSelection(None))
            ranks = sorted({file.rank for file in files})[:RANKS]
            for file in files:
                if file.rank in ranks:
                    for tool, url in links_in(_ends(file)):
                        link_by_url.setdefault(url, TrackerLink(tool, url, file.rank))
            if link_by_url:
                return tuple(link_by_url.values())[:MOST_LINKS]
    except ClusterrunError:
        pass
    return ()


def links_in(data: bytes) -> Iterator[tuple[str, str]]:
    """Return the tool and the URL of every link in ``data``, without a login in the URL."""
    of_aim = False
    for line in re.split(rb"[\r\n]+", data):
        text = _COLOURS.sub("", line[:LONGEST_LINE].decode("utf-8", "surrogateescape")).strip()
        if "://" in text:
            yield from _in_line(text, of_aim)
        of_aim = _AIM in text or (of_aim and not text)


def _in_line(text: str, of_aim: bool) -> Iterator[tuple[str, str]]:
    for tool, form in _FORMS:
        if match := form.search(text):
            url = _LOGIN.sub(r"\1", match[1])
            yield tool or ("MLflow" if _MLFLOW.search(url) else "W&B"), url
            return
    if of_aim and (match := _OPEN.search(text)):
        yield "Aim", match[1]


def _ends(file: LogFile) -> bytes:
    """Return the beginning and the end of a log; none if it is not a plain file."""
    end, start = end_of(file.path, END)
    beginning = read_at(file.path, 0, min(start, BEGINNING)) if start else b""
    return beginning + (b"\n" if start > BEGINNING else b"") + end
