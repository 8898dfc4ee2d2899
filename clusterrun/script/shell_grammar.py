"""Parse shell code with the grammar of bash."""

from __future__ import annotations

import tree_sitter
import tree_sitter_bash

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

# A node of the syntax tree.
Node: TypeAlias = tree_sitter.Node
_PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parsed(code: bytes) -> Node:
    """Return the root of the syntax tree of ``code``."""
    return _PARSER.parse(code).root_node
