"""Find the folders that come with the package, installed or in a checkout."""

from __future__ import annotations

import os

_PACKAGE = os.path.dirname(os.path.abspath(__file__))


def folder(name: str) -> str:
    """Return the path of ``templates``, ``jobs`` or ``docs``: in the package (a wheel), else beside it."""
    for place in (os.path.join(_PACKAGE, name), os.path.join(os.path.dirname(_PACKAGE), name)):
        if os.path.isdir(place):
            return place
    raise FileNotFoundError(f"the folder {name!r} that comes with clusterrun is missing beside {_PACKAGE}")
