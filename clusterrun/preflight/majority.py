"""Finds the nodes whose value differs from that of the majority; knows nodes by name and no check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import fold
from clusterrun.model.preflight_report import Finding, Grade

_MOST_ODD = 3
"""At most one node in three is odd; where more differ, no side can be called the usual one."""


@frozen
class Split:
    """How nodes divide over a value.

    ``usual`` is what most have (empty: none can be told), ``odd`` who has another.
    ``values`` holds every value with its nodes, the commonest first; one value only: all agree.
    """

    usual: str
    odd: tuple[str, ...]
    values: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def agreed(self) -> bool:
        return len(self.values) < 2


def split(values: Mapping[str, str]) -> Split:
    """Divide ``values`` (node → value). The odd are named from three nodes on, up to one in three of them."""
    by_value: dict[str, list[str]] = {}
    for node in sorted(values):
        by_value.setdefault(values[node], []).append(node)
    commonest_first = sorted(by_value, key=lambda value: (-len(by_value[value]), value))
    groups = tuple((value, tuple(by_value[value])) for value in commonest_first)
    if len(groups) < 2 or _MOST_ODD * (len(values) - len(groups[0][1])) > len(values):
        return Split("", (), groups)
    usual = groups[0][0]
    return Split(usual, tuple(sorted(n for n, v in values.items() if v != usual)), groups)


def unlike(
    check: str, what: str, values: Mapping[str, str], verdict: Grade, remedy: str
) -> Iterator[tuple[str, Finding]]:
    """Findings about the nodes whose value of ``what`` is not the usual one.

    Two nodes that differ are both named, with no more than a warning: which is right cannot be
    told. Where many nodes differ the finding is about all of them together (the name '').
    """
    found = split(values)
    if found.agreed:
        return
    if found.odd:
        agreeing = len(values) - len(found.odd)
        for node in found.odd:
            said = f"{what} is {values[node]} here, {found.usual} on {agreeing} of {len(values)} nodes"
            yield node, Finding(check, verdict, said, remedy)
        return
    mild = verdict if verdict == Grade.PASS else Grade.WARN
    groups = ", ".join(f"{value} on {_shown(nodes)}" for value, nodes in found.values[:4])
    said = f"{what} differs: {groups}; it is not known which is right"
    for node in values if len(values) == 2 else ("",):
        yield node, Finding(check, mild, said, remedy)


def some_of(words: Sequence[str], most: int = 3) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def _shown(nodes: tuple[str, ...]) -> str:
    text = fold(nodes)
    return text if len(text) <= 60 else f"{len(nodes)} nodes"
