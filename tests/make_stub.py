"""Write clusterrun/__init__.pyi, the public names with every option: `make stub`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path

import clusterrun
from clusterrun import api
from clusterrun.config.python_options import CHECK, SUBMIT, annotation
from clusterrun.model.option_table import Option

STUB = Path(clusterrun.__file__).with_suffix(".pyi")
HEAD = '''\
"""The public names with every option. Made by `make stub` from clusterrun/model/option_table.py."""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from os import PathLike
from typing import Literal

from clusterrun.api import Run as Run
from clusterrun.api import find as find
from clusterrun.api import run as run
from clusterrun.api import statuses as statuses
from clusterrun.api import sweep as sweep
from clusterrun.executor import ClusterrunExecutor as Executor
from clusterrun.model.errors import ClusterrunError as ClusterrunError
from clusterrun.model.states import State as State
from clusterrun.operations.context import Context as _Context

__version__: str
__all__ = ["ClusterrunError", "Executor", "Run", "State"]
__all__ += ["check", "find", "run", "statuses", "submit", "sweep"]
'''
COMMON = ("context: _Context | None = None", "tell: Callable[[str], None] = ...")


def stub() -> str:
    """Return the text of the stub."""
    arguments = ("*command: str | PathLike[str]", "cwd: str | PathLike[str] = ...", *COMMON)
    texts = [_function(api.submit, arguments, SUBMIT), _function(api.check, (*COMMON, "*"), CHECK)]
    return HEAD + "".join(texts)


def _function(function: Callable[..., object], first: Iterable[str], options: Iterable[Option]) -> str:
    keywords = [f"{option.field}: {annotation(option)} = None" for option in options]
    arguments = "".join(f"    {argument},\n" for argument in (*first, *keywords))
    doc = "\n".join(f"    {line}".rstrip() for line in (inspect.getdoc(function) or "").split("\n"))
    return f'\ndef {function.__name__}(\n{arguments}) -> Run:\n    r"""{doc.strip()}\n    """\n'


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
