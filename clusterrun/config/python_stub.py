"""The text of `clusterrun/__init__.pyi`: what editors read of the Python functions, every option included."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

from clusterrun.config.python_options import CHECK, SUBMIT, annotation
from clusterrun.model.option_table import Option

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


def stub(submit: Callable[..., object], check: Callable[..., object]) -> str:
    """The text of the stub; ``submit`` and ``check`` are the functions, for what they say of themselves."""
    words = ("*command: str | PathLike[str]", "cwd: str | PathLike[str] = ...", *COMMON)
    texts = [_function("submit", words, SUBMIT, submit), _function("check", (*COMMON, "*"), CHECK, check)]
    return HEAD + "".join(texts)


def _function(name: str, first: Iterable[str], options: Iterable[Option], told: Callable[..., object]) -> str:
    keywords = [f"{option.field}: {annotation(option)} = None" for option in options]
    arguments = "".join(f"    {argument},\n" for argument in (*first, *keywords))
    doc = "\n".join(f"    {line}".rstrip() for line in (inspect.getdoc(told) or "").split("\n"))
    return f'\ndef {name}(\n{arguments}) -> Run:\n    r"""{doc.strip()}\n    """\n'
