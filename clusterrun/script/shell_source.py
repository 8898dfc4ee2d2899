"""Parse a shell script to a syntax tree: statements, the commands in them, variables. Nothing is executed."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Union

from clusterrun.model.frozen import frozen
from clusterrun.script.directives import SOME_VALUE
from clusterrun.script.interpreter_calls import ASSIGNMENT, interpreter_call, unwrapped
from clusterrun.script.launch_commands import launch_in
from clusterrun.script.program_table import Trait, is_tool, with_trait
from clusterrun.script.quoting import DOLLAR, evaluated_text, literal, plain_text
from clusterrun.script.shell_conditions import is_in_pattern, truth
from clusterrun.script.shell_grammar import Node, parsed

# Types of nodes of the syntax tree that are words of a command.
_EXPANSIONS = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion")
# Characters of an unquoted word that the shell expands.
_SPECIAL = "*?[~{<>"
_NAME = re.compile(r"\$\{?([A-Za-z_]\w*)", re.ASCII)
_ASSIGNED = re.compile(r"\b([A-Za-z_]\w*)\+?=", re.ASCII)
# A variable that arithmetic sets: ``A = 1``, ``A += 1``, ``A++``.
_COUNTED = re.compile(
    r"\b([A-Za-z_]\w*)(?:\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)([A-Za-z_]\w*)", re.ASCII
)
# A command whose output, or a process whose number or result, is part of a value; ``$((`` is arithmetic.
_COMMAND = re.compile(r"\$\((?!\()|`|\$[!?]")
# An expansion that remains in a value. The shell does not split inside it, and its text names no files.
_OPEN_EXPANSION = re.compile(r"\$\(\(.*?\)\)|\$\([^()]*\)|`[^`]*`|\$\{[^}]*\}", re.DOTALL)
# A word of an unquoted value.
_SPLIT = re.compile(rf"(?:{_OPEN_EXPANSION.pattern}|\S)+", re.DOTALL)
# A variable in front of a redirection, which gets the number of the file.
_DESCRIPTOR = re.compile(r"\{[A-Za-z_]\w*\}", re.ASCII)
# A part of a launcher's command line.
_LAUNCHER = re.compile(
    r"torchrun|torch\.distributed|accelerate launch|deepspeed |--n(?:proc|nodes)|--rdzv"
    r"|--node[-_]rank|--master[-_]|--num[-_](?:processes|machines)|--machine[-_]rank|--main[-_]process"
)
# The home folder in an unquoted value: ``~/x``, ``~/x:~/y``.
_TILDE = re.compile(r"(?:^|(?<=:))~(?=[/:]|$)")
# ``${@:2}``: the arguments from the second one.
_REST = re.compile(r"[@*]:([1-9])")
# The path of a Python or of one of its launchers, by its name.
_FIRST_ON_PATH = re.compile(
    r"(?:\$\(|`)\s*(?:which|command -v|type -P)\s+(python[\d.]*|torchrun|accelerate|deepspeed)\s*[)`]"
)
# A shift that does not depend on anything.
_SHIFT = re.compile(r"shift(?:\s+(\d+))?\s*(?:2?>\S*\s*)?(?:\|\|.*)?$", re.ASCII)
# ``{1..5}``, ``$(seq 5)``, ``$(seq 1 5)``, and with backticks.
_SEQUENCE = re.compile(r"\{(\d+)\.\.(\d+)\}|(?:\$\(|`)seq (?:(\d+) )?(\d+)[)`]", re.ASCII)
# An expansion without a command in it.
_SIMPLE = re.compile(r"\$(?:([A-Za-z_]\w*|[0-9@*#])|\{([A-Za-z_]\w*|[0-9@*#])(?::?-([^{}$`]*))?\})", re.ASCII)
# The file of the code, which is the script unless another one sources it.
_OWN_FILE = re.compile(r"\$\{BASH_SOURCE(?:\[0\])?\}|\$BASH_SOURCE\b")
_CALCULATED = re.compile(r"\$\(\([^()]*\)\)")
# A word with expansions that is not quoted.
_OPEN_WORD = re.compile(r"[\w${}/.:=,@%+-]+", re.ASCII)
_ARGUMENT = re.compile(r"\$\{?[1-9#@*]")
# The value of a sweep.
_SWEPT = re.compile(r"\{[A-Za-z_]\w*\}", re.ASCII)
# ``declare -i`` takes a value for arithmetic; ``-l`` and ``-u`` change its letters.
_CONVERTS = re.compile(r"(?:declare|typeset|local|export|readonly)\s+-\w*[ilu]")
_EXPORT = re.compile(r"(?:export|(?:declare|typeset) -x)\s", re.ASCII)
# A file of shell code that the script reads.
SOURCED = re.compile(r"(?m)^[ \t]*(?:source|\.)[ \t]+([\w./-]+)[ \t]*$")
# ``exec`` of a program takes the place of the script.
_ENDS = re.compile(r"(?:exit|return)\b|exec\s+[A-Za-z_./\"$]")
# Variables that the shell changes itself.
_CHANGING = ("SECONDS", "RANDOM")
_CHANGES_FOLDER = re.compile(r"(?:cd|pushd|popd)\b")
# A variable that ``eval TEXT`` sets.
_EVALUATED = re.compile(r"(?:^|[\"';]|\bexport\s)\s*(?:export\s+)?([A-Za-z_]\w*)\+?=", re.ASCII)
# A character in ``$'…'``.
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\", "\\'": "'", '\\"': '"'}
# Statements with blocks inside, and the token at which a block begins.
_OPENINGS = {
    "compound_statement": "{",
    "subshell": "(",
    "do_group": "do",
    "if_statement": "then",
    "elif_clause": "then",
    "else_clause": "else",
    "case_item": ")",
}
# Types of statements that set variables, and do nothing else.
ASSIGNMENTS = ("variable_assignment", "declaration_command", "variable_assignments")
_BEFORE_TESTS = ("if", "elif", "while", "until", "!", "&&", "||")
_WITH_BODIES = (
    *("for_statement", "c_style_for_statement", "while_statement", "if_statement", "case_statement"),
    *("compound_statement", "subshell", "pipeline", "redirected_statement", "function_definition"),
)
# A redirection to the next line, which the grammar allows and bash does not: ``<NAME>`` at the end of a line.
_WITHOUT_FILE = re.compile(r"\d*[<>&|]+[ \t]*\n")
# A variable in ``$((…))``, with or without its dollar sign.
_IN_ARITHMETIC = re.compile(r"\$?\{?\b([A-Za-z_]\w*)\}?", re.ASCII)
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
FILTERS, PRINTS, _READERS = map(with_trait, (Trait.FILTERS, Trait.PRINTS, Trait.READS))
# Value of a variable: a text, or the elements of an array.
Constant = Union[str, "tuple[str, ...]"]


@frozen
class ShellWord:
    """A word of a command."""

    text: str  # as the script has it
    # The words after expansion. ``$`` in a word: its value is known only when the script runs.
    values: tuple[str, ...]

    def is_open(self, value: str) -> bool:
        """Return whether ``value``, one of its words, is known only when the script runs."""
        is_pattern = self.text[:1] not in "'\"" and any(mark in self.text for mark in _SPECIAL)
        is_home = self.text[:1] == "~"
        return is_home or "$" in value or "`" in value or (self.values == (self.text,) and is_pattern)

    def source(self, value: str) -> str:
        """Return the shell's text for ``value``, one of its words."""
        if len(self.values) == 1:
            return self.text
        return evaluated_text(value) if self.text.startswith('"') else value


@frozen
class Command:
    """A simple command: assignments, program, arguments."""

    words: tuple[ShellWord, ...]
    redirections: tuple[str, ...]  # redirections, as the script has them
    # ``names`` with the values of the job's variables, as far as they are known.
    names_in_job: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the words as plain text, with their open expansions."""
        return tuple(plain_text(value) for word in self.words for value in word.values)

    @property
    def program(self) -> str:
        """Return the program that it starts, also behind ``env A=1``; '' if it only sets variables."""
        behind_env = [word for word in self.names if word != "env" and not ASSIGNMENT.match(word)]
        return (unwrapped(self.names) or behind_env or self.names or ("",))[0]

    def last_values(self, number: int) -> tuple[str, ...]:
        """Return the last words, in which a dollar sign that the shell does not expand is marked."""
        values = [value for word in self.words for value in word.values]
        return tuple(values[len(values) - number :])

    @property
    def open_words(self) -> dict[str, str]:
        """Return the shell's text by name, for each of ``names`` that is known only when the script runs."""
        return {name: text for name, text in zip(self.names, self.open_texts) if text}

    @property
    def open_texts(self) -> tuple[str, ...]:
        """Return the shell's text of each of ``names``; '' for one that is known."""
        return tuple(
            word.source(value).replace(DOLLAR, "\\$") if word.is_open(value) else ""
            for word in self.words
            for value in word.values
        )


@frozen
class Body:
    """A block of statements inside of a statement: of a loop, a branch, a group or a function."""

    line: int  # line of its first statement
    text: str


@frozen
class Statement:
    """A statement on the top level of a script."""

    line: int
    text: str  # as the script has it, without the comment behind it
    # The type of its node in the syntax tree: ``command``, ``variable_assignment``, ``if_statement``, …
    kind: str
    # The commands of the statement in their order. Those inside ``$(…)`` are not among them.
    commands: tuple[Command, ...]
    in_background: bool  # whether the shell does not wait for it
    sets: frozenset[str]  # variables that it sets
    exports: frozenset[str]  # those of them that its programs see
    reads: frozenset[str]  # variables that it reads, also inside its commands
    is_broken: bool  # whether its shell code is incomplete
    # The type of the loop, condition or group whose output it redirects; its own ``kind`` if there is none.
    block_kind: str = ""
    reads_input: bool = False  # whether its block has an input of its own: ``… < FILE``, ``… | while read``
    # The blocks of a loop, a condition or a group, in their order; () for other statements.
    bodies: tuple[Body, ...] = ()
    # The variable of a loop over a list, and its values; () if they are known only when the script runs.
    loop: str = ""
    loop_values: tuple[str, ...] = ()
    substitutes: frozenset[str] = frozenset()  # the programs inside of its ``$(…)``

    @property
    def only_reads(self) -> bool:
        """Return whether the commands inside of ``$(…)`` change nothing."""
        return all(program in _READERS for program in self.substitutes)

    @property
    def waits(self) -> bool:
        """Return whether it waits for a program in the background."""
        return any(command.names[:1] == ("wait",) for command in self.commands)

    @property
    def reads_arguments(self) -> bool:
        names = {command.program for command in self.commands}
        return "getopts" in names or any(re.fullmatch(r"[1-9]\d*|[@*#]", name) for name in self.reads)

    @property
    def is_plain(self) -> bool:
        """Return whether each of its commands runs once: outside of loops, conditions and functions."""
        return self.kind in ("command", "redirected_statement", "pipeline") and not self.bodies


@frozen
class Skipped:
    """Statements that do not run: their condition does not hold, or the script ends before them."""

    line: int  # line of its first statement
    text: str
    reads_arguments: bool  # whether the condition reads the arguments of the script
    reads: frozenset[str]  # variables that the condition reads
    has_program: bool  # whether a program of it is no tool
    is_behind_end: bool = False  # whether ``exit`` or ``return`` is before it


class ShellSource:
    """The statements of a shell script."""

    def __init__(
        self,
        source: str | Body,
        constants: Mapping[str, Constant] | None = None,
        arguments: tuple[str, ...] | None = None,
        functions: Mapping[str, Body] | None = None,
        environment: Mapping[str, str] | None = None,
        sourced: Mapping[str, set[str]] | None = None,
    ) -> None:
        """Parse ``source``, which is a file or a block of one.

        ``constants``: values of variables that the script does not set itself. ``arguments``: those of the
        script; None if they are known only when it runs. ``functions``: those that were defined before it.
        ``environment``: values of variables and arguments with which conditions are evaluated, and nothing
        else. ``sourced``: the variables that each file sets which it sources.
        """
        line, text = (source.line, source.text) if isinstance(source, Body) else (1, source)
        self._lines_above = lines_above = line - 1
        self._bytes, root = _readable(text.replace("\r\n", "\n").encode("utf-8", "replace"))
        broken = [
            node.start_point[0]
            for node in _below(root)
            if node.is_error
            or node.is_missing
            or (node.type == "file_redirect" and _WITHOUT_FILE.match(self._text(node)))
        ]
        self.has_errors = bool(broken)
        self.error_line = lines_above + 1 + min(broken, default=0)
        self.arguments = arguments
        self.functions: dict[str, Body] = dict(functions or {})
        # The variables whose value is known, at the place that was read last.
        self.constants: dict[str, Constant] = dict(constants or {})
        # The place of the last assignment of each variable. A value that reads it before changes with it.
        self.last_set = self._places_of_last_set(root)
        self.environment: dict[str, str] = dict(environment or {})
        # The variables whose values the shell converts when it assigns them.
        self._converted: set[str] = set()
        self._sourced = sourced or {}
        # The blocks that conditions exclude, and what is behind the end of the script.
        self.skipped: list[Skipped] = []
        self._has_ended = False
        self.statements = tuple(self._statements(root.children))
        # (line, text) of each comment between the statements.
        self.comments = tuple(
            (lines_above + node.start_point[0] + 1, self._text(node))
            for node in root.children
            if node.type == "comment"
        )

    @property
    def names_set(self) -> set[str]:
        """Return all variables that the script seems to set, also inside of texts for other shells."""
        return set(_ASSIGNED.findall(self._bytes.decode("utf-8", "replace")))

    def line(self, number: int) -> str:
        """Return a line of the file."""
        return self._bytes.split(b"\n")[number - 1 - self._lines_above].decode("utf-8", "replace")

    def _text(self, node: Node) -> str:
        return self._bytes[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def _statements(self, nodes: list[Node]) -> Iterator[Statement]:
        for node in nodes:
            if not node.is_named or node.type == "comment":
                continue
            if self._has_ended:
                body = self._body([node])
                commands = self._commands(node)
                has_program = any(not is_tool(command.program) for command in commands if command.names)
                self.skipped.append(Skipped(body.line, body.text, False, frozenset(), has_program, True))
                continue
            branch = self._branch(node)
            if branch is not None:
                yield from self._statements(branch)
                continue
            inner = list(_below(node))
            behind = node.next_sibling
            sets = frozenset((*self._names(inner, sets=True), *self._names_set_by(inner)))
            exports = [
                part
                for part in inner
                if part.type == "declaration_command" and _EXPORT.match(self._text(part))
            ]
            before = self.constants
            if node.type in _WITH_BODIES:
                # A loop may run again after it has set these.
                self.constants = {name: value for name, value in before.items() if name not in sets}
                for name in sets:
                    self.environment.pop(name, None)
            block = self._block(node)
            is_redirected = node.type == "redirected_statement"
            redirects = [child for child in node.children[1:] if child.is_named] if is_redirected else []
            loop, loop_values = self._loop(block)
            if loop_values:
                self.constants[loop] = f"{{{loop}}}"
            is_function = node.type == "function_definition"
            yield Statement(
                self._lines_above + node.start_point[0] + 1,
                self._text(node),
                node.type,
                tuple(self._commands(node)),
                behind is not None and behind.type == "&",
                sets,
                frozenset(name for part in exports for name in self._names(list(_below(part)), sets=True)),
                frozenset(self._names(inner, sets=False)),
                node.has_error,
                block.type,
                any(self._text(child).lstrip("0123456789").startswith("<") for child in redirects)
                or (block.type in _WITH_BODIES and node.start_byte < block.start_byte),
                () if is_function else tuple(self._bodies(block)),
                loop,
                loop_values,
                frozenset(self._substitutes(inner)),
            )
            self.constants = dict(before)
            self._follow(node, inner, sets)
            self._has_ended = node.type == "command" and _ENDS.match(self._text(node)) is not None

    def _branch(self, node: Node) -> list[Node] | None:
        """Return the statements that the shell runs instead of a condition; None if it is not known."""
        behind = node.next_sibling
        branches: list[tuple[bool | None, str, list[Node]]]
        if node.type == "if_statement":
            branches = self._branches_of_if(node)
        elif node.type == "case_statement":
            branches = self._branches_of_case(node)
        elif node.type == "list":
            test, sign, action = node.children
            holds = truth(test, self._known_value)
            runs = holds if holds is None else holds == (self._text(sign) == "&&")
            branches = [(runs, self._text(test), [action])]
        else:
            return None
        taken: list[Node] = []
        skipped: list[Skipped] = []
        is_decided = False
        conditions = " ".join(condition for _, condition, _ in branches)
        reads = frozenset(_NAME.findall(conditions))
        origins = (conditions, *(str(self.constants.get(name, "")) for name in reads))
        reads_arguments = self.arguments is None and any(map(_ARGUMENT.search, origins))
        for holds, _, nodes in branches:
            if holds is None and not is_decided:
                return None
            block = [part for part in nodes if part.type != "comment"]
            if holds and not is_decided:
                taken, is_decided = block, True
            elif block:
                body = self._body(block)
                commands = [command for part in block for command in self._commands(part)]
                has_program = any(not is_tool(command.program) for command in commands if command.names)
                skipped.append(Skipped(body.line, body.text, reads_arguments, reads, has_program))
        texts = [self._text(part) for part in taken if part.type != "function_definition"]
        ends = any(re.search(r"^(?!trap\b).*(?<![\w-])(?:exit|return)\b", text, re.DOTALL) for text in texts)
        if (ends and reads_arguments) or node.has_error or (behind is not None and behind.type == "&"):
            return None
        self.skipped += skipped
        return taken

    def _branches_of_if(self, node: Node) -> list[tuple[bool | None, str, list[Node]]]:
        """Return (whether its condition holds, condition, statements) of each branch."""
        branches: list[tuple[bool | None, str, list[Node]]] = []
        for clause in (node, *(child for child in node.children if child.type.endswith("_clause"))):
            names = [child.type for child in clause.children]
            if clause.type == "else_clause":
                branches.append((True, "", [child for child in clause.children[1:] if child.is_named]))
                continue
            place = names.index("then") if "then" in names else len(names)
            conditions = [child for child in clause.children[1:place] if child.is_named]
            holds = truth(conditions[0], self._known_value) if len(conditions) == 1 else None
            block = [
                child
                for child in clause.children[place + 1 :]
                if child.is_named and not child.type.endswith("_clause")
            ]
            branches.append((holds, "".join(map(self._text, conditions)), block))
        return branches

    def _branches_of_case(self, node: Node) -> list[tuple[bool | None, str, list[Node]]]:
        """Return (whether a pattern matches, word, statements) of each branch."""
        word = node.child_by_field_name("value")
        value = self._known_value(word) if word else None
        branches: list[tuple[bool | None, str, list[Node]]] = []
        for item in (child for child in node.named_children if child.type == "case_item"):
            patterns = [self._text(part).strip("\"'") for part in item.children_by_field_name("value")]
            matches = [None if value is None else is_in_pattern(value, pattern) for pattern in patterns]
            holds = True if True in matches else None if None in matches else False
            block = [child for child in item.children if child.is_named][len(patterns) :]
            is_last = self._text(item).rstrip().endswith((";;&", ";&"))
            branches.append((None if is_last else holds, self._text(word) if word else "", block))
        return branches

    def _known_value(self, node: Node) -> str | None:
        """Return the text of a word in a condition; None if it is known only when the script runs."""
        if node.type == "variable_name":  # in ``((…))``
            values: tuple[Constant, ...] = (self.constants.get(self._text(node), f"${self._text(node)}"),)
        else:
            values = self._values(node, splits=False)
        if len(values) != 1 or not isinstance(values[0], str):
            return None

        text = _SWEPT.sub(SOME_VALUE, self._in_job(_OWN_FILE.sub("$0", values[0])))
        return None if "$" in text or "`" in text else plain_text(text)

    def _in_job(self, text: str) -> str:
        """Return ``text`` with the values of the job's variables, as far as they are known."""

        def in_environment(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            is_argument = not name.isidentifier() and name != "0"
            value = None if is_argument and self.arguments is not None else self.environment.get(name)
            return match[0] if value is None else value or match[3] or ""

        text = _CALCULATED.sub(lambda match: self._computed(match[0], self.environment) or match[0], text)
        return _SIMPLE.sub(in_environment, text)

    def _follow(self, node: Node, inner: list[Node], sets: frozenset[str]) -> None:
        """Note the values of variables after a statement."""
        if node.type == "function_definition":
            name_node, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name_node and body:
                self.functions.update((self._text(name_node), block) for block in self._bodies(body))
            return
        forgotten = set(sets)
        if node.type not in ASSIGNMENTS:
            for name in sets:
                self.environment.pop(name, None)
        else:
            if _CONVERTS.match(self._text(node)):
                self._converted |= sets
            assignments = [part for part in inner if part.type == "variable_assignment"]
            for assignment in assignments:
                name, value = self._assigned(assignment)
                text = value if isinstance(value, str) else self._text(assignment).removeprefix(f"{name}=")
                in_job = self._in_job(text)
                self.environment.pop(name, None)
                if value != in_job and in_job.isdecimal() and name not in _CHANGING:
                    self.environment[name] = in_job
                forgotten.discard(name)
                if value is None:
                    forgotten.add(name)
                else:
                    self.constants[name] = value
            if not assignments:
                forgotten = set()  # ``export NAME`` keeps its value
        if (document := self._document(node)) and not self._changes(document[1], node):
            forgotten.discard(document[0])
            self.constants[document[0]] = document[1]
        if node.type == "unset_command":
            forgotten |= {self._text(part) for part in inner if part.type == "variable_name"}
        text = self._text(node)
        if self.arguments is not None and (match := _SHIFT.match(text)):
            self.arguments = self.arguments[int(match[1] or 1) :]
        elif re.search(r"(?<![\w-])(?:shift|set --)(?![\w-])", text):
            self.arguments = None
            if "set --" in text:
                of_names = {name: value for name, value in self.environment.items() if name.isidentifier()}
                self.environment = of_names
        if match := SOURCED.fullmatch(text):
            forgotten |= self._sourced.get(match[1], set())
        if node.type == "command" and (function := self.functions.get(self._text(node).split()[0])):
            forgotten |= set(_ASSIGNED.findall(function.text))
        for name in forgotten:
            self.constants.pop(name, None)

    def _assigned(self, node: Node) -> tuple[str, Constant | None]:
        """Return the variable that an assignment sets, and its value; None if it is not known."""
        name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        name = self._text(name_node) if name_node else ""
        value: Constant | None
        if value_node is None:
            value = ""
        elif value_node.type == "array":
            children = [child for child in value_node.named_children if child.type != "comment"]
            elements = [self._with_home(child, self._values(child)) for child in children]
            value = tuple(part for values in elements for part in values)
            # ``([KEY]=VALUE)``, and ``(${OTHER[KEY]})``, which the shell splits.
            value = None if any(re.match(r"\[|\$\{\w+\[", element) for element in value) else value
        elif document := self._printed_document(value_node):
            value = document[1]
        elif value_node.type == "arithmetic_expansion":
            value = self._computed(self._text(value_node))
        elif value_node.type == "command_substitution":
            value = self._constant(value_node)
        elif value_node.type == "string":
            value = self._expanded(value_node, value_node.start_byte + 1, value_node.end_byte - 1, joins=True)
        else:
            # The shell joins the words of a list.
            value = " ".join(self._with_home(value_node, self._values(value_node, splits=False)))
        if value is not None and any(child.type == "+=" for child in node.children):
            before = self.constants.get(name)
            if isinstance(before, tuple) and isinstance(value, tuple):
                value = (*before, *value)
            else:
                value = before + value if isinstance(before, str) and isinstance(value, str) else None
        is_known = (
            value is not None
            and name.isidentifier()
            and name not in (*_CHANGING, *self._converted)
            and not self._changes(value, node)
        )
        return name, value if is_known else None

    def _with_home(self, node: Node, values: tuple[str, ...]) -> tuple[str, ...]:
        """Return the values of ``node``, which an assignment stores, with ``$HOME`` for an unquoted ``~``."""
        if node.type not in ("word", "concatenation"):
            return values
        return tuple(_TILDE.sub("$HOME", value) for value in values)

    def _changes(self, value: Constant, node: Node) -> bool:
        """Return whether ``value`` reads the output of a command, a process or a variable that ``node`` or a
        later statement sets."""
        changing = frozenset(name for name, place in self.last_set.items() if place >= node.start_byte)
        return _reads(value, changing)

    def _printed_document(self, node: Node) -> tuple[str, str] | None:
        """Return ``cat`` and the text of a value ``$(cat <<EOF …)``; None for other values."""
        if node.type == "string" and len(node.named_children) == 1 and self._text(node)[1:3] == "$(":
            node = node.named_children[0]
        if node.type != "command_substitution" or len(node.named_children) != 1:
            return None
        document = self._document(node.named_children[0])
        return document if document and document[0] == "cat" else None

    def _document(self, node: Node) -> tuple[str, str] | None:
        """Return the variable that ``read -d '' NAME <<EOF`` sets, or ``cat``, and the text of the document.

        None: ``node`` is something else.
        """
        if node.type != "redirected_statement" or len(node.named_children) != 2:
            return None
        command, document = node.named_children
        texts = self._text(command).split()
        is_read = texts[0] == "read" and any(re.fullmatch(r"-r?d", text) for text in texts)
        if document.type != "heredoc_redirect" or not (is_read or texts == ["cat"]):
            return None
        parts = {child.type: child for child in document.named_children}
        if not {"heredoc_start", "heredoc_body"} <= set(parts):
            return None
        body, is_raw = parts["heredoc_body"], set(self._text(parts["heredoc_start"])) & set("'\"\\")
        text = self._text(body)
        if is_raw:
            text = literal(text)
        else:
            text = self._expanded(body, body.start_byte, body.end_byte)
        if self._text(document).startswith("<<-"):
            text = re.sub(r"(?m)^\t+", "", text)
        return texts[-1], text.rstrip("\n")

    def _places_of_last_set(self, root: Node) -> dict[str, int]:
        """Return the place at which each variable is set, or read from a file, for the last time."""
        places: dict[str, int] = {}
        for statement in root.children:
            # A function may run at any time.
            is_function = statement.type == "function_definition"
            for node in _below(statement):
                names = [*self._names([node], sets=True), *self._names_set_by([node])]
                if node.type == "command" and _CHANGES_FOLDER.match(self._text(node)):
                    names += ["PWD", "OLDPWD"]
                for name in names:
                    place = len(self._bytes) if is_function else node.start_byte
                    places[name] = max(places.get(name, 0), place)
        return places

    def _block(self, node: Node) -> Node:
        """Return the loop, condition or group whose output a statement redirects, or the statement."""
        while node.type in ("redirected_statement", "pipeline") and node.named_children:
            blocks = [child for child in node.named_children if child.type in _WITH_BODIES]
            node = blocks[0] if blocks else node.named_children[0]
        return node

    def _bodies(self, node: Node) -> Iterator[Body]:
        """Yield the blocks of a loop, a condition or a group."""
        opening = _OPENINGS.get(node.type, "")
        block: list[Node] = []
        is_open = False
        for child in node.children:
            if child.type in ("do_group", "else_clause", "elif_clause", "case_item"):
                if block:
                    yield self._body(block)
                block, is_open = [], False
                yield from self._bodies(child)
            elif child.type in ("fi", "done", "}", ";;") or (child.type == ")" and node.type == "subshell"):
                is_open = False
            elif is_open:
                block.append(child)
            elif child.type == opening:
                is_open = True
        if block:
            yield self._body(block)

    def _body(self, block: list[Node]) -> Body:
        text = self._bytes[block[0].start_byte : block[-1].end_byte].decode("utf-8", "replace")
        return Body(self._lines_above + block[0].start_point[0] + 1, text)

    def _names(self, nodes: list[Node], sets: bool) -> Iterator[str]:
        for node in nodes:
            if node.type not in ("variable_name", "special_variable_name"):
                continue
            parent = node.parent
            if parent is not None and parent.type == "subscript":
                parent = parent.parent
            is_set = parent is not None and parent.type in (
                *("variable_assignment", "for_statement", "declaration_command"),
            )
            # ``A=1 PROGRAM`` sets A for the program alone.
            if is_set and parent and parent.parent and parent.parent.type == "command":
                continue
            # ``export NAME`` hands on the value that it has.
            if is_set == sets or (
                parent is not None
                and parent.type == "declaration_command"
                and _EXPORT.match(self._text(parent))
            ):
                yield self._text(node)

    def _program_document(self, shell_words: list[ShellWord], redirections: list[Node]) -> Node | None:
        """Return the document from which a shell or Python behind a launcher reads its program."""
        names = [value for word in shell_words for value in word.values]
        places = [index for index in range(1, len(names)) if interpreter_call(names[index:])]
        call = interpreter_call(names[places[0] :]) if places else None
        documents = [node for node in redirections if node.type == "heredoc_redirect"]
        is_program = call is not None and call.reads_input and not call.arguments and not call.options
        return documents[0] if is_program and len(documents) == 1 else None

    def _document_word(self, node: Node) -> ShellWord:
        """Return the word of the command that holds the text of a document."""
        parts = {child.type: child for child in node.named_children}
        body = parts.get("heredoc_body")
        text = self._text(body).rstrip("\n") if body else ""
        if set(self._text(parts["heredoc_start"])) & set("'\"\\"):
            return ShellWord(shlex.quote(text), (literal(text),))
        value = self._expanded(body, body.start_byte, body.end_byte).rstrip("\n") if body else ""
        return ShellWord('"' + text.replace('"', '\\"') + '"', (value,))

    def _names_set_by(self, nodes: list[Node]) -> Iterator[str]:
        for node in nodes:
            if node.type in ("command", "compound_statement", "arithmetic_expansion"):
                yield from _names_set_by(self._text(node))

    def _substitutes(self, nodes: list[Node]) -> Iterator[str]:
        for node in nodes:
            for child in node.named_children if node.type == "command_substitution" else ():
                for command in self._commands(child):
                    launch = launch_in(command.names, reads_inline=False)
                    if launch and launch.program == "srun" and launch.command:
                        yield launch.command[0]
                        continue
                    call = interpreter_call(unwrapped(command.names))
                    yield (call.script or call.module if call else "") or command.program

    def _commands(self, node: Node) -> Iterator[Command]:
        if node.type in ("command_substitution", "process_substitution"):
            return
        is_in_list = node.parent is not None and node.parent.type == "list"
        if is_in_list and node.type in ("declaration_command", "unset_command"):
            names = tuple(self._text(node).split(" ", 1))
            yield Command(tuple(ShellWord(text, (text,)) for text in names), (), names)
            return
        if node.type == "command":
            redirections = [child for child in node.children if child.type.endswith("redirect")]
            # The grammar puts the redirections of the last command of a list behind the whole list.
            parent = node.parent
            while parent and parent.type in ("list", "pipeline") and parent.end_byte == node.end_byte:
                parent = parent.parent
            if parent and parent.type == "redirected_statement":
                redirections += [child for child in parent.children if child.type.endswith("redirect")]
            shell_words: list[ShellWord] = []
            end = -1
            # The grammar counts words behind a redirection as a part of it.
            files = [child for child in redirections if child.type == "file_redirect"]
            behind = [word for file in files for word in _destination(file)[1]]
            own = [child for child in node.named_children if not child.type.endswith("redirect")]
            # ``exec {FD}>FILE`` opens a file.
            places = [child.start_byte for child in redirections]
            own = [c for c in own if c.end_byte not in places or not _DESCRIPTOR.fullmatch(self._text(c))]
            for child in (*own, *behind):
                word = ShellWord(self._text(child), self._values(child))
                if child.start_byte == end:
                    # The grammar splits ``a/$b-$c`` behind its first dollar sign.
                    text = shell_words.pop().text + word.text
                    word = ShellWord(text, (text,))
                shell_words.append(word)
                end = child.end_byte
            if document := self._program_document(shell_words, redirections):
                redirections.remove(document)
                shell_words = [word for word in shell_words if word.text != "-"]
                shell_words += [ShellWord("-c", ("-c",)), self._document_word(document)]
            shell_words = _evaluated(shell_words)
            in_job = tuple(plain_text(self._in_job(value)) for word in shell_words for value in word.values)
            yield Command(tuple(shell_words), tuple(map(self._redirection, redirections)), in_job)
            return
        for child in node.named_children:
            yield from self._commands(child)

    def _redirection(self, node: Node) -> str:
        end = _destination(node)[0] if node.type == "file_redirect" else node.end_byte
        return self._bytes[node.start_byte : end].decode("utf-8", "replace")

    def _loop(self, node: Node) -> tuple[str, tuple[str, ...]]:
        """Return the variable of a loop over a list, and its values.

        No values: they are known only when the script runs, or ``node`` is something else.
        """
        if node.type != "for_statement":
            return "", ()
        variable = node.child_by_field_name("variable")
        values: list[str] = []
        for child in node.children_by_field_name("value"):
            text = self._text(child)
            if match := _SEQUENCE.fullmatch(text):
                first, last = int(match[1] or match[3] or 1), int(match[2] or match[4])
                values += map(str, range(first, last + 1))
            else:
                values += self._values(child)
        is_open = any(set(f"$`,{_SPECIAL}") & set(value) for value in values)
        # The shell splits ``$NAME`` without quotes, and the value of a sweep is one word.
        name = self._text(variable) if variable else ""
        is_split = re.search(rf"\s\$(?:{name}\b|\{{{name}\}})(?=[\s;)]|$)", self._text(node)) is not None
        is_open = is_open or (is_split and any(" " in value for value in values))
        return name, () if is_open else tuple(values)

    def _values(self, node: Node, splits: bool = True) -> tuple[str, ...]:
        """Return the words that ``node`` becomes. ``splits``: the shell splits unquoted values at spaces."""
        text = self._text(node)
        if node.type == "variable_assignment":
            name, _, _ = text.partition("=")
            value_node = node.child_by_field_name("value")
            values = self._values(value_node, splits=False) if value_node else ("",)
            return (f"{name}={values[0]}",) if len(values) == 1 else (text,)
        if node.type == "raw_string":
            return (literal(text[1:-1]),)
        if node.type == "ansi_c_string":
            characters = re.findall(r"\\.|[^\\]", text[2:-1], re.DOTALL)
            if all(character in _ESCAPES or len(character) == 1 for character in characters):
                decoded = "".join(_ESCAPES.get(character, character) for character in characters)
                return (literal(decoded),)
        if node.type == "string":
            return self._string(node)
        if node.type in ("word", "number"):
            return (_unescaped(text),)
        if node.type == "command_name" and node.named_children:
            return self._values(node.named_children[0])
        if node.type in _EXPANSIONS:
            value = self._constant(node)
            if value is None or (splits and set("*?[") & set(_OPEN_EXPANSION.sub("", "".join(value)))):
                return (text,)  # the shell may find files of the name
            separators = {" ", "\t", "\n", *self.constants.get("IFS", "")}
            if splits and "IFS" in {*self.last_set, *self.constants} and separators & {*"".join(value)}:
                return (text,)  # the shell may split it elsewhere than at blanks
            if isinstance(value, tuple):
                return tuple(part for element in value for part in _SPLIT.findall(element))
            return tuple(_SPLIT.findall(value)) if splits else (value,)
        if node.type == "concatenation":
            is_pattern = any(
                child.type == "word" and set("*?[") & set(self._text(child)) for child in node.named_children
            )
            if splits and is_pattern:
                return (text,)  # the shell finds the files of the name
            # Only the shell splits a value in the middle of a word.
            parts = [self._values(child, splits) or ("",) for child in node.named_children]
            return ("".join(part[0] for part in parts),) if all(len(part) == 1 for part in parts) else (text,)
        return (text,)

    def _string(self, node: Node) -> tuple[str, ...]:
        expansions = [child for child in node.named_children if child.type in _EXPANSIONS]
        if (
            len(expansions) == 1
            and expansions[0].end_byte - expansions[0].start_byte == len(node.text or "") - 2
        ):
            part = self._constant(expansions[0])
            if isinstance(part, tuple) and "*" in self._text(expansions[0]):
                return (" ".join(part),)
            if isinstance(part, tuple):
                return part
        return (self._expanded(node, node.start_byte + 1, node.end_byte - 1),)

    def _expanded(self, node: Node, start: int, end: int, joins: bool = False) -> str:
        """Return the text between two places of ``node``, with the values of the variables in it.

        ``joins``: the elements of an array become one text, as in an assignment.
        """
        value, place = "", start
        for expansion in node.named_children:
            if expansion.type not in _EXPANSIONS:
                continue
            part = self._constant(expansion)
            part = " ".join(part) if joins and isinstance(part, tuple) else part
            # The grammar counts white space and line ends before an expansion as a part of it.
            source = self._text(expansion).lstrip("\\ \t\n")
            value += self._between(place, expansion.end_byte - len(source.encode()))
            value += part if isinstance(part, str) else source
            place = expansion.end_byte
        return value + self._between(place, end)

    def _between(self, start: int, end: int) -> str:
        """Return the text between two places of a string in double quotes."""
        text = self._bytes[start:end].decode("utf-8", "replace").replace("\\\n", "")
        return _unescaped(text, '"\\$`')

    def _computed(self, text: str, environment: Mapping[str, str] | None = None) -> str | None:
        """Return the value of ``$((…))`` over numbers that are known; None for another one."""
        text_by_name = {name: value for name, value in self.constants.items() if isinstance(value, str)}
        text_by_name = {**text_by_name, **(environment or {})}
        text = text.strip().removeprefix("$((").removesuffix("))")
        text = _IN_ARITHMETIC.sub(lambda match: text_by_name.get(match[1], "?"), text)
        if not re.fullmatch(r"[\d\s+*/%()-]+", text):
            return None
        try:
            number = _calculated(ast.parse(text.strip().replace("/", "//"), mode="eval").body)
        except (SyntaxError, ValueError, ArithmeticError):
            return None
        return str(number)

    def _constant(self, node: Node) -> Constant | None:
        """Return the value of ``$NAME``, ``${NAME}`` or ``${NAME[@]}``; None if it is not known."""
        if node.type == "arithmetic_expansion":
            return self._computed(self._text(node))
        if match := _FIRST_ON_PATH.fullmatch(self._text(node)):
            return match[1]
        if node.type not in ("simple_expansion", "expansion"):
            return None
        text = self._text(node).lstrip("\\ \t\n")  # as in `_expanded`
        text = text[2:-1] if text.startswith("${") else text[1:]
        if (match := _REST.fullmatch(text)) and self.arguments is not None:
            return self.arguments[int(match[1]) - 1 :]
        text = re.sub(r"^(\w+|[@*]):?\?.*", r"\1", text, flags=re.DOTALL)  # ``${1:?usage}``
        text, separator, default = text.partition(":-") if ":-" in text else text.partition("-")
        quotes = '"' if node.parent and node.parent.type == "string" else "'\""
        if default[:1] == default[-1:] and default[:1] in quotes and len(default) > 1:
            default = default[1:-1]
        if element := re.fullmatch(r"(\w+)\[(\d+)\]", text):
            elements = self.constants.get(element[1])
            is_there = isinstance(elements, tuple) and int(element[2]) < len(elements)
            return elements[int(element[2])] if elements and is_there else None
        name = text.removesuffix("[@]").removesuffix("[*]")
        is_list = name != text or name in ("@", "*")
        value = self.constants.get(name.removeprefix("!"))
        if name.startswith("!"):  # ``${!ARRAY[@]}``: its indices
            value = tuple(map(str, range(len(value)))) if isinstance(value, tuple) and is_list else None
        if self.arguments is not None and (name.isdecimal() or name in ("@", "*")):
            place = int(name) - 1 if name.isdecimal() else 0
            value = self.arguments if is_list else "".join(self.arguments[place : place + 1])
        if name == "*" and self.arguments is None and self.environment.get(name) == "":
            value = ""  # the line has no arguments of the batch script
        if separator and name.isdecimal() and self.arguments is None:
            value = ""  # the line has no arguments of the batch script
        if is_list and isinstance(value, str):
            value = (value,)  # ``${A[@]}`` of a variable that is no array
        if separator and value in ("", ()):
            return None if set(default) & set("$`'\"\\") else default
        return value if isinstance(value, tuple) == is_list else None


def _calculated(node: ast.expr) -> int:
    """Return the value of an expression of whole numbers. Raises ``ValueError`` for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp):
        operation = _OPERATIONS.get(type(node.op))
        if operation:
            return operation(_calculated(node.left), _calculated(node.right))
    raise ValueError("no expression of whole numbers")


def _evaluated(shell_words: list[ShellWord]) -> list[ShellWord]:
    """Return the words of a command. ``eval`` reads its words once more."""
    if not shell_words or shell_words[0].values != ("eval",) or len(shell_words) < 2:
        return shell_words
    text = plain_text(" ".join(value for word in shell_words[1:] for value in word.values))
    if text.startswith(("$", "`")):
        return shell_words
    try:
        values = shlex.split(text)
    except ValueError:
        return shell_words
    # The second reading splits what an expansion becomes.
    sources = [value if _OPEN_WORD.fullmatch(value) else f'"{value}"' for value in values]
    return [
        ShellWord(source if "$" in value else shlex.quote(value), (value,))
        for value, source in zip(values, sources)
    ]


def is_launcher_text(value: Constant) -> bool:
    """Return whether ``value`` holds a part of a launcher's command line."""
    return bool(_LAUNCHER.search(value if isinstance(value, str) else " ".join(value)))


def _reads(value: Constant, names: frozenset[str]) -> bool:
    """Return whether ``value`` depends on one of these variables, or on a command.

    A command in the options of a launcher, such as one that prints the first node, does not matter: ranks
    do not see it.
    """
    text = value if isinstance(value, str) else " ".join(value)
    has_command = bool(_COMMAND.search(text)) and not is_launcher_text(text)
    return has_command or any(name in names for name in _NAME.findall(text))


def _names_set_by(text: str) -> Iterator[str]:
    """Yield the variables that a command sets by its words: ``read A B``, ``printf -v A``, ``$((A++))``."""
    text = re.sub(r"^(?:\s*\w+=\S*)+\s+", "", text)  # ``IFS=, read A``
    name, _, rest = text.partition(" ")
    if name in ("read", "mapfile", "readarray"):
        yield from re.findall(r"(?<=\s)[A-Za-z_]\w*(?=\s|$)", f" {re.split('[<|]', rest)[0]}", re.ASCII)
    elif name == "eval":
        yield from _EVALUATED.findall(rest)
    elif name == "getopts":
        yield from ("OPTARG", *rest.split()[-1:])
    elif name == "printf" and (match := re.match(r"-v\s*(\w+)", rest)):
        yield match[1]
    elif name == "let" or text.startswith(("((", "$((")):
        yield from (first or second for first, second in _COUNTED.findall(text))


def _destination(node: Node) -> tuple[int, list[Node]]:
    """Return the end of the file in a redirection, and the words behind it."""
    files = [child for child in node.named_children if child.type != "file_descriptor"]
    end = files.pop(0).end_byte if files else node.end_byte
    # The grammar splits ``> $a/$b`` behind its second dollar sign.
    while files and files[0].start_byte == end:
        end = files.pop(0).end_byte
    return end, files


def _below(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _below(child)


def _readable(code: bytes) -> tuple[bytes, Node]:
    """Return ``code`` with the same lines, in a form that the grammar reads as bash does, and its tree.

    The grammar joins a line of several assignments with the command below. It takes ``[x=1]``, the name of a
    program, for a test.
    """
    root = parsed(code)
    marks: list[tuple[int, bytes]] = []
    for node in _below(root):
        behind, around = node.next_sibling, node.parent.type if node.parent else ""
        between = code[node.end_byte : behind.start_byte if behind else node.end_byte + 1]
        if node.type == "variable_assignment" and around == "command" and not root.has_error:
            marks += [(node.end_byte, b";")] if b"\n" in between.replace(b"\\\n", b"") else []
        elif node.type in ("[", "[[") and not between:
            is_test = around == "test_command" or getattr(node.prev_sibling, "type", "") in _BEFORE_TESTS
            marks += [(node.start_byte, b"\\")] if is_test else []
    for place, mark in sorted(marks, reverse=True):
        code = code[:place] + mark + code[place:]
    return _readable(code) if marks else (code, root)


def _unescaped(text: str, only: str = "") -> str:
    """Return ``text`` without the backslashes that quote a character; with ``only``, one of these."""
    result, is_quoted = "", False
    for character in text:
        if is_quoted:
            plain = DOLLAR if character == "$" else character
            result += plain if not only or character in only else "\\" + character
            is_quoted = False
        elif character == "\\":
            is_quoted = True
        else:
            result += character
    return result + ("\\" if is_quoted else "")
