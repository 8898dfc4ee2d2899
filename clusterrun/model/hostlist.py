"""Convert Slurm's host lists (``gpu[001-004,7]-ib``) to names and back."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from clusterrun.model.errors import BadInput

# Limit on the names of one list. ``n[0-999999999]`` must not fill the memory.
LIMIT = 65536


# A part between two commas. A comma inside a bracket does not separate.
_PART = re.compile(r"(?:[^],[]|\[[^][]*\])+")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_NUMBERED = re.compile(r"(?s)(.*?)([0-9]{1,18})")


def expand(text: str) -> tuple[str, ...]:
    """Return the names of ``text`` in its order, duplicates kept, as ``scontrol show hostnames`` does.

    Several brackets multiply, the last one running fastest. Raises ``BadInput`` if the text is not a host
    list or means more than ``LIMIT`` names.
    """
    names: list[str] = []
    if re.search(r"[][]", re.sub(r"\[[^][]*\]", "", text)):
        raise _refusal(text, "its brackets do not match")
    for part in _PART.findall(text):
        # Literal text and bracket contents alternate: a[1-2]b is a, [1-2, b.
        pieces = [_choices(piece, text) for piece in re.split(r"(?=\[)|\]", part) if piece]
        size = 1
        for piece in pieces:
            size *= len(piece)
        if len(names) + size > LIMIT:
            raise _refusal(text, f"it is more than {LIMIT} names")
        names += map("".join, itertools.product(*pieces))
    return tuple(names)


def fold(names: Sequence[str]) -> str:
    """Return ``names`` as one short list. Neighbours that differ in their last number share a bracket.

    ``expand(fold(names)) == tuple(names)`` for names without ``,``, ``[`` and ``]``. Names with text after
    their number (``gpu1-ib``) are not folded, because Slurm before 23.11 reads no text after a bracket.
    """
    parts: list[str] = []
    numbered = map(_numbered, names)
    for (head, plain), group in itertools.groupby(numbered, key=lambda pair: (pair[0], not pair[1])):
        numbers = [number for _, number in group]
        if plain or len(numbers) == 1:
            parts += [head + number for number in numbers]
        else:
            ranges = []
            first = last = numbers[0]
            for number in [*numbers[1:], ""]:
                if number and number == str(int(last) + 1).zfill(len(first)):
                    last = number
                    continue
                ranges.append(first if first == last else f"{first}-{last}")
                first = last = number
            parts.append(f"{head}[{','.join(ranges)}]")
    return ",".join(parts)


def _refusal(text: str, why: str) -> BadInput:
    excerpt = text if len(text) <= 80 else text[:77] + "..."
    return BadInput(f"{excerpt!r} is not a host list: {why}", "write it as Slurm does: node[01-04,7],login1")


def _choices(piece: str, text: str) -> tuple[str, ...]:
    if not piece.startswith("["):
        return (piece,)
    names: list[str] = []
    for item in piece[1:].split(","):
        match = _RANGE.fullmatch(item)
        if not match:
            raise _refusal(text, f"{item!r} is neither a number nor a range")
        low, high = match.group(1), match.group(2) or match.group(1)
        if int(high) < int(low) or len(high) > 18:
            raise _refusal(text, f"the range {item!r} runs backwards")
        if int(high) - int(low) >= LIMIT:
            raise _refusal(text, f"it is more than {LIMIT} names")
        names += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return tuple(names)


def _numbered(name: str) -> tuple[str, str]:
    match = _NUMBERED.fullmatch(name)
    return match.groups() if match else (name, "")  # type: ignore[return-value]
