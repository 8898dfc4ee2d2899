"""Render script templates with jinja2. Every value is quoted unless the template names a filter."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jinja2

from clusterrun import shipped
from clusterrun.model.errors import BadInput
from clusterrun.script import quoting

SHIPPED = "job.sbatch.j2"
# Variables of a template, with their text in the manual.
VARIABLES = {
    "directives": "options of sbatch, each as `--key=value`; the filter `sbatch` writes `#SBATCH` lines",
    "setup": "lines of `--setup`; the filter `checked` ends the job if a line fails, `lines` does not",
    "python": "Python for coordinator and agents, and for ranks unless the setup provides another",
    "agent": "path of the program for the nodes",
    "run_dir": "run directory",
    "job_output": "output file of the batch script",
    "run_id": "run id",
    "name": "name of the run",
    "cwd": "working directory of the ranks",
    "command": "command as typed, a list",
    "nodes": "number of nodes",
    "gpus": "GPUs per node",
    "ranks_per_node": "ranks per node",
}
_HELP = "clusterrun help templates lists the variables and filters that a template may use"


class _Quoted(str):
    """Text that is quoted already."""


def render(values: Mapping[str, quoting.Value], template: str = "") -> str:
    """Return the script that ``template`` (a path; '': the shipped one) produces from ``values``.

    Raises ``BadInput`` with the line of an error.
    """
    name = os.path.basename(template) or SHIPPED
    places = [os.path.dirname(template)] if template else []
    try:
        return _environment(places).get_template(name).render(values)
    except jinja2.TemplateNotFound as error:
        problem = f"there is no template {error.name!r}"
        raise BadInput(problem, "give its path relative to the current directory") from error
    except jinja2.TemplateSyntaxError as error:
        raise BadInput(f"{error.filename or name}, line {error.lineno}: {error.message}", _HELP) from error
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise BadInput(f"the template {name!r}: {error}", _HELP) from error
    except OSError as error:
        raise BadInput(f"the template {name!r} cannot be read: {error.strerror}", "see --template") from error


def _environment(places: list[str]) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*places, shipped.folder("templates")]),
        finalize=lambda value: value if isinstance(value, _Quoted) else _apply("quoted", value),
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


def _apply(rule: str, value: Any) -> _Quoted:
    if isinstance(value, jinja2.Undefined):
        str(value)  # raises an error with the variable's name
    return _Quoted(quoting.RULES[rule](value))
