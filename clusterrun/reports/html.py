"""Render pages for a browser with jinja2. Control characters become visible and markup is escaped."""

from __future__ import annotations

import jinja2

from clusterrun import shipped
from clusterrun.model.frozen import Any
from clusterrun.model.visible import visible


def render(template: str, **values: Any) -> str:
    """Return the page that the shipped ``template`` renders from ``values``."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(shipped.folder("templates")),
        autoescape=True,
        finalize=lambda value: value if hasattr(value, "__html__") else visible(str(value)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)
