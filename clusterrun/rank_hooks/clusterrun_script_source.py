"""Read the script's lines around a frame for its calls: roots of collectives, keys of a store.

It runs no code of the user. The prelude executes it in one namespace with ``clusterrun_witness.py`` after
torch is loaded, so its imports are loaded too.
"""

from __future__ import annotations

import ast
import linecache
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# The number of arguments before the root, for each collective.
ROOT_PLACES = {"broadcast": 1, "reduce": 1, "scatter": 2, "gather": 2, "gather_object": 2}
ROOT_PLACES.update({"broadcast_object_list": 1, "scatter_object_list": 2})
VALUES = (ast.Name, ast.Load, ast.Constant, ast.IfExp, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp)
SIGNS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.boolop, ast.Not, ast.USub)
# The nodes of an expression that ``evaluate`` computes. It runs no code of the user.
PLAIN = (*VALUES, *SIGNS, ast.Add, ast.Sub, ast.Mult, ast.Mod, ast.FloorDiv, ast.BitXor)
NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
ROOT_FRAMES = 8
ROOT_LINES = 60
MOST_OF_A_KEY = 200
MOST_KEYS = 64
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
# Calls of a store that wait until another process has set a key.
STORE_WAITS = (".wait(", ".get(")
STORE_SETS = ("set", "add", "compare_set")
# The contents of each file's functions and classes, by name and first line, and of its module level.
PARSED: dict[str, dict[tuple[str, int], Any]] = {}


def calls_near(frame: Any) -> list[str]:
    """Return the roots and keys that variables give to calls near the lines of a frame and its callers.

    A root of a collective is ``RFILE:LINE ROOT``. A rank may have left the collective long before the others,
    and its record does not hold the root. A key that is set in a store is ``KFILE:LINE`` tab ``KEY``
    (its source, unless it is a text of plain variables), followed by tab ``if …`` if a condition prevents
    the call.
    """
    PARSED.clear()
    texts: list[str] = []
    for _ in range(ROOT_FRAMES):
        if frame is None:
            break
        code, number = frame.f_code, frame.f_lineno
        scope = {**frame.f_globals, **frame.f_locals}
        try:
            texts += calls_in(code, code.co_firstlineno, number, scope)
            # The current line may set a key before it waits for another key.
            texts += [text for text in calls_in(code, number, number + 1, scope) if text[0] == "K"]
            _, stores, loops, _ = parts_of(code)
            around = [loop for loop in loops if loop.lineno < number <= loop.end_lineno]
            if around:
                # The lines below ran in the previous turn, with the variables that have not changed since.
                begin, end = around[0].lineno, min(around[0].end_lineno, number + ROOT_LINES) + 1
                texts += calls_in(code, number + 1, end, {**scope, **assigned(stores, begin, end)})
        except Exception:  # noqa: BLE001 (the script cannot be read; the rest of the answer counts)
            break
        frame = frame.f_back
    return texts


def parts_of(code: Any) -> Any:
    """Return the calls, assignments, loops and ``with`` in the function, class or module of a code object.

    A call is (line, name, node, enclosing nodes), an assignment (line, names). The last are the ``with``
    statements. All are empty if the code is not the user's.
    """
    file, name = code.co_filename, code.co_name
    if file not in PARSED:
        tree = ast.parse("" if is_installed(file) else "".join(linecache.getlines(file)))
        PARSED[file] = {("<module>", 0): parts_in(tree)}
        for node in ast.walk(tree):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                PARSED[file][node.name, first] = parts_in(node)
    return PARSED[file].get((name, 0 if name == "<module>" else code.co_firstlineno), ((), (), (), ()))


def parts_in(node: Any) -> Any:
    calls, assignments, loops, withs = [], [], [], []
    for child, above in own_nodes(node):
        if isinstance(child, ast.Call):
            calls.append((child.lineno, name_of(child), child, above))
        elif isinstance(getattr(child, "ctx", None), ast.Store):
            names = [part.id for part in ast.walk(child) if isinstance(part, ast.Name)]
            assignments.append((child.lineno, names))
        elif isinstance(child, LOOPS):
            loops.append(child)
        elif isinstance(child, ast.With):
            withs.append(child)
    return sorted(calls, key=lambda call: call[0]), assignments, loops, withs


def own_nodes(node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the nodes of a function with their enclosing nodes, outermost first, without nested functions."""
    for child in ast.iter_child_nodes(node):
        yield child, above
        if not isinstance(child, FUNCTIONS):
            yield from own_nodes(child, (*above, child))


def stays_while(loop: Any) -> str:
    """Return the condition under which a ``while`` continues; '' if it is unknown.

    A ``while True`` is left under a condition, or after a statement that raises no error any more.
    """
    if not isinstance(loop, ast.While):
        return ""
    if not isinstance(loop.test, ast.Constant):
        return ast.unparse(loop.test)[:MOST_OF_A_KEY]
    for node in ast.walk(loop):
        if not isinstance(node, (ast.If, ast.Try)):
            continue
        if not any(isinstance(statement, (ast.Break, ast.Return)) for statement in node.body + node.orelse):
            continue
        if isinstance(node, ast.If):
            does_leave = isinstance(node.body[-1], (ast.Break, ast.Return))
            test = ast.unparse(ast.UnaryOp(ast.Not(), node.test) if does_leave else node.test)
            return (test[len("not not ") :] if test.startswith("not not ") else test)[:MOST_OF_A_KEY]
        errors = ", ".join(ast.unparse(handler.type) for handler in node.handlers if handler.type)
        return f"{ast.unparse(node.body[0])[:MOST_OF_A_KEY]} raises {errors or 'an error'}"
    return ""


def assigned(stores: Any, begin: int, end: int) -> dict[str, None]:
    """Return the names that lines of a function assign to (perhaps also their owners), each with None."""
    return {name: None for number, names in stores if begin <= number < end for name in names}


def mentions(function: Any) -> bool:
    """Return whether this is a function of the user that sets a key or calls a collective with a root."""
    calls = parts_of(function.__code__)[0] if is_function(function) else ()
    return any(name in ROOT_PLACES or name in STORE_SETS for _, name, _, _ in calls)


def calls_in(code: Any, begin: int, end: int, scope: Any, deep: bool = True) -> list[str]:
    """Return the texts of ``calls_near`` for the lines ``begin`` to ``end`` of a function.

    ``deep``: include the functions that these lines call.
    """
    file, texts = code.co_filename, []
    calls, stores, *_ = parts_of(code)
    for number, name, call, above in calls:
        if not max(begin, end - ROOT_LINES) <= number < end:
            continue
        owner = receiver_of(call.func, scope)
        plain = isinstance(call.func, ast.Name)
        function = scope.get(name) if plain else method_of(owner, name)
        sets = name in STORE_SETS and call.args and is_store(owner)
        if not sets and name not in ROOT_PLACES and not (deep and mentions(function)):
            continue
        # Variables that other lines may have changed are unknown.
        changed = (number + 1, end) if deep else (begin + 1, number)
        variables = {**scope, **assigned(stores, *changed)}
        owner = receiver_of(call.func, variables)
        if name in ROOT_PLACES:
            root = root_given(call, ROOT_PLACES[name], variables)
            texts += [f"R{file}:{number} {root}"] if type(root) is int else []
        elif sets and owner is not None:
            key = text_of(call.args[0], variables) or ast.unparse(call.args[0])
            under = passed_by((*above, call), linecache.getlines(file), variables)
            texts.append(f"K{file}:{number}\t{key[:MOST_OF_A_KEY]}{under}")
        elif not sets and (plain or owner is not None):
            inner, inner_scope = function.__code__, with_arguments(call, function, variables, owner)
            first = inner.co_firstlineno
            texts += calls_in(inner, first, first + ROOT_LINES, inner_scope, deep=False)
    return texts


def name_of(call: Any) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def passed_by(nodes: tuple[Any, ...], lines: list[str], scope: Any) -> str:
    """Return a tab and the ``if`` around the last of ``nodes`` that is false by its plain variables; or ''.

    Conditions inside a loop do not count: they may have had another value in its earlier turns.
    """
    condition = ""
    for around, inner in zip(nodes[-2::-1], nodes[:0:-1]):
        if isinstance(around, LOOPS):
            condition = ""
        elif isinstance(around, ast.If) and inner in around.body:
            text = lines[around.lineno - 1].strip()
            if text.startswith("if ") and evaluate(around.test, scope) in (0, False):
                condition = f"\t{text[:MOST_OF_A_KEY]}"
    return condition


def method_of(owner: Any, name: str) -> Any:
    """Return the attribute of an object's class; None if it has none, and for stores."""
    kinds = () if owner is None or is_store(owner) else type(owner).__mro__
    return next((kind.__dict__[name] for kind in kinds if name in kind.__dict__), None)


def receiver_of(node: Any, scope: Any) -> Any:
    """Return the owner of the method that a call names: a variable or its attribute; None for any other."""
    return value_of(node.value, scope) if isinstance(node, ast.Attribute) else None


def value_of(node: Any, scope: Any) -> Any:
    """Return the value of a variable, or of an attribute of one; None for any other expression."""
    if isinstance(node, ast.Attribute):
        return attribute_of(value_of(node.value, scope), node.attr)
    return scope.get(node.id) if isinstance(node, ast.Name) else None


def owner_in(before: str, scope: Any) -> Any:
    name, *attributes = before[len(before.rstrip(NAME + ".")) :].split(".")
    owner = scope.get(name)
    for attribute in attributes:
        owner = attribute_of(owner, attribute)
    return owner


def attribute_of(owner: Any, name: str) -> Any:
    """Return an attribute of an object's ``__dict__``, without running a property or method of the user."""
    try:
        return object.__getattribute__(owner, "__dict__").get(name)
    except AttributeError:
        return None


def is_store(value: Any) -> bool:
    kind = getattr(sys.modules.get("torch._C._distributed_c10d"), "Store", None)
    return kind is not None and isinstance(value, kind)


def in_store(frame: Any) -> bool:
    """Return whether a frame's line waits for a key of a store that a variable of the frame holds."""
    scope, text = {**frame.f_globals, **frame.f_locals}, line(frame)
    return any(is_store(owner_in(part, scope)) for way in STORE_WAITS for part in text.split(way)[:-1])


def key_wanted(frame: Any) -> tuple[str, str]:
    """Return the keys that a line waits for, and their source.

    The keys are '' unless they are texts of plain variables.
    """
    scope = {**frame.f_globals, **frame.f_locals}
    ways = [way.strip(".(") for way in STORE_WAITS]
    text = line(frame)
    try:
        parts = list(ast.walk(ast.parse(text.strip())))
    except SyntaxError:
        return "", ""
    waits = [call for call in parts if isinstance(call, ast.Call) and call.args and name_of(call) in ways]
    if len(waits) > 1:  # Python 3.11 and later have the column of the current call
        begin = column(frame) - (len(text) - len(text.lstrip()))
        waits = [call for call in waits if call.col_offset == begin]
    if len(waits) != 1:
        return "", ""
    keys, source = texts_of(waits[0].args[0], scope), ast.unparse(waits[0].args[0])
    return ", ".join(keys)[:MOST_OF_A_KEY] if all(keys) else "", source[:MOST_OF_A_KEY]


def texts_of(node: Any, scope: Any) -> list[str]:
    """Return a text or the texts of a list: literal, in a variable, or built from another variable."""
    value: Any = scope.get(node.id) if isinstance(node, ast.Name) else None
    if type(value) in (list, tuple):
        return [text if type(text) is str else "" for text in value[:MOST_KEYS]]
    if not isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return [text_of(part, scope) for part in getattr(node, "elts", [node])]
    (loop, *others), name = node.generators, getattr(node.generators[0].target, "id", "")
    if others or loop.ifs or not name:
        return []
    turns: Any = scope.get(loop.iter.id) if isinstance(loop.iter, ast.Name) else None
    if isinstance(loop.iter, ast.Call) and getattr(loop.iter.func, "id", "") == "range":
        limits = [evaluate(limit, scope) for limit in loop.iter.args]
        turns = range(*limits) if limits and all(type(limit) is int for limit in limits) else None
    if type(turns) not in (list, tuple, range):
        return []
    return [text_of(node.elt, {**scope, name: turn}) for turn in turns[:MOST_KEYS]]


def column(frame: Any) -> int:
    """Return the column at which a frame's current call begins in its line; -1 if it is unknown."""
    positions = list(getattr(frame.f_code, "co_positions", list)())
    place = positions[frame.f_lasti // 2] if frame.f_lasti // 2 < len(positions) else ()
    return place[2] if place and place[2] is not None else -1


def line(frame: Any) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno) if frame else ""


def is_installed(file: str) -> bool:
    """Return whether a file belongs to Python or an installed package."""
    return "/site-packages/" in file or "/lib/python" in file


def is_function(value: Any) -> bool:
    return type(value) is type(is_function)


def with_arguments(call: Any, function: Any, scope: Any, owner: Any) -> dict[str, Any]:
    """Return the variables at the start of a called function (perhaps a method of ``owner``).

    Unknown values are None.
    """
    code, defaults = function.__code__, function.__defaults__ or ()
    own_names = dict.fromkeys((*code.co_varnames, *code.co_freevars))
    own_names.update(
        (name, cell) for name, cell in zip(code.co_freevars, closure_values(function)) if is_store(cell)
    )
    if not any(isinstance(value, ast.Starred) for value in call.args) and all(
        keyword.arg for keyword in call.keywords
    ):
        names = code.co_varnames[: code.co_argcount]
        own_names.update(zip(names[len(names) - len(defaults) :], defaults))
        if isinstance(call.func, ast.Attribute):
            own_names.update(dict.fromkeys(names[:1], owner))
            names = names[1:]
        own_names.update((name, argument(value, scope)) for name, value in zip(names, call.args))
        own_names.update((word.arg, argument(word.value, scope)) for word in call.keywords)
    return {**function.__globals__, **own_names}


def closure_values(function: Any) -> list[Any]:
    """Return the values of a closure's variables; None for a variable that is not set yet."""
    values = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:
            values.append(None)
    return values


def argument(node: Any, scope: Any) -> Any:
    """Return the value of an argument if it is a number, a text or a store; else None."""
    value = scope.get(node.id) if isinstance(node, ast.Name) else None
    if is_store(value):
        return value
    value = evaluate(node, scope)
    return value if value is not None else text_of(node, scope) or None


def root_given(call: Any, place: int, scope: Any) -> Any:
    """Return the root that variables give to a call. ``place`` is the number of arguments before it."""
    if any(word.arg in ("group_src", "group_dst", None) for word in call.keywords):
        return None
    if any(isinstance(value, ast.Starred) for value in call.args):
        return None
    arguments = [
        *call.args[place : place + 1],
        *(word.value for word in call.keywords if word.arg in ("src", "dst")),
    ]
    return evaluate(arguments[0], scope) if arguments else 0


def evaluate(node: Any, scope: Any) -> Any:
    """Return the value of an expression of plain variables and numbers; None for any other."""
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
    """Return a text, perhaps with plain variables in it; '' for any other expression."""
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
