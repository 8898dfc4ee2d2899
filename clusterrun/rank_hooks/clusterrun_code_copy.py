"""Make a rank import the copy of its code if PYTHONPATH or an editable install names the original.

The prelude loads it after Python has read the ``.pth`` files. It does not depend on clusterrun.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def redirect(original: str, copy: str) -> None:
    """Replace every folder below ``original`` by the folder of the copy.

    The paths are in ``sys.path``, in PYTHONPATH for the children, and in the finders of editable installs.
    """
    search_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    outside = places_outside(search_path, original, copy)
    sys.path[:] = [outside.get(path) or copied(path, original, copy) for path in sys.path]
    places = [path and (outside.get(path) or copied(path, original, copy)) for path in search_path]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)
    for finder in sys.meta_path:
        module = sys.modules.get(getattr(finder, "__module__", ""))
        # The first two are setuptools' tables. The third is of `editables`, which hatchling and others use.
        for table in (
            getattr(module, "MAPPING", None),
            getattr(module, "NAMESPACES", None),
            getattr(finder, "_redirections", None),
        ):
            if isinstance(table, dict):
                redirect_table(table, original, copy)


def places_outside(search_path: "list[str]", original: str, copy: str) -> "dict[str, str]":
    """Return the places of relative paths that lead out of the copy, by these paths and by absolute ones."""
    try:
        cwd = os.getcwd() + os.sep
    except OSError:  # the folder was removed
        return {}
    places = {}
    for path in search_path if cwd.startswith(copy + os.sep) else ():
        absolute = os.path.abspath(path)
        if path and not os.path.isabs(path) and not (absolute + os.sep).startswith(copy + os.sep):
            place = os.path.normpath(os.path.join(original + cwd[len(copy) :], path))
            places[path] = places[absolute] = copied(place, original, copy)
    return places


def redirect_table(table: "dict[Any, Any]", original: str, copy: str) -> None:
    """Replace the paths in the values of ``table``, each a path or a list of paths."""
    for name, value in list(table.items()):
        if isinstance(value, str):
            table[name] = copied(value, original, copy)
        elif isinstance(value, list):
            table[name] = [copied(path, original, copy) for path in value if isinstance(path, str)]


def copied(path: str, original: str, copy: str) -> str:
    """Return the place of ``path`` in the copy, or ``path`` if the copy lacks it.

    The path of a module may lack its ending: setuptools leaves it out.
    """
    for name in (path, os.path.realpath(path)):
        if name == original or name.startswith(original + os.sep):
            place = copy + name[len(original) :]
            if any(os.path.exists(place + ending) for ending in ("", ".py")):
                return place
    return path
