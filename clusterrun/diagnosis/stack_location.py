"""What a rank is doing, read from its stack: in which line of the user's, and what it waits for; pure."""

from __future__ import annotations

import enum
import re

from clusterrun.model.frozen import frozen

_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|/lib/pypy|^<|\.zip/|/prelude/clusterrun_"
)
_LINE = re.compile(r".*?:\d+(?= |$)", re.DOTALL)
_RENDEZVOUS = ("init_process_group", "rendezvous", "_store_based_barrier", "new_group", "create_c10d_store")
_MEETS = ("init_process_group", "new_group", "new_subgroups", "split_group", "init_device_mesh")
"""What a user calls that makes a group; the outermost one counts."""
_COMMUNICATION = ("/torch/distributed/", "/torch/_C/_distributed_c10d")
_NOT_WAITING = ("/torch/distributed/elastic/", "/torch/distributed/fsdp/", "/torch/distributed/tensor/")


class Doing(enum.Enum):
    """What the innermost frames say."""

    COLLECTIVE = "waits in a collective"
    RENDEZVOUS = "waits for the other ranks to make a group"
    DATA = "waits for its data-loader"
    IMPORT = "is still importing"
    USER = "is in user code"
    UNKNOWN = "does not say where it is"


@frozen
class StackLocation:
    """Where a rank stands: what it does, and the innermost frame that is the user's own ('' without one)."""

    doing: Doing
    frame: str = ""
    operation: str = ""

    @property
    def line(self) -> str:
        """``train.py:33 (step)``, for people."""
        return short(self.frame)


def place(stack: tuple[str, ...]) -> StackLocation:
    """What the main thread with ``stack`` (innermost first) is doing."""
    if not stack:
        return StackLocation(Doing.UNKNOWN)
    own = next((frame for frame in stack if not is_library(frame)), "")
    inner = stack[: stack.index(own)] if own else stack
    doing, operation = Doing.USER, ""
    if any("<frozen importlib" in frame for frame in stack[:12]):
        doing = Doing.IMPORT
    elif any(_function(frame) in _RENDEZVOUS for frame in inner):
        meets = [_function(frame) for frame in inner if _function(frame) in _MEETS]
        doing, operation = Doing.RENDEZVOUS, meets[-1] if meets else "init_process_group"
    elif any("/torch/utils/data/" in frame for frame in inner):
        doing = Doing.DATA
    else:
        waits = [frame for frame in inner if _communicates(frame) and _function(frame) != "wrapper"]
        if waits and _communicates(inner[0]):
            doing, operation = Doing.COLLECTIVE, _function(waits[-1])
    return StackLocation(doing, own, operation)


def is_library(frame: str) -> bool:
    """Whether a frame is not the user's own: Python's, an installed package's, ours."""
    return _LIBRARY.search(frame) is not None


def out_of_data(stack: tuple[str, ...]) -> bool:
    """Whether a rank has used up its data and goes along with the others' collectives (torch's ``Join``)."""
    return any("/torch/distributed/algorithms/join.py" in f and _function(f) == "__exit__" for f in stack)


def short(frame: str) -> str:
    """``/home/me/train.py:33 step`` as ``train.py:33 (step)``."""
    where = line_of(frame)
    name, function = where.rpartition("/")[2], frame[len(where) + 1 :]
    return f"{name} ({function})" if function and function != "<module>" else name


def line_of(frame: str) -> str:
    """``/home/me/my train.py`` and the number of the line, without the function."""
    found = _LINE.match(frame)
    return found[0] if found else frame.partition(" ")[0]


def _function(frame: str) -> str:
    """Its name alone: py-spy tells within which class or function it stands."""
    return frame.rpartition(" ")[2].rpartition(".")[2]


def _communicates(frame: str) -> bool:
    return any(place in frame for place in _COMMUNICATION) and not any(p in frame for p in _NOT_WAITING)
