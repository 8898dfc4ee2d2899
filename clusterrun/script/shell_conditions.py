"""Evaluate the conditions of shell code whose values are known. Nothing is executed."""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Callable
from typing import Optional

from clusterrun.script.directives import SOME_VALUE
from clusterrun.script.shell_grammar import Node

# Returns the text of a word; None if it is known only when the script runs.
ValueOf = Callable[[Node], Optional[str]]
_COMPARISONS = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}
_OPERATIONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_EXPANSIONS = ("simple_expansion", "expansion")


def truth(node: Node, value_of: ValueOf) -> bool | None:
    """Return whether a condition holds; None if only running the script shows it."""
    children = [child for child in node.children if child.type != "comment"]
    texts = [(child.text or b"").decode("utf-8", "replace") for child in children]
    if node.type in ("test_command", "parenthesized_expression") or texts[:1] == ["(("]:
        return truth(children[1], value_of) if len(children) == 3 else None
    if node.type == "negated_command" or (node.type == "unary_expression" and texts[0] == "!"):
        return _opposite(truth(children[1], value_of))
    if node.type == "unary_expression" and texts[0] in ("-n", "-z"):
        value = _operand(children[1], value_of)
        is_unsure = value is None or (value == "" and texts[0] == "-n" and _is_bare(children[1]))
        return None if is_unsure else (value == "") == (texts[0] == "-z")
    if node.type == "command" and len(children) == 1:
        name = texts[0] if texts[0].isalpha() or texts[0] == ":" else _operand(children[0], value_of)
        return {"true": True, ":": True, "false": False}.get(name or "")
    if node.type in ("list", "binary_expression") and len(children) == 3:
        if texts[1] in ("&&", "||"):
            sides = [truth(children[0], value_of), truth(children[2], value_of)]
            decisive = texts[1] == "||"
            return decisive if decisive in sides else None if None in sides else not decisive
        if children[0].type == "unary_expression" and texts[0].startswith("!"):
            return _opposite(_compared(children[0].children[1], texts[1], children[2], value_of))
        return _compared(children[0], texts[1], children[2], value_of)
    if node.type in ("string", "raw_string", "word", "number", "concatenation", *_EXPANSIONS):
        value = _operand(node, value_of)
        return None if value is None or (value == "" and _is_bare(node)) else value != ""
    return None


def is_in_pattern(value: str, pattern: str) -> bool | None:
    """Return whether ``value`` matches a pattern of the shell; None if a part of them is not known."""
    if SOME_VALUE in value or SOME_VALUE in pattern or set(pattern) & set("\\()[]$`'\""):
        return None
    return fnmatch.fnmatchcase(value, pattern)


def _opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


def _operand(node: Node, value_of: ValueOf) -> str | None:
    if node.type in ("binary_expression", "unary_expression"):
        return None  # the grammar takes ``-o`` and ``-a`` for parts of an operand
    return value_of(node)


def _test(node: Node) -> str:
    """Return the opening of the test with a part of a condition: ``[``, ``[[`` or ``((``."""
    around = node.parent
    while around is not None and around.type.endswith("_expression"):
        around = around.parent
    opening = around.children[0].text if around is not None and around.children else None
    return (opening or b"").decode()


def _is_bare(node: Node) -> bool:
    """Return whether ``[`` does not see a word that is empty, because it is not quoted."""
    return node.type in _EXPANSIONS and _test(node) == "["


def _compared(first_node: Node, sign: str, second_node: Node, value_of: ValueOf) -> bool | None:
    first = _operand(first_node, value_of)
    pattern = (
        (second_node.text or b"").decode("utf-8", "replace")
        if second_node.type == "extglob_pattern"
        else None
    )
    second = pattern if pattern is not None else _operand(second_node, value_of)
    if first is None or second is None or SOME_VALUE in first + second:
        return None
    if any(value == "" and _is_bare(node) for value, node in ((first, first_node), (second, second_node))):
        return None
    if sign in ("=", "==", "!="):
        is_quoted = second_node.type in ("string", "raw_string", "number")
        is_pattern = not is_quoted and _test(first_node) == "[[" and set("*?[\\(") & set(second)
        is_equal = is_in_pattern(first, second) if is_pattern else first == second
        return is_equal if sign != "!=" else _opposite(is_equal)
    operation = _OPERATIONS.get(_COMPARISONS.get(sign, sign if _test(first_node) == "((" else ""))
    is_number = all(value.lstrip("-").isdecimal() for value in (first, second))
    return operation(int(first), int(second)) if operation and is_number else None
