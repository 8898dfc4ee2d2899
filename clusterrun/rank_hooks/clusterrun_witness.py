"""What torch knows in this rank, as JSON: groups, collectives begun, flight records; asks no other process.

It is read when somebody first asks, not at the start of a rank, and imports nothing: a file of the
user might bear the name of what is wanted.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_GROUPS = 64
LAST_RECORDS = 16
MOST_RANKS = 2000
"""Characters of a group's list of ranks."""
HEARTBEAT_SECONDS = 480
"""What torch gives NCCL's watchdog thread before it aborts the rank, where the environment names no other."""
RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""NCCL's collectives stand in one of their own, in builds of torch that have it; all others in the second."""
UNRECORDED = ("_MPI_AVAILABLE", "_UCC_AVAILABLE", "_XCCL_AVAILABLE")
MEETING = ("_create_c10d_store", "_env_rendezvous_handler", "init_process_group")
MAKING = "_new_group_with_tag"
"""What ``new_group`` calls, and a device mesh for each of its groups."""
STORES = (("hostname", "port"), ("master_addr", "master_port"))
"""What functions that meet call the address of the store."""
PEERS = {"send": "dst", "recv": "src"}
"""Which argument of a call names the other rank."""
ROOTS = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}
"""Which argument of a collective names its root."""
MAIN_THREAD = getattr(getattr(sys.modules.get("threading"), "main_thread", lambda: None)(), "ident", 0) or 0
ROOT_PLACES = {"broadcast": 1, "reduce": 1, "scatter": 2, "gather": 2, "gather_object": 2}
ROOT_PLACES.update({"broadcast_object_list": 1, "scatter_object_list": 2})
"""How many arguments of such a call stand before its root."""
PLAIN = {
    "Name",
    "Constant",
    "Load",
    "IfExp",
    "Compare",
    "Eq",
    "NotEq",
    "Lt",
    "LtE",
    "Gt",
    "GtE",
    "BoolOp",
    "And",
}
PLAIN |= {"Or", "UnaryOp", "Not", "USub", "BinOp", "Add", "Sub", "Mult", "Mod", "FloorDiv"}
"""What an expression may consist of that is worked out here: it runs nothing of the user's."""
NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
ROOT_FRAMES = 8
ROOT_LINES = 60
MOST_ROOTS = 16
MOST_OF_A_KEY = 200
CALL_LINES = 6
POSTING_FRAMES = 3
MOST_POSTS = 64
WAIT = ".wait("
"""How a line calls torch's ``Work``, whose frames are no Python."""
STORE_WAITS = (".wait(", ".get(")
"""What a line calls of a store that waits until somebody has set a key."""
STORE_SETS = ("set", "add", "compare_set")
MOST_TASKS = 8
INDEPENDENT = "CLUSTERRUN_INDEPENDENT"
"""Set to 1 by users whose ranks are not meant to train together."""
UNUSED = {"FAKE"}
"""A backend for tests, which FSDP, and with it many frameworks, registers whenever it is imported."""
KEPT = ("collective_seq_id", "op_id", "profiling_name", "input_sizes", "input_dtypes", "retired")
"""What is wanted of a flight record beside its group, its state and its times."""


def last_words(name: str, size: int) -> None:
    """At the end of a rank: leave the flight records of one that failed, or word of one that was alone."""
    json = sys.modules.get("json")
    failed = hasattr(sys, "last_type") or hasattr(sys, "last_exc")
    if json is None:
        return
    said = json.loads(words(0, LAST_RECORDS))
    alone = os.environ.get(INDEPENDENT) != "1" and was_alone(said.get("groups", ()), said.get("records", ()))
    if alone or (failed and said.get("records")):
        said.update({"failed": failed, "alone": alone, "size": size})
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        os.write(file, json.dumps(said).encode() + b"\n")
        os.close(file)


def was_alone(groups: Any, records: Any) -> bool:
    """Whether a rank has never begun a collective with another one, as far as that is certain."""
    if groups:
        return all(group["size"] == 1 or group["sequence"] == 0 for group in groups)
    # The groups may have been taken apart: only recorders that are on for every backend know.
    torch = sys.modules.get("torch._C._distributed_c10d")
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    others = any(getattr(c10d, name, False) for name in UNRECORDED)
    others = others or bool(set(getattr(getattr(c10d, "Backend", None), "_plugins", ())) - UNUSED)
    sizes = [os.environ.get(name) for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")]
    return hasattr(torch, RECORDERS[1]) and not others and "0" not in sizes and not records


def words(number: int, records: int, size: int = 0) -> str:
    """The answer to a question, as JSON; ``records``: how many flight records of each group are wanted.

    ``size`` is the world that this rank was started in.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    json = sys.modules.get("json")
    if c10d is None or json is None or not hasattr(c10d, "_world"):
        torch = "true" if "torch" in sys.modules else "false"
        return f'{{"ask": {number}, "torch": {torch}}}'
    made = getattr(c10d._world, "group_count", 0)
    said = {"ask": number, "torch": True, "groups": groups(c10d, records > 0)}
    if records:
        said["records"] = flight(json, records)
        near = calls_near()
        roots, keys = ([one[1:] for one in near if one[0] == kind][:MOST_ROOTS] for kind in "RK")
        said["call"] = {**call(c10d), "started": size, "made": made, "named": roots, "sets": keys, **tasks()}
    return str(json.dumps(said))


def call(c10d: Any) -> dict[str, Any]:
    """What no record tells: a call's peer or root, the size of the world that is waited for."""
    inner = frame = sys._current_frames().get(MAIN_THREAD)
    while frame is not None:
        name, local = frame.f_code.co_name, frame.f_locals
        if name in MEETING and isinstance(local.get("world_size"), int) and local["world_size"] > 0:
            return {"world": local["world_size"], "asks": local.get("rank"), "store": store(local)}
        if frame.f_globals.get("__name__") == c10d.__name__:
            if name in PEERS:
                peer, tag = named(c10d, local, PEERS[name]), local.get("tag")
                return {"name": name, "peer": peer, "tag": tag if isinstance(tag, int) else 0}
            if name == MAKING and isinstance(local.get("ranks"), list):
                return {"makes": [str(local.get("group_name", "")), spans(sorted(local["ranks"]))]}
            if name in ROOTS:
                return {"rooted": name, "root": named(c10d, local, ROOTS[name])}
        frame = frame.f_back
    if in_store(inner):
        return {"name": "store", "key": key_wanted(inner)}
    return {"name": "wait", "posts": posts(c10d, inner)} if WAIT in line(inner) else {}


def calls_near() -> list[str]:
    """What variables give to calls around the lines of the frames.

    ``RFILE:LINE ROOT``, ``KFILE:LINE`` tab ``KEY``. Which root a collective is given: a rank may have left
    it long before the others, and its record does not tell the root. Which key of a store is set there.
    """
    ast, linecache = sys.modules.get("ast"), sys.modules.get("linecache")
    found: list[str] = []
    frame = sys._current_frames().get(MAIN_THREAD)
    for _ in range(ROOT_FRAMES):
        if frame is None or ast is None or linecache is None:
            break
        code, here = frame.f_code, frame.f_lineno
        scope = {**frame.f_globals, **frame.f_locals}
        lines = linecache.getlines(code.co_filename)
        begin, end = loop_around(lines, code.co_firstlineno, here)
        try:
            found += calls_in(ast, linecache, code, code.co_firstlineno, here, scope)
            # Of the line that it is in, a key is set before another one is waited for.
            found += [one for one in calls_in(ast, linecache, code, here, here + 1, scope) if one[0] == "K"]
            # What stands below was called in the turn before: by what has not changed since.
            unknown = dict.fromkeys(name for text in lines[begin - 1 : end - 1] for name in assigned(text))
            found += calls_in(ast, linecache, code, here + 1, end, {**scope, **unknown})
        except Exception:  # noqa: BLE001 (a script that cannot be read; the rest of the answer counts)
            break
        frame = frame.f_back
    return found


def calls_in(
    ast: Any, linecache: Any, code: Any, begin: int, end: int, scope: Any, deep: bool = True
) -> list[str]:
    """The same of the lines ``begin`` to ``end`` of a function; ``deep``: and of those that these call."""
    file = code.co_filename
    if is_installed(file):
        return []
    lines = linecache.getlines(file)
    end = end or last_line(code, lines)
    found = []
    for number in range(max(begin, end - ROOT_LINES), min(end, len(lines) + 1)):
        text = lines[number - 1]
        names = called(text)
        plain = any(name in ROOT_PLACES for name, _ in names)
        plain = plain or (deep and any(mentions(linecache, function_of(of, scope)) for _, of in names))
        if not plain and not any(asks_store(text, (f".{way}(",), scope) for way in STORE_SETS):
            continue
        between = lines[number : end - 1] if deep else lines[begin : number - 1]
        known = {**scope, **dict.fromkeys(name for text in between for name in assigned(text))}
        for name, one in calls_of(ast, lines[number - 1 : number - 1 + CALL_LINES]):
            owner = value_of(ast, one.func, known)
            function = method_of(owner, name) if isinstance(one.func, ast.Attribute) else scope.get(name)
            if name in ROOT_PLACES:
                root = root_given(ast, one, ROOT_PLACES[name], known)
                found += [f"R{file}:{number} {root}"] if type(root) is int else []
            elif name in STORE_SETS and one.args and is_store(owner):
                key = text_of(ast, one.args[0], known)
                found += [f"K{file}:{number}\t{key[:MOST_OF_A_KEY]}"] if key else []
            elif deep and mentions(linecache, function):
                inner, given = function.__code__, with_arguments(ast, one, function, known, owner)
                found += calls_in(ast, linecache, inner, inner.co_firstlineno, 0, given, deep=False)
    return found


def mentions(linecache: Any, function: Any) -> bool:
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


def value_of(ast: Any, node: Any, scope: Any) -> Any:
    """What owns the method that a call names: a variable, or what one holds; None for any other."""
    owner = node.value if isinstance(node, ast.Attribute) else None
    if isinstance(owner, ast.Attribute):
        return attribute_of(value_of(ast, owner, scope), owner.attr)
    return scope.get(owner.id) if isinstance(owner, ast.Name) else None


def is_store(value: Any) -> bool:
    """Whether this is a store of torch's."""
    kind = getattr(sys.modules.get("torch._C._distributed_c10d"), "Store", None)
    return kind is not None and isinstance(value, kind)


def tasks() -> dict[str, list[str]]:
    """Where asyncio's tasks stand while its loop runs in the main thread, and how others of them failed."""
    try:
        return {"tasks": tasks_in_loop()}
    except Exception:  # noqa: BLE001 (tasks come and go meanwhile; the rest of the answer counts)
        return {}


def tasks_in_loop() -> list[str]:
    """``FILE:LINE FUNCTION`` of each one's innermost frame of the user's; ``: ERROR`` where it has failed."""
    asyncio = sys.modules.get("asyncio.tasks")
    frame = sys._current_frames().get(MAIN_THREAD)
    while frame is not None and frame.f_code.co_name != "run_forever":
        frame = frame.f_back
    loop = frame and frame.f_locals.get("self")
    if asyncio is None or loop is None:
        return []
    known = list(getattr(asyncio, "_all_tasks", getattr(asyncio, "_scheduled_tasks", ())))
    found = []
    for task in known[: 8 * MOST_TASKS]:
        error = getattr(task, "_exception", None)
        if task.done() and error is not None:
            trace, frames = error.__traceback__, []
            while trace is not None:
                frames.append((trace.tb_frame.f_code, trace.tb_lineno))
                trace = trace.tb_next
            found.append(f"{own_place(frames)}: {type(error).__name__}: {error}"[:MOST_OF_A_KEY])
        elif not task.done() and task.get_loop() is loop:
            awaits, frames = task.get_coro(), []
            while getattr(awaits, "cr_frame", None) is not None:
                frames.append((awaits.cr_frame.f_code, awaits.cr_frame.f_lineno))
                awaits = awaits.cr_await
            found.append(own_place(frames))
    return [one for one in found if one[:1] not in ("", ":")][:MOST_TASKS]


def own_place(frames: list[Any]) -> str:
    """The innermost of frames, given outermost first, that is the user's own; '' without one."""
    own = [pair for pair in frames if not is_installed(pair[0].co_filename)]
    return f"{own[-1][0].co_filename}:{own[-1][1]} {own[-1][0].co_name}" if own else ""


def is_installed(file: str) -> bool:
    """Whether a file is Python's, or of an installed package."""
    return "/site-packages/" in file or "/lib/python" in file


def is_function(value: Any) -> bool:
    """Whether this is a function of Python's."""
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
    """How far a line is indented."""
    text = lines[number - 1] if number <= len(lines) else ""
    return len(text) - len(text.lstrip())


def calls_of(ast: Any, lines: list[str]) -> list[tuple[str, Any]]:
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


def with_arguments(ast: Any, one: Any, function: Any, scope: Any, owner: Any) -> dict[str, Any]:
    """What names stand for in a function that is called like that; None where that is not known.

    ``owner``: the object whose method it is, if it is one.
    """
    code, defaults = function.__code__, function.__defaults__ or ()
    own = dict.fromkeys((*code.co_varnames, *code.co_freevars))
    own.update((name, cell) for name, cell in zip(code.co_freevars, cells(function)) if is_store(cell))
    if not any(isinstance(value, ast.Starred) for value in one.args) and all(w.arg for w in one.keywords):
        names = code.co_varnames[: code.co_argcount]
        own.update(zip(names[len(names) - len(defaults) :], defaults))
        if isinstance(one.func, ast.Attribute):
            own.update(dict.fromkeys(names[:1], owner))
            names = names[1:]
        own.update((name, argument(ast, value, scope)) for name, value in zip(names, one.args))
        own.update((word.arg, argument(ast, word.value, scope)) for word in one.keywords)
    return {**function.__globals__, **own}


def cells(function: Any) -> list[Any]:
    """What the variables of the functions around one hold; None for one that is not set yet."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append(None)
    return found


def argument(ast: Any, node: Any, scope: Any) -> Any:
    """What is given to a function, where it is a number, a text or a store."""
    value = scope.get(node.id) if isinstance(node, ast.Name) else None
    if is_store(value):
        return value
    value = worked_out(ast, node, scope)
    return value if value is not None else text_of(ast, node, scope) or None


def root_given(ast: Any, one: Any, place: int, scope: Any) -> Any:
    """The root that variables give to a call, in which ``place`` arguments stand before it."""
    if any(word.arg in ("group_src", "group_dst", None) for word in one.keywords):
        return None
    if any(isinstance(value, ast.Starred) for value in one.args):
        return None
    given = [
        *one.args[place : place + 1],
        *(word.value for word in one.keywords if word.arg in ("src", "dst")),
    ]
    return worked_out(ast, given[0], scope) if given else 0


def worked_out(ast: Any, node: Any, scope: Any) -> Any:
    """The value of an expression of plain variables and numbers; None for any other."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return attribute_of(scope.get(node.value.id), node.attr)
    parts = list(ast.walk(node))
    numbers = all(type(part.value) in (int, bool) for part in parts if isinstance(part, ast.Constant))
    if not numbers or not all(type(part).__name__ in PLAIN for part in parts):
        return None
    plain = {name: value for name, value in scope.items() if type(value) in (int, bool)}
    try:
        return eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}}, plain)
    except Exception:  # noqa: BLE001
        return None


def posts(c10d: Any, frame: Any) -> list[list[Any]]:
    """The sends and receives that the variables of a frame, or of what called it, hold as ``P2POp``."""
    kind = getattr(c10d, "P2POp", None)
    for _ in range(POSTING_FRAMES):
        if kind is None or frame is None:
            break
        held = [one if isinstance(one, (list, tuple)) else (one,) for one in list(frame.f_locals.values())]
        found = {id(op): op for some in held for op in some[:MOST_POSTS] if isinstance(op, kind)}
        if found:
            return [[op.op.__name__, op.peer, op.tag] for op in list(found.values())[:MOST_POSTS]]
        frame = frame.f_back
    return []


def in_store(frame: Any) -> bool:
    """Whether a frame stands in a line that waits for a key of a store, as a variable of it names one."""
    return asks_store(line(frame), STORE_WAITS, {**frame.f_globals, **frame.f_locals})


def asks_store(text: str, ways: tuple[str, ...], scope: Any) -> bool:
    """Whether a line calls one of ``ways`` of a store, as a variable of it names one."""
    return any(is_store(owner_in(part, scope)) for way in ways for part in text.split(way)[:-1])


def owner_in(before: str, scope: Any) -> Any:
    """What the dotted name at the end of a text stands for."""
    name, *attributes = before[len(before.rstrip(NAME + ".")) :].split(".")
    found = scope.get(name)
    for attribute in attributes:
        found = attribute_of(found, attribute)
    return found


def key_wanted(frame: Any) -> str:
    """The key that a line waits for, where it is a text of plain variables; '' where it is not."""
    ast = sys.modules.get("ast")
    scope = {**frame.f_globals, **frame.f_locals}
    ways = [way.strip(".(") for way in STORE_WAITS]
    text = line(frame)
    waits = [one for name, one in (calls_of(ast, [text]) if ast else ()) if name in ways and one.args]
    if len(waits) > 1:  # which of them it is in is known since Python 3.11
        begin = column(frame) - (len(text) - len(text.lstrip()))
        waits = [one for one in waits if one.col_offset == begin]
    parts = getattr(waits[0].args[0], "elts", waits[0].args[:1]) if len(waits) == 1 else ()
    found = [text_of(ast, part, scope) for part in parts]
    return ", ".join(found)[:MOST_OF_A_KEY] if all(found) else ""


def column(frame: Any) -> int:
    """Where in its line the call begins that a frame is in; -1 where that is not known."""
    positions = list(getattr(frame.f_code, "co_positions", list)())
    place = positions[frame.f_lasti // 2] if frame.f_lasti // 2 < len(positions) else ()
    return place[2] if place and place[2] is not None else -1


def text_of(ast: Any, node: Any, scope: Any) -> str:
    """A text, or one with plain variables in it; '' for any other."""
    if isinstance(node, ast.JoinedStr):
        parts = [text_of(ast, part, scope) for part in node.values]
        return "".join(parts) if all(parts) else ""
    if isinstance(node, ast.FormattedValue) and not node.format_spec and node.conversion == -1:
        node = node.value
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [text_of(ast, part, scope) for part in (node.left, node.right)]
        return "".join(parts) if all(parts) else ""
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "str" and len(node.args) == 1:
        node = node.args[0]
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is str else ""
    value = scope.get(node.id) if isinstance(node, ast.Name) else worked_out(ast, node, scope)
    return str(value) if type(value) in (int, bool, str) else ""


def attribute_of(owner: Any, name: str) -> Any:
    """What an object itself holds under a name, without a property or any method of the user's."""
    try:
        return object.__getattribute__(owner, "__dict__").get(name)
    except AttributeError:
        return None


def store(local: Any) -> str:
    """Where a rank that meets the others looks for their store: ``HOST:PORT``, ``file:PATH``; '' unknown."""
    found = [(local.get(host), local.get(port)) for host, port in STORES]
    below = local.get("store")
    while hasattr(below, "underlying_store"):
        below = below.underlying_store
    found.append((getattr(below, "host", None), getattr(below, "port", None)))
    path = getattr(below, "path", None)
    return next((f"{host}:{port}" for host, port in found if host and port), f"file:{path}" if path else "")


def line(frame: Any) -> str:
    """The line of the script in which a frame stands, where it can be had."""
    linecache = sys.modules.get("linecache")
    if frame is None or linecache is None:
        return ""
    return str(linecache.getline(frame.f_code.co_filename, frame.f_lineno))


def named(c10d: Any, local: Any, argument: str) -> int:
    """The rank that an argument of a call names, by its number among all or in its group; -1: none."""
    rank, among = local.get(argument), local.get(f"group_{argument}")
    if not isinstance(rank, int) and isinstance(among, int):
        rank = c10d.get_global_rank(local.get("group") or c10d.GroupMember.WORLD, among)
    return rank if isinstance(rank, int) else -1


def groups(c10d: Any, ranks: bool) -> list[dict[str, Any]]:
    """The process groups that this rank knows: name, size, how many collectives it has begun in each."""
    world = c10d._world
    found = []
    for group, name in list(world.pg_names.items())[:MOST_GROUPS]:
        members = world.pg_group_ranks.get(group, {})
        one = {
            "name": name,
            "size": len(members),
            "sequence": sequence(group),
            "default": group is c10d.GroupMember.WORLD,
            "timeout": timeout(group),
        }
        if ranks:
            one["backend"] = str(world.pg_map.get(group, [""])[0])
            one["ranks"] = spans(sorted(members))
        found.append(one)
    return found


def sequence(group: Any) -> int:
    """How many collectives were begun in a group; -1 where its backend does not count."""
    try:
        return int(group._get_sequence_number_for_group())
    except Exception:  # noqa: BLE001
        return -1


def timeout(group: Any) -> float:
    """Seconds in one collective after which torch ends this rank by itself; 0 where it does not say."""
    found = []
    for device in getattr(group, "_device_types", ()):
        try:
            backend = group._get_backend(device)
            found.append(backend.options._timeout.total_seconds())
            if "NCCL" in type(backend).__name__ and os.environ.get("TORCH_NCCL_ENABLE_MONITORING") != "0":
                found.append(float(os.environ.get("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC") or HEARTBEAT_SECONDS))
        except Exception:  # noqa: BLE001
            continue
    return min(found, default=0.0)


def spans(numbers: list[int]) -> str:
    """``0-3,8``; empty where that would be too long to be of use."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
    return text if len(text) <= MOST_RANKS else ""


def flight(json: Any, most: int) -> list[dict[str, Any]]:
    """The newest ``most`` records of each group from torch's flight recorders, oldest first."""
    torch = sys.modules["torch._C._distributed_c10d"]
    dumps = [getattr(torch, name) for name in RECORDERS if hasattr(torch, name)]
    entries = [entry for dump in dumps for entry in json.loads(dump(True, False)).get("entries") or ()]
    mixed = of_two_backends()
    kept = []
    count: dict[str, int] = {}
    for entry in reversed(entries):
        name = str(entry.get("process_group", [entry.get("pg_id")])[0])
        if name in mixed and str(entry.get("profiling_name")).startswith("gloo:"):
            name += " (gloo)"
        count[name] = count.get(name, 0) + 1
        if count[name] <= most and not entry.get("is_p2p"):
            kept.append({"group": name, "state": entry.get("state"), "at": moment(entry)})
            kept[-1].update((key, entry.get(key)) for key in KEPT)
    return kept[::-1]


def of_two_backends() -> set[str]:
    """The groups that use NCCL for tensors on GPUs and gloo for others: each of the two counts for itself."""
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    backends = {name: str(world.pg_map.get(group, [""])[0]) for group, name in world.pg_names.items()}
    return {str(name) for name, backend in backends.items() if "nccl" in backend and "gloo" in backend}


def moment(entry: dict[str, Any]) -> int:
    """When a collective was begun, in nanoseconds since the epoch."""
    return int(entry.get("time_discovered_started_ns") or entry.get("time_created_ns") or 0)
