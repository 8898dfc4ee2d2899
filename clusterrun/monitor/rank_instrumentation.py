"""Writes the prelude's files and sets the variables with which a rank loads them; starts nothing."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

from clusterrun.atomic_file import write_whole

READ_BY_ALL = ("clusterrun_prelude.py", "sitecustomize.py")
"""To compile them takes a quarter of a Python's start: for ranks of this version it is done once, here."""
SOURCES = (*READ_BY_ALL, "clusterrun_code_copy.py", "clusterrun_script_source.py", "clusterrun_witness.py")
_UNCHECKED_HASH = (1).to_bytes(4, "little")
_OF_REHEARSAL = (
    "__init__ checkpoint_files checksums optimizers start_watch state_calls step_inputs step_watch trace_file"
)
REHEARSED = tuple(f"clusterrun_rehearsal/{stem}.py" for stem in _OF_REHEARSAL.split())
SWITCH = "CLUSTERRUN_PRELUDE"
"""Tells the prelude the number of the signal; taken out of the environment by the first rank that sees it."""
OFF = "off"
STACKS_SIGNAL = int(signal.SIGRTMAX) - 7
"""Asks a rank for its stacks; none of those in use: NCCL takes USR1, Slurm's notice is USR2."""


def write_hooks(folder: str, rehearsed: bool = False) -> None:
    """Write the prelude's files into ``folder``, each at once or not at all. Raises ``OSError``."""
    import marshal  # by coordinators alone: an agent only dresses
    from importlib.util import MAGIC_NUMBER, source_hash

    files = {name: _source(name) for name in (*SOURCES, *(REHEARSED if rehearsed else ()))}
    for name in READ_BY_ALL:  # as Python writes what it makes of a file; good whatever the file's time is
        code = marshal.dumps(compile(files[name], name, "exec", dont_inherit=True, optimize=0))
        compiled = f"__pycache__/{name[: -len('.py')]}.{sys.implementation.cache_tag}.pyc"
        files[compiled] = MAGIC_NUMBER + _UNCHECKED_HASH + source_hash(files[name]) + code
    for name, content in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        write_whole(path, content, sync=False)


def _source(name: str) -> bytes:
    """The text of a prelude's file, which may lie in a folder or in the one file that nodes have."""
    above = os.path.dirname(os.path.dirname(__file__))
    data: bytes = __loader__.get_data(os.path.join(above, "rank_hooks", name))  # type: ignore[name-defined]
    return data


def instrumented(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """The environment of a rank, or of what starts ranks, with the prelude, unless its user has it off."""
    if environment.get(SWITCH) == OFF:
        return dict(environment)
    places = [folder, *filter(None, [environment.get("PYTHONPATH", "")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(places), SWITCH: str(STACKS_SIGNAL)}
