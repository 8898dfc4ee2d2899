"""Find the directory and the Python that the job's setup lines chose for the ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping

from clusterrun.model import contract
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Interpreter, Orders

NAMES = ("python", "python3")
LEAST = (3, 9)
# The first start of a Python from a network file system may take long.
ANSWER_SECONDS = 60.0
_QUESTION = "import sys; print(*sys.version_info[:2])"


def settled(orders: Orders, environment: Mapping[str, str]) -> Orders:
    """Return ``orders`` with the directory and the Python that the setup lines chose.

    Raise ``ClusterrunError`` if ranks cannot run in that Python.
    """
    cwd = environment.get(contract.SETUP_CWD_VARIABLE) or orders.cwd
    orders = replace(orders, cwd=_copied(cwd, dict(orders.environment)))
    before = environment.get(contract.PATH_BEFORE_VARIABLE)
    if not orders.interpreter.by_setup or before is None:
        return orders
    python = brought(before, environment.get("PATH", os.defpath))
    if not python:
        why = f"{orders.interpreter.why}; the setup of the job puts no other one first on PATH"
        return orders.using(Interpreter(orders.interpreter.path, why))
    why = f"Python {_version(python)}, which the setup of the job put first on PATH"
    return orders.using(Interpreter(python, why))


def _copied(cwd: str, environment: Mapping[str, str]) -> str:
    """Return the folder of the copy of the code for a folder of the project, or ``cwd`` if there is none."""
    original = environment.get(contract.CODE_ORIGINAL_VARIABLE, "")
    copy = environment.get(contract.CODE_COPY_VARIABLE, "")
    below = os.path.relpath(cwd, original) if original else os.pardir
    place = os.path.normpath(os.path.join(copy, below))
    return cwd if below.split(os.sep)[0] == os.pardir or not os.path.isdir(place) else place


def brought(before: str, after: str) -> str:
    """Return the Python that is first on the path ``after`` and was added since ``before``; '' for none.

    A Python that is first only because another was removed (``module purge``, a fresh PATH) was not added.
    """
    folders_before, folders_after = before.split(os.pathsep), after.split(os.pathsep)
    for name in NAMES:
        old, new = _first(name, folders_before), _first(name, folders_after)
        if not new or new == old:
            continue
        taken_off = old and os.path.dirname(old) not in map(os.path.abspath, folders_after)
        if not (taken_off and os.path.dirname(new) in map(os.path.abspath, folders_before)):
            return new
    return ""


def _first(name: str, folders: list[str]) -> str:
    paths = (os.path.join(os.path.abspath(folder), name) for folder in folders)
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def _version(python: str) -> str:
    """Return the version, like ``3.12``. Raise ``ClusterrunError`` if it does not start, or is too old."""
    from clusterrun.preflight.probes.run_program import answer  # most jobs need no such check

    named = f"the setup of the job puts {python} first on PATH"
    remedy = "name another one with --python"
    result = answer(python, "-c", _QUESTION, seconds=ANSWER_SECONDS)
    numbers = result.out.split()
    if result.code or len(numbers) != 2 or not all(map(str.isdecimal, numbers)):
        message = result.err.partition("\n")[0][:200] or f"exit code {result.code}"
        raise ClusterrunError(f"{named}, which does not start as a Python: {message}; {remedy}")
    if tuple(map(int, numbers)) < LEAST:
        least = ".".join(map(str, LEAST))
        raise ClusterrunError(f"{named}, Python {'.'.join(numbers)}: ranks need {least} or newer; {remedy}")
    return ".".join(numbers)
