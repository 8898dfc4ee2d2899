"""Tasks and answers as the text that travels between coordinator and examiner; knows no transport."""

from __future__ import annotations

import json

from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.preflight.tasks import ANSWER_OF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from clusterrun.preflight.tasks import Answer, Task


def said(value: Task | Answer) -> str:
    """``value`` as one line of text."""
    return json.dumps([type(value).__name__, encode(value)], separators=(",", ":"))


class Alike:
    """A large task that many get with small changes: taken apart once."""

    def __init__(self, value: Task) -> None:
        self._kind, self._data = type(value).__name__, encode(value)

    def said(self, **changes: str | int) -> str:
        """As ``said`` of the task with these fields changed."""
        return json.dumps([self._kind, {**self._data, **changes}], separators=(",", ":"))


def task(text: str) -> Task:
    """The task that ``text`` says. Raises ``BadDocument``."""
    found: Task = _read(tuple(ANSWER_OF), text)
    return found


def answer(asked: Task, text: str) -> Answer:
    """The answer to ``asked`` that ``text`` says, and to nothing else. Raises ``BadDocument``."""
    found: Answer = _read((ANSWER_OF[type(asked)],), text)
    return found


def _read(kinds: tuple[type, ...], text: str) -> Any:
    try:
        name, data = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadDocument(f"no pair of kind and value: {error}") from error
    for kind in kinds:
        if kind.__name__ == name:
            return decode(kind, data)
    raise BadDocument(f"of an unexpected kind: {name!r:.40}")
