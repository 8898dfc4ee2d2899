"""Read a dump of torch's flight recorder, a pickle or JSON, into groups and records; pure.

torch writes such dumps when a collective times out, or on request. They hold no objects, so a pickle that
names a class is refused.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping

from clusterrun.diagnosis.evidence import Group, Record, record_of_entry, whole_number
from clusterrun.diagnosis.verdict import folded
from clusterrun.model.frozen import Any

DEFAULT_GROUP = "default_pg"


class _PlainUnpickler(pickle.Unpickler):
    """Reads a pickle of dictionaries, lists, numbers and texts alone."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def read_dump(data: bytes) -> dict[str, Any]:
    """Return the document of a dump; {} if it is damaged or no dump."""
    try:
        document = json.loads(data) if data[:1] == b"{" else _PlainUnpickler(io.BytesIO(data)).load()
    except Exception:  # noqa: BLE001 (a damaged pickle raises almost anything)
        return {}
    return document if isinstance(document, dict) and isinstance(document.get("entries"), list) else {}


def groups_and_records(
    document: Mapping[str, Any], world_size: int, most: int
) -> tuple[tuple[Group, ...], tuple[Record, ...]]:
    """Return the groups of a rank, and the newest ``most`` records of each, oldest first."""
    entries = [entry for entry in document.get("entries") or () if isinstance(entry, dict)]
    records: list[Record] = []
    count: dict[str, int] = {}
    groups: dict[str, Group] = {}
    for entry in reversed(entries):
        names = entry.get("process_group")
        names = list(map(str, names)) if isinstance(names, (list, tuple)) else []
        name = names[0] if names else str(entry.get("pg_id"))
        if entry.get("is_p2p"):
            continue
        if name not in groups:
            is_default = DEFAULT_GROUP in names
            ranks = _ranks(document, name)
            if is_default and not ranks and world_size:
                ranks = tuple(range(world_size))
            sequence = whole_number(entry.get("collective_seq_id"))
            backend = str(entry.get("profiling_name") or "").partition(":")[0]
            groups[name] = Group(name, len(ranks), sequence, is_default, backend, folded(ranks))
        count[name] = count.get(name, 0) + 1
        if count[name] <= most:
            records.append(record_of_entry(entry, name))
    return tuple(groups.values()), tuple(reversed(records))


def _ranks(document: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return the members of a group; () if they are unknown, as those of gloo are."""
    groups = document.get("pg_config")
    group = groups.get(name) if isinstance(groups, dict) else None
    text = str(group.get("ranks", "")) if isinstance(group, dict) else ""
    return tuple(int(word) for word in re.findall(r"\d+", text))
