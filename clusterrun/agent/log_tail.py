"""The end of what a rank printed, and the traceback it left."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping, Sequence

from clusterrun.atomic_file import end_of
from clusterrun.model import contract
from clusterrun.model.frozen import Any, replace
from clusterrun.model.paths import AttemptPaths
from clusterrun.protocol.messages import RankExited

_MOST = 16 * 1024
"""Of a traceback."""
_MOST_READ = 64 * 1024
"""Of each stream: a launcher prints much below the errors of its ranks."""
_LONGEST = 1000
_MOST_OF_DOCUMENT = 256 * 1024
# The line that ends a traceback, with or without the mark that torch puts before it.
_EXCEPTION = re.compile(
    r"(?:\[rank\d+\]:\s*)?(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Disconnected))(?::|$)"
)
# What Python raises if the process at the other end of a connection, a pipe or a queue has gone.
_OF_CONNECTIONS = frozenset(
    {
        "BrokenPipeError",
        "ConnectionAbortedError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "DistNetworkError",
        "DistStoreError",
        "EOFError",
        "IncompleteReadError",
        "RemoteDisconnected",
    }
)
_IN_USE = ("EADDRINUSE", "Address already in use", "address already in use")


def with_last_words(
    end: RankExited,
    paths: AttemptPaths,
    grown: Mapping[tuple[int, str], Sequence[tuple[float, int]]] = {},
    launcher: bool = False,
) -> RankExited:
    """Return ``end`` with the last lines of both streams, the rank's traceback, and what they mean.

    ``grown`` holds the times and sizes of its logs. ``launcher``: the rank started ranks of its own.
    """
    rank = end.rank
    out, err = _printed(paths.out(rank)), _printed(paths.err(rank))
    lines = _in_order(_timed(out, grown.get((rank, "o"), ())), _timed(err, grown.get((rank, "e"), ())))
    traceback = _traceback(paths.error(rank))
    printed = [line for _, line in err or out]
    text = "\n".join(printed[-contract.TAIL_LINES :]) + traceback
    return replace(
        end,
        last_lines=lines,
        traceback=traceback,
        collision=any(phrase in text for phrase in _IN_USE),
        noticed=noticed(rank, end.code, printed, launcher),
        lost_connection=lost_connection(printed),
    )


def _printed(path: str) -> list[tuple[int, str]]:
    """The last lines of a log, each with the offset of its end."""
    data, offset = end_of(path, _MOST_READ)
    found = []
    for line in data.removesuffix(b"\n").split(b"\n") if data else ():
        offset += len(line) + 1
        found.append((offset, line.decode("utf-8", "surrogateescape")))
    return found


def _timed(printed: list[tuple[int, str]], grown: Sequence[tuple[float, int]]) -> list[tuple[float, str]]:
    """The last of these lines, each with the time at which it was seen first."""
    end = float("inf")
    return [
        (next((wall for wall, size in grown if size >= offset - 1), end), _shortened(_last_state(line)))
        for offset, line in printed[-contract.TAIL_LINES :]
    ]


def _in_order(out: list[tuple[float, str]], err: list[tuple[float, str]]) -> tuple[str, ...]:
    """Merge both streams by time, stderr last at equal times; half of what is kept is reserved for stderr."""
    out = out[-(contract.TAIL_LINES - min(len(err), contract.TAIL_LINES // 2)) :]
    both = sorted([*out, *err], key=lambda one: one[0])  # stable: of one time what stands first stays so
    return tuple(line for _, line in both[-contract.TAIL_LINES :])


def noticed(rank: int, code: int, lines: list[str], launcher: bool) -> bool:
    """Whether the only error that a rank printed is that a peer has gone; a killed rank prints nothing."""
    if code < 0 and code != -signal.SIGABRT:
        return False
    # Where a rank has failed, not with every agent.
    from clusterrun.diagnosis.printed_errors import ErrorListener

    listener = ErrorListener(rank, launcher)
    for line in lines:
        listener.hear(0.0, line)
    # What ended the rank counts, where torch marks it: it may have survived other errors before.
    errors = [one for one in listener.errors if one.ends] or listener.errors
    return bool(errors) and all(one.is_consequence for one in errors)


def lost_connection(lines: list[str]) -> bool:
    """Return whether the last exception that a rank printed began with a connection that ended."""
    origin, linked = "", False
    for line in lines:
        exception = _EXCEPTION.match(line)
        if exception and not linked:
            origin = exception[1]
        linked = line.rstrip().endswith(("exception:", "exception occurred:")) or (linked and not exception)
    return origin in _OF_CONNECTIONS


def _last_state(line: str) -> str:
    """What a progress bar, which goes back to the beginning of its line, shows at the end."""
    return next((state for state in reversed(line.split("\r")) if state), "")


def _shortened(line: str) -> str:
    """A dump on one line: both of its ends, for it is to be read by people."""
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"


def _traceback(path: str) -> str:
    """The traceback in a ``TORCHELASTIC_ERROR_FILE``, as torch's ``@record`` writes it, or as plain text."""
    text = end_of(path, _MOST_OF_DOCUMENT)[0].decode("utf-8", "replace")
    try:
        said = _callstack(json.loads(text))
    except (ValueError, RecursionError):
        said = text
    return said.strip()[-_MOST:]


def _callstack(document: Any) -> str:
    message = document.get("message", "") if isinstance(document, dict) else document
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        stack = extra.get("py_callstack") if isinstance(extra, dict) else None
        message = stack or message.get("message", "")
    return message if isinstance(message, str) else json.dumps(message)
