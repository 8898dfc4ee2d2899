"""The signatures of the Python functions, as editors and ``help`` show them, equal the table of options."""

from __future__ import annotations

import ast
import inspect
import pydoc

import pytest

import clusterrun
from clusterrun.config.python_options import CHECK, SUBMIT
from tests.make_stub import STUB, stub

FUNCTIONS = [("submit", SUBMIT), ("check", CHECK)]


def test_the_stub_equals_the_table_of_options() -> None:
    assert STUB.read_text() == stub(), "make stub"


def test_the_stub_has_the_public_names() -> None:
    module = ast.parse(STUB.read_text())
    names = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    names |= {
        alias.asname for node in module.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert {name for name in names if name and not name.startswith("_")} == set(clusterrun.__all__)


@pytest.mark.parametrize("name, options", FUNCTIONS)
def test_signature_stub_and_help_have_every_option(name: str, options: tuple[object, ...]) -> None:
    function = getattr(clusterrun, name)
    expected = [option.field for option in options]  # type: ignore[arg-type]
    signature = inspect.signature(function)
    keywords = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    (defined,) = (node for node in ast.parse(STUB.read_text()).body if getattr(node, "name", "") == name)
    assert isinstance(defined, ast.FunctionDef)
    assert [parameter for parameter in keywords if parameter in expected] == expected
    assert [parameter.arg for parameter in defined.args.kwonlyargs][-len(expected) :] == expected
    text = pydoc.plaintext.document(function)
    assert all(f"    {parameter}: " in text for parameter in expected)
