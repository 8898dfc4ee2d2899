"""Read a process's stacks and calls from ``py-spy dump --json --locals``; pure.

Ranks that clusterrun did not start report nothing of themselves. The local variables of torch's own frames
show the arguments of the call that a rank is in.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from clusterrun.diagnosis.evidence import GroupRequest, MainCall
from clusterrun.diagnosis.stacks import (
    MOST_CHARACTERS,
    MOST_FRAMES,
    MOST_THREADS,
    TOGETHER,
    Doing,
    ThreadPlace,
    frame_of,
    function_of,
    is_library,
    joins_thread,
    location,
    polls_for_lock_file,
    script_has_ended,
    shortened,
    waits_for_ray,
)
from clusterrun.diagnosis.verdict import folded
from clusterrun.model.frozen import Any, frozen

MOST_NATIVE = 12
MOST_COUNTERS, MOST_NUMBERS = 4, 16
_WRAPPER = "_logger.<locals>.wrapper"  # torch logs most calls of a script
_SPAWN = "/torch/multiprocessing/spawn.py"
_ROOTS = {
    **dict.fromkeys(("broadcast", "broadcast_object_list", "scatter", "scatter_object_list"), "src"),
    **dict.fromkeys(("reduce", "gather", "gather_object"), "dst"),
}
_PEERS = {"send": "dst", "recv": "src"}
_NUMBER = re.compile(r"-?\d{1,9}")
_TCP_METHOD = re.compile(r"""["']tcp://([^/?"']+:\d+)""")
_ADDRESS = re.compile(r"""\(["']([^"']+)["'], (\d+)\)""")
# A text of py-spy that is neither cut nor escaped, and an object whose kind is named like an error.
_TEXT = re.compile(r'"[^"\\]*(?<!\.\.\.)"')
_ERROR = re.compile(r"<(\w*(?:Error|Exception|Interrupt|SystemExit)) at 0x")
_RANKS = re.compile(r"[\[(](\d+(?:, \d+)*)[\])]")
_GROUP_VARIABLES = ("group", "process_group")
_RANK_VARIABLES = ("global_rank", "world_rank", "rank")
# Variables of the user's code that count steps.
_COUNTERS = re.compile(
    r"(?:global_|local_|train_)?(?:step|iter|iteration|batch|epoch|i)(?:_(?:idx|index|num))?|it"
)


@frozen
class SpiedFrame:
    """A frame of the script, with its variables that are numbers or texts, and its ``self`` as text."""

    frame: str
    values: tuple[tuple[str, str | int], ...] = ()
    owner: str = ""


@frozen
class SpiedProcess:
    """The stacks of a process and the calls of its main thread, or of the thread that trains in its place."""

    main: tuple[str, ...] = ()
    # functions of libraries that the main thread's innermost Python frame has called, innermost first
    native: tuple[str, ...] = ()
    threads: tuple[ThreadPlace, ...] = ()  # the other threads that run user code
    others: tuple[tuple[str, ...], ...] = ()  # the stacks of all other threads
    call: MainCall = MainCall()
    request: GroupRequest = GroupRequest()
    counters: tuple[str, ...] = ()  # ``NAME=NUMBER`` of variables that count steps, innermost first
    numbers: tuple[str, ...] = ()  # the same of all whole numbers among the script's variables
    # the process's index among those of ``torch.multiprocessing.spawn``; -1: it is none of them
    spawned: int = -1
    spawns: int = (
        0  # the number of processes that it starts by ``torch.multiprocessing.spawn``; 0: it starts none
    )
    thread: int = 0  # the number of the thread that trains; 0: it is the main thread
    rank: int = -1  # the value of a variable of the script that is named like a rank; -1: it has none
    # the lock file of a torch extension's build, which the main thread waits for; '' if it does not
    lock: str = ""
    connects: str = ""  # ``HOST:PORT`` of the connection that the thread waits for; '' if it waits for none
    script: tuple[SpiedFrame, ...] = ()  # the frames of the script, innermost first
    errors: tuple[tuple[str, str], ...] = ()  # a frame, and the kind of an error that a variable of it holds
    # the library function that the script called, and the place of the process group among its arguments; -1:
    # it takes none
    takes_group: tuple[str, int] = ("", -1)


def read_spied(text: str, numbers: Mapping[int, int] = MappingProxyType({})) -> SpiedProcess:
    """Return what py-spy's JSON shows; an empty value if it is damaged.

    A process in a PID namespace of its own numbers its threads by that. ``numbers`` translates these.
    """
    try:
        threads = [thread for thread in json.loads(text) if thread["frames"]]
        for thread in threads:
            thread["os_thread_id"] = numbers.get(thread["os_thread_id"], thread["os_thread_id"])
        # A main thread has the process's number. It has a name only if Python has loaded threads.
        main = next((thread for thread in threads if thread["os_thread_id"] == thread["pid"]), None)
        others = [thread for thread in threads if thread is not main]
        if main is None:
            return SpiedProcess(threads=_threads(others))
        trainer = _trainer(main, others)
        others = [thread for thread in threads if thread is not trainer]
        frames = _python_frames(trainer)
        inner = []
        if frames:
            inner = [str(frame["name"]) for frame in trainer["frames"][: trainer["frames"].index(frames[0])]]
        stack, own_numbers = _stack(frames), _numbers(frames)
        if trainer is not main:  # the main thread's outermost frame shows that its script still runs
            stack += _stack(_python_frames(main)[-1:])
        return SpiedProcess(
            main=stack,
            native=tuple(name[:MOST_CHARACTERS] for name in inner if not name.startswith("0x"))[:MOST_NATIVE],
            threads=_threads(others),
            others=tuple(_stack(_python_frames(thread)) for thread in others),
            call=_call(frames),
            request=_request(frames),
            counters=tuple(n for n in own_numbers if _COUNTERS.fullmatch(n.partition("=")[0]))[
                :MOST_COUNTERS
            ],
            numbers=own_numbers[:MOST_NUMBERS],
            spawned=_of_spawn(frames, "_wrap", "i"),
            spawns=max(0, _of_spawn(frames, "start_processes", "nprocs")),
            thread=0 if trainer is main else int(trainer["os_thread_id"]),
            rank=_rank(frames),
            lock=_lock(frames) if polls_for_lock_file(stack) else "",
            connects=_connects(frames),
            script=_script(frames),
            errors=_errors(frames),
            takes_group=_takes_group(frames),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return SpiedProcess()


def _script(frames: Sequence[Mapping[str, Any]]) -> tuple[SpiedFrame, ...]:
    script = []
    for frame in frames:
        text, values = _stack([frame])[0], _local_values(frame)
        if not is_library(text):
            script.append(SpiedFrame(text, _plain(values), values.get("self", "")))
    return tuple(script[:MOST_FRAMES])


def _plain(local_values: Mapping[str, str]) -> tuple[tuple[str, str | int], ...]:
    values: list[tuple[str, str | int]] = []
    for name, value in local_values.items():
        if _NUMBER.fullmatch(value):
            values.append((name, int(value)))
        elif _TEXT.fullmatch(value):
            values.append((name, value[1:-1]))
    return tuple(values)


def _errors(frames: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    errors = []
    for frame in frames:
        values = [value for name, value in _local_values(frame).items() if name != "self"]
        kinds = [match[1] for value in values if (match := _ERROR.match(value))]
        errors += [(_stack([frame])[0], kind) for kind in kinds[:1]]
    return tuple(errors)


def _connects(frames: Sequence[Mapping[str, Any]]) -> str:
    """Return ``HOST:PORT`` of the connection that a thread with these frames waits for; '' for none."""
    if not frames or frames[0]["name"] != "create_connection":
        return ""
    address = _ADDRESS.match(_local_values(frames[0]).get("address", ""))
    return f"{address[1]}:{address[2]}" if address else ""


def _trainer(main: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the thread that trains: the main thread, unless it only serves a library or joins another one.

    The worker of Ray is such a process: its main thread runs no code of the user's.
    """
    stack = _stack(_python_frames(main))
    stacks = [(_stack(_python_frames(thread)), thread) for thread in others]
    training = [thread for other, thread in stacks if not all(map(is_library, other))]
    together = [
        thread for other, thread in stacks if thread in training and location(other).doing in TOGETHER
    ]
    if stack and not script_has_ended(stack) and all(map(is_library, stack)):
        return (together or training or [main])[0]
    return together[0] if len(together) == 1 and joins_thread(stack) else main


def _python_frames(thread: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    # A frame of a library has a module, and a line too if the library has debug information.
    return [frame for frame in thread["frames"] if frame.get("module") is None]


def _stack(frames: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return shortened(
        [frame_of(str(frame["filename"]), str(frame["line"]), str(frame["name"])) for frame in frames],
        MOST_FRAMES,
    )


def _threads(threads: Sequence[Mapping[str, Any]]) -> tuple[ThreadPlace, ...]:
    places = []
    for thread in threads:
        frames = _python_frames(thread)
        stack = _stack(frames)
        user_frames = [frame for frame in stack if not is_library(frame)]
        place = location(stack)
        if user_frames:
            operation = place.operation if place.doing is Doing.COLLECTIVE else ""
            is_of_all = bool(operation) and _call(frames).is_of_all
            holds_lock = bool(thread.get("owns_gil"))
            begun = function_of(stack[-1]) == "_bootstrap"
            places.append(
                ThreadPlace(user_frames[-1], user_frames[0], operation, is_of_all, holds_lock, begun)
            )
    places.sort(key=lambda place: not place.operation)
    return tuple(dict.fromkeys(places))[:MOST_THREADS]


def _local_values(frame: Mapping[str, Any]) -> dict[str, str]:
    return {str(local["name"]): str(local["repr"]) for local in frame.get("locals") or ()}


def _number(text: str) -> int:
    """Return a number that is no negative one; -1 for all else."""
    return int(text) if _NUMBER.fullmatch(text) and not text.startswith("-") else -1


def _torch_frames(frames: Sequence[Mapping[str, Any]]) -> list[tuple[str, dict[str, str]]]:
    """Return function and variables of torch's frames that the user's innermost frame has called."""
    inner = [frame for frame in _library_frames(frames) if "/torch/distributed/" in str(frame["filename"])]
    return [(str(frame["name"]).rpartition(".")[2], _local_values(frame)) for frame in inner]


def _call(frames: Sequence[Mapping[str, Any]]) -> MainCall:
    """Return the call of torch.distributed that the innermost frames show."""
    if waits_for_ray(_stack(frames)):
        return MainCall(is_of_all=True)
    inner = _torch_frames(frames)
    # torch's wrapper holds the arguments as the caller passed them. The outermost caller is the script: torch
    # passes its calls within a call the group of all.
    passed = [
        values.get("args", "") + values.get("kwargs", "") for name, values in inner if name == "wrapper"
    ]
    is_of_all = (bool(passed) and "ProcessGroup" not in passed[-1]) or _passes_no_group(frames)
    # The script's own call comes first: torch passes an object by several calls, with ranks of the group.
    for name, values in reversed(inner):
        key = _PEERS.get(name) or _ROOTS.get(name)
        if not key:
            continue
        rank = _number(values.get(key, ""))
        if rank < 0 and is_of_all:
            rank = _number(values.get(f"group_{key}", ""))
        if name in _PEERS:
            return MainCall(name=name, function=name, peer=rank, tag=max(0, _number(values.get("tag", "0"))))
        return MainCall(function=name, rooted=name, root=rank, is_of_all=is_of_all)
    return MainCall(is_of_all=is_of_all)


def _passes_no_group(frames: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the script called a library without a group. The library passes the default one on."""
    values = map(_local_values, _library_frames(frames))
    groups = [local[name] for local in values for name in _GROUP_VARIABLES if name in local]
    return groups[-1:] == ["None"]


def _values_of_script(frames: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    return (_local_values(frame) for frame in frames if not is_library(_stack([frame])[0]))


def _library_frames(frames: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the frames of libraries that the script's innermost frame has called."""
    return list(itertools.takewhile(lambda frame: is_library(_stack([frame])[0]), frames))


def _takes_group(frames: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
    own_frames = [frame for frame in _library_frames(frames) if not str(frame["name"]).endswith(_WRAPPER)]
    for frame in own_frames[-1:]:
        local_values = frame.get("locals") or ()
        names = [local["name"] for local in local_values if local.get("arg") and local["name"] != "self"]
        places = [place for place, name in enumerate(names) if name in _GROUP_VARIABLES]
        if places:
            return str(frame["name"]).rpartition(".")[2], places[0]
    return "", -1


def _request(frames: Sequence[Mapping[str, Any]]) -> GroupRequest:
    """Return what the main thread asks for in ``init_process_group``, or the group that it makes."""
    world, asks, store = 0, -1, ""
    inside = False
    for name, values in _torch_frames(frames):
        inside = inside or name in ("init_process_group", "_create_c10d_store", "_env_rendezvous_handler")
        world = world or max(0, _number(values.get("world_size", "")))
        asks = asks if asks >= 0 else _number(values.get("rank", ""))
        if name == "_create_c10d_store" and _number(values.get("port", "")) >= 0:
            store = f"{values.get('hostname', '').strip(chr(34) + chr(39))}:{values['port']}"
        method = _TCP_METHOD.match(values.get("init_method", ""))
        if method and not store:
            store = method[1]
        ranks = _RANKS.fullmatch(values.get("ranks", ""))
        if name == "_new_group_with_tag" and ranks:
            members = folded(map(int, ranks[1].split(", ")))
            meets_members = values.get("use_local_synchronization") == "True"
            made = (values.get("group_name", "").strip("'\""), members)
            return GroupRequest(makes=made, meets=members if meets_members else "")
    return GroupRequest(world=world, asks=asks, store=store) if inside else GroupRequest()


def _rank(frames: Sequence[Mapping[str, Any]]) -> int:
    ranks = (
        values[name] for values in _values_of_script(frames) for name in _RANK_VARIABLES if name in values
    )
    return _number(next(ranks, ""))


def _lock(frames: Sequence[Mapping[str, Any]]) -> str:
    """Return the file that torch or the library filelock polls for."""
    for frame in frames:
        values = _local_values(frame)
        for name, end in (("build_directory", "/lock"), ("lock_filename", "")):
            path = re.fullmatch(r"(['\"])(/.*)\1", values.get(name, ""))
            if path and not path[2].endswith("..."):
                return path[2] + end
    return ""


def _numbers(frames: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    numbers: dict[str, str] = {}
    for values in _values_of_script(frames):
        for name, value in values.items():
            if _NUMBER.fullmatch(value):
                numbers.setdefault(name, value)
    return tuple(f"{name}={value}" for name, value in numbers.items())


def _of_spawn(frames: Sequence[Mapping[str, Any]], function: str, variable: str) -> int:
    """Return a variable of a function of ``torch.multiprocessing.spawn``; -1 outside of that function."""
    for frame in frames:
        if frame["name"] == function and str(frame["filename"]).endswith(_SPAWN):
            return _number(_local_values(frame).get(variable, ""))
    return -1
