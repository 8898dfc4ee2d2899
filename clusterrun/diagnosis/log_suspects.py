"""Find the lines at the end of a job's log that look like an error, but were not read as one; pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from clusterrun.diagnosis.job_log import MOST_EXCEPTION, MOST_SUSPECTS, JobLog
from clusterrun.diagnosis.known_errors import meaning
from clusterrun.diagnosis.log_process import EXCEPTION_LINE, HARMLESS, LOOKS_FATAL, LogError
from clusterrun.diagnosis.printed_errors import RANK_MARK, Error, last_complaint, rank_in
from clusterrun.model.frozen import replace

# Lines before and behind an error that are searched for what belongs to it.
LINES_BEFORE, LINES_BEHIND = 30, 12
# Lines that may be about an error.
_LOOKS_WRONG = re.compile(
    r"(?i)\b(?:error(?!s?\W*\d)|exception|fail(?:ed|ure|s)?|cannot|can't|could not|couldn't|unable|denied"
    r"|refused|invalid|did not receive|killed|not found|no such|timed out|timeout(?!\W{0,3}[:=(])"
    r"|unrecognized|unreachable|mismatch|corrupt(?:ed)?|closing signal)\b"
)
# A frame of Open MPI's handler of signals: the library or program, and the function.
# The handler of UCX names the function only.
_NATIVE_FRAME = re.compile(
    r"\[[\w.-]+:\d+\] \[ ?\d+\] (?:\S*/)?(?P<file>[^/\s]+)\((?P<function>\w+)\+0x"
    r"|^ *\d+ 0x[0-9a-f]+ (?!__sigaction)(?P<name>\w+)\(\)"
)
# The addresses of an RDMA connection that failed.
_CONNECTION = re.compile(
    r"(?:^(?P<node>[\w.-]+):\d+:\d+ .*)?completion from peer (?P<peer>[\w.]+)<"
    r"(?:.* localGid (?:::ffff:)?(?P<local>[\d.]+) )?"
)
# Source code, headings, and what launchers and loaders print of an error.
_NOT_NEAR = re.compile(
    r"^raise |:$|frame #|following exception|(?:exitcode|exit code|status)\b|: Caught |^\w+\("
    r"|terminate called|closing signal"
)

# torch's warning to a rank that calls a collective of a group of other ranks, and goes on without it.
_NO_MEMBER = re.compile(r"Running (\w+) on global rank (\d+) which does not belong to the given group")


def calls_of_other_groups(log: JobLog) -> dict[str, set[int]]:
    """Return the ranks that called a collective in a group of others, by collective."""
    callers: dict[str, set[int]] = {}
    for _, _, text in log.tail:
        if warning := _NO_MEMBER.search(text):
            callers.setdefault(warning[1], set()).add(int(warning[2]))
    return callers


def native_frame(log: JobLog, before: int) -> str:
    """Return where native code crashed, by the innermost named frame that Open MPI shows; '' without."""
    frames = (_NATIVE_FRAME.match(text) for order, _, text in log.tail if order < before)
    frame = next(filter(None, frames), None)
    if frame is None:
        return ""
    return f"it was in {frame['name'] or frame['function']}" + (
        f" of {frame['file']}" if frame["file"] else ""
    )


def complaint_before(log: JobLog, end: int) -> str:
    """Return the last line of those before an end that mentions something that went wrong; '' without."""
    lines = [text for order, _, text in log.tail if order < end]
    own = [
        line
        for line in lines[-LINES_BEFORE:]
        if not (HARMLESS.search(line) or ((row := meaning(line)) and row.consequence))
    ]
    return last_complaint(own)


def suspect_errors(log: JobLog, before: int = sys.maxsize) -> list[LogError]:
    """Return the lines near the end of the log, after its last step, that look like an error."""
    last_step = max((process.last_step for process in log.processes.values()), default=0)
    lines: dict[str, LogError] = {}
    skipped, heading, is_source = 0, "", False
    for order, rank, text in log.tail:
        was_frame, is_source = is_source, 'File "' in text
        # Python prints these at the end of a process, and they do not change its exit code.
        skipped += text.startswith("Exception ignored in")
        message = text.strip()[:MOST_EXCEPTION]
        if heading and text[:1].isspace():
            # The message of an exception stands below its name.
            error = replace(lines[heading].error, text=f"{lines[heading].error.text} {message}".strip())
            lines[heading] = replace(lines[heading], error=error)
            continue
        heading, is_exception = "", EXCEPTION_LINE.match(text) is not None
        is_harmless = skipped or was_frame or (not is_exception and HARMLESS.search(text))
        if last_step < order < before and not is_harmless:
            marked_rank = rank_in(message)
            rank = marked_rank if marked_rank >= 0 else rank
            error = Error(0.0, rank, RANK_MARK.sub("", message), row=meaning(message))
            heading = message if is_exception and message.endswith(":") else ""
            lines.setdefault(message, LogError(error, order, rank))
        skipped -= skipped > 0 and is_exception
    fatal = [entry for entry in lines.values() if LOOKS_FATAL.search(entry.error.text)]
    return fatal or [entry for entry in lines.values() if _LOOKS_WRONG.search(entry.error.text)]


def suspect_lines(log: JobLog, before: int = sys.maxsize) -> tuple[str, ...]:
    """Return the first lines that look like an error, each with its rank."""
    return tuple(
        f"rank {entry.rank}: {entry.error.text}" if entry.rank >= 0 else entry.error.text
        for entry in suspect_errors(log, before)[:MOST_SUSPECTS]
    )


def lines_near(log: JobLog, first: LogError) -> list[str]:
    """Return lines around an error that look like one, and are neither a heading nor a report of ends."""
    lines = []
    for order, rank, text in log.tail:
        line = RANK_MARK.sub("", text)
        distance = order - first.order
        # The lines of a traceback are indented, and stand above its exception.
        is_far = not -LINES_BEFORE < distance < LINES_BEHIND or (distance < 0 and line[:1].isspace())
        looks_wrong = LOOKS_FATAL.search(line) or _LOOKS_WRONG.search(line)
        if rank in (-1, first.rank) and looks_wrong and not (is_far or HARMLESS.search(line)):
            lines.append(line.strip()[:MOST_EXCEPTION])
    return [line for line in dict.fromkeys(lines) if not _NOT_NEAR.search(line)]


def ends_in_common(log: JobLog, errors: Sequence[LogError]) -> tuple[list[str] | None, bool]:
    """Return the ends that all RDMA connections that failed share, and whether one process reported all.

    Its own end is left out then. None: there are no such connections.
    """
    warnings = [("", _CONNECTION.search(text)) for _, _, text in log.tail if "NCCL WARN" in text]
    messages = [
        (entry.node or f"rank {entry.rank}", _CONNECTION.search(entry.error.text)) for entry in errors
    ]
    connections, node_of_address, reporters = [], {}, set()
    # A warning of NCCL names its node, and the exception of the rank repeats it.
    for reporter, match in warnings if any(match for _, match in warnings) else messages:
        if match:
            reporter = match["node"] or reporter
            connections.append({reporter, match["local"] or reporter, match["peer"]})
            node_of_address[match["local"]] = reporter
            reporters.add(reporter)
    if not any(match for _, match in messages):
        return None, False
    has_one_reporter = len(reporters) == 1
    ends = {node_of_address.get(end, end) for end in set.intersection(*connections)}
    ends -= reporters if has_one_reporter else set()
    return sorted(end for end in ends if not end.startswith("rank ")), has_one_reporter
