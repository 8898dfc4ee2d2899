"""Loads click without what it brings along and no command of ours uses; knows no command.

Half of what click takes to load is ``inspect`` (with the compiler's parts) and ``uuid`` (with
``platform``): the one takes margins off help texts, the other reads options that are UUIDs. Who asks
click for more than the margin of one line gets the real ones, then.
"""

from __future__ import annotations

import sys
from importlib import import_module

from clusterrun.backends.lean import Later


def load_click() -> None:
    """Import click, and put everything else back as it was."""
    if "click" in sys.modules:
        return
    inspect = Later("inspect", lambda _: import_module("inspect"), cleandoc=_cleandoc)
    uuid = Later("uuid", lambda _: import_module("uuid"), UUID=object)
    absent = {one.__name__: one for one in (inspect, uuid) if one.__name__ not in sys.modules}
    sys.modules.update(absent)
    try:
        import_module("click")
    finally:
        for name in absent:
            del sys.modules[name]
        del uuid.UUID  # it was needed for a type's name; a value of it is asked of the real one


def _cleandoc(text: str) -> str:
    """As ``inspect.cleandoc``."""
    if "\n" not in text:
        return text.expandtabs().lstrip()
    cleaned: str = import_module("inspect").cleandoc(text)
    return cleaned
