"""Build HTML from values. Foreign text is escaped and its control characters become visible."""

from __future__ import annotations

import html
from collections.abc import Iterable

from clusterrun.model.visible import visible


class Markup(str):
    """Text that is markup already and is not escaped again. Templates recognize it by ``__html__``."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def tag(name: str, *content: object, **attributes: object) -> Markup:
    """Return an element. ``class_`` means ``class``, other underscores become hyphens, None is omitted."""
    rendered = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_safe(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{rendered}>{''.join(map(_safe, content))}</{name}>")


def joined(parts: Iterable[Markup]) -> Markup:
    return Markup("".join(parts))


def number(value: float) -> str:
    """Return a number with three significant digits and without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    if value == 0 or value < 0.0005:
        return "0"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.4f}"


def _safe(content: object) -> str:
    return content if isinstance(content, Markup) else html.escape(visible(str(content)))
