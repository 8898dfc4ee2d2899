"""Templates into script text, the only importer of jinja2: every value is quoted unless a filter is named."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jinja2

from clusterrun.model.errors import BadInput
from clusterrun.script import form, quoting, shipped

_HELP = "clusterrun help templates lists the variables and filters that a template may use"


class _Done(str):
    """Text that a rule has made ready for the script."""


def render(values: Mapping[str, quoting.Value], template: str) -> str:
    """The script text that ``template`` (a path) makes of ``values``. Raises ``BadInput`` naming the line."""
    return _render(values, os.path.basename(template), [os.path.dirname(template)])


def compile_form() -> str:
    """The shipped template as a form: rendered with the places of the values instead of the values."""
    return _render({name: form.FormPlace(name) for name in form.VARIABLES}, form.TEMPLATES[0], [])


def _render(values: Mapping[str, Any], name: str, places: list[str]) -> str:
    try:
        return _environment(places).get_template(name).render(values)
    except jinja2.TemplateNotFound as error:
        seen = f"there is no template {error.name!r}"
        raise BadInput(seen, "give its path relative to the current directory") from error
    except jinja2.TemplateSyntaxError as error:
        raise BadInput(f"{error.filename or name}, line {error.lineno}: {error.message}", _HELP) from error
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise BadInput(f"the template {name!r}: {error}", _HELP) from error
    except OSError as error:
        raise BadInput(f"the template {name!r} cannot be read: {error.strerror}", "see --template") from error


def _environment(places: list[str]) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*places, shipped.folder("templates")]),
        finalize=lambda value: value if isinstance(value, _Done) else _apply("quoted", value),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    for rule in quoting.RULES:
        environment.filters[rule] = lambda value, rule=rule: _apply(rule, value)
    environment.filters["raw"] = environment.filters["lines"]
    return environment


def _apply(rule: str, value: Any) -> _Done:
    if isinstance(value, form.FormPlace):
        return _Done(value.under(rule))
    if isinstance(value, jinja2.Undefined):
        str(value)  # raises, naming the variable
    return _Done(quoting.RULES[rule](value))


if __name__ == "__main__":
    print(form.checksum() + compile_form(), end="")
