"""Which line of the script this thread is in."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The folder of all that a rank loads of ours."""
LIBRARIES = ("site-packages", "dist-packages", f"{os.sep}lib{os.sep}python", "<frozen", "<string>")


def is_called_by(names: tuple[str, ...]) -> bool:
    """Whether a function of one of these names is on this thread's stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False


def is_library(path: str) -> bool:
    """Whether a file belongs to a library, or to us, and not to the script."""
    return path.startswith(HERE) or any(part in path for part in LIBRARIES)


def script_line() -> str:
    """``train.py:88``: the innermost line on this thread's stack that belongs to no library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_library(name):
            return f"{os.path.relpath(name) if name.startswith(os.getcwd()) else name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
