"""Read the documents of a run directory, one file at a time."""

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
    """Return the document at ``path``; None if it does not exist. Raise ``BadDocument`` and ``DiskRefused``.

    Unknown fields of a newer format are ignored, so that such a run can be shown and cancelled. A file of
    more than ``most`` bytes is damaged.
    """
    data = _json(path, most)
    if data is _NOTHING:
        return None
    try:
        return decode(cls, data, path)
    except BadDocument as error:
        format_ = data.get("format") if isinstance(data, dict) else None
        if not isinstance(format_, int) or format_ <= contract.FORMAT:
            raise
        message = f"{path} has format {format_}, of a newer clusterrun ({error.seen})"
        raise BadDocument(message, "use the clusterrun that submitted the run, or a newer one") from error


def _content(handle: int, most: int) -> bytes:
    """Return the content of a file. Raise ``ValueError`` if it has more than ``most`` bytes.

    Python's own file layers would take longer than the small files themselves.
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
    """Return the content of a document; ``_NOTHING`` if it does not exist, since ``null`` is a content."""
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
        message = f"{path} is damaged: {error}"
        raise BadDocument(message, "its ranks may still run; squeue and scancel know the job") from error
