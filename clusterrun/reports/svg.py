"""Draw the map of all pairs and the links of the ring in their order as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from clusterrun.model.frozen import frozen
from clusterrun.model.phrases import shortened
from clusterrun.reports.link_rates import LinkRate, Rates
from clusterrun.reports.markup import Markup, joined, number, tag

# Pixels of the longer side of a map.
SIDE = 640
# The largest side of a square in pixels.
WIDEST = 54.0
# A square with at least this side in pixels shows its rate.
ROOM = 40.0
# Squares along a side. Several nodes share a square if the report has more nodes.
MOST_SQUARES = 160
# A map with more squares has no tooltips: the page would become too large.
MOST_TITLES = 3000
RING_HEIGHT = 100
MOST_BARS = 160
# The least share of the median, the colour and the meaning of each band of rates.
BANDS = (
    (0.9, "r5", "90 % of the median or more"),
    (0.75, "r4", "75 – 90 %"),
    (0.5, "r3", "50 – 75 %"),
    (0.25, "r2", "25 – 50 %"),
    (0.1, "r1", "10 – 25 %"),
    (0.0, "r0", "less"),
)
FAILED, VOID, UNTIMED = "bad", "void", "ok"


@frozen
class Square:
    """One square of the map. It shows its worst link if several nodes share it."""

    badness: float  # a larger value is worse
    a: str
    b: str
    link: LinkRate


def legend(rates: Rates) -> Markup:
    passed = [(UNTIMED, "passed")]
    if rates.median:
        passed = [(colour, meaning_of_band) for _, colour, meaning_of_band in BANDS]
    meanings = (*passed, (FAILED, "failed"), (VOID, "told nothing"), ("none", "not tested"))
    keys = (tag("li", tag("i", class_=f"key {colour}"), meaning) for colour, meaning in meanings)
    return tag("ul", *keys, class_="legend")


def band(share: float | None) -> str:
    if share is None:
        return UNTIMED
    return next(colour for least, colour, _ in BANDS if share >= least)


def colour_of(link: LinkRate, rates: Rates) -> str:
    """Return the colour of a link. A link that never passed is bad, whatever its rate."""
    if link.passed:
        return band(rates.share(link.rate))
    return FAILED if link.failed or link.message else VOID


def said_of(a: str, b: str, link: LinkRate, rates: Rates) -> str:
    parts = []
    if link.rate is not None:
        share = rates.share(link.rate)
        part = f" ({share:.0%} of the median)" if share is not None else ""
        parts.append(f"{number(link.rate)} GB/s{part}")
    if tests := link.passed + link.failed:
        parts.append(
            f"{link.failed} of {tests} tests failed" if link.failed else f"passed {tests} of {tests}"
        )
    elif link.void:
        parts.append("told nothing")
    if link.message:
        parts.append(link.message)
    return f"{a} – {b}: {', '.join(parts)}"


def squares(rates: Rates, names: Sequence[str], each: int) -> dict[tuple[int, int], Square]:
    """Return the squares of the map by row and column. A row holds ``each`` nodes."""
    position = {name: index // each for index, name in enumerate(names)}
    worst: dict[tuple[int, int], Square] = {}
    for (a, b), link in rates.links.items():
        square = Square(_badness(link, rates), a, b, link)
        for cell in ((position[a], position[b]), (position[b], position[a])):
            if cell not in worst or square.badness > worst[cell].badness:
                worst[cell] = square
    return worst


def _badness(link: LinkRate, rates: Rates) -> float:
    """Return how bad a link is. A square shows the link with the largest value."""
    if not link.passed:
        return 1e9 if link.failed or link.message else -1.0
    return 1 / max(rates.share(link.rate) or 1.0, 1e-6)


def matrix(rates: Rates) -> Markup:
    """Return the map. Each row and column stands for a node, or for several."""
    names = list(rates.nodes)
    nodes_per_square = math.ceil(len(names) / MOST_SQUARES)
    firsts = names[::nodes_per_square]
    count = len(firsts)
    cell = max(3.0, min(WIDEST, SIDE / count))
    squares_by_cell = squares(rates, names, nodes_per_square)
    margin = 16 + 7 * min(14, max(map(len, firsts)))
    end = margin + count * cell
    size = end + 2
    field = tag("rect", x=margin, y=margin, width=count * cell, height=count * cell, class_="field")
    squares_text = (
        _paths(squares_by_cell, rates, cell)
        if len(squares_by_cell) > MOST_TITLES
        else joined(
            _rect(row * cell, column * cell, cell, square, rates)
            for (row, column), square in sorted(squares_by_cell.items(), key=lambda item: item[0])
        )
    )
    inside = tag("g", squares_text, transform=f"translate({margin} {margin})")
    every = max(1, math.ceil(13 / cell))
    texts = []
    for index in range(0, len(firsts), every):
        middle = margin + (index + 0.5) * cell
        text, title = shortened(firsts[index], 14), tag("title", firsts[index])
        texts.append(tag("text", text, title, x=margin - 6, y=f"{middle + 4:.5g}", text_anchor="end"))
        turned = f"translate({middle + 4:.5g} {margin - 6}) rotate(-90)"
        texts.append(tag("text", text, title, transform=turned))
    labels = joined(texts)
    picture = tag(
        "svg",
        field,
        tag("path", d=f"M{margin} {margin}L{end:.5g} {end:.5g}", class_="diagonal"),
        inside,
        labels,
        viewBox=f"0 0 {size:.0f} {size:.0f}",
        style=f"max-width:{size:.0f}px",
        role="img",
        aria_label=f"bandwidth between {len(names)} nodes",
    )
    return tag("div", picture, class_="map")


def _rect(y: float, x: float, cell: float, square: Square, rates: Rates) -> Markup:
    side, colour = f"{_inner(cell):.4g}", colour_of(square.link, rates)
    place = {"x": f"{x:.5g}", "y": f"{y:.5g}", "width": side, "height": side}
    rectangle = tag(
        "rect", tag("title", said_of(square.a, square.b, square.link, rates)), class_=colour, **place
    )
    if cell < ROOM:
        return joined([rectangle, _cross(y, x, cell)]) if colour == FAILED and cell > 9 else rectangle
    text = "" if square.link.rate is None else number(square.link.rate)
    if colour == FAILED:
        text = "failed"
    middle = {"x": f"{x + cell / 2:.5g}", "y": f"{y + cell / 2 + 4:.5g}"}
    return joined([rectangle, tag("text", text, class_=f"in {colour}", text_anchor="middle", **middle)])


def _cross(cell_y: float, cell_x: float, cell: float) -> Markup:
    """Return a cross for a failed link, since not everybody can tell red from orange."""
    side, arm = _inner(cell), 0.28 * _inner(cell)
    x, y, long = cell_x + arm, cell_y + arm, side - 2 * arm
    path = f"M{x:.5g} {y:.5g}l{long:.4g} {long:.4g}m0-{long:.4g}l-{long:.4g} {long:.4g}"
    return tag("path", d=path, class_="cross")


def _paths(squares: Mapping[tuple[int, int], Square], rates: Rates, cell: float) -> Markup:
    """Return one path for each colour, which takes a tenth of the size of single squares."""
    side = f"{_inner(cell):.4g}"
    strokes: dict[str, list[str]] = {}
    for row, column in sorted(squares):
        step = f"M{column * cell:.5g} {row * cell:.5g}h{side}v{side}h-{side}z"
        strokes.setdefault(colour_of(squares[row, column].link, rates), []).append(step)
    return joined(tag("path", d="".join(steps), class_=colour) for colour, steps in strokes.items())


def _inner(cell: float) -> float:
    return cell - (2 if cell > 12 else 1 if cell > 5 else 0)


def ring(rates: Rates, world: Sequence[str]) -> Markup | None:
    """Return the links of the training ring, each a bar as high as its rate; None if none was timed.

    Several links share a bar if there are many. The bar shows the worst of them.
    """
    links: list[tuple[str, str, LinkRate | None]] = []
    for a, b in zip(world, [*world[1:], *world[:1]]):
        links.append((a, b, rates.links.get((a, b)) or rates.links.get((b, a))))
    timed = [link.rate for _, _, link in links if link is not None and link.rate is not None]
    if len(links) < 3 or not timed or not rates.median:
        return None
    top = max(*timed, rates.median) * 1.05
    links_per_bar = math.ceil(len(links) / MOST_BARS)
    groups = [links[index : index + links_per_bar] for index in range(0, len(links), links_per_bar)]
    wide = 1000 / len(groups)
    bars = []
    for index, group in enumerate(groups):
        tested = [(_badness(link, rates), a, b, link) for a, b, link in group if link is not None]
        if not tested:
            bars.append(Markup(""))
            continue
        _, a, b, link = max(tested, key=lambda bad_link: bad_link[0])
        bar_height = RING_HEIGHT if link.rate is None else max(2.0, RING_HEIGHT * link.rate / top)
        gap = 0.15 * wide
        bars.append(
            tag(
                "rect",
                tag("title", said_of(a, b, link, rates)),
                x=f"{index * wide + gap / 2:.5g}",
                y=f"{RING_HEIGHT - bar_height:.4g}",
                width=f"{wide - gap:.4g}",
                height=f"{bar_height:.4g}",
                class_=colour_of(link, rates),
            )
        )
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


def meter(share: float, colour: str) -> Markup:
    wide = f"width:{min(1.0, max(share, 0.01)):.0%}"
    return tag("span", tag("i", style=wide, class_=colour), class_="meter")
