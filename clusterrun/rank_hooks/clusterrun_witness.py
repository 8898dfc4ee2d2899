"""Report torch's state in this rank as JSON: groups, collectives, flight records.

A rank reads it on its first request, not at its start. It imports only modules that torch has loaded, because
a file of the user may have the same name as another module.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .clusterrun_script_source import (
        MOST_OF_A_KEY,
        attribute_of,
        calls_near,
        in_store,
        is_installed,
        key_wanted,
        line,
        method_of,
        parts_of,
        stays_while,
        value_of,
    )

MOST_GROUPS = 64
LAST_RECORDS = 16
# Characters of a group's list of ranks.
MOST_RANKS = 2000
# torch's default timeout of NCCL's watchdog thread, after which it aborts the rank.
HEARTBEAT_SECONDS = 480
# NCCL's collectives are in a separate recorder, in builds of torch that have it. All others are in the
# second.
RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
# The functions that set how a thread takes part in other threads' captures of CUDA graphs, by library.
CAPTURE_MODES = {
    "/libcuda.so": "cuThreadExchangeStreamCaptureMode",
    "/libamdhip64.so": "hipThreadExchangeStreamCaptureMode",
}
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED and hipStreamCaptureModeRelaxed
UNRECORDED = ("_MPI_AVAILABLE", "_UCC_AVAILABLE", "_XCCL_AVAILABLE")
RENDEZVOUS_FUNCTIONS = ("_create_c10d_store", "_env_rendezvous_handler", "init_process_group")
# ``new_group`` calls this function, and a device mesh calls it for each of its groups.
MAKING = "_new_group_with_tag"
# Names of the store's address in functions of the rendezvous.
STORES = (("hostname", "port"), ("master_addr", "master_port"))
# The argument of a call that names the other rank.
PEERS = {"send": "dst", "recv": "src"}
# The argument of a collective that names its root.
ROOTS = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}
ALL_TO_ALL = "all_to_all_single"
OBJECT_LIST = "broadcast_object_list"
# torch gives this name to the threads that run backward. Their calls count as the main thread's.
AUTOGRAD = "pt_autograd"
MOST_THREADS = 4
MAIN_THREAD = threading.main_thread().ident or 0
MOST_ROOTS = 16
POSTING_FRAMES = 3
MOST_POSTS = 64
# A line waits for torch's ``Work`` with this call, which has no Python frame.
WAIT = ".wait("
MOST_TASKS = 8
# Users set this to 1 if their ranks are not meant to train together.
INDEPENDENT = "CLUSTERRUN_INDEPENDENT"
# A backend for tests, which FSDP, and with it many frameworks, registers whenever it is imported.
UNUSED = {"FAKE"}
# The kind of wait in a function of Python's library, by file and function.
THREAD_WAITS = {
    ("threading.py", "join"): "join",
    ("threading.py", "wait"): "event",
    ("_base.py", "result"): "result",
    ("queue.py", "put"): "put",
    ("queue.py", "get"): "get",
    ("queue.py", "join"): "done",
    ("queues.py", "put"): "put",
    ("queues.py", "get"): "get",
    ("queues.py", "join"): "done",
    ("socket.py", "readinto"): "read",
    ("socket.py", "create_connection"): "connect",
    ("socketserver.py", "serve_forever"): "request",
    ("_server.py", "wait_for_termination"): "request",  # grpc
    ("server.py", "run"): "request",  # uvicorn
}
LOCKS = (type(threading.Lock()), type(threading.RLock()))
TAKES = ("acquire", "__enter__")
NOT_IN_GROUP = "does not belong to the given group"
# The fields of a flight record that are reported, besides its group, state and times.
RECORD_FIELDS = ("collective_seq_id", "op_id", "profiling_name", "input_sizes", "input_dtypes", "retired")


def dump_at_exit(name: str, size: int) -> None:
    """Write the flight records of a rank that failed, or that trained alone, at its end."""
    failed = hasattr(sys, "last_type") or hasattr(sys, "last_exc")
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    # A rank whose peers have failed may be killed soon: read no source here, as an answer to a request does.
    state: dict[str, Any] = {"torch": True, "groups": groups(c10d, True), "records": flight(LAST_RECORDS)}
    alone = os.environ.get(INDEPENDENT) != "1" and never_joined_a_collective(
        state["groups"], state["records"]
    )
    if alone or (failed and state["records"]):
        state.update({"failed": failed, "alone": alone, "size": size})
        try:
            state.update({"call": failed_call(c10d), "threads": threads_in_calls(c10d)})
        except Exception:  # noqa: BLE001 (the arguments of a call may be anything; the records count)
            pass
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        os.write(file, json.dumps(state).encode() + b"\n")
        os.close(file)


def failed_call(c10d: Any) -> dict[str, Any]:
    """Return the call of torch.distributed that raised this rank's exception, with its arguments; or {}."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    trace = getattr(error, "__traceback__", None)
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_globals.get("__name__") == c10d.__name__:
            name = frame.f_code.co_name
            return {"function": name, **arguments(c10d, name, frame.f_locals)}
        trace = trace.tb_next
    return {}


def arguments(c10d: Any, name: str, local: Any) -> dict[str, Any]:
    """Return the arguments of a collective besides its tensors: its root, and counts of rows or objects."""
    if name in ROOTS:
        return {"rooted": name, "root": named(c10d, local, ROOTS[name])}
    lists = [local.get("input_split_sizes"), local.get("output_split_sizes")]
    if name == ALL_TO_ALL and all(isinstance(sizes, list) for sizes in lists):
        return {"counts": [*lists[0], *lists[1]]}
    objects = local.get("object_list")
    if name == OBJECT_LIST and isinstance(objects, list):
        return {"rooted": name, "root": named(c10d, local, "src"), "counts": [len(objects)]}
    return {}


def threads_in_calls(c10d: Any) -> list[list[str]]:
    """Return the threads in a collective, except the main thread: entry, user's line, collective."""
    threads = []
    for number, inner in list(sys._current_frames().items()):
        frame: Any = inner
        user_places, calls, torch = [], [], []
        while frame is not None and number != MAIN_THREAD:
            code = frame.f_code
            if frame.f_globals.get("__name__") == c10d.__name__:
                calls.append(code.co_name)
            else:
                place = f"{code.co_filename}:{frame.f_lineno} {code.co_name}"
                user_places += [] if is_installed(code.co_filename) else [place]
                torch += [place] if "/torch/" in place else []
            frame = frame.f_back
        user_places = user_places or torch[-1:]
        if user_places and calls:
            threads.append([user_places[-1], user_places[0], calls[-1]])
    return threads[:MOST_THREADS]


def never_joined_a_collective(groups: Any, records: Any) -> bool:
    """Return whether a rank has certainly never begun a collective with another rank."""
    if groups:
        return all(group["size"] == 1 or group["sequence"] == 0 for group in groups)
    # The groups may have been destroyed. Then only recorders that cover every backend prove it.
    torch = sys.modules.get("torch._C._distributed_c10d")
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    others = any(getattr(c10d, name, False) for name in UNRECORDED)
    others = others or bool(set(getattr(getattr(c10d, "Backend", None), "_plugins", ())) - UNUSED)
    sizes = [os.environ.get(name) for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")]
    return hasattr(torch, RECORDERS[1]) and not others and "0" not in sizes and not records


def state_json(number: int, records: int, size: int = 0) -> str:
    """Return the answer to a request.

    ``records`` is the number of records of each group, ``size`` the size of the world at the start.
    """
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    group_count = getattr(c10d._world, "group_count", 0)
    state = {"ask": number, "torch": True, "groups": groups(c10d, records > 0), "meets": meets()}
    if records:
        state["records"] = flight(records)
        near_calls = calls_near(sys._current_frames().get(MAIN_THREAD))
        roots, keys = ([text[1:] for text in near_calls if text[0] == kind][:MOST_ROOTS] for kind in "RK")
        state["call"] = {
            **call(c10d),
            "started": size,
            "made": group_count,
            "named": roots,
            "sets": keys,
            "ignored": ignored_calls(c10d),
            **tasks(),
            "handles": handled(),
            "waits": thread_waits(),
            "loop": loop_around(),
        }
    return json.dumps(state)


def meets() -> bool:
    """Return whether the main thread is in ``init_process_group``."""
    frame = sys._current_frames().get(MAIN_THREAD)
    while frame is not None and frame.f_code.co_name not in RENDEZVOUS_FUNCTIONS:
        frame = frame.f_back
    return frame is not None


def ignored_calls(c10d: Any) -> list[str]:
    """Return the collectives that this rank called with a group of others. torch warned, and did nothing."""
    warned = [key[0] for key in getattr(c10d, "__warningregistry__", ()) if isinstance(key, tuple)]
    return [
        str(text).split()[1]
        for text in warned
        if str(text).startswith("Running ") and NOT_IN_GROUP in str(text)
    ]


def call(c10d: Any) -> dict[str, Any]:
    """Return what no record holds: a call's peer or root, the size of the world that it waits for."""
    inner = frame = sys._current_frames().get(MAIN_THREAD)
    while frame is not None:
        name, local = frame.f_code.co_name, frame.f_locals
        if (
            name in RENDEZVOUS_FUNCTIONS
            and isinstance(local.get("world_size"), int)
            and local["world_size"] > 0
        ):
            return {"world": local["world_size"], "asks": local.get("rank"), "store": store(local)}
        if frame.f_globals.get("__name__") == c10d.__name__:
            if name in PEERS:
                peer, tag = named(c10d, local, PEERS[name]), local.get("tag")
                return {"name": name, "peer": peer, "tag": tag if isinstance(tag, int) else 0}
            if name == MAKING and isinstance(local.get("ranks"), list):
                return {"makes": [str(local.get("group_name", "")), spans(sorted(local["ranks"]))]}
            if name in ROOTS or name == ALL_TO_ALL:
                return {"function": name, **arguments(c10d, name, local)}
        frame = frame.f_back
    if in_store(inner):
        key, source = key_wanted(inner)
        return {"name": "store", "key": key, "key_source": source}
    return {"name": "wait", "posts": posts(c10d, inner)} if WAIT in line(inner) else {}


def tasks() -> dict[str, list[str]]:
    """Return the places of asyncio's tasks while its loop runs in the main thread, and failures of tasks."""
    try:
        return {"tasks": tasks_in_loop()}
    except Exception:  # noqa: BLE001 (tasks come and go meanwhile; the rest of the answer counts)
        return {}


def tasks_in_loop() -> list[str]:
    """Return ``FILE:LINE FUNCTION`` of each task's innermost user frame, and ``: ERROR`` if it failed."""
    asyncio = sys.modules.get("asyncio.tasks")
    frame = sys._current_frames().get(MAIN_THREAD)
    while frame is not None and frame.f_code.co_name != "run_forever":
        frame = frame.f_back
    loop = frame and frame.f_locals.get("self")
    if asyncio is None or loop is None:
        return []
    all_tasks = list(getattr(asyncio, "_all_tasks", getattr(asyncio, "_scheduled_tasks", ())))
    places = []
    for task in all_tasks[: 8 * MOST_TASKS]:
        error = getattr(task, "_exception", None)
        if task.done() and error is not None:
            places.append(raised(error))
        elif not task.done() and task.get_loop() is loop:
            awaits, frames = task.get_coro(), []
            while getattr(awaits, "cr_frame", None) is not None:
                frames.append((awaits.cr_frame.f_code, awaits.cr_frame.f_lineno))
                awaits = awaits.cr_await
            places.append(own_place(frames))
    return [place for place in places if place[:1] not in ("", ":")][:MOST_TASKS]


def raised(error: BaseException) -> str:
    """Return ``FILE:LINE FUNCTION: ERROR`` with the innermost user frame that the error passed."""
    trace, frames = error.__traceback__, []
    while trace is not None:
        frames.append((trace.tb_frame.f_code, trace.tb_lineno))
        trace = trace.tb_next
    return f"{own_place(frames)}: {type(error).__name__}: {error}"[:MOST_OF_A_KEY]


def handled() -> str:
    """Return the error in whose ``except`` or ``finally`` block the main thread is; '' for none."""
    try:
        error: Any = sys._current_exceptions()[MAIN_THREAD]  # since Python 3.10
        error = error[1] if isinstance(error, tuple) else error
        return raised(error) if error is not None else ""
    except Exception:  # noqa: BLE001 (its message is the user's code; the rest of the answer counts)
        return ""


def thread_waits() -> list[list[Any]]:
    """Return what the main thread waits for in this process, then what the holder of that waits for, and on.

    An entry is: kind, the thread's place, the place of the thread that can end the wait ('': unknown), and
    that thread's number in this list (-1: unknown).
    """
    try:
        frames, number = sys._current_frames(), MAIN_THREAD
        order: list[int] = []
        waits: list[list[Any]] = []
        while number in frames and number not in order and len(order) < MOST_THREADS:
            order.append(number)
            kind, awaited = wait_of(frames[number])
            if not kind:
                break
            number, holder, peer = 0, None, ""
            if kind in ("read", "connect"):
                peer = ":".join(map(str, awaited[:2]))
            elif kind == "join":
                number = awaited.__dict__.get("_ident", 0)
                holder = frames.get(number)
            elif kind == "lock":
                number, holder = holder_of(awaited, frames)
            waits.append([kind, place_of(frames[order[-1]]), peer or place_of(holder), number])
        return [[*wait, order.index(number) if number in order else -1] for *wait, number in waits]
    except Exception:  # noqa: BLE001 (threads come and go meanwhile; the rest of the answer counts)
        return []


def wait_of(inner: Any) -> tuple[str, Any]:
    """Return what a thread waits for, and the lock, the thread or the address of the peer.

    It is ('', None) if that is unknown.
    """
    lock = lock_wanted(inner)
    kind, awaited, frame = "", None, inner
    while frame is not None and is_installed(frame.f_code.co_filename):
        name = (os.path.basename(frame.f_code.co_filename), frame.f_code.co_name)
        if name in THREAD_WAITS:
            kind, awaited = THREAD_WAITS[name], frame.f_locals.get("self")
            if kind == "read":
                awaited = awaited._sock.getpeername()
            elif kind == "connect":
                awaited = frame.f_locals["address"]
        frame = frame.f_back
    return ("lock", lock) if lock is not None and not kind else (kind, awaited)


def lock_wanted(frame: Any) -> Any:
    """Return the only locked lock that a frame's line takes; None if there is none.

    A line with two statements is skipped: the thread may be past the one that takes the lock.
    """
    text = line(frame).strip()
    try:
        statements = ast.parse(text + "pass" * text.endswith(":")).body
    except SyntaxError:
        return None
    taken = []
    if len(statements) == 1 and isinstance(statements[0], ast.With):
        taken = [item.context_expr for item in statements[0].items if text.endswith(":")]
    elif len(statements) == 1:
        attributes = (part for part in ast.walk(statements[0]) if isinstance(part, ast.Attribute))
        taken = [part.value for part in attributes if part.attr in TAKES]
    locks = [lock for lock in (lock_of(node, frame) for node in taken) if repr(lock).startswith("<locked")]
    return locks[0] if len(locks) == 1 else None


def lock_of(node: Any, frame: Any) -> Any:
    """Return the lock that an expression of plain names leads to; None for any other value."""
    scope = {**frame.f_globals, **frame.f_locals}
    value = value_of(node, scope)
    if value is None and isinstance(node, ast.Attribute):  # an attribute of the class
        value = method_of(value_of(node.value, scope), node.attr)
    if not isinstance(value, LOCKS):  # a condition
        value = attribute_of(value, "_lock")
    return value if isinstance(value, LOCKS) else None


def holder_of(lock: Any, frames: Any) -> tuple[int, Any]:
    """Return the thread that holds a lock, and the frame inside its ``with``; (0, None) if it is unknown."""
    for number, inner in frames.items():
        frame = inner
        while frame is not None:
            for block in parts_of(frame.f_code)[3]:
                is_inside = block.lineno < frame.f_lineno <= block.end_lineno
                if is_inside and any(lock_of(item.context_expr, frame) is lock for item in block.items):
                    return number, frame
            frame = frame.f_back
    owner = repr(lock).partition(" owner=")[2].partition(" ")[0]
    return (int(owner), frames.get(int(owner))) if owner.isdigit() else (0, None)


def loop_around() -> str:
    """Return the condition of the ``while`` that the main thread is in; '' if its innermost loop has none."""
    frame = user_frame(sys._current_frames().get(MAIN_THREAD))
    try:
        loops = [
            loop for loop in parts_of(frame.f_code)[2] if loop.lineno <= frame.f_lineno <= loop.end_lineno
        ]
    except Exception:  # noqa: BLE001 (there is no such frame, or its file cannot be read)
        return ""
    return stays_while(max(loops, key=lambda loop: loop.lineno, default=None))


def user_frame(frame: Any) -> Any:
    while frame is not None and is_installed(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def place_of(frame: Any) -> str:
    """Return ``FILE:LINE FUNCTION`` of the innermost user frame; '' if there is none."""
    frame = user_frame(frame)
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}" if frame else ""


def own_place(frames: list[Any]) -> str:
    """Return the innermost user frame of ``frames``, which are outermost first; '' if there is none."""
    for code, line in reversed(frames):
        if not is_installed(code.co_filename):
            return f"{code.co_filename}:{line} {code.co_name}"
    return ""


def posts(c10d: Any, frame: Any) -> list[list[Any]]:
    """Return the sends and receives that variables of a frame or of its callers hold as ``P2POp``."""
    kind = getattr(c10d, "P2POp", None)
    for _ in range(POSTING_FRAMES):
        if kind is None or frame is None:
            break
        operations: dict[int, Any] = {}
        for value in list(frame.f_locals.values()):
            values = value if isinstance(value, (list, tuple)) else (value,)
            operations.update((id(op), op) for op in values[:MOST_POSTS] if isinstance(op, kind))
        if operations:
            return [[op.op.__name__, op.peer, op.tag] for op in list(operations.values())[:MOST_POSTS]]
        frame = frame.f_back
    return []


def store(local: Any) -> str:
    """Return the address of the store of a rank in the rendezvous: ``HOST:PORT``, ``file:PATH``; or ''."""
    addresses = [(local.get(host), local.get(port)) for host, port in STORES]
    inner_store = local.get("store")
    while hasattr(inner_store, "underlying_store"):
        inner_store = inner_store.underlying_store
    addresses.append((getattr(inner_store, "host", None), getattr(inner_store, "port", None)))
    path = getattr(inner_store, "path", None)
    for host, port in addresses:
        if host and port:
            return f"{host}:{port}"
    return f"file:{path}" if path else ""


def named(c10d: Any, local: Any, argument: str) -> int:
    """Return the global rank that an argument of a call names, perhaps by its group rank; -1 if none."""
    rank, among = local.get(argument), local.get(f"group_{argument}")
    if not isinstance(rank, int) and isinstance(among, int):
        rank = c10d.get_global_rank(local.get("group") or c10d.GroupMember.WORLD, among)
    return rank if isinstance(rank, int) else -1


def groups(c10d: Any, ranks: bool) -> list[dict[str, Any]]:
    """Return the process groups of this rank: name, size, number of collectives begun."""
    world = c10d._world
    descriptions = []
    for group, name in list(world.pg_names.items())[:MOST_GROUPS]:
        members = world.pg_group_ranks.get(group, {})
        description = {
            "name": name,
            "size": len(members),
            "sequence": sequence(group),
            "default": group is c10d.GroupMember.WORLD,
            "timeout": timeout(group),
        }
        if ranks:
            description["backend"] = str(world.pg_map.get(group, [""])[0])
            description["ranks"] = spans(sorted(members))
        descriptions.append(description)
    return descriptions


def sequence(group: Any) -> int:
    """Return the number of collectives begun in a group; -1 if its backend does not count."""
    try:
        return int(group._get_sequence_number_for_group())
    except Exception:  # noqa: BLE001
        return -1


def timeout(group: Any) -> float:
    """Return the seconds in one collective after which torch ends this rank; 0 if that is unknown."""
    timeouts = []
    for device in getattr(group, "_device_types", ()):
        try:
            backend = group._get_backend(device)
            timeouts.append(backend.options._timeout.total_seconds())
            if "NCCL" in type(backend).__name__ and os.environ.get("TORCH_NCCL_ENABLE_MONITORING") != "0":
                timeouts.append(
                    float(os.environ.get("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC") or HEARTBEAT_SECONDS)
                )
        except Exception:  # noqa: BLE001
            continue
    return min(timeouts, default=0.0)


def spans(numbers: list[int]) -> str:
    """Return ``0-3,8``; '' if that would be too long to be of use."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
    return text if len(text) <= MOST_RANKS else ""


def relax_stream_capture() -> None:
    """Let this thread query CUDA events while another thread captures a CUDA graph.

    A flight record is dumped after its event is queried. In CUDA's default mode that query ends a capture of
    any other thread (seen on an H100 with torch 2.11: ``cudaErrorStreamCaptureInvalidated``). torch's own
    watchdog relaxes the mode of its thread in the same way.
    """
    import ctypes

    with open("/proc/self/maps") as file:
        libraries = {line.split()[-1] for line in file if any(name in line for name in CAPTURE_MODES)}
    for path in libraries:
        for name, function in CAPTURE_MODES.items():
            if name in path:
                mode = ctypes.c_int(RELAXED)
                try:
                    getattr(ctypes.CDLL(path), function)(ctypes.byref(mode))
                except (OSError, AttributeError):  # an old library lacks the function; the records count
                    pass


def flight(most: int) -> list[dict[str, Any]]:
    """Return the newest ``most`` records of each group from torch's flight recorders, oldest first."""
    relax_stream_capture()
    torch = sys.modules["torch._C._distributed_c10d"]
    dumps = [getattr(torch, name) for name in RECORDERS if hasattr(torch, name)]
    entries = [entry for dump in dumps for entry in json.loads(dump(True, False)).get("entries") or ()]
    mixed = of_two_backends()
    records = []
    count: dict[str, int] = {}
    for entry in reversed(entries):
        name = str(entry.get("process_group", [entry.get("pg_id")])[0])
        if name in mixed and str(entry.get("profiling_name")).startswith("gloo:"):
            name += " (gloo)"
        count[name] = count.get(name, 0) + 1
        if count[name] <= most and not entry.get("is_p2p"):
            began = entry.get("time_discovered_started_ns") or entry.get("time_created_ns") or 0
            records.append({"group": name, "state": entry.get("state"), "at": int(began)})
            records[-1].update((key, entry.get(key)) for key in RECORD_FIELDS)
            records[-1]["by_thread"] = by_thread(entry)
    return records[::-1]


def by_thread(entry: Any) -> bool:
    """Return whether a thread other than the main thread and autograd's began a call.

    Torch before 2.9 does not report the thread.
    """
    number, name = str(entry.get("thread_id") or ""), str(entry.get("thread_name") or "")
    return number.isdigit() and int(number) != MAIN_THREAD and not name.startswith(AUTOGRAD)


def of_two_backends() -> set[str]:
    """Return the groups with NCCL for tensors on GPUs and gloo for others.

    Each of the two counts separately.
    """
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    backends = {name: str(world.pg_map.get(group, [""])[0]) for group, name in world.pg_names.items()}
    return {str(name) for name, backend in backends.items() if "nccl" in backend and "gloo" in backend}
