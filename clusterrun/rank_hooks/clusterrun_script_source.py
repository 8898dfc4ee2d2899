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
CALL_LINES = 6
MOST_KEYS = 64
DEFINES = ("def ", "async def ")
STORE_WAITS = (".wait(", ".get(")
"""What a line calls of a store that waits until somebody has set a key."""
STORE_SETS = ("set", "add", "compare_set")


def calls_near(frame: Any) -> list[str]:
    """What variables give to calls around the lines of a frame and of those that called it.

    ``RFILE:LINE ROOT``, ``KFILE:LINE`` tab ``KEY``, perhaps tab ``if …``. Which root a collective is given: a
    rank may have left it long before the others, and its record does not tell the root. Which key of a store
    is set there, and under which condition it is not.
    """
    found: list[str] = []
    for _ in range(ROOT_FRAMES):
        if frame is None:
            break
        code, here = frame.f_code, frame.f_lineno
        scope = {**frame.f_globals, **frame.f_locals}
        lines = linecache.getlines(code.co_filename)
        begin, end = loop_around(lines, code.co_firstlineno, here)
        try:
            found += calls_in(code, code.co_firstlineno, here, scope)
            # Of the line that it is in, a key is set before another one is waited for.
            found += [one for one in calls_in(code, here, here + 1, scope) if one[0] == "K"]
            # What stands below was called in the turn before: by what has not changed since.
            unknown = dict.fromkeys(name for text in lines[begin - 1 : end - 1] for name in assigned(text))
            found += calls_in(code, here + 1, end, {**scope, **unknown})
        except Exception:  # noqa: BLE001 (a script that cannot be read; the rest of the answer counts)
            break
        frame = frame.f_back
    return found


def calls_in(code: Any, begin: int, end: int, scope: Any, deep: bool = True) -> list[str]:
    """The same of the lines ``begin`` to ``end`` of a function; ``deep``: and of those that these call."""
    file = code.co_filename
    if is_installed(file):
        return []
    lines = linecache.getlines(file)
    end = end or last_line(code, lines)
    found, inner_margin = [], -1
    for number in range(max(begin, end - ROOT_LINES), min(end, len(lines) + 1)):
        text = lines[number - 1]
        margin, word = indent(lines, number), text.strip()
        if word and margin <= inner_margin and word[:1] != ")":
            inner_margin = -1
        if inner_margin < 0 and number > code.co_firstlineno and word.startswith(DEFINES):
            inner_margin = margin
        if inner_margin >= 0:
            continue  # what a function does is looked at where it is called
        names = called(text)
        plain = any(name in ROOT_PLACES for name, _ in names)
        plain = plain or (deep and any(mentions(function_of(of, scope)) for _, of in names))
        if not plain and not any(asks_store(text, (f".{way}(",), scope) for way in STORE_SETS):
            continue
        between = lines[number : end - 1] if deep else lines[begin : number - 1]
        known = {**scope, **dict.fromkeys(name for text in between for name in assigned(text))}
        for name, one in calls_of(lines[number - 1 : number - 1 + CALL_LINES]):
            owner = receiver_of(one.func, known)
            function = method_of(owner, name) if isinstance(one.func, ast.Attribute) else scope.get(name)
            if name in ROOT_PLACES:
                root = root_given(one, ROOT_PLACES[name], known)
                found += [f"R{file}:{number} {root}"] if type(root) is int else []
            elif name in STORE_SETS and one.args and is_store(owner):
                key = text_of(one.args[0], known)
                under = passed_by(lines, code.co_firstlineno, number, known)
                found += [f"K{file}:{number}\t{key[:MOST_OF_A_KEY]}{under}"] if key else []
            elif deep and mentions(function):
                inner, given = function.__code__, with_arguments(one, function, known, owner)
                found += calls_in(inner, inner.co_firstlineno, 0, given, deep=False)
    return found


def passed_by(lines: list[str], first: int, number: int, scope: Any) -> str:
    """A tab and the ``if`` around a line that does not hold, as plain variables tell; '' without one.

    What holds within a loop now may not have held in its turns before.
    """
    margin, found = indent(lines, number) + 1, ""
    for above in range(number, max(first, 1) - 1, -1):
        text = lines[above - 1].strip()
        if not text or indent(lines, above) >= margin:
            continue
        margin = indent(lines, above)
        if text.startswith(("for ", "while ", "async for ")):
            found = ""
        elif text.startswith("if ") and evaluate(condition(text), scope) in (0, False):
            found = f"\t{text[:MOST_OF_A_KEY]}"
    return found


def condition(text: str) -> Any:
    """What an ``if`` asks, whose first line this is; nothing that can be worked out where it goes on."""
    for whole in (f"{text}\n pass", text):
        try:
            return ast.parse(whole).body[0].test  # type: ignore[attr-defined]
        except SyntaxError:
            continue
    return ast.Name("", ast.Load())


def mentions(function: Any) -> bool:
    """Whether this is a function of the user's with a collective that has a root, or that sets a key."""
    if not is_function(function) or is_installed(function.__code__.co_filename):
        return False
    lines = linecache.getlines(function.__code__.co_filename)
    first = function.__code__.co_firstlineno
    text = "".join(lines[first - 1 : last_line(function.__code__, lines)])
    return any(f"{name}(" in text for name in (*ROOT_PLACES, *STORE_SETS))


def function_of(before: str, scope: Any) -> Any:
    """What the dotted name at the end of a text calls, where it is a function or a method in Python."""
    owner, dot, name = before.rpartition(".")
    if not dot or owner[-1:] not in NAME:
        return scope.get(before[len(before.rstrip(NAME)) :])
    return method_of(owner_in(owner, scope), name)


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
    """What the dotted name at the end of a text stands for."""
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


def asks_store(text: str, ways: tuple[str, ...], scope: Any) -> bool:
    """Whether a line calls one of ``ways`` of a store, as a variable of it names one."""
    return any(is_store(owner_in(part, scope)) for way in ways for part in text.split(way)[:-1])


def in_store(frame: Any) -> bool:
    """Whether a frame stands in a line that waits for a key of a store, as a variable of it names one."""
    return asks_store(line(frame), STORE_WAITS, {**frame.f_globals, **frame.f_locals})


def key_wanted(frame: Any) -> str:
    """The keys that a line waits for, where these are texts of plain variables; '' where they are not."""
    scope = {**frame.f_globals, **frame.f_locals}
    ways = [way.strip(".(") for way in STORE_WAITS]
    text = line(frame)
    waits = [one for name, one in calls_of([text]) if name in ways and one.args]
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
    """The line of the script in which a frame stands, where it can be had."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno) if frame else ""


def is_installed(file: str) -> bool:
    """Whether a file is Python's, or of an installed package."""
    return "/site-packages/" in file or "/lib/python" in file


def is_function(value: Any) -> bool:
    return type(value) is type(is_function)


def called(text: str) -> list[tuple[str, str]]:
    """The names before the brackets of a line, each with what stands in the line up to its end."""
    return [(part[len(part.rstrip(NAME)) :], part) for part in text.split("(")[:-1]]


def assigned(text: str) -> list[str]:
    """The names that a line gives values to, and perhaps others of it."""
    if text.rstrip().endswith(",") or text.count(")") > text.count("("):
        return []  # the arguments of a call
    found = [text.partition(" in ")[0]] if text.lstrip().startswith(("for ", "async for ")) else []
    for part in text.replace(";", ":").split(":"):
        head, equals, value = part.partition("=")
        if equals and value[:1] != "=" and head[-1:] not in "!<>" and "(" not in head:
            found.append(head)
    return [name for head in found for name in "".join(c if c in NAME else " " for c in head).split()]


def loop_around(lines: list[str], first: int, here: int) -> tuple[int, int]:
    """The lines from the head of the outermost loop around line ``here`` to its end; twice ``here``: none."""
    begin, margin = here, 1 + indent(lines, here)
    for number in range(here, max(first, here - ROOT_LINES) - 1, -1):
        text = lines[number - 1] if number <= len(lines) else ""
        if text.strip() and indent(lines, number) < margin:
            margin = indent(lines, number)
            begin = number if text.lstrip().startswith(("for ", "while ", "async for ")) else begin
    margin = indent(lines, begin)
    inside = range(here + 1, min(here + ROOT_LINES, len(lines)) + 1)
    ends = (number for number in inside if lines[number - 1].strip() and indent(lines, number) <= margin)
    return begin, next(ends, inside.stop) if begin < here else here


def indent(lines: list[str], number: int) -> int:
    text = lines[number - 1] if number <= len(lines) else ""
    return len(text) - len(text.lstrip())


def calls_of(lines: list[str]) -> list[tuple[str, Any]]:
    """The calls, with the names of what they call, in the statement that begins in the first of ``lines``."""
    if not lines or "(" not in lines[0] or lines[0].lstrip().startswith(("def ", "class ", "@", "#")):
        return []
    for most in range(1, len(lines) + 1):
        try:
            tree = ast.parse("".join(lines[:most]).strip())
        except SyntaxError:
            continue
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        return [(getattr(one.func, "attr", getattr(one.func, "id", "")), one) for one in calls]
    return []


def last_line(code: Any, lines: list[str]) -> int:
    """The line after the last one of a function, by its indentation, or as far as is looked."""
    first = int(code.co_firstlineno)
    inside = range(first + 1, min(first + ROOT_LINES, len(lines)) + 1)
    for number in inside:
        text = lines[number - 1].strip()
        if text and indent(lines, number) <= indent(lines, first) and not text.startswith((")", "def ")):
            return number
    return inside.stop


def with_arguments(one: Any, function: Any, scope: Any, owner: Any) -> dict[str, Any]:
    """What names stand for in a function that is called like that; None if that is not known.

    ``owner``: the object whose method it is, if it is one.
    """
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
