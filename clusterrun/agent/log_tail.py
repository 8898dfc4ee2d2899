"""Read the last output of a rank, and the traceback that it wrote."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping, Sequence
from functools import lru_cache

from clusterrun.atomic_file import end_of
from clusterrun.model import contract
from clusterrun.model.frozen import replace
from clusterrun.model.paths import AttemptPaths
from clusterrun.protocol.messages import RankExited

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.diagnosis.printed_errors import Error

# Characters of a traceback.
_MOST = 16 * 1024
# Bytes of each stream. A launcher prints much below the errors of its ranks.
_MOST_READ = 64 * 1024
# Bytes in which a traceback is searched if there is none in those. Its message may have a line per weight.
_MOST_SEARCHED = 4 * 1024 * 1024
_HEADER = b"Traceback (most recent call last)"
# Lines below an exception that are read as a part of its message.
_MOST_CONTINUED = 3
_LONGEST = 1000
_MOST_OF_DOCUMENT = 256 * 1024
# The line that ends a traceback, with or without the mark that torch puts before it.
_EXCEPTION = re.compile(
    r"(?:\[rank\d+\]:\s*)?(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Disconnected))(?::|$)"
)
# Python raises these if the process at the other end of a connection, a pipe or a queue has ended.
_OF_CONNECTIONS = frozenset(
    {
        *("BrokenPipeError", "ConnectionAbortedError", "ConnectionError", "ConnectionRefusedError"),
        *("ConnectionResetError", "DistNetworkError", "DistStoreError", "EOFError", "IncompleteReadError"),
        "RemoteDisconnected",
    }
)
# Signals that no error of a rank raises.
_FROM_OUTSIDE = re.compile(r"signal (?:2|9|15|SIG(?:INT|KILL|TERM))\b")
# Lines that a rank may print after the error that ends it.
_MOST_AFTER_ERROR = 60
# A shell could not execute the command, or did not find it.
_SHELL_CODES = (126, 127)
_IN_USE = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_PORT = re.compile(r"(?:port:? |\]:|\d\.\d+:)(\d+)")
# Scripts derive ports of their own from MASTER_PORT: ``MASTER_PORT + 1``.
_DERIVED_PORTS = 64


def with_last_words(
    end: RankExited,
    paths: AttemptPaths,
    grown: Mapping[tuple[int, str], Sequence[tuple[float, int]]] = {},
    launcher: bool = False,
    port: int = 0,
) -> RankExited:
    """Return ``end`` with the last lines of both streams, the rank's traceback, and their meaning.

    ``grown`` holds the times and sizes of its logs. ``launcher``: the rank started other ranks. ``port`` is
    the MASTER_PORT.
    """
    rank = end.rank
    out, err = _printed(paths.out(rank)), _printed(paths.err(rank))
    lines = _in_order(_timed(out, grown.get((rank, "o"), ())), _timed(err, grown.get((rank, "e"), ())))
    # A ``TORCHELASTIC_ERROR_FILE`` has torch's ``@record`` format, or plain text.
    content = end_of(paths.error(rank), _MOST_OF_DOCUMENT)[0].decode("utf-8", "replace")
    try:
        document = json.loads(content)
        message = document.get("message", "") if isinstance(document, dict) else document
        if isinstance(message, dict):
            extra = message.get("extraInfo")
            stack = extra.get("py_callstack") if isinstance(extra, dict) else None
            message = stack or message.get("message", "")
        traceback = message if isinstance(message, str) else json.dumps(message)
    except (ValueError, RecursionError):
        traceback = content
    traceback = traceback.strip()[-_MOST:]
    printed = _with_short_messages(err or out)
    text = "\n".join(printed[-contract.TAIL_LINES :]) + traceback
    error, place = last_error(rank, end.code, printed, launcher)
    if not error and err:
        error, place = last_error(rank, end.code, _with_short_messages(out), launcher)
    return replace(
        end,
        last_lines=lines,
        traceback=traceback,
        collision=any(_collides(line, port) for line in text.split("\n")),
        noticed=noticed(rank, end.code, printed, launcher),
        lost_connection=lost_connection(printed),
        error=error,
        place=place,
    )


def _collides(line: str, port: int) -> bool:
    """Return whether the line reports that ``port``, one derived from it, or an unnamed one is in use."""
    if not _IN_USE.search(line):
        return False
    ports = [int(number) for number in _PORT.findall(line)]
    return not ports or any(port <= number < port + _DERIVED_PORTS for number in ports)


def _printed(path: str) -> list[tuple[int, str]]:
    """Return the last lines of a log, each with the offset of its end; all from the last traceback on."""
    data, offset = end_of(path, _MOST_READ)
    if offset and _HEADER not in data:
        longer_end, start = end_of(path, _MOST_SEARCHED)
        if (place := longer_end.rfind(_HEADER)) >= 0:
            data, offset = longer_end[place:], start + place
    lines = []
    for line in data.removesuffix(b"\n").split(b"\n") if data else ():
        offset += len(line) + 1
        lines.append((offset, line.decode("utf-8", "surrogateescape")))
    return lines


def _with_short_messages(printed: list[tuple[int, str]]) -> list[str]:
    """Return the lines, at most ``_MOST_READ`` characters, without the rest of a long message."""
    lines: list[str] = []
    continued: int | None = None  # lines since the exception whose message they continue
    for _, line in printed:
        if _EXCEPTION.match(line):
            continued = 0
        elif continued is not None and line[:1].isspace():
            continued += 1
        else:
            continued = None
        if continued is None or continued <= _MOST_CONTINUED:
            lines.append(line)
    size = 0
    for index, line in enumerate(reversed(lines)):
        size += len(line)
        if size > _MOST_READ:
            return lines[len(lines) - index :]
    return lines


def _timed(printed: list[tuple[int, str]], grown: Sequence[tuple[float, int]]) -> list[tuple[float, str]]:
    """Return the last of these lines, each with the time at which it appeared."""
    end = float("inf")
    return [
        (next((wall for wall, size in grown if size >= offset - 1), end), _shortened(line))
        for offset, line in printed[-contract.TAIL_LINES :]
    ]


def _in_order(out: list[tuple[float, str]], err: list[tuple[float, str]]) -> tuple[str, ...]:
    """Merge both streams by time, stderr last at equal times; half of what is kept is reserved for stderr."""
    out = out[-(contract.TAIL_LINES - min(len(err), contract.TAIL_LINES // 2)) :]
    merged = sorted([*out, *err], key=lambda timed: timed[0])  # stable: at equal times stderr stays last
    return tuple(line for _, line in merged[-contract.TAIL_LINES :])


def noticed(rank: int, code: int, lines: list[str], launcher: bool) -> bool:
    """Return whether the only error that a rank printed is the loss of a peer.

    A killed rank prints nothing.
    """
    if code < 0 and code != -signal.SIGABRT:
        return False
    printed = [error for error, _ in _printed_errors(rank, tuple(lines), launcher)]
    # If torch marks the error that ended the rank, only that counts: the rank survived earlier errors.
    errors = [error for error in printed if error.ends] or printed
    return bool(errors) and all(error.is_consequence for error in errors)


def last_error(rank: int, code: int, lines: Sequence[str], launcher: bool) -> tuple[str, str]:
    """Return the error that ended a rank and its place in the user's code; ('', '') if it printed none.

    An error counts if it is near the end of the output. For a launcher the first error of its ranks counts,
    unless it reports that a signal from outside ended a rank.
    """
    from clusterrun.diagnosis.printed_errors import MOST, is_report, is_timer, last_message

    if code in _SHELL_CODES:
        return last_message(lines)[:MOST], ""
    errors = []
    for error, distance in _printed_errors(rank, tuple(lines), launcher):
        is_late = launcher or error.ends or distance <= _MOST_AFTER_ERROR
        if is_late and not (error.is_consequence or is_timer(error)) and _ends_by_error(code, error.text):
            errors.append(error)
    was_killed = any(is_report(error) and _FROM_OUTSIDE.search(error.text) for error in errors)
    if not errors or (was_killed and not any(error.ends for error in errors)):
        return "", ""
    last = errors[0 if launcher else -1]
    return last.text, last.frame


@lru_cache(maxsize=1)
def _printed_errors(rank: int, lines: tuple[str, ...], launcher: bool) -> list[tuple[Error, int]]:
    """Return the errors that a rank printed, each with its distance to the end in lines."""
    # Loaded after a rank failed, not with every agent.
    from clusterrun.diagnosis.printed_errors import ErrorListener

    listener = ErrorListener(rank, launcher)
    distances: list[int] = []
    for number, line in enumerate(lines):
        listener.hear(0.0, line)
        distances += [len(lines) - number] * (len(listener.errors) - len(distances))
    return list(zip(listener.errors, distances))


def _ends_by_error(code: int, error: str) -> bool:
    """Return whether the process may have ended by its error, and not by a signal from outside."""
    if code < 0:
        return code == -signal.SIGABRT or error.startswith("Fatal Python error")
    return code - 128 not in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def lost_connection(lines: list[str]) -> bool:
    """Return whether the last exception that a rank printed began with a connection that ended."""
    origin, linked = "", False
    for line in lines:
        exception = _EXCEPTION.match(line)
        if exception and not linked:
            origin = exception[1]
        linked = line.rstrip().endswith(("exception:", "exception occurred:")) or (linked and not exception)
    return origin in _OF_CONNECTIONS


def _shortened(line: str) -> str:
    """Return the last state of a progress bar, and only both ends of a line that is too long to read."""
    line = next((state for state in reversed(line.split("\r")) if state), "")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"
