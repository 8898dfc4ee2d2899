"""Write the prelude's files and set the variables that make a rank load them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

from clusterrun.atomic_file import write_whole

# Compiling these files takes a quarter of a Python's start. The coordinator compiles them once for all
# ranks of its own Python version.
READ_BY_ALL = ("clusterrun_prelude.py", "sitecustomize.py")
SOURCES = (*READ_BY_ALL, "clusterrun_code_copy.py", "clusterrun_script_source.py", "clusterrun_witness.py")
_UNCHECKED_HASH = (1).to_bytes(4, "little")
_OF_REHEARSAL = (
    "__init__ checkpoint_files checksums optimizers start_watch state_calls step_inputs step_watch trace_file"
)
REHEARSED = tuple(f"clusterrun_rehearsal/{stem}.py" for stem in _OF_REHEARSAL.split())
# Tells the prelude the signal's number. The first rank that reads it removes it from its environment.
SWITCH = "CLUSTERRUN_PRELUDE"
OFF = "off"
# Asks a rank for its stacks. NCCL uses USR1 and Slurm's notice is USR2, so it is a real-time signal.
STACKS_SIGNAL = int(signal.SIGRTMAX) - 7


def write_hooks(folder: str, rehearsed: bool = False) -> None:
    """Write the prelude's files into ``folder``, each atomically. Raise ``OSError``."""
    import marshal  # only coordinators call this, so agents do not load it
    from importlib.util import MAGIC_NUMBER, source_hash

    # The package is a folder, or the zip file that nodes have: read through its loader.
    package = os.path.dirname(os.path.dirname(__file__))
    files: dict[str, bytes] = {}
    for name in (*SOURCES, *(REHEARSED if rehearsed else ())):
        path = os.path.join(package, "rank_hooks", name)
        files[name] = __loader__.get_data(path)  # type: ignore[name-defined]
    # The format is that of Python's own unchecked hash-based cache, which is independent of the file's time.
    for name in READ_BY_ALL:
        code = marshal.dumps(compile(files[name], name, "exec", dont_inherit=True, optimize=0))
        compiled = f"__pycache__/{name[: -len('.py')]}.{sys.implementation.cache_tag}.pyc"
        files[compiled] = MAGIC_NUMBER + _UNCHECKED_HASH + source_hash(files[name]) + code
    for name, content in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        write_whole(path, content, sync=False)


def instrumented(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return the environment of a rank or launcher with the prelude, unless the user has switched it off."""
    if environment.get(SWITCH) == OFF:
        return dict(environment)
    places = [folder, *filter(None, [environment.get("PYTHONPATH", "")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(places), SWITCH: str(STACKS_SIGNAL)}
