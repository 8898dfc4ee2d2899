"""Runs py-spy, where it is installed, on a rank whose own doors are shut; the only program of this room."""

from __future__ import annotations

import os

from clusterrun.diagnosis.frames import of_py_spy

ANSWER_SECONDS = 5.0
NAME = "py-spy"


def spy(pid: int, path: str) -> tuple[str, ...]:
    """The main thread's stack of ``pid``; () where py-spy is missing, may not look, or finds no Python.

    It is looked for beside the rank's interpreter, then on ``path``. It stops the rank for some
    milliseconds, which is why it is not what is tried first.
    """
    program = _found(pid, path)
    if not program:
        return ()
    import subprocess

    command = [program, "dump", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return of_py_spy(done.stdout.decode("utf-8", "replace"))


def _found(pid: int, path: str) -> str:
    try:
        beside = os.path.dirname(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""
    places = [beside, *path.split(os.pathsep)]
    paths = (os.path.join(place, NAME) for place in places if os.path.isabs(place))
    return next((one for one in paths if os.access(one, os.X_OK)), "")
