"""Reports what torch knows in this rank, as JSON: groups, collectives, flight records.

It is read when somebody first asks, not at the start of a rank, and imports nothing that torch has not: a
file of the user might bear the name of what is wanted.
"""

from __future__ import annotations

import json
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .clusterrun_script_source import MOST_OF_A_KEY, calls_near, in_store, is_installed, key_wanted, line

MOST_GROUPS = 64
LAST_RECORDS = 16
MOST_RANKS = 2000
"""Characters of a group's list of ranks."""
HEARTBEAT_SECONDS = 480
"""What torch gives NCCL's watchdog thread before it aborts the rank, where the environment names no other."""
RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""NCCL's collectives stand in one of their own, in builds of torch that have it; all others in the second."""
# The functions that set how a thread takes part in other threads' captures of CUDA graphs, by library.
CAPTURE_MODES = {
    "/libcuda.so": "cuThreadExchangeStreamCaptureMode",
    "/libamdhip64.so": "hipThreadExchangeStreamCaptureMode",
}
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED and hipStreamCaptureModeRelaxed
UNRECORDED = ("_MPI_AVAILABLE", "_UCC_AVAILABLE", "_XCCL_AVAILABLE")
RENDEZVOUS_FUNCTIONS = ("_create_c10d_store", "_env_rendezvous_handler", "init_process_group")
MAKING = "_new_group_with_tag"
"""What ``new_group`` calls, and a device mesh for each of its groups."""
STORES = (("hostname", "port"), ("master_addr", "master_port"))
"""What functions that meet call the address of the store."""
PEERS = {"send": "dst", "recv": "src"}
"""Which argument of a call names the other rank."""
ROOTS = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}
"""Which argument of a collective names its root."""
ALL_TO_ALL = "all_to_all_single"
OBJECT_LIST = "broadcast_object_list"
AUTOGRAD = "pt_autograd"
"""How torch names the threads that run backward: their calls are the main thread's."""
MOST_THREADS = 4
MAIN_THREAD = threading.main_thread().ident or 0
MOST_ROOTS = 16
POSTING_FRAMES = 3
MOST_POSTS = 64
WAIT = ".wait("
"""How a line calls torch's ``Work``, whose frames are no Python."""
MOST_TASKS = 8
INDEPENDENT = "CLUSTERRUN_INDEPENDENT"
"""Set to 1 by users whose ranks are not meant to train together."""
UNUSED = {"FAKE"}
"""A backend for tests, which FSDP, and with it many frameworks, registers whenever it is imported."""
RECORD_FIELDS = ("collective_seq_id", "op_id", "profiling_name", "input_sizes", "input_dtypes", "retired")
"""What is wanted of a flight record beside its group, its state and its times."""


def dump_at_exit(name: str, size: int) -> None:
    """At the end of a rank: leave the flight records of one that failed, or word of one that was alone."""
    failed = hasattr(sys, "last_type") or hasattr(sys, "last_exc")
    said = json.loads(state_json(0, LAST_RECORDS))
    alone = os.environ.get(INDEPENDENT) != "1" and never_joined_a_collective(said["groups"], said["records"])
    if alone or (failed and said["records"]):
        c10d = sys.modules["torch.distributed.distributed_c10d"]
        said.update({"failed": failed, "alone": alone, "size": size})
        try:
            said.update({"call": failed_call(c10d), "threads": threads_in_calls(c10d)})
        except Exception:  # noqa: BLE001 (the arguments of a call may be anything; the records count)
            pass
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        os.write(file, json.dumps(said).encode() + b"\n")
        os.close(file)


def failed_call(c10d: Any) -> dict[str, Any]:
    """The call of torch.distributed in which this rank's exception was raised, with its arguments; or {}."""
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
    """What a collective is given beyond its tensors: its root, and how many rows or objects."""
    if name in ROOTS:
        return {"rooted": name, "root": named(c10d, local, ROOTS[name])}
    lists = [local.get("input_split_sizes"), local.get("output_split_sizes")]
    if name == ALL_TO_ALL and all(isinstance(one, list) for one in lists):
        return {"counts": [*lists[0], *lists[1]]}
    objects = local.get("object_list")
    if name == OBJECT_LIST and isinstance(objects, list):
        return {"rooted": name, "root": named(c10d, local, "src"), "counts": [len(objects)]}
    return {}


def threads_in_calls(c10d: Any) -> list[list[str]]:
    """The threads beside the main one that are in a collective: entry, user's line, collective."""
    threads = []
    for number, inner in list(sys._current_frames().items()):
        frame: Any = inner
        own, calls, torch = [], [], []
        while frame is not None and number != MAIN_THREAD:
            code = frame.f_code
            if frame.f_globals.get("__name__") == c10d.__name__:
                calls.append(code.co_name)
            else:
                place = f"{code.co_filename}:{frame.f_lineno} {code.co_name}"
                own += [] if is_installed(code.co_filename) else [place]
                torch += [place] if "/torch/" in place else []
            frame = frame.f_back
        own = own or torch[-1:]
        if own and calls:
            threads.append([own[-1], own[0], calls[-1]])
    return threads[:MOST_THREADS]


def never_joined_a_collective(groups: Any, records: Any) -> bool:
    """Whether a rank has never begun a collective with another one, as far as that is certain."""
    if groups:
        return all(group["size"] == 1 or group["sequence"] == 0 for group in groups)
    # The groups may have been destroyed: only recorders that are on for every backend know.
    torch = sys.modules.get("torch._C._distributed_c10d")
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    others = any(getattr(c10d, name, False) for name in UNRECORDED)
    others = others or bool(set(getattr(getattr(c10d, "Backend", None), "_plugins", ())) - UNUSED)
    sizes = [os.environ.get(name) for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")]
    return hasattr(torch, RECORDERS[1]) and not others and "0" not in sizes and not records


def state_json(number: int, records: int, size: int = 0) -> str:
    """The answer to a question; ``records`` of each group are wanted, ``size``: the world it started in."""
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    made = getattr(c10d._world, "group_count", 0)
    said = {"ask": number, "torch": True, "groups": groups(c10d, records > 0)}
    if records:
        said["records"] = flight(records)
        said["nccl"] = nccl_version()
        near = calls_near(sys._current_frames().get(MAIN_THREAD))
        roots, keys = ([one[1:] for one in near if one[0] == kind][:MOST_ROOTS] for kind in "RK")
        said["call"] = {**call(c10d), "started": size, "made": made, "named": roots, "sets": keys, **tasks()}
    return json.dumps(said)


def call(c10d: Any) -> dict[str, Any]:
    """What no record tells: a call's peer or root, the size of the world that is waited for."""
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
        return {"name": "store", "key": key_wanted(inner)}
    return {"name": "wait", "posts": posts(c10d, inner)} if WAIT in line(inner) else {}


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


def store(local: Any) -> str:
    """Where a rank that meets the others looks for their store: ``HOST:PORT``, ``file:PATH``; '' unknown."""
    found = [(local.get(host), local.get(port)) for host, port in STORES]
    below = local.get("store")
    while hasattr(below, "underlying_store"):
        below = below.underlying_store
    found.append((getattr(below, "host", None), getattr(below, "port", None)))
    path = getattr(below, "path", None)
    return next((f"{host}:{port}" for host, port in found if host and port), f"file:{path}" if path else "")


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
    """Seconds in one collective after which torch ends this rank by itself; 0 if it does not say."""
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
    """``0-3,8``; empty if that would be too long to be of use."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
    return text if len(text) <= MOST_RANKS else ""


def nccl_version() -> list[int]:
    """Return the version of the NCCL that torch uses, ``[2, 29, 2]``; empty without NCCL."""
    try:
        return list(sys.modules["torch"].cuda.nccl.version()[:3])
    except (AttributeError, KeyError):  # a build of torch for CPUs
        return []


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
                getattr(ctypes.CDLL(path), function)(ctypes.byref(mode))


def flight(most: int) -> list[dict[str, Any]]:
    """The newest ``most`` records of each group from torch's flight recorders, oldest first."""
    relax_stream_capture()
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
            began = entry.get("time_discovered_started_ns") or entry.get("time_created_ns") or 0
            kept.append({"group": name, "state": entry.get("state"), "at": int(began)})
            kept[-1].update((key, entry.get(key)) for key in RECORD_FIELDS)
            kept[-1]["by_thread"] = by_thread(entry)
    return kept[::-1]


def by_thread(entry: Any) -> bool:
    """Whether neither the main thread nor autograd's began a call. Torch before 2.9 does not say."""
    number, name = str(entry.get("thread_id") or ""), str(entry.get("thread_name") or "")
    return number.isdigit() and int(number) != MAIN_THREAD and not name.startswith(AUTOGRAD)


def of_two_backends() -> set[str]:
    """The groups that use NCCL for tensors on GPUs and gloo for others: each of the two counts for itself."""
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    backends = {name: str(world.pg_map.get(group, [""])[0]) for group, name in world.pg_names.items()}
    return {str(name) for name, backend in backends.items() if "nccl" in backend and "gloo" in backend}
