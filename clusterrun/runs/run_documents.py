"""The documents of a run directory as values: reads one file at a time, knows not what it means."""

from __future__ import annotations

import json
import os
from typing import Any, TypeVar

from clusterrun.model import contract
from clusterrun.model.document import BadDocument, decode
from clusterrun.runs.private_files import refusal

T = TypeVar("T")

CHUNK_BYTES = 1 << 16
# The state of 1,250 nodes over 1,000 attempts has about 20 MB. A larger file would only stall its readers.
MOST_BYTES = 64 << 20
# A report holds every test: about 120 MB for all pairs of 1,250 nodes.
MOST_REPORT_BYTES = 1 << 30


def read_document(cls: type[T], path: str, most: int = MOST_BYTES) -> T | None:
    """Return the document at ``path``; None if there is none. Raises ``BadDocument`` and ``DiskRefused``.

    Of a newer format what this version knows is read, so that such a run can be shown and cancelled. A file
    of more than ``most`` bytes is damaged.
    """
    data = _json(path, most)
    if data is _NOTHING:
        return None
    try:
        return decode(cls, data, path)
    except BadDocument as error:
        found = data.get("format") if isinstance(data, dict) else None
        if not isinstance(found, int) or found <= contract.FORMAT:
            raise
        seen = f"{path} has format {found}, of a newer clusterrun ({error.seen})"
        raise BadDocument(seen, "use the clusterrun that submitted the run, or a newer one") from error


def _content(handle: int, most: int) -> bytes:
    """Return the content of a file; without Python's own layers, which cost more than small files do.

    Raises ``ValueError`` if it has more than ``most`` bytes.
    """
    content = os.read(handle, CHUNK_BYTES)
    if len(content) < CHUNK_BYTES:
        return content
    chunks, size = [content], len(content)
    while chunk := os.read(handle, CHUNK_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if size > most:
            raise ValueError(f"it has more than {most >> 20} MB")
    return b"".join(chunks)


_NOTHING = object()


def _json(path: str, most: int) -> Any:
    """What stands in a document; ``_NOTHING`` where there is none, for ``null`` is something."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return json.loads(_content(handle, most))
        finally:
            os.close(handle)
    except FileNotFoundError:
        return _NOTHING
    except OSError as error:
        raise refusal(path, error) from error
    except (ValueError, RecursionError) as error:
        seen = f"{path} is damaged: {error}"
        raise BadDocument(seen, "its ranks may still run; squeue and scancel know the job") from error
