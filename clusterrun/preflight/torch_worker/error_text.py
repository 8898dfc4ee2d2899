"""Makes of what torch and its libraries say one short line; knows no test."""

from __future__ import annotations

import re

_MOST = 300
_NOT_SAID = re.compile(
    r"Exception raised from|^frame #|^\s*$|^Traceback|^\s+File |^\s+\^|<omitting python frames>|^#\d+ "
    r"|NCCL INFO|^NCCL version|Last error:?\s*$"
)
_PLACE = re.compile(r"^\[?[\w./+-]+\.(?:cc|cpp|hpp|h|cu):\d+\]?[:,]?\s*")
_TELLING = re.compile(r"(?i)error|warn|fatal|fail|abort|time.?out")
_STAMP = re.compile(r"^(?:\[rank\d+\]:)?\[[EWI]\d+ [\d:.]+ \S+\.\w+:\d+\]\s*|^\S+:\d+:\d+ \[\d+\] ")


def short(text: str) -> str:
    """The first lines that say something, as one; at most 300 characters.

    Stack frames, source places and time stamps say nothing to who runs a job.
    """
    lines = [
        _PLACE.sub("", _STAMP.sub("", line)).strip()
        for line in text.splitlines()
        if not _NOT_SAID.search(line)
    ]
    said = " ".join([line for line in lines if line][:3])
    plain = "".join(sign if sign.isprintable() else " " for sign in said)
    return plain if len(plain) <= _MOST else plain[: _MOST - 1] + "…"


def of_error(error: BaseException) -> str:
    """An exception as one short line; its kind only where it says nothing."""
    return short(str(error)) or type(error).__name__


def of_end(output: str) -> str:
    """Why a process died, from the end of what it printed: the first word of what went wrong there."""
    return short("\n".join(line for line in output.splitlines() if _TELLING.search(line)))
