"""Find in the source of a rank the calls that began the requests it waits for, and the numbers of its calls.

The search starts at the object whose ``wait`` is called. It follows each variable to all lines of the
function that give it a value or add to it, and each parameter to the caller's argument. It decides no
conditions: a request is unknown if several calls or an expression of another kind may have begun it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from clusterrun.model.frozen import Any
from clusterrun.monitor.script_lines import ScriptFrame, assignments, scope_around
from clusterrun.rank_hooks.clusterrun_script_source import FUNCTIONS, LOOPS, evaluate, name_of, own_nodes

_BEGINS = re.compile(r"(?i)i[sbr]?send|irecv|p2pop")
# Functions that return the requests of their arguments, and others that add none to a list.
_PASSES = ("batch_isend_irecv", "enumerate", "list", "reversed")
_ADDS = ("append", "appendleft", "extend", "insert")
_READS = (*_PASSES, *_ADDS, "len", "print")
_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)


class _UnknownError(Exception):
    """The source does not show which requests an expression holds."""


class ScriptStack:
    """The frames of a script, innermost first. Methods take the place of a frame as ``depth``.

    ``with_own_numbers`` puts the process's rank and the number of ranks into source that asks for them.
    ``waits`` returns whether a call waits.
    """

    def __init__(
        self,
        frames: Sequence[ScriptFrame],
        with_own_numbers: Callable[[str], str],
        waits: Callable[[ast.Call], bool],
    ) -> None:
        self._frames = frames
        self._with_own_numbers = with_own_numbers
        self._functions = [scope_around(frame.tree, frame.number) for frame in frames]
        # The nodes of each function, with the nodes around them.
        self._around = [dict(own_nodes(function)) for function in self._functions]
        self._constants = {tree: self._constants_of(tree) for tree in {frame.tree for frame in frames}}
        self._variables: list[dict[str, object]] = [{} for _ in frames]
        for depth in reversed(range(len(frames))):
            self._variables[depth] = self._variables_of(depth)
        calls = [call for call in self._calls_in_line(0) if waits(call)] if frames else []
        # The call that the process waits in; None if its line has several.
        self.wait = calls[0] if len(calls) == 1 else None
        # The object whose method waits; None if a function waits.
        self._awaited = getattr(self.wait.func, "value", None) if self.wait else None

    def begun(self) -> list[tuple[ast.Call, int]]:
        """Return the calls that may have begun the awaited requests, with their depths; none if unknown."""
        try:
            return list(dict.fromkeys(self._requests(self._awaited, 0)))
        except (_UnknownError, RecursionError):
            return []

    def unawaited(self) -> int:
        """Return the number of requests that the script may not have awaited yet; 2 for those of a loop."""
        count = 0
        for depth, frame in enumerate(self._frames):
            waits = ("wait", getattr(self._functions[depth - 1], "name", "") if depth else "")
            for call, around in self._around[depth].items():
                outer = [part for part in around if isinstance(part, ast.Call) and name_of(part) in waits]
                is_done = any(_end(part) < frame.number for part in outer)
                if (
                    isinstance(call, ast.Call)
                    and _begins(call)
                    and call.lineno <= self._last_line(depth)
                    and not is_done
                ):
                    count += 2 if self._loops(call, depth, are_running=False) else 1
        return count

    def passed(self, call: ast.Call, depth: int, keyword: str, place: int, default: int = -1) -> int:
        """Return the number that a call passes, or ``default``; -1 if it is unknown or negative."""
        has_stars = any(isinstance(part, ast.Starred) for part in call.args)
        # A later line ran in an earlier turn of a loop, if at all.
        is_later = call.lineno > self._last_line(depth)
        if is_later or has_stars or not all(word.arg for word in call.keywords):
            return -1
        nodes = call.args[place : place + 1]
        nodes += [word.value for word in call.keywords if word.arg == keyword]
        variables = {**self._variables[depth], **dict.fromkeys(self._changed(call, depth))}
        value = self._number(nodes[0], variables) if nodes else default
        return value if type(value) is int and value >= 0 else -1

    def _is_in_line(self, node: Any, depth: int) -> bool:
        return bool(node.lineno <= self._frames[depth].number <= node.end_lineno)

    def _last_line(self, depth: int) -> int:
        """Return the last line of the calls in the line of a frame."""
        return max([self._frames[depth].number, *map(_end, self._calls_in_line(depth))])

    def _calls_in_line(self, depth: int) -> list[ast.Call]:
        calls = [node for node in self._around[depth] if isinstance(node, ast.Call)]
        return [call for call in calls if self._is_in_line(call, depth)]

    def _loops(self, node: ast.AST, depth: int, are_running: bool) -> list[Any]:
        """Return the loops around a node that still run, or those that have ended."""
        loops = []
        for loop in self._around[depth][node]:
            is_running = isinstance(loop, LOOPS) and self._is_in_line(loop, depth)
            is_running = is_running or loop in self._around[0].get(self.wait, ())
            if isinstance(loop, (*LOOPS, *_COMPREHENSIONS)) and is_running == are_running:
                loops.append(loop)
        return loops

    def _requests(self, node: ast.AST | None, depth: int) -> Iterator[tuple[ast.Call, int]]:
        """Yield the calls that may have begun the requests in an expression.

        Raise _UnknownError if other calls may have begun them too.
        """
        if isinstance(node, ast.Call) and _begins(node):
            yield node, depth
        elif isinstance(node, ast.Call) and name_of(node) in _PASSES:
            for argument in node.args:
                yield from self._requests(argument, depth)
        elif node is None or isinstance(node, (ast.Attribute, ast.Call)):
            raise _UnknownError
        elif isinstance(node, ast.Name) and type(self._variables[depth].get(node.id)) is not int:
            yield from self._requests_of_variable(node.id, depth)
        elif not isinstance(node, ast.comprehension):
            for child in ast.iter_child_nodes(node):
                yield from self._requests(child, depth)

    def _requests_of_variable(self, name: str, depth: int) -> Iterator[tuple[ast.Call, int]]:
        values = [value for part in self._around[depth] for value in _values(part, name)]
        argument = self._argument(name, depth)
        if argument:
            yield from self._requests(argument, depth + 1)
        elif not values or name in _parameters(self._functions[depth]):
            raise _UnknownError
        for value in values:
            yield from self._requests(value, depth)
        for part in self._around[depth]:
            # An earlier call of the function may have begun the request.
            if isinstance(part, (ast.Global, ast.Nonlocal)) and name in part.names:
                raise _UnknownError
            is_other = isinstance(part, ast.Call) and not self._is_in_line(part, depth)
            # A function may add to a list that it gets.
            if is_other and name_of(part) not in _READS and name in map(ast.unparse, part.args):
                raise _UnknownError

    def _argument(self, name: str, depth: int) -> ast.expr | None:
        """Return the expression that the caller passes as parameter ``name``; None if it is unknown."""
        function = self._functions[depth]
        if not isinstance(function, FUNCTIONS) or depth + 1 == len(self._frames):
            return None
        calls = [call for call in self._calls_in_line(depth + 1) if name_of(call) == function.name]
        # The places are unknown after ``*`` and in the call of a class's function with ``self``.
        if len(calls) != 1 or any(re.match(r"\*|self$", ast.unparse(part)) for part in calls[0].args):
            return None
        names = [parameter for parameter in _parameters(function) if parameter != "self"]
        arguments: dict[str | None, ast.expr] = dict(zip(names, calls[0].args))
        arguments.update((word.arg, word.value) for word in calls[0].keywords)
        return arguments.get(name)

    def _variables_of(self, depth: int) -> dict[str, object]:
        """Return the variables of a frame: shown, of functions around it, passed, or assigned once."""
        frame, function = self._frames[depth], self._functions[depth]
        variables: dict[str, object] = {}
        for outer in range(depth + 1, len(self._frames)):
            if function in self._around[outer] and not variables:
                variables = dict(self._variables[outer])
        names, assigned = _parameters(function), self._assigned(depth, 0, sys.maxsize)
        variables.update(dict.fromkeys((*names, *assigned)))
        for name in names:
            argument = self._argument(name, depth)
            if argument and name not in assigned:
                variables[name] = self._number(argument, self._variables[depth + 1])
        return {**variables, **self._constants[frame.tree], **frame.values}

    def _constants_of(self, tree: ast.Module) -> dict[str, object]:
        """Return the numbers of the variables that a file assigns once."""
        constants: dict[str, object] = {}
        for name, values in assignments(tree).items():
            number = self._number(values[0], constants) if len(values) == 1 and values[0] else None
            constants.update({} if number is None else {name: number})
        return constants

    def _assigned(self, depth: int, begin: int, end: int) -> set[str]:
        """Return the variables that lines of a function assign to."""
        names = [part for part in self._around[depth] if isinstance(part, ast.Name)]
        return {name.id for name in names if isinstance(name.ctx, ast.Store) and begin <= name.lineno <= end}

    def _changed(self, call: ast.Call, depth: int) -> set[str]:
        """Return the variables that may have got another value since a call ran."""
        around, number = self._around[depth][call], self._frames[depth].number
        statement = next(part for part in reversed(around) if isinstance(part, ast.stmt))
        loops = self._loops(call, depth, are_running=False)
        running = self._loops(call, depth, are_running=True)
        if running and not self._is_in_line(statement, depth):
            # A variable holds no request of earlier turns if each turn sets it before it waits.
            name = ast.unparse(self._awaited) if self._awaited else ""
            values = [value for part in self._around[depth] for value in _values(part, name)]
            is_of_turn = not depth and call in values and len(values) == 1 and statement in running[-1].body
            loops += [] if is_of_turn else running
        begin = min((loop.lineno for loop in loops), default=call.lineno + 1)
        return self._assigned(depth, begin, max([number, *map(_end, loops)])) - self._labels(call, depth)

    def _number(self, node: ast.AST, variables: Mapping[str, object]) -> object:
        source = self._with_own_numbers(ast.unparse(node))
        try:
            return evaluate(ast.parse(source, mode="eval").body, variables)
        except SyntaxError:  # a part of an expression, as ``*values``
            return None

    def _labels(self, node: ast.AST, depth: int) -> set[str]:
        """Return the variables that are in a tuple with a request and in the loop that awaits it."""
        if depth or not self._awaited:
            return set()
        tuples = [outer for outer in self._around[depth][node] if isinstance(outer, ast.Tuple)]
        for loop in self._around[0].get(self.wait, ()):
            if tuples and isinstance(loop, ast.For) and isinstance(loop.target, ast.Tuple):
                names = [map(ast.unparse, part.elts) for part in (loop.target, tuples[-1])]
                if ast.unparse(self._awaited) in map(ast.unparse, loop.target.elts):
                    is_direct = not isinstance(loop.iter, ast.Call)
                    return {name for name, element in zip(*names) if name == element and is_direct}
        return set()


def _begins(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and bool(_BEGINS.fullmatch(name_of(node)))


def _values(node: ast.AST, name: str) -> list[Any]:
    """Return the values that a statement gives to a variable, or adds to its list."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDS:
        return node.args if ast.unparse(node.func.value) == name else []
    targets = getattr(node, "targets", None) or [getattr(node, "target", node)]
    parts = [part for target in targets if target is not node for part in ast.walk(target)]
    value = getattr(node, "iter", getattr(node, "value", None))
    return [value] if any(isinstance(part, ast.Name) and part.id == name for part in parts) else []


def _parameters(function: ast.AST) -> list[str]:
    if not isinstance(function, FUNCTIONS):
        return []
    return [part.arg for part in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _end(node: ast.AST) -> int:
    return int(getattr(node, "end_lineno", 0))
