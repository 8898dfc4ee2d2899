"""The texts that tools give of a Python stack, as lists of frames, innermost first; knows no process.

A frame is ``FILE:LINE FUNCTION``.
"""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_FRAMES = 60
MOST_CHARACTERS = 300

_THREAD = re.compile(r"(?:Current t|T)hread 0x([0-9a-f]+)\b.*\(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


def of_faulthandler(text: str, main: str) -> tuple[str, ...]:
    """The stack of thread ``main`` (its number in hex) in what ``faulthandler`` wrote; () without it."""
    found: dict[str, list[str]] = {}
    frames: list[str] = []
    for line in text.replace("\0", "").splitlines():
        thread = _THREAD.match(line)
        if thread:
            frames = found[thread[1].lstrip("0")] = []
            continue
        frame = _FRAME.match(line)
        if frame:
            frames.append(_frame(frame[1], frame[2], frame[3]))
    return tuple(found.get(main.lstrip("0"), ())[:MOST_FRAMES])


def of_py_spy(text: str) -> tuple[str, ...]:
    """The main thread's stack in what ``py-spy dump --json`` printed; () where it is none."""
    try:
        threads = json.loads(text)
        # A main thread has the process's number; a name only where Python has loaded threads.
        main = next((one for one in threads if one["os_thread_id"] == one["pid"]), threads[-1])
        return tuple(_of_py_spy(frame) for frame in main["frames"][:MOST_FRAMES])
    except (ValueError, LookupError, TypeError, AttributeError):
        return ()


def _of_py_spy(frame: dict[str, Any]) -> str:
    return _frame(str(frame["filename"]), str(frame["line"]), str(frame["name"]))


def _frame(file: str, line: str, function: str) -> str:
    return f"{file[-MOST_CHARACTERS:]}:{line if line.isdigit() else 0} {function[:MOST_CHARACTERS]}"


def in_data_loader(stack: tuple[str, ...]) -> bool:
    """Whether a rank waits for its data-loader to hand over a batch."""
    return any("/torch/utils/data/" in frame for frame in stack)
