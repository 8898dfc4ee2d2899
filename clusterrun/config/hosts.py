"""The ``[host.NAME]`` tables of a configuration: clusters that are reached over SSH."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen

TEXTS = ("host", "python", "folder")
KEYS = (*TEXTS, "options")


@frozen
class HostEntry:
    """A cluster as `--host` names it: what ssh is given, the client's Python and folder there, ``ssh -o``."""

    name: str
    host: str
    python: str = ""
    folder: str = ""
    options: tuple[str, ...] = ()


def entry(name: str, table: Mapping[str, Any], origin: str) -> HostEntry:
    """The entry that stands in ``table``, whose keys are of ``KEYS``. Raises ``BadInput``."""
    for key, value in table.items():
        if key in TEXTS and not (isinstance(value, str) and value):
            raise BadInput(f"{origin} {key}: {value!r} is not a string")
        whole = isinstance(value, list) and all(isinstance(one, str) and "=" in one for one in value)
        if key == "options" and not whole:
            raise BadInput(f"{origin} {key}: {value!r} is not a list of KEY=VALUE, as ssh -o takes them")
    texts = {key: str(table.get(key, "")) for key in TEXTS}
    return checked(
        HostEntry(
            name, texts["host"] or name, texts["python"], texts["folder"], tuple(table.get("options", ()))
        )
    )


def checked(found: HostEntry) -> HostEntry:
    """``found``, whose host can be no option of ssh's. Raises ``BadInput``."""
    if found.host.startswith("-") or not found.host.isprintable() or " " in found.host or not found.host:
        seen = f"{found.host!r} is not a host name for ssh"
        raise BadInput(seen, "clusterrun --host NAME, as you type it after ssh")
    return found
