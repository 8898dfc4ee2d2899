"""The last words of a rank: the end of what it printed and the traceback it left; reads, never writes."""

from __future__ import annotations

import json
import os
import stat

from clusterrun.model import contract
from clusterrun.model.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from clusterrun.model.paths import AttemptPaths

_MOST = 16 * 1024
_LONGEST = 1000
_MOST_OF_DOCUMENT = 256 * 1024
_IN_USE = ("EADDRINUSE", "Address already in use", "address already in use")


@frozen
class LastWords:
    """What a failed rank left behind; ``collision``: its words are those of a port already in use."""

    lines: tuple[str, ...] = ()
    traceback: str = ""
    collision: bool = False


def last_words(paths: AttemptPaths, rank: int) -> LastWords:
    """The last words of ``rank``: from its error stream, or its output where that is empty."""
    lines = _last_lines(paths.err(rank)) or _last_lines(paths.out(rank))
    traceback = _traceback(paths.error(rank))
    said = "\n".join(lines) + traceback
    return LastWords(lines, traceback, any(words in said for words in _IN_USE))


def _last_lines(path: str) -> tuple[str, ...]:
    text = _end_of(path, _MOST).decode("utf-8", "surrogateescape")
    lines = text.removesuffix("\n").split("\n")[-contract.TAIL_LINES :] if text else []
    return tuple(_shortened(_last_state(line)) for line in lines)


def _last_state(line: str) -> str:
    """What a progress bar, which goes back to the beginning of its line, shows at the end."""
    return next((state for state in reversed(line.split("\r")) if state), "")


def _shortened(line: str) -> str:
    """A dump on one line: both of its ends, for it is to be read by people."""
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"


def _traceback(path: str) -> str:
    """The traceback in a ``TORCHELASTIC_ERROR_FILE``, as torch's ``@record`` writes it, or as plain text."""
    text = _end_of(path, _MOST_OF_DOCUMENT).decode("utf-8", "replace")
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


def _end_of(path: str, most: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return b""
        return os.pread(fd, most, max(0, status.st_size - most))
    except OSError:
        return b""
    finally:
        os.close(fd)
