"""The texts that tools give of a Python stack, as lists of frames, innermost first; knows no process.

A frame is ``FILE:LINE FUNCTION``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from clusterrun.diagnosis.stack_location import is_library

MOST_FRAMES = 60
MOST_CHARACTERS = 300
MOST_THREADS = 4

_THREAD = re.compile(r"(?:Current t|T)hread 0x([0-9a-f]+)\b.*\(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


def of_faulthandler(text: str, main: str) -> tuple[str, ...]:
    """The stack of thread ``main`` (its number in hex) in what ``faulthandler`` wrote; () without it."""
    return _threads(text).get(main.lstrip("0"), ())


def other_threads(text: str, main: str) -> tuple[str, ...]:
    """Where in the user's code the threads but ``main`` stand, in what ``faulthandler`` wrote."""
    stacks = (stack for number, stack in _threads(text).items() if number != main.lstrip("0"))
    own = (next((frame for frame in stack if not is_library(frame)), "") for stack in stacks)
    return tuple(dict.fromkeys(filter(None, own)))[:MOST_THREADS]


def _threads(text: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    frames: list[str] = []
    for line in text.replace("\0", "").splitlines():
        if thread := _THREAD.match(line):
            frames = found[thread[1].lstrip("0")] = []
        elif frame := _FRAME.match(line):
            frames.append(_frame(frame[1], frame[2], frame[3]))
    return {number: shortened(stack, MOST_FRAMES) for number, stack in found.items()}


def of_py_spy(text: str) -> tuple[str, ...]:
    """The main thread's stack in what ``py-spy dump --json`` printed; () where it is none."""
    try:
        threads = json.loads(text)
        # A main thread has the process's number; a name only where Python has loaded threads.
        main = next((one for one in threads if one["os_thread_id"] == one["pid"]), threads[-1])
        frames = [
            _frame(*(str(frame[key]) for key in ("filename", "line", "name"))) for frame in main["frames"]
        ]
        return shortened(frames, MOST_FRAMES)
    except (ValueError, LookupError, TypeError, AttributeError):
        return ()


def shortened(stack: Sequence[str], most: int) -> tuple[str, ...]:
    """The innermost frames of a stack, ``most`` in all, and the outermost one, which tells whose it is."""
    return tuple(stack) if len(stack) <= most else (*stack[: most - 1], stack[-1])


def _frame(file: str, line: str, function: str) -> str:
    return f"{file[-MOST_CHARACTERS:]}:{line if line.isdigit() else 0} {function[:MOST_CHARACTERS]}"


def in_data_loader(stack: tuple[str, ...]) -> bool:
    return any("/torch/utils/data/" in frame for frame in stack)


def joins_processes(stack: tuple[str, ...]) -> bool:
    """Whether a process waits for others that it started (``mp.spawn``, ``multiprocessing``)."""
    inner = next((place for place, frame in enumerate(stack) if not is_library(frame)), len(stack))
    return any("/multiprocessing/" in frame for frame in stack[:inner])


def works_for_a_loader(stack: tuple[str, ...]) -> bool:
    return any("/torch/utils/data/_utils/worker.py:" in frame for frame in stack)
