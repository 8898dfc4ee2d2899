"""Read from the source of a rank the key of a store, the loop and the ``finally`` block that it waits in."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from clusterrun.diagnosis.evidence import MainCall
from clusterrun.diagnosis.spied_process import SpiedProcess
from clusterrun.diagnosis.stacks import function_of, line_of
from clusterrun.model.frozen import Any, frozen
from clusterrun.rank_hooks.clusterrun_script_source import (
    FUNCTIONS,
    LOOPS,
    MOST_OF_A_KEY,
    STORE_SETS,
    STORE_WAITS,
    name_of,
    own_nodes,
    stays_while,
    texts_of,
)

MOST_SOURCE = 2 << 20
MOST_SETS = 4
_BRANCHES = (ast.If, ast.IfExp, ast.BoolOp, ast.ExceptHandler, getattr(ast, "Match", ast.If))
# Iterators whose first value grows in each turn.
_COUNTS = re.compile(r"(?!.*, -)(?:\w+\.)*(?:t?range|enumerate|count)\(")
_STORE_ASKS = ("add", "check", "compare_set", "get", "num_keys", "wait")
_WORLD_SIZE = re.compile(r"(?i)world|size|n_?ranks|n_?procs|workers|members")
_EXITS = ("__exit__", "__aexit__")
# Conditions that hold for one rank of a job. Each node has a rank with a certain local rank.
_OF_ONE_RANK = re.compile(
    r"(?i)(?!.*local_?rank)(?:not [\w.]*(?:rank|process_index)(?:\(\))?"
    r"|[\w.]*(?:rank|process_index)(?:\(\))? (?:== [\w.]+|in [\[(]-1, 0[\])])"
    r"|[\w.]*is_(?:main_process|global_zero|rank_zero|world_process_zero|main|master)(?:\(\))?)"
)


# The functions that Python 3.11 and older make of comprehensions.
_IN_LINE = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


@frozen
class ScriptFrame:
    """A frame of the script: the tree of its file, its plain variables, and its ``self`` as text."""

    frame: str
    tree: ast.Module
    values: Mapping[str, object]
    owner: str = ""

    @property
    def file(self) -> str:
        return line_of(self.frame).rpartition(":")[0]

    @property
    def number(self) -> int:
        """Return its line."""
        return line_number(self.frame)

    @property
    def nodes(self) -> list[Any]:
        """Return the nodes of its function, outer ones first."""
        return [node for node, _ in own_nodes(scope_around(self.tree, self.number))]


def script_frames(pid: int, spied: SpiedProcess) -> list[ScriptFrame]:
    """Return the frames of the script in process ``pid``, innermost first."""
    frames: list[ScriptFrame] = []
    inner: dict[str, object] = {}
    for spied_frame in spied.script:
        frame, inner = spied_frame.frame, {**dict(spied_frame.values), **inner}
        if function_of(frame) not in _IN_LINE:
            frames.append(ScriptFrame(frame, parsed(pid, frame), inner, spied_frame.owner))
            inner = {}
    return frames


def parsed(pid: int, frame: str) -> ast.Module:
    """Return the syntax tree of the file of a frame, as process ``pid`` sees it; empty if unreadable."""
    path = line_of(frame).rpartition(":")[0]
    folder = f"/proc/{pid}/root" if path.startswith("/") else f"/proc/{pid}/cwd/"
    try:
        handle = os.open(folder + path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            return _tree(file.read(MOST_SOURCE))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


@lru_cache(maxsize=16)
def _tree(source: bytes) -> ast.Module:
    """Ranks of one node have the same source, so it is parsed once."""
    return ast.parse(source)


def line_number(frame: str) -> int:
    return int(line_of(frame).rpartition(":")[2])


def scope_around(tree: ast.Module, number: int) -> ast.AST:
    """Return the innermost function around a line; the module if there is none."""
    scope: ast.AST = tree
    for node in ast.walk(tree):  # outer functions come first
        if isinstance(node, FUNCTIONS) and node.lineno <= number <= (node.end_lineno or 0):
            scope = node
    return scope


def loop_around(frame: ScriptFrame) -> str:
    """Return the condition of the ``while`` around the line of a frame, and the values of its variables.

    It is '' if the innermost loop has none.
    """
    condition, values = stays_while(_innermost_loop(frame)), frame.values
    names = re.findall(r"(?<![.\w])[A-Za-z_]\w*", condition)
    assignments = ", ".join(f"{name}={values[name]!r}" for name in dict.fromkeys(names) if name in values)
    return f"{condition} ({assignments[:MOST_OF_A_KEY]})" if assignments else condition


def _innermost_loop(frame: ScriptFrame) -> ast.stmt | None:
    nodes = [node for node in frame.nodes if isinstance(node, LOOPS)]
    loops = [node for node in nodes if node.lineno <= frame.number <= (node.end_lineno or 0)]
    return max(loops, key=lambda loop: loop.lineno, default=None)


def polled_store(frame: ScriptFrame, size: int) -> MainCall:
    """Return the wait of the innermost loop around a frame that asks a store of torch what other ranks set.

    A loop that compares its answer with the number of all ranks, ``size``, is a barrier of all.
    """
    loop = _innermost_loop(frame)
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)] if loop else []
    functions = [call.func for call in calls if isinstance(call.func, ast.Attribute)]
    asks = (
        function.attr in _STORE_ASKS and "store" in ast.unparse(function.value).lower()
        for function in functions
    )
    if not loop or not any(asks):
        return MainCall()
    comparisons = [node for node in ast.walk(loop) if isinstance(node, ast.Compare)]
    bounds = [ast.unparse(part) for node in comparisons for part in (node.left, *node.comparators)]
    counts_all = any(_WORLD_SIZE.search(bound) and frame.values.get(bound, size) == size for bound in bounds)
    return MainCall(name="store", is_of_all=counts_all)


def position(frames: Sequence[ScriptFrame]) -> tuple[str, ...]:
    """Return where the main thread is in the script (``PythonStacks.position``)."""
    steps = []
    for frame in reversed(frames):
        returns = {node.lineno for node in frame.nodes if isinstance(node, ast.Return)}
        steps.append(f"in {frame.file} {function_of(frame.frame)}")
        steps += [f"exit {line}" for line in sorted(returns)]
        steps += _steps(frame)
    return tuple(steps)


def _steps(frame: ScriptFrame) -> list[str]:
    steps, number = [], frame.number
    for node in frame.nodes:
        if not getattr(node, "lineno", number + 1) <= number <= (node.end_lineno or 0):
            continue
        if isinstance(node, ast.stmt):
            steps.append(f"line {node.lineno}")
        is_in_head = isinstance(getattr(node, "body", None), list) and number < node.body[0].lineno
        if isinstance(node, LOOPS):
            ends = {(part.lineno, kind) for part, *outer in own_nodes(node) if (kind := _ends(part, *outer))}
            steps += [f"{kind} {line}" for line, kind in sorted(ends)]
        if isinstance(node, (ast.With, ast.AsyncWith)) and is_in_head:
            steps.append("with ?")  # Python comes here again after the body
        elif isinstance(node, LOOPS) and is_in_head:
            steps.append("turn ?")
        elif isinstance(node, LOOPS):
            is_counted = isinstance(node, ast.For) and _COUNTS.match(ast.unparse(node.iter))
            target = ast.walk(node.target) if isinstance(node, ast.For) and is_counted else ()
            counters = [part.id for part in target if isinstance(part, ast.Name)]
            steps.append(f"turn {frame.values.get(counters[0], '?') if counters else '?'}")
        elif isinstance(node, _BRANCHES) and not is_in_head:
            orelse = getattr(node, "orelse", None)
            is_else = bool(orelse) and isinstance(orelse, list) and number >= orelse[0].lineno
            steps.append(f"if {node.lineno} {is_else}")
    return steps


def _ends(node: ast.AST, around: Sequence[ast.AST]) -> str:
    """Return ``exit`` for a statement that leaves a loop, ``next`` for one that ends a turn of it; else ''.

    ``around`` are the nodes between both.
    """
    if isinstance(node, ast.Return):
        return "exit"
    if any(isinstance(outer, LOOPS) for outer in around):
        return ""
    return "exit" if isinstance(node, ast.Break) else "next" * isinstance(node, ast.Continue)


def calls_in_line(tree: ast.Module, number: int) -> list[tuple[str, ast.Call]]:
    """Return the calls in a line, with the names of their functions."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [
        (ast.unparse(call.func).rpartition(".")[2], call)
        for call in calls
        if call.lineno <= number <= (call.end_lineno or 0)
    ]


def own_lock_holder(frames: Sequence[ScriptFrame]) -> str:
    """Return the frame that holds the lock for which the ``with`` of the innermost frame waits; '' for none.

    A signal handler may interrupt a thread that has the lock.
    """
    inner, wanted = frames[0], ""
    for frame in frames:
        if frame.file != inner.file:
            continue
        for node in frame.nodes:
            if not isinstance(node, ast.With) or len(node.items) > 1:
                continue
            lock = ast.unparse(node.items[0].context_expr)
            is_same = len(assignments(inner.tree).get(lock, ())) == 1
            if lock.startswith("self."):
                is_same = " at 0x" in frame.owner and frame.owner == inner.owner
            if frame is inner and node.lineno == frame.number:
                wanted = lock
            elif lock == wanted and is_same and node.body[0].lineno <= frame.number <= (node.end_lineno or 0):
                return frame.frame
    return ""


def group_argument(frame: ScriptFrame, function: str, place: int) -> str | None:
    """Return the source of the process group that a frame passes to ``function`` as argument ``place``.

    It is '' if the frame passes none, and None if that is unknown.
    """
    calls = [call for name, call in calls_in_line(frame.tree, frame.number) if name == function]
    if len(calls) != 1 or any(isinstance(argument, ast.Starred) for argument in calls[0].args):
        return None
    groups = calls[0].args[place : place + 1]
    for keyword in calls[0].keywords:
        if keyword.arg is None:
            return None
        groups += [keyword.value] * ("group" in keyword.arg)
    return ast.unparse(groups[0])[:MOST_OF_A_KEY] if groups else ""


def store_call(frame: ScriptFrame) -> MainCall:
    """Return the wait for a store's key in the line of a frame, and the lines of the file that set keys.

    Keys that need variables which the frame does not show have their source only.
    """
    ways = [way.strip(".(") for way in STORE_WAITS]
    calls = [node for node in ast.walk(frame.tree) if isinstance(node, ast.Call) and node.args]
    owned = [(node, node.func) for node in calls if isinstance(node.func, ast.Attribute)]
    in_line = [call for _, call in calls_in_line(frame.tree, frame.number)]
    waits = [(node, owner) for node, owner in owned if owner.attr in ways and node in in_line]
    if len(waits) != 1:
        return MainCall()
    ((wait, function),) = waits
    store, keys = ast.unparse(function.value), texts_of(wait.args[0], frame.values)
    # The name of a variable would read as the key.
    source = "" if isinstance(wait.args[0], ast.Name) else ast.unparse(wait.args[0])
    sets = (
        f"{frame.file}:{node.lineno}\t{ast.unparse(node.args[0])[:MOST_OF_A_KEY]}"
        for node, setter in owned
        if setter.attr in STORE_SETS and ast.unparse(setter.value) == store
    )
    return MainCall(
        name="store",
        key=", ".join(keys)[:MOST_OF_A_KEY] if all(keys) else "",
        key_source=source[:MOST_OF_A_KEY],
        sets=tuple(sets)[:MOST_SETS],
    )


def open_block(spied: SpiedProcess, frames: Sequence[ScriptFrame], meets_all: bool) -> str:
    """Return ``FRAME: BLOCK`` of the innermost block that other ranks may not have entered; '' for none.

    An error may have led to it. If the rank waits in a call that ``meets_all``, a condition on its number may
    have. A look cannot read the error itself. A variable of the block's frame may hold it.
    """
    errors, script = dict(spied.errors), {frame.frame: frame for frame in frames}
    for frame in spied.main:
        if function_of(frame) in _EXITS and frame in errors:
            return f"{frame}: {function_of(frame)} after {errors[frame]}"
        if frame not in script:
            continue
        block = block_around(script[frame].tree, script[frame].number, meets_all)
        if block != "finally" and frame in errors:  # in that block, or in a function that a handler called
            block = f"except {errors[frame]}"
        if block:
            return f"{frame}: {block}"
    return ""


def _called(nodes: Sequence[ast.stmt], number: int = 0) -> set[str]:
    """Return the names of the functions that statements call, in line ``number`` only if there is one."""
    calls = [part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Call)]
    return {name_of(call) for call in calls if not number or call.lineno <= number <= (call.end_lineno or 0)}


def _statements(nodes: Sequence[ast.stmt], names: set[str]) -> list[str]:
    """Return those of ``names`` that statements call without a use of the result, in the order of lines."""
    parts = (part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Expr))
    calls = sorted((part.lineno, name_of(part.value)) for part in parts if isinstance(part.value, ast.Call))
    return [name for _, name in calls if name in names]


def block_around(tree: ast.Module, number: int, with_conditions: bool = True) -> str:
    """Return ``finally``, ``except ERROR`` or ``if RANK == …`` for the innermost block around a line.

    It is '' if there is none.
    """
    blocks = []
    for node, _ in own_nodes(scope_around(tree, number)):
        if isinstance(node, ast.Try) and node.finalbody:
            blocks.append((node.finalbody, "finally"))
        elif isinstance(node, ast.ExceptHandler):
            blocks.append((node.body, f"except {ast.unparse(node.type)}" if node.type else "except"))
        elif isinstance(node, ast.If) and with_conditions:
            # The other ranks make the same call in the other branch, perhaps in another order.
            shared = _called(node.body) & _called(node.orelse)
            own, other = _statements(node.body, shared), _statements(node.orelse, shared)
            is_other_order = own != other and sorted(own) == sorted(other)
            if shared & _called(node.body, number) and not is_other_order:
                continue
            test, parts = node.test, [node.test]
            if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
                parts = test.values
            conditions = map(ast.unparse, parts)
            blocks += [(node.body, f"if {text}") for text in conditions if _OF_ONE_RANK.fullmatch(text)]
    around = [
        (body[0].lineno, name)
        for body, name in blocks
        if body[0].lineno <= number <= (body[-1].end_lineno or 0)
    ]
    return max(around, default=(0, ""))[1]


@lru_cache(maxsize=16)
def assignments(tree: ast.Module) -> dict[str, list[ast.expr | None]]:
    """Return the values that a file gives to each variable and attribute; None for one that it passes."""
    values: dict[str, list[ast.expr | None]] = {}
    targets: set[ast.AST] = set()
    for node in ast.walk(tree):  # an assignment comes before its targets
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts))
                for part, value in pairs:
                    values.setdefault(ast.unparse(part), []).append(value)
                    targets.add(part)
        elif isinstance(node, ast.arg):
            values.setdefault(node.arg, []).append(None)
        elif isinstance(getattr(node, "ctx", None), ast.Store) and node not in targets:
            values.setdefault(ast.unparse(node), []).append(None)
    return values
