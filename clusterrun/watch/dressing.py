"""What makes a rank one that can be looked into: the prelude's files and two variables; starts nothing."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FILES = ("clusterrun_prelude.py", "clusterrun_witness.py", "sitecustomize.py")
NO_CACHE = "__pycache__"
"""An empty file where Python would make a folder: a thousand ranks write nothing there."""
SWITCH = "CLUSTERRUN_PRELUDE"
"""Tells the prelude the number of the signal; taken out of the environment by the first rank that sees it."""
OFF = "off"
STACKS_SIGNAL = int(signal.SIGRTMAX) - 7
"""Asks a rank for its stacks; none of those in use: NCCL takes USR1, Slurm's notice is USR2."""


def lay_out(folder: str) -> None:
    """Write the prelude's files into ``folder``, each at once or not at all. Raises ``OSError``."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    for name, content in [(NO_CACHE, b""), *((name, _source(name)) for name in FILES)]:
        path, draft = os.path.join(folder, name), os.path.join(folder, f".{name}.{os.getpid()}")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(content)
        os.rename(draft, path)


def _source(name: str) -> bytes:
    """The text of a prelude's file, which may lie in a folder or in the one file that nodes have."""
    above = os.path.dirname(os.path.dirname(__file__))
    data: bytes = __loader__.get_data(os.path.join(above, "prelude", name))  # type: ignore[name-defined]
    return data


def dressed(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """The environment of a rank, or of what starts ranks, with the prelude in ``folder`` first on its path.

    Unchanged where its user has switched the prelude off.
    """
    if environment.get(SWITCH) == OFF:
        return dict(environment)
    places = [folder, *filter(None, [environment.get("PYTHONPATH", "")])]
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(places),
        SWITCH: str(STACKS_SIGNAL),
    }
