"""What the lines of the script around a frame say of its calls: roots of collectives, keys of a store.

It runs nothing of the user's. The prelude defines it in one space with ``clusterrun_witness.py``, where
torch is loaded, and with it what is imported here.
"""

from __future__ import annotations

import ast
import linecache
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ROOT_PLACES = {"broadcast": 1, "reduce": 1, "scatter": 2, "gather": 2, "gather_object": 2}
ROOT_PLACES.update({"broadcast_object_list": 1, "scatter_object_list": 2})
"""How many arguments of such a call stand before its root."""
VALUES = (ast.Name, ast.Load, ast.Constant, ast.IfExp, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp)
SIGNS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.boolop, ast.Not, ast.USub)
PLAIN = (*VALUES, *SIGNS, ast.Add, ast.Sub, ast.Mult, ast.Mod, ast.FloorDiv)
"""The nodes of an expression that ``evaluate`` computes: it runs no code of the user's."""
NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
ROOT_FRAMES = 8
ROOT_LINES = 60
MOST_OF_A_KEY = 200
MOST_KEYS = 64
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
STORE_WAITS = (".wait(", ".get(")
"""What a line calls of a store that waits until somebody has set a key."""
STORE_SETS = ("set", "add", "compare_set")
PARSED: dict[str, dict[tuple[str, int], Any]] = {}
"""Of each file what is in its functions and classes, by name and first line, and in the whole of it."""


def calls_near(frame: Any) -> list[str]:
    """What variables give to calls around the lines of a frame and of those that called it.

    ``RFILE:LINE ROOT``, ``KFILE:LINE`` tab ``KEY``, perhaps tab ``if …``. Which root a collective is given: a
    rank may have left it long before the others, and its record does not tell the root. Which key of a store
    is set there, and under which condition it is not.
    """
    PARSED.clear()
    found: list[str] = []
    for _ in range(ROOT_FRAMES):
        if frame is None:
            break
        code, here = frame.f_code, frame.f_lineno
        scope = {**frame.f_globals, **frame.f_locals}
        try:
            found += calls_in(code, code.co_firstlineno, here, scope)
            # Of the line that it is in, a key is set before another one is waited for.
            found += [one for one in calls_in(code, here, here + 1, scope) if one[0] == "K"]
            _, stores, loops = parts_of(code)
            around = [one for one in loops if one.lineno < here <= one.end_lineno]
            if around:
                # What stands below was called in the turn before: by what has not changed since.
                begin, end = around[0].lineno, min(around[0].end_lineno, here + ROOT_LINES) + 1
                found += calls_in(code, here + 1, end, {**scope, **assigned(stores, begin, end)})
        except Exception:  # noqa: BLE001 (a script that cannot be read; the rest of the answer counts)
            break
        frame = frame.f_back
    return found


def parts_of(code: Any) -> Any:
    """What is in the function, class or module of a code object; nothing of one that is not the user's.

    Calls (line, name, node, what is around it), names that are given values (line, names), loops.
    """
    file, name = code.co_filename, code.co_name
    if file not in PARSED:
        tree = ast.parse("" if is_installed(file) else "".join(linecache.getlines(file)))
        PARSED[file] = {("<module>", 0): parts_in(tree)}
        for one in ast.walk(tree):
            if isinstance(one, (*FUNCTIONS, ast.ClassDef)):
                first = min([one.lineno, *(decorator.lineno for decorator in one.decorator_list)])
                PARSED[file][one.name, first] = parts_in(one)
    return PARSED[file].get((name, 0 if name == "<module>" else code.co_firstlineno), ((), (), ()))


def parts_in(node: Any) -> Any:
    own = list(own_nodes(node))
    calls = [(one.lineno, name_of(one), one, above) for one, above in own if isinstance(one, ast.Call)]
    stores = [one for one, _ in own if isinstance(getattr(one, "ctx", None), ast.Store)]
    names = [[part.id for part in ast.walk(one) if isinstance(part, ast.Name)] for one in stores]
    given = [(one.lineno, some) for one, some in zip(stores, names)]
    return sorted(calls, key=lambda call: call[0]), given, [one for one, _ in own if isinstance(one, LOOPS)]


def own_nodes(node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """What is in a function, outermost first, with what is around it; not what is in functions within it."""
    for child in ast.iter_child_nodes(node):
        yield child, above
        if not isinstance(child, FUNCTIONS):
            yield from own_nodes(child, (*above, child))


def assigned(stores: Any, begin: int, end: int) -> dict[str, None]:
    """The names that lines of a function give values to, and perhaps others of them: None for each."""
    return {name: None for number, names in stores if begin <= number < end for name in names}


def mentions(function: Any) -> bool:
    """Whether this is a function of the user's with a collective that has a root, or that sets a key."""
    calls = parts_of(function.__code__)[0] if is_function(function) else ()
    return any(name in ROOT_PLACES or name in STORE_SETS for _, name, _, _ in calls)


def calls_in(code: Any, begin: int, end: int, scope: Any, deep: bool = True) -> list[str]:
    """The same of the lines ``begin`` to ``end`` of a function; ``deep``: and of those that these call."""
    file, found = code.co_filename, []
    calls, stores, _ = parts_of(code)
    for number, name, one, above in calls:
        if not max(begin, end - ROOT_LINES) <= number < end:
            continue
        owner = receiver_of(one.func, scope)
        plain = isinstance(one.func, ast.Name)
        function = scope.get(name) if plain else method_of(owner, name)
        sets = name in STORE_SETS and one.args and is_store(owner)
        if not sets and name not in ROOT_PLACES and not (deep and mentions(function)):
            continue
        known = {**scope, **assigned(stores, *((number + 1, end) if deep else (begin + 1, number)))}
        owner = receiver_of(one.func, known)
        if name in ROOT_PLACES:
            root = root_given(one, ROOT_PLACES[name], known)
            found += [f"R{file}:{number} {root}"] if type(root) is int else []
        elif sets and owner is not None:
            key = text_of(one.args[0], known)
            under = passed_by((*above, one), linecache.getlines(file), known)
            found += [f"K{file}:{number}\t{key[:MOST_OF_A_KEY]}{under}"] if key else []
        elif not sets and (plain or owner is not None):
            inner, given = function.__code__, with_arguments(one, function, known, owner)
            first = inner.co_firstlineno
            found += calls_in(inner, first, first + ROOT_LINES, given, deep=False)
    return found


def name_of(call: Any) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def passed_by(nodes: tuple[Any, ...], lines: list[str], scope: Any) -> str:
    """A tab and the ``if`` around the last of ``nodes`` that does not hold, as plain variables tell; or ''.

    What holds within a loop now may not have held in its turns before.
    """
    found = ""
    for around, inner in zip(nodes[-2::-1], nodes[:0:-1]):
        if isinstance(around, LOOPS):
            found = ""
        elif isinstance(around, ast.If) and inner in around.body:
            text = lines[around.lineno - 1].strip()
            if text.startswith("if ") and evaluate(around.test, scope) in (0, False):
                found = f"\t{text[:MOST_OF_A_KEY]}"
    return found


def method_of(owner: Any, name: str) -> Any:
    """What the class of an object defines under a name; None for what has none, and for modules."""
    kinds = () if owner is None or is_store(owner) else type(owner).__mro__
    return next((kind.__dict__[name] for kind in kinds if name in kind.__dict__), None)


def receiver_of(node: Any, scope: Any) -> Any:
    """What owns the method that a call names: a variable, or what one holds; None for any other."""
    owner = node.value if isinstance(node, ast.Attribute) else None
    if isinstance(owner, ast.Attribute):
        return attribute_of(receiver_of(owner, scope), owner.attr)
    return scope.get(owner.id) if isinstance(owner, ast.Name) else None


def owner_in(before: str, scope: Any) -> Any:
    name, *attributes = before[len(before.rstrip(NAME + ".")) :].split(".")
    found = scope.get(name)
    for attribute in attributes:
        found = attribute_of(found, attribute)
    return found


def attribute_of(owner: Any, name: str) -> Any:
    """What an object itself holds under a name, without a property or any method of the user's."""
    try:
        return object.__getattribute__(owner, "__dict__").get(name)
    except AttributeError:
        return None


def is_store(value: Any) -> bool:
    kind = getattr(sys.modules.get("torch._C._distributed_c10d"), "Store", None)
    return kind is not None and isinstance(value, kind)


def in_store(frame: Any) -> bool:
    """Whether a frame stands in a line that waits for a key of a store, as a variable of it names one."""
    scope, text = {**frame.f_globals, **frame.f_locals}, line(frame)
    return any(is_store(owner_in(part, scope)) for way in STORE_WAITS for part in text.split(way)[:-1])


def key_wanted(frame: Any) -> str:
    """The keys that a line waits for, where these are texts of plain variables; '' where they are not."""
    scope = {**frame.f_globals, **frame.f_locals}
    ways = [way.strip(".(") for way in STORE_WAITS]
    text = line(frame)
    try:
        parts = list(ast.walk(ast.parse(text.strip())))
    except SyntaxError:
        return ""
    waits = [one for one in parts if isinstance(one, ast.Call) and one.args and name_of(one) in ways]
    if len(waits) > 1:  # which of them it is in is known since Python 3.11
        begin = column(frame) - (len(text) - len(text.lstrip()))
        waits = [one for one in waits if one.col_offset == begin]
    found = texts_of(waits[0].args[0], scope) if len(waits) == 1 else []
    return ", ".join(found)[:MOST_OF_A_KEY] if all(found) else ""


def texts_of(node: Any, scope: Any) -> list[str]:
    """A text, or those of a list: written out, in a variable, or made of the values of one other."""
    value: Any = scope.get(node.id) if isinstance(node, ast.Name) else None
    if type(value) in (list, tuple):
        return [one if type(one) is str else "" for one in value[:MOST_KEYS]]
    if not isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return [text_of(part, scope) for part in getattr(node, "elts", [node])]
    (one, *others), name = node.generators, getattr(node.generators[0].target, "id", "")
    if others or one.ifs or not name:
        return []
    turns: Any = scope.get(one.iter.id) if isinstance(one.iter, ast.Name) else None
    if isinstance(one.iter, ast.Call) and getattr(one.iter.func, "id", "") == "range":
        limits = [evaluate(limit, scope) for limit in one.iter.args]
        turns = range(*limits) if limits and all(type(limit) is int for limit in limits) else None
    if type(turns) not in (list, tuple, range):
        return []
    return [text_of(node.elt, {**scope, name: turn}) for turn in turns[:MOST_KEYS]]


def column(frame: Any) -> int:
    """Where in its line the call begins that a frame is in; -1 where that is not known."""
    positions = list(getattr(frame.f_code, "co_positions", list)())
    place = positions[frame.f_lasti // 2] if frame.f_lasti // 2 < len(positions) else ()
    return place[2] if place and place[2] is not None else -1


def line(frame: Any) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno) if frame else ""


def is_installed(file: str) -> bool:
    """Whether a file is Python's, or of an installed package."""
    return "/site-packages/" in file or "/lib/python" in file


def is_function(value: Any) -> bool:
    return type(value) is type(is_function)


def with_arguments(one: Any, function: Any, scope: Any, owner: Any) -> dict[str, Any]:
    """What names stand for in a function called like that, perhaps of ``owner``; None if not known."""
    code, defaults = function.__code__, function.__defaults__ or ()
    own = dict.fromkeys((*code.co_varnames, *code.co_freevars))
    own.update(
        (name, cell) for name, cell in zip(code.co_freevars, closure_values(function)) if is_store(cell)
    )
    if not any(isinstance(value, ast.Starred) for value in one.args) and all(w.arg for w in one.keywords):
        names = code.co_varnames[: code.co_argcount]
        own.update(zip(names[len(names) - len(defaults) :], defaults))
        if isinstance(one.func, ast.Attribute):
            own.update(dict.fromkeys(names[:1], owner))
            names = names[1:]
        own.update((name, argument(value, scope)) for name, value in zip(names, one.args))
        own.update((word.arg, argument(word.value, scope)) for word in one.keywords)
    return {**function.__globals__, **own}


def closure_values(function: Any) -> list[Any]:
    """What the variables of the functions around one hold; None for one that is not set yet."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append(None)
    return found


def argument(node: Any, scope: Any) -> Any:
    """What is given to a function, where it is a number, a text or a store."""
    value = scope.get(node.id) if isinstance(node, ast.Name) else None
    if is_store(value):
        return value
    value = evaluate(node, scope)
    return value if value is not None else text_of(node, scope) or None


def root_given(one: Any, place: int, scope: Any) -> Any:
    """The root that variables give to a call, in which ``place`` arguments stand before it."""
    if any(word.arg in ("group_src", "group_dst", None) for word in one.keywords):
        return None
    if any(isinstance(value, ast.Starred) for value in one.args):
        return None
    given = [
        *one.args[place : place + 1],
        *(word.value for word in one.keywords if word.arg in ("src", "dst")),
    ]
    return evaluate(given[0], scope) if given else 0


def evaluate(node: Any, scope: Any) -> Any:
    """The value of an expression of plain variables and numbers; None for any other."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return attribute_of(scope.get(node.value.id), node.attr)
    parts = list(ast.walk(node))
    numbers = all(type(part.value) in (int, bool) for part in parts if isinstance(part, ast.Constant))
    if not numbers or not all(isinstance(part, PLAIN) for part in parts):
        return None
    plain = {name: value for name, value in scope.items() if type(value) in (int, bool)}
    try:
        return eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}}, plain)
    except Exception:  # noqa: BLE001
        return None


def text_of(node: Any, scope: Any) -> str:
    """A text, or one with plain variables in it; '' for any other."""
    if isinstance(node, ast.JoinedStr):
        parts = [text_of(part, scope) for part in node.values]
        return "".join(parts) if all(parts) else ""
    if isinstance(node, ast.FormattedValue) and not node.format_spec and node.conversion == -1:
        node = node.value
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [text_of(part, scope) for part in (node.left, node.right)]
        return "".join(parts) if all(parts) else ""
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "str" and len(node.args) == 1:
        node = node.args[0]
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is str else ""
    value = scope.get(node.id) if isinstance(node, ast.Name) else evaluate(node, scope)
    return str(value) if type(value) in (int, bool, str) else ""
