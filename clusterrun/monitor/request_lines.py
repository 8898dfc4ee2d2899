"""Find in the source of a rank the sends and receives of torch that began the request which it waits for."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from clusterrun.diagnosis.evidence import MainCall, PostedOp
from clusterrun.diagnosis.spied_process import SpiedProcess
from clusterrun.diagnosis.stacks import function_of, is_library, line_of
from clusterrun.model.frozen import Any, frozen
from clusterrun.monitor.script_lines import assignments, calls_in_line, parsed, scope_around
from clusterrun.rank_hooks.clusterrun_script_source import FUNCTIONS, LOOPS, evaluate, name_of, own_nodes

_HALVES = {"isend": "send", "irecv": "recv"}
# The keyword and place of the peer among the arguments, and the place of the tag.
_PLACES = {"isend": ("dst", 1, 3), "irecv": ("src", 1, 3), "P2POp": ("peer", 2, 4)}
_ADDS = ("append", "extend")
_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.DictComp)


# The functions that Python 3.11 and older make of comprehensions.
_IN_LINE = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


def awaited_request(pid: int, spied: SpiedProcess, rank: int, size: int, half: str = "") -> MainCall:
    """Return the send or receive whose request the process waits for, ``rank`` among ``size``.

    ``half`` is ``send`` or ``recv`` if native frames show it.
    """
    frames: list[ScriptFrame] = []
    inner: dict[str, object] = {}
    scripts = [frame for frame in spied.main if not is_library(frame)]
    if not any(name == "wait" for name, _ in calls_in_line(parsed(pid, scripts[0]), scripts[0])):
        return MainCall()
    for frame, values in zip(scripts, spied.variables):
        inner = {**dict(values), **inner}
        if function_of(frame) not in _IN_LINE:
            number = int(line_of(frame).rpartition(":")[2])
            frames.append(ScriptFrame(parsed(pid, frame), number, inner))
            inner = {}
    return AwaitedRequests(frames, rank, size or -1).awaited(half) if frames else MainCall()


class _UnknownError(Exception):
    """The source does not show which requests a variable holds."""


@frozen
class ScriptFrame:
    """A frame of the script: the tree of its file, its line, and the plain variables that it shows."""

    tree: ast.Module
    number: int
    values: Mapping[str, object]


class AwaitedRequests:
    """The requests in the frames of a script, innermost first. The process is ``rank`` among ``size``."""

    def __init__(self, frames: Sequence[ScriptFrame], rank: int, size: int) -> None:
        self._frames = frames
        self._functions = [scope_around(frame.tree, frame.number) for frame in frames]
        # The nodes of each function, with the nodes around them.
        self._around = [dict(own_nodes(function)) for function in self._functions]
        self._own_numbers = {"get_rank": rank, "get_world_size": size}
        # Variables of the loop in which the requests are awaited. They belong to the one that is awaited now.
        self._turn: set[str] = set()

    def awaited(self, half: str = "") -> MainCall:
        """Return the send or receive that the innermost line waits for; an empty value if it is unknown.

        It is a ``half`` if that is known. Its name is ``wait`` if the script has begun others as well, and
        ``posts`` are all if they are known.
        """
        waits = [call for call in self._calls_in_line(0) if name_of(call) == "wait" and not call.args]
        if len(waits) != 1 or not isinstance(waits[0].func, ast.Attribute):
            return MainCall()
        for node in self._around[0][waits[0]]:
            for loop in [node] if isinstance(node, ast.For) else getattr(node, "generators", []):
                if not isinstance(loop.iter, ast.Call) or name_of(loop.iter) == "items":
                    self._turn |= _names(loop.target)
        try:
            begun = list(self._begun(waits[0].func.value, 0, self._frames[0].number + 1))
            posts = [self._post(call, depth) for call, depth in begun]
        except (_UnknownError, RecursionError):
            return MainCall()
        may_be = {post for post in posts if half in ("", post.call)}
        post = next(iter(may_be)) if len(may_be) == 1 else PostedOp(half, -1)
        count = sum(
            name_of(call) in _PLACES and not self._is_done(call, depth)
            for depth in range(len(self._frames))
            for call in self._calls(depth)
        )
        is_repeated = any(self._loops(call, depth) for call, depth in begun)
        if post.call and count == 1 and not is_repeated:
            return MainCall(name=post.call, function=post.call, peer=post.peer, tag=post.tag)
        is_complete = count == len(posts) and not is_repeated and all(post.peer >= 0 for post in posts)
        posted = tuple(posts) if is_complete else ()
        return MainCall(
            name="wait" * bool(posts), function=post.call, peer=post.peer, tag=post.tag, posts=posted
        )

    def _calls(self, depth: int) -> list[ast.Call]:
        """Return the calls of a function up to the line of its frame."""
        calls = [node for node in self._around[depth] if isinstance(node, ast.Call)]
        return [call for call in calls if call.lineno <= self._frames[depth].number]

    def _calls_in_line(self, depth: int) -> list[ast.Call]:
        number = self._frames[depth].number
        return [call for call in self._calls(depth) if number <= (call.end_lineno or 0)]

    def _is_done(self, call: ast.Call, depth: int) -> bool:
        """Return whether the request of a call was awaited before, or was not begun."""
        waits = ("wait", getattr(self._functions[depth - 1], "name", "") if depth else "")
        done = (
            isinstance(node, ast.Call) and name_of(node) in waits and _end(node) < self._frames[depth].number
            for node in self._around[depth][call]
        )
        return any(done) or self._has_run(call, depth) is False

    def _begun(self, node: ast.AST, depth: int, before: int) -> Iterator[tuple[ast.Call, int]]:
        """Yield the calls that began the requests in an expression, with the numbers of their frames.

        Variables have the values that lines above ``before`` gave them.
        """
        if isinstance(node, ast.Call) and name_of(node) in _PLACES:
            yield node, depth
        elif isinstance(node, (ast.Name, ast.Attribute)):
            bindings = self._bindings(ast.unparse(node), depth, before)
            argument = None if bindings else self._argument(ast.unparse(node), depth)
            for value, line in bindings:
                yield from self._begun(value, depth, line)
            if argument:
                yield from self._begun(argument, depth + 1, self._frames[depth + 1].number + 1)
            elif not bindings and isinstance(node, ast.Attribute):
                yield from self._begun(node.value, depth, before)
        else:
            for child in ast.iter_child_nodes(node):
                yield from self._begun(child, depth, before)

    def _bindings(self, text: str, depth: int, before: int) -> list[tuple[ast.AST, int]]:
        """Return the values that lines above ``before`` gave to a variable or added to it, with the lines."""
        bindings: list[tuple[ast.AST, int]] = []
        loops: set[ast.AST] = set()  # around the line that gave it a new value
        for node in sorted(filter(_pairs, self._around[depth]), key=_line):
            pairs = [(target, value) for target, value in _pairs(node) if text in _names(target)]
            if not pairs:
                continue
            around: set[ast.AST] = {loop for loop in self._around[depth][node] if isinstance(loop, LOOPS)}
            # The previous turn of a loop may have run a later line.
            is_of_turn = _line(node) < before or not around.difference(loops, self._loops(node, depth))
            has_run = self._has_run(node, depth) if is_of_turn else None
            if has_run is None:
                raise _UnknownError
            if has_run and _line(node) < before:
                is_part = isinstance(node, (ast.Call, ast.AugAssign)) or isinstance(
                    pairs[0][0], ast.Subscript
                )
                bindings, loops = (bindings, loops) if is_part else ([], around)
                bindings += [(value, _line(node)) for _, value in pairs]
        return bindings

    def _argument(self, name: str, depth: int) -> ast.expr | None:
        """Return the expression that the caller passes as parameter ``name``; None if it is unknown."""
        function = self._functions[depth]
        if not isinstance(function, FUNCTIONS) or depth + 1 == len(self._frames):
            return None
        calls = [call for call in self._calls_in_line(depth + 1) if name_of(call) == function.name]
        if len(calls) != 1 or any(isinstance(argument, ast.Starred) for argument in calls[0].args):
            return None
        names = [parameter for parameter in _parameters(function) if parameter != "self"]
        arguments: dict[str | None, ast.expr] = dict(zip(names, calls[0].args))
        arguments.update((word.arg, word.value) for word in calls[0].keywords)
        return arguments.get(name)

    def _has_run(self, node: ast.AST, depth: int) -> bool | None:
        """Return whether the conditions around a node led to it in this turn; None if that is unknown."""
        has_run: bool | None = True
        path, number = (*self._around[depth][node], node), self._frames[depth].number
        for outer, inner in zip(path, path[1:]):
            if not isinstance(outer, ast.If) or inner is outer.test:
                continue
            is_true: object = self._number(outer.test, depth, self._changed(node, depth))
            if outer.lineno < number <= (outer.end_lineno or 0):
                is_true = number <= (outer.body[-1].end_lineno or 0)
            if is_true is None:
                has_run = None
            elif (inner in outer.body) != bool(is_true):
                return False
        return has_run

    def _loops(self, node: ast.AST, depth: int) -> list[ast.AST]:
        """Return the loops around a node that are not around the line of its frame."""
        loops: list[ast.AST] = []
        for loop in self._around[depth][node]:
            is_around = isinstance(loop, LOOPS) and _line(loop) <= self._frames[depth].number <= _end(loop)
            loops += [loop] if isinstance(loop, (*LOOPS, *_COMPREHENSIONS)) and not is_around else []
        return loops

    def _changed(self, node: ast.AST, depth: int) -> set[str]:
        """Return the variables that may have got another value since a node ran."""
        loops, changed = self._loops(node, depth), set()
        for part, around in self._around[depth].items():
            is_later = _line(node) < _line(part) <= self._frames[depth].number
            if is_later or any(loop in (part, *around) for loop in loops):
                changed |= {name for target, _ in _pairs(part) for name in _names(target)}
        return changed - self._turn

    def _post(self, call: ast.Call, depth: int) -> PostedOp:
        """Return what a call begins. Its peer is -1 if it is unknown."""
        name, numbers = name_of(call), []
        keyword, *places = _PLACES[name]
        for word, place in zip((keyword, "tag"), places):
            nodes = [
                *call.args[place : place + 1],
                *(part.value for part in call.keywords if part.arg == word),
            ]
            is_plain = bool(nodes) and not any(isinstance(part, ast.Starred) for part in call.args)
            numbers.append(self._number(nodes[0], depth, self._changed(call, depth)) if is_plain else None)
        begins = ast.unparse(call.args[0]).rpartition(".")[2] if name == "P2POp" and call.args else name
        peer, tag = numbers
        return PostedOp(_HALVES.get(begins, ""), -1 if peer is None else peer, tag or 0)

    def _number(self, node: ast.AST, depth: int, unknown: Collection[str]) -> int | None:
        """Return the value of an expression without the variables ``unknown``; None if that is not possible.

        A negative ``depth``, ~DEPTH, stands for other functions of the file of that frame.
        """

        def number_of(part: ast.AST) -> int | None:
            if isinstance(part, ast.Call) and not (part.args or part.keywords):
                number = self._own_numbers.get(name_of(part), -1)
                return number if number >= 0 else None
            is_variable = isinstance(part, (ast.Name, ast.Attribute))
            return self._variable(ast.unparse(part), depth, unknown) if is_variable else None

        value = evaluate(_Numbers(number_of).visit(copy.deepcopy(node)), {})
        return value if type(value) in (int, bool) else None

    def _variable(self, text: str, depth: int, unknown: Collection[str]) -> int | None:
        """Return the number that a variable or an attribute has in a frame; None if it is unknown."""
        if text in unknown:
            return None
        if depth >= 0:
            value, function = self._frames[depth].values.get(text), self._functions[depth]
            if type(value) is int:
                return value
            argument = self._argument(text, depth)
            if argument or text in _parameters(function):
                return self._number(argument, depth + 1, ()) if argument else None
            for outer in range(depth + 1, len(self._frames)):
                if function in self._around[outer]:
                    return self._variable(text, outer, ())
        values = assignments(self._frames[max(depth, ~depth)].tree).get(text, [])
        single = values[0] if len(values) == 1 else None
        return self._number(single, min(depth, ~depth), (*unknown, text)) if single else None


class _Numbers(ast.NodeTransformer):
    """Replace the parts of an expression whose numbers are known."""

    def __init__(self, number_of: Callable[[ast.AST], int | None]) -> None:
        self._number_of = number_of

    def visit(self, node: ast.AST) -> Any:
        number = self._number_of(node)
        return super().visit(node) if number is None else ast.copy_location(ast.Constant(number), node)


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", getattr(getattr(node, "target", None), "lineno", 0)))


def _end(node: ast.AST) -> int:
    return int(getattr(node, "end_lineno", 0))


def _names(target: ast.AST) -> set[str]:
    """Return the variables and attributes in an expression."""
    return {ast.unparse(part) for part in ast.walk(target) if isinstance(part, (ast.Name, ast.Attribute))}


def _parameters(function: ast.AST) -> list[str]:
    if not isinstance(function, FUNCTIONS):
        return []
    return [part.arg for part in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _pairs(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Return the targets of an assignment, a loop or an addition to a list, with their values."""
    if isinstance(node, ast.Assign):
        (target, *others), value = node.targets, node.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and not others:
            return list(zip(target.elts, value.elts))
        return [(target, value) for target in node.targets]
    if isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value:
        return [(node.target, node.value)]
    if isinstance(node, (ast.For, ast.comprehension)):
        return [(node.target, node.iter)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDS:
        return [(node.func.value, argument) for argument in node.args]
    return []
