"""Parse a shell script to a syntax tree: statements, the commands in them, variables. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Union

import tree_sitter
import tree_sitter_bash

from clusterrun.model.frozen import frozen

_PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
# Types of nodes of the syntax tree that are words of a command.
_EXPANSIONS = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion")
_LITERALS = ("word", "number", "string", "raw_string", "concatenation", "string_content", "command_name")
# Characters of an unquoted word that the shell expands.
_SPECIAL = "*?[~{"
# Replaces a dollar sign that the shell does not expand. ``$`` in a value is an open expansion.
_DOLLAR = "\ue024"
_NAME = re.compile(r"\$\{?([A-Za-z_]\w*)", re.ASCII)
# A command whose output is part of a value; ``$((`` is arithmetic.
_COMMAND = re.compile(r"\$\((?!\()|`")
# A word of an unquoted value. The shell does not split inside an expansion.
_SPLIT = re.compile(r"(?:\$\(\(.*?\)\)|\$\{[^}]*\}|\S)+", re.DOTALL)
# ``{1..5}``, ``$(seq 5)``, ``$(seq 1 5)``.
_SEQUENCE = re.compile(r"\{(\d+)\.\.(\d+)\}|\$\(seq (?:(\d+) )?(\d+)\)", re.ASCII)
# Value of a variable: a text, or the elements of an array.
Constant = Union[str, "tuple[str, ...]"]


@frozen
class ShellWord:
    """A word of a command."""

    # As the script has it.
    text: str
    # The words after expansion. ``$`` in a word: its value is known only when the script runs.
    values: tuple[str, ...]

    def is_open(self, value: str) -> bool:
        """Return whether ``value``, one of its words, is known only when the script runs."""
        if "$" in value or "`" in value:
            return True
        is_quoted = self.text[:1] in "'\""
        return self.values == (self.text,) and not is_quoted and any(mark in self.text for mark in _SPECIAL)

    def source(self, value: str) -> str:
        """Return the shell's text for ``value``, one of its words."""
        return self.text if len(self.values) == 1 else value


@frozen
class Command:
    """A simple command: assignments, program, arguments."""

    words: tuple[ShellWord, ...]
    # Redirections, as the script has them.
    redirections: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the words as plain text, with their open expansions."""
        return tuple(value.replace(_DOLLAR, "$") for word in self.words for value in word.values)

    @property
    def open_words(self) -> dict[str, str]:
        """Return the shell's text by name, for each of ``names`` that is known only when the script runs."""
        return {
            value.replace(_DOLLAR, "$"): word.source(value).replace(_DOLLAR, "\\$")
            for word in self.words
            for value in word.values
            if word.is_open(value)
        }


@frozen
class Statement:
    """A statement on the top level of a script."""

    line: int
    # As the script has it, without the comment behind it.
    text: str
    # The type of its node in the syntax tree: ``command``, ``variable_assignment``, ``if_statement``, …
    kind: str
    # The commands of the statement in their order. Those inside ``$(…)`` are not among them.
    commands: tuple[Command, ...]
    # Whether the shell does not wait for it.
    in_background: bool
    # Variables that it sets.
    sets: frozenset[str]
    # Variables that it reads, also inside its commands.
    reads: frozenset[str]
    # Whether its shell code is incomplete.
    is_broken: bool

    @property
    def is_plain(self) -> bool:
        """Return whether each of its commands runs once: outside of loops, conditions and functions."""
        return self.kind in ("command", "redirected_statement", "pipeline")


class ShellSource:
    """The statements of a shell script."""

    def __init__(self, text: str, constants: Mapping[str, Constant] | None = None) -> None:
        """``constants``: values of variables that the script does not set itself."""
        self._bytes = text.replace("\r\n", "\n").encode("utf-8", "replace")
        root = _PARSER.parse(self._bytes).root_node
        self.has_errors = root.has_error
        # Values of the variable of each loop over a list, by its name.
        self.loops: dict[str, tuple[str, ...]] = {}
        self.constants = {**(constants or {}), **dict(self._constants(root, constants or {}))}
        self.statements = tuple(self._statements(root))

    def _text(self, node: tree_sitter.Node) -> str:
        return self._bytes[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def _statements(self, root: tree_sitter.Node) -> Iterator[Statement]:
        for node in root.children:
            if not node.is_named or node.type == "comment":
                continue
            inner = list(_below(node))
            behind = node.next_sibling
            yield Statement(
                node.start_point[0] + 1,
                self._text(node),
                node.type,
                tuple(self._commands(node)),
                behind is not None and behind.type == "&",
                frozenset(self._names(inner, sets=True)),
                frozenset(self._names(inner, sets=False)),
                node.has_error,
            )

    def _names(self, nodes: list[tree_sitter.Node], sets: bool) -> Iterator[str]:
        for node in nodes:
            if node.type not in ("variable_name", "special_variable_name"):
                continue
            parent = node.parent
            if parent is not None and parent.type == "subscript":
                parent = parent.parent
            is_set = parent is not None and parent.type in (
                *("variable_assignment", "for_statement", "declaration_command"),
            )
            if is_set == sets:
                yield self._text(node)

    def _commands(self, node: tree_sitter.Node) -> Iterator[Command]:
        if node.type in ("command_substitution", "process_substitution"):
            return
        if node.type == "command":
            redirections = [child for child in node.children if child.type.endswith("redirect")]
            if node.parent is not None and node.parent.type == "redirected_statement":
                redirections += [child for child in node.parent.children if child.type.endswith("redirect")]
            words = [child for child in node.named_children if not child.type.endswith("redirect")]
            yield Command(
                tuple(ShellWord(self._text(word), self._values(word, self.constants)) for word in words),
                tuple(self._text(redirection) for redirection in redirections),
            )
            return
        for child in node.named_children:
            yield from self._commands(child)

    def _constants(
        self, root: tree_sitter.Node, outer: Mapping[str, Constant]
    ) -> Iterator[tuple[str, Constant]]:
        """Yield the variables that have one known value in the whole script."""
        constants: dict[str, Constant] = dict(outer)
        counts: dict[str, int] = {}
        nodes = list(_below(root))
        for name in self._names(nodes, sets=True):
            counts[name] = counts.get(name, 0) + 1
        # The words of a ``read`` are variables that it sets.
        reads = [node for node in nodes if node.type == "command" and self._text(node).startswith("read")]
        read_in = {self._text(word) for node in reads for word in node.named_children[1:]}
        for node in nodes:
            if node.type == "for_statement":
                variable = node.child_by_field_name("variable")
                name = self._text(variable) if variable else ""
                values = self._loop_values(node, constants)
                if values and counts.get(name) == 1:
                    self.loops[name] = values
                    constants[name] = f"{{{name}}}"
            if node.type != "variable_assignment":
                continue
            name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
            name = self._text(name_node) if name_node else ""
            if counts.get(name) != 1 or name in read_in or not _is_unconditional(node):
                continue
            if value_node is None:
                constants[name] = ""
            elif value_node.type == "array":
                elements = [self._values(child, constants) for child in value_node.named_children]
                constants[name] = tuple(part for values in elements for part in values)
            elif value_node.type not in ("command_substitution", "arithmetic_expansion"):
                constants[name] = self._values(value_node, constants, splits=False)[0]
        # A value that reads a variable which the script sets again changes with it.
        changing = frozenset(name for name, count in counts.items() if count > 1) | read_in
        yield from ((name, value) for name, value in constants.items() if not _reads(value, changing))

    def _loop_values(self, node: tree_sitter.Node, constants: Mapping[str, Constant]) -> tuple[str, ...]:
        """Return the values of a loop's variable; () if they are known only when the script runs."""
        values: list[str] = []
        for child in node.children_by_field_name("value"):
            text = self._text(child)
            if match := _SEQUENCE.fullmatch(text):
                first, last = int(match[1] or match[3] or 1), int(match[2] or match[4])
                values += map(str, range(first, last + 1))
            else:
                values += self._values(child, constants)
        is_open = any("$" in value or "," in value or set(_SPECIAL) & set(value) for value in values)
        return () if is_open else tuple(values)

    def _values(
        self, node: tree_sitter.Node, constants: Mapping[str, Constant], splits: bool = True
    ) -> tuple[str, ...]:
        """Return the words that ``node`` becomes. ``splits``: the shell splits unquoted values at spaces."""
        text = self._text(node)
        if node.type == "variable_assignment":
            name, _, _ = text.partition("=")
            value_node = node.child_by_field_name("value")
            values = self._values(value_node, constants, splits=False) if value_node else ("",)
            return (f"{name}={values[0]}",) if len(values) == 1 else (text,)
        if node.type == "raw_string":
            return (text[1:-1].replace("$", _DOLLAR),)
        if node.type == "string":
            return self._string(node, constants)
        if node.type in ("word", "number"):
            return (_unescaped(text),)
        if node.type == "command_name" and node.named_children:
            return self._values(node.named_children[0], constants)
        if node.type in ("simple_expansion", "expansion"):
            value = self._constant(node, constants)
            if value is None or isinstance(value, tuple):
                return (text,) if value is None else value
            return tuple(_SPLIT.findall(value)) if splits else (value,)
        if node.type == "concatenation":
            parts = [self._values(child, constants, splits=False) for child in node.named_children]
            return ("".join(part[0] for part in parts),) if all(len(part) == 1 for part in parts) else (text,)
        return (text,)

    def _string(self, node: tree_sitter.Node, constants: Mapping[str, Constant]) -> tuple[str, ...]:
        expansions = [child for child in node.named_children if child.type in _EXPANSIONS]
        value, place = "", node.start_byte + 1
        for expansion in expansions:
            part = self._constant(expansion, constants)
            is_whole = expansion.start_byte == place and expansion.end_byte == node.end_byte - 1
            if isinstance(part, tuple) and len(expansions) == 1 and is_whole:
                return part
            value += self._between(place, expansion.start_byte)
            value += part if isinstance(part, str) else self._text(expansion)
            place = expansion.end_byte
        return (value + self._between(place, node.end_byte - 1),)

    def _between(self, start: int, end: int) -> str:
        """Return the text between two places of a string in double quotes."""
        text = self._bytes[start:end].decode("utf-8", "replace").replace("\\\n", "")
        return _unescaped(text, '"\\$`')

    def _constant(self, node: tree_sitter.Node, constants: Mapping[str, Constant]) -> Constant | None:
        """Return the value of ``$NAME``, ``${NAME}`` or ``${NAME[@]}``; None if it is not known."""
        if node.type not in ("simple_expansion", "expansion"):
            return None
        text = self._text(node).strip("${}")
        name = text.removesuffix("[@]").removesuffix("[*]")
        value = constants.get(name)
        return value if isinstance(value, tuple) == (name != text) else None


def _reads(value: Constant, names: frozenset[str]) -> bool:
    """Return whether ``value`` depends on one of these variables, or on a command."""
    text = value if isinstance(value, str) else " ".join(value)
    return bool(_COMMAND.search(text)) or any(name in names for name in _NAME.findall(text))


def _is_unconditional(node: tree_sitter.Node) -> bool:
    parent = node.parent
    while parent is not None and parent.type in ("declaration_command", "variable_assignments"):
        parent = parent.parent
    return parent is None or parent.type == "program"


def _below(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    yield node
    for child in node.children:
        yield from _below(child)


def _unescaped(text: str, only: str = "") -> str:
    """Return ``text`` without the backslashes that quote a character; with ``only``, one of these."""
    result, is_quoted = "", False
    for character in text:
        if is_quoted:
            plain = _DOLLAR if character == "$" else character
            result += plain if not only or character in only else "\\" + character
            is_quoted = False
        elif character == "\\":
            is_quoted = True
        else:
            result += character
    return result + ("\\" if is_quoted else "")
