"""Draws rates: the map of all pairs, and the links of the ring in their order; SVG, decides nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from clusterrun.model.frozen import frozen
from clusterrun.reports.link_rates import LinkRate, Rates
from clusterrun.reports.markup import Markup, joined, number, short, tag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

SIDE = 640
"""Pixels of the longer side of a map."""
WIDEST = 54.0
"""Pixels of a square at most; from ``ROOM`` on its rate stands in it."""
ROOM = 40.0
MOST_SQUARES = 160
"""Along a side: of more nodes, several share a square."""
MOST_TITLES = 3000
"""Squares that say what they are when pointed at; of more, the colours alone would be too large a page."""
RING_HEIGHT = 100
MOST_BARS = 160
BANDS = (
    (0.9, "r5", "90 % of the median or more"),
    (0.75, "r4", "75 – 90 %"),
    (0.5, "r3", "50 – 75 %"),
    (0.25, "r2", "25 – 50 %"),
    (0.1, "r1", "10 – 25 %"),
    (0.0, "r0", "less"),
)
"""From which share of the median on a rate has which colour, and how that is explained."""
FAILED, VOID, UNTIMED = "bad", "void", "ok"


@frozen
class Square:
    """The link that one square of the map shows: of several the worst."""

    badness: float
    a: str
    b: str
    link: LinkRate


def legend(rates: Rates) -> Markup:
    passed = [(colour, told) for _, colour, told in BANDS] if rates.median else [(UNTIMED, "passed")]
    meanings = (*passed, (FAILED, "failed"), (VOID, "told nothing"), ("none", "not tested"))
    keys = (tag("li", tag("i", class_=f"key {colour}"), meaning) for colour, meaning in meanings)
    return tag("ul", *keys, class_="legend")


def band(share: float | None) -> str:
    if share is None:
        return UNTIMED
    return next(colour for least, colour, _ in BANDS if share >= least)


def colour_of(link: LinkRate, rates: Rates) -> str:
    """The colour of a link: one that never passed is bad, whatever else."""
    if link.passed:
        return band(rates.share(link.rate))
    return FAILED if link.failed or link.said else VOID


def said_of(a: str, b: str, link: LinkRate, rates: Rates) -> str:
    said = []
    if link.rate is not None:
        share = rates.share(link.rate)
        part = f" ({share:.0%} of the median)" if share is not None else ""
        said.append(f"{number(link.rate)} GB/s{part}")
    if tests := link.passed + link.failed:
        said.append(f"{link.failed} of {tests} tests failed" if link.failed else f"passed {tests} of {tests}")
    elif link.void:
        said.append("told nothing")
    return f"{a} – {b}: {', '.join([*said, *filter(None, [link.said])])}"


def squares(rates: Rates, names: Sequence[str], each: int) -> dict[tuple[int, int], Square]:
    """The squares of the map, by row and column, with ``each`` nodes in a row."""
    place = {name: at // each for at, name in enumerate(names)}
    worst: dict[tuple[int, int], Square] = {}
    for (a, b), link in rates.links.items():
        found = Square(_badness(link, rates), a, b, link)
        for where in ((place[a], place[b]), (place[b], place[a])):
            if where not in worst or found.badness > worst[where].badness:
                worst[where] = found
    return worst


def _badness(link: LinkRate, rates: Rates) -> float:
    """What makes one link of a square the one to be shown."""
    if not link.passed:
        return 1e9 if link.failed or link.said else -1.0
    return 1 / max(rates.share(link.rate) or 1.0, 1e-6)


def matrix(rates: Rates) -> Markup:
    """The map: a node in each row and column, or several of them."""
    names = list(rates.nodes)
    each = math.ceil(len(names) / MOST_SQUARES)
    firsts = names[::each]
    count = len(firsts)
    cell = max(3.0, min(WIDEST, SIDE / count))
    found = squares(rates, names, each)
    margin = 16 + 7 * min(14, max(map(len, firsts)))
    end = margin + count * cell
    size = end + 2
    field = tag("rect", x=margin, y=margin, width=count * cell, height=count * cell, class_="field")
    drawn = _paths(found, rates, cell) if len(found) > MOST_TITLES else _rects(found, rates, cell)
    inside = tag("g", drawn, transform=f"translate({margin} {margin})")
    picture = tag(
        "svg",
        field,
        tag("path", d=f"M{margin} {margin}L{end:.5g} {end:.5g}", class_="diagonal"),
        inside,
        _labels(firsts, margin, cell),
        viewBox=f"0 0 {size:.0f} {size:.0f}",
        style=f"max-width:{size:.0f}px",
        role="img",
        aria_label=f"bandwidth between {len(names)} nodes",
    )
    return tag("div", picture, class_="map")


def nodes_in_a_square(rates: Rates) -> int:
    return math.ceil(len(rates.nodes) / MOST_SQUARES)


def _rects(found: Mapping[tuple[int, int], Square], rates: Rates, cell: float) -> Markup:
    drawn = (_rect(row * cell, column * cell, cell, one, rates) for (row, column), one in _by_place(found))
    return joined(drawn)


def _rect(top: float, left: float, cell: float, one: Square, rates: Rates) -> Markup:
    side, colour = f"{_inner(cell):.4g}", colour_of(one.link, rates)
    place = {"x": f"{left:.5g}", "y": f"{top:.5g}", "width": side, "height": side}
    drawn = tag("rect", tag("title", said_of(one.a, one.b, one.link, rates)), class_=colour, **place)
    if cell < ROOM:
        return joined([drawn, _cross(top, left, cell)]) if colour == FAILED and cell > 9 else drawn
    text = "failed" if colour == FAILED else "" if one.link.rate is None else number(one.link.rate)
    middle = {"x": f"{left + cell / 2:.5g}", "y": f"{top + cell / 2 + 4:.5g}"}
    return joined([drawn, tag("text", text, class_=f"in {colour}", text_anchor="middle", **middle)])


def _cross(top: float, left: float, cell: float) -> Markup:
    """Red is told from blue by all, but not from orange."""
    side, arm = _inner(cell), 0.28 * _inner(cell)
    x, y, long = left + arm, top + arm, side - 2 * arm
    path = f"M{x:.5g} {y:.5g}l{long:.4g} {long:.4g}m0-{long:.4g}l-{long:.4g} {long:.4g}"
    return tag("path", d=path, class_="cross")


def _paths(found: Mapping[tuple[int, int], Square], rates: Rates, cell: float) -> Markup:
    """One path for each colour: a tenth of the size of single squares."""
    side = f"{_inner(cell):.4g}"
    strokes: dict[str, list[str]] = {}
    for (row, column), one in _by_place(found):
        step = f"M{column * cell:.5g} {row * cell:.5g}h{side}v{side}h-{side}z"
        strokes.setdefault(colour_of(one.link, rates), []).append(step)
    return joined(tag("path", d="".join(steps), class_=colour) for colour, steps in strokes.items())


def _by_place(found: Mapping[tuple[int, int], Square]) -> list[tuple[tuple[int, int], Square]]:
    return sorted(found.items(), key=lambda one: one[0])


def _inner(cell: float) -> float:
    return cell - (2 if cell > 12 else 1 if cell > 5 else 0)


def _labels(names: Sequence[str], margin: float, cell: float) -> Markup:
    every = max(1, math.ceil(13 / cell))
    drawn = []
    for at in range(0, len(names), every):
        middle = margin + (at + 0.5) * cell
        text, whole = short(names[at], 14), tag("title", names[at])
        drawn.append(tag("text", text, whole, x=margin - 6, y=f"{middle + 4:.5g}", text_anchor="end"))
        turned = f"translate({middle + 4:.5g} {margin - 6}) rotate(-90)"
        drawn.append(tag("text", text, whole, transform=turned))
    return joined(drawn)


def ring(rates: Rates, world: Sequence[str]) -> Markup | None:
    """The links of the ring that trains, each a bar as high as its rate; None if none was timed.

    Of many links, several share a bar, which shows the worst.
    """
    links = _ring_links(rates, world)
    timed = [link.rate for _, _, link in links if link is not None and link.rate is not None]
    if len(links) < 3 or not timed or not rates.median:
        return None
    top = max(*timed, rates.median) * 1.05
    each = math.ceil(len(links) / MOST_BARS)
    groups = [links[at : at + each] for at in range(0, len(links), each)]
    wide = 1000 / len(groups)
    bars = [_bar(at * wide, wide, group, rates, top) for at, group in enumerate(groups)]
    height = f"{RING_HEIGHT - RING_HEIGHT * rates.median / top:.4g}"
    return tag(
        "svg",
        *bars,
        tag("path", d=f"M0 {height}H1000", class_="median"),
        viewBox=f"0 0 1000 {RING_HEIGHT}",
        preserveAspectRatio="none",
        class_="ring",
        role="img",
        aria_label=f"bandwidth of the {len(links)} links of the ring",
    )


Known: TypeAlias = "tuple[str, str, LinkRate | None]"
"""A link of the ring, and its tests, if there were any."""


def _ring_links(rates: Rates, world: Sequence[str]) -> list[Known]:
    beside = zip(world, [*world[1:], *world[:1]])
    return [(a, b, rates.links.get((a, b)) or rates.links.get((b, a))) for a, b in beside]


def _bar(left: float, wide: float, group: Sequence[Known], rates: Rates, top: float) -> Markup:
    known = [(_badness(link, rates), a, b, link) for a, b, link in group if link is not None]
    if not known:
        return Markup("")
    _, a, b, link = max(known, key=lambda one: one[0])
    height = RING_HEIGHT if link.rate is None else max(2.0, RING_HEIGHT * link.rate / top)
    gap = 0.15 * wide
    return tag(
        "rect",
        tag("title", said_of(a, b, link, rates)),
        x=f"{left + gap / 2:.5g}",
        y=f"{RING_HEIGHT - height:.4g}",
        width=f"{wide - gap:.4g}",
        height=f"{height:.4g}",
        class_=colour_of(link, rates),
    )


def meter(share: float, colour: str) -> Markup:
    wide = f"width:{min(1.0, max(share, 0.01)):.0%}"
    return tag("span", tag("i", style=wide, class_=colour), class_="meter")
