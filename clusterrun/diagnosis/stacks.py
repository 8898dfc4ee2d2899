"""Read Python stacks: parse what tools print, and tell what a thread does from its frames; pure.

A stack is a tuple of frames ``FILE:LINE FUNCTION``, innermost first.
"""

from __future__ import annotations

import enum
import itertools
import json
import re
from collections.abc import Sequence
from functools import lru_cache

from clusterrun.model.frozen import frozen

MOST_FRAMES = 60
MOST_CHARACTERS = 300
MOST_THREADS = 4
# An import stands near the innermost frame; deeper frames may import lazily and be long past it.
IMPORT_FRAMES = 12

_THREAD = re.compile(r"(?:Current t|T)hread 0x([0-9a-f]+)\b.*\(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
# The frame of a process that still runs after its interpreter has ended.
ENDED_PYTHON = "<exit>:0 Py_Finalize"
# The outermost frame of a main thread until its script has ended.
_SCRIPT = (" <module>", " _run_module_as_main")
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|(?:^|/)torch/(?:nn|cuda|distributed|autograd|multiprocessing|utils|_\w+)/"
    r"|(?:^|/)deepspeed/(?:runtime|utils|comm|launcher)/"
    r"|/lib(?:64)?/python\d|(?i:/envs/[^/]+/lib/)|/lib/pypy|^<(?!dynamic-code>|stdin>|ipython-)|\.zip/|\.p(?:yx|xi|xd):|/prelude/clusterrun_"
    # A program without a suffix that a package installed. Functions that cloudpickle brought, as for
    # submitit, and those of a notebook have no file, and are the user's.
    r"|/bin/[^/.]+:"
)
# Python's own library, in which a thread that waits makes no call of torch.
_PYTHONS_OWN = re.compile(r"/lib(?:64)?/python\d[\d.]*/(?!site-packages/|dist-packages/)")
_READS_SOCKET = re.compile(
    r"/lib(?:64)?/python\d[\d.]*/(?:socket|ssl)\.py:\d+ (?:.*\.)?(?:readinto|read|recv\w*)$"
)
_LINE = re.compile(r".*?:\d+(?= |$)", re.DOTALL)
_RENDEZVOUS = ("init_process_group", "rendezvous", "_store_based_barrier", "new_group", "create_c10d_store")
# Functions that make a group. The outermost of these frames is the user's call.
_MEETS = ("init_process_group", "new_group", "new_subgroups", "split_group", "init_device_mesh")
_COMMUNICATION = ("/torch/distributed/", "/torch/_C/_distributed_c10d")
_RAY_TRAIN = "/ray/train/"
# Functions that no script calls by name.
_PRIVATE = {
    "_verify_param_shape_across_processes": "the check of parameters by DistributedDataParallel",
    "_sync_module_states": "the broadcast of the model's state",
}
_DECORATORS = ("wrapper", "_wrapped_fn")
_NOT_WAITING = ("/torch/distributed/elastic/", "/torch/distributed/fsdp/", "/torch/distributed/tensor/")
# Native functions in which a thread waits for other ranks, and those in which it waits for its GPU. A GPU
# that waits in a collective looks the same from outside.
_NATIVE_WAITS = re.compile(r"c10d::|gloo::|\bnccl[A-Z]|\bP?MPI_[A-Z]|\b(?:ompi|opal|ucp|ucs)_")
_MPI = re.compile(r"\bP?(MPI_[A-Z]\w+)")
_NATIVE_HALF = re.compile(r"\bwait(Send|Recv)\b")
_NATIVE_REDUCER = "c10d::Reducer"
_NATIVE_STORE = re.compile(r"c10d::(?:TCPStore|PrefixStore|FileStore|HashStore|Store|detail::TCPClient)\b")
_NATIVE_GPU = re.compile(r"\b(?:cuda|cu|hip)(?:Stream|Device|Event|Ctx)Synchronize|\b(?:cuda|hip)Memcpy")
GPU_WAIT = "a GPU call"
BACKWARD = "the backward pass"
STORE_WAIT = "a store call (get or wait)"
# Without the name of the call: a collective of a library, or the wait for a send that was begun before.
SOME_WAIT = "a collective, send or receive"
# The same, or the half of a pair that waits for its request.
SOME_WAITS = (SOME_WAIT, "send", "recv")


class Doing(enum.Enum):
    """The state that the innermost frames of a thread show."""

    COLLECTIVE = "waits in a collective"
    RENDEZVOUS = "waits for the other ranks to make a group"
    DATA = "waits for its data-loader"
    IMPORT = "is still importing"
    USER = "is in user code"
    UNKNOWN = "shows no stack"


# States of a thread that waits for other ranks.
TOGETHER = (Doing.COLLECTIVE, Doing.RENDEZVOUS)


@frozen
class StackLocation:
    """The place of a thread: its kind, the innermost frame of the user's code ('': none), the torch call."""

    doing: Doing
    frame: str = ""
    operation: str = ""

    @property
    def line(self) -> str:
        """Return ``train.py:33 (step)``."""
        return short(self.frame)


@frozen
class ThreadPlace:
    """A thread that is not the main thread."""

    # the outermost frame of the user's code, which is the function that the thread runs; of a thread of torch
    # itself, the outermost frame of torch
    entry: str
    frame: str  # the innermost frame of the user's code
    operation: str = ""  # the collective that it waits in; '' if it waits in none
    is_of_all: bool = False  # that collective is known to take all ranks
    holds_lock: bool = False  # it holds the lock of Python's interpreter (GIL)
    begun: bool = False  # Python's module ``threading`` began it, so it is no hook of the backward pass
    waits: str = ""  # what it waits for, as ``ThreadWait.kind``; '' if that is unknown


@lru_cache(maxsize=4096)
def location(stack: tuple[str, ...], native: tuple[str, ...] = ()) -> StackLocation:
    """Return where a thread with ``stack`` is. ``native`` are the library functions that it is in."""
    place = _python_location(stack)
    if place.doing is not Doing.USER or not native:
        return place
    if any(_NATIVE_WAITS.search(function) for function in native):
        operation = next((match[1] for match in map(_MPI.search, native) if match), SOME_WAIT)
        operation = next((match[1].lower() for match in map(_NATIVE_HALF.search, native) if match), operation)
        if any(_NATIVE_REDUCER in function for function in native):
            operation = BACKWARD
        elif any(_NATIVE_STORE.search(function) for function in native):
            operation = STORE_WAIT
        return StackLocation(Doing.COLLECTIVE, place.frame, operation)
    if any(_NATIVE_GPU.search(function) for function in native):
        return StackLocation(Doing.COLLECTIVE, place.frame, GPU_WAIT)
    return place


def _python_location(stack: tuple[str, ...]) -> StackLocation:
    if not stack:
        return StackLocation(Doing.UNKNOWN)
    user_frame = next((frame for frame in stack if not is_library(frame)), "")
    inner = stack[: stack.index(user_frame)] if user_frame else stack
    if any("<frozen importlib" in frame for frame in stack[:IMPORT_FRAMES]):
        return StackLocation(Doing.IMPORT, user_frame)
    if any(function_of(frame) in _RENDEZVOUS for frame in inner):
        meets = [function_of(frame) for frame in inner if function_of(frame) in _MEETS]
        return StackLocation(Doing.RENDEZVOUS, user_frame, meets[-1] if meets else "init_process_group")
    if any("/torch/utils/data/" in frame for frame in inner):
        return StackLocation(Doing.DATA, user_frame)
    calls = [frame for frame in inner if function_of(frame) not in _DECORATORS]
    waits = list(filter(_communicates, calls))
    if waits and _communicates(inner[0]):
        operation = function_of(waits[-1])
        return StackLocation(Doing.COLLECTIVE, user_frame, _PRIVATE.get(operation, operation))
    waits = [frame for frame in calls if _RAY_TRAIN in frame and "_trainer.py:" not in frame]
    if waits and waits_for_ray(inner):
        return StackLocation(Doing.COLLECTIVE, user_frame, f"{function_of(waits[-1])} of Ray Train")
    return StackLocation(Doing.USER, user_frame)


def is_library(frame: str) -> bool:
    """Return whether a frame belongs to Python, an installed package or clusterrun."""
    return _LIBRARY.search(frame) is not None


def is_in_python(stack: tuple[str, ...]) -> bool:
    """Return whether a thread is in Python's own library, so that it is in no native code of torch."""
    return bool(stack) and _PYTHONS_OWN.search(line_of(stack[0])) is not None


def is_in_backward(stack: tuple[str, ...]) -> bool:
    """Return whether a thread is in the native part of autograd."""
    return (
        bool(stack) and re.search(r"/torch/autograd/graph.py:\d+ _engine_run_backward$", stack[0]) is not None
    )


def is_out_of_data(stack: tuple[str, ...]) -> bool:
    """Return whether a rank has no data left and follows the others' collectives (torch's ``Join``)."""
    return any(
        "/torch/distributed/algorithms/join.py" in frame and function_of(frame) == "__exit__"
        for frame in stack
    )


def script_has_ended(stack: tuple[str, ...]) -> bool:
    """Return whether the script of a main thread with this stack has ended."""
    return bool(stack) and not stack[-1].endswith(_SCRIPT)


def short(frame: str) -> str:
    """Return ``train.py:33 (step)`` for ``/home/me/train.py:33 step``."""
    where = line_of(frame)
    name, function = where.rpartition("/")[2], frame[len(where) + 1 :]
    return f"{name} ({function})" if function and function != "<module>" else name


def line_of(frame: str) -> str:
    """Return the file and the number of the line, without the function."""
    match = _LINE.match(frame)
    return match[0] if match else frame.partition(" ")[0]


def steps_before(position: Sequence[str], other: Sequence[str]) -> Sequence[str]:
    """Return the steps in which a place of the script certainly comes before another one; () if it does not.

    Lines of ``PythonStacks.position`` are compared within one turn of the loops around both.
    """
    for index, (first, second) in enumerate(zip(position, other)):
        if first == second and not first.endswith(" ?"):
            continue
        kind, _, number = first.partition(" ")
        other_kind, _, other_number = second.partition(" ")
        is_known = kind == other_kind and number.isdigit() and other_number.isdigit()
        return position[index:] if is_known and int(number) < int(other_number) else ()
    return ()


def function_of(frame: str) -> str:
    """Return the bare name of the function. py-spy adds the class or the outer function."""
    return frame.rpartition(" ")[2].rpartition(".")[2]


def _communicates(frame: str) -> bool:
    return any(place in frame for place in _COMMUNICATION) and not any(path in frame for path in _NOT_WAITING)


# --- what tools print ---


def of_faulthandler(text: str, main: str) -> tuple[str, ...]:
    """Return the stack of thread ``main`` (its number in hex) from faulthandler's output; () if missing."""
    return _threads(text).get(main.lstrip("0"), ())


def of_faulthandlers_last(text: str) -> tuple[str, ...]:
    """Return the stack of the last thread in faulthandler's output, which is the main thread's."""
    return next(reversed(_threads(text).values()), ())


def other_threads(text: str, main: str) -> tuple[ThreadPlace, ...]:
    """Return the threads beside ``main`` that run user code, or are in a collective."""
    places = []
    for number, stack in _threads(text).items():
        if number == main.lstrip("0"):
            continue
        threads = location(stack)
        operation = threads.operation if threads.doing is Doing.COLLECTIVE else ""
        user_frames = [frame for frame in stack if not is_library(frame)]
        if operation and not user_frames:  # A thread of torch itself, as of an asynchronous checkpoint.
            user_frames = [frame for frame in stack if "/torch/" in frame][-1:]
            calls = [function_of(frame) for frame in stack if "/distributed_c10d.py:" in frame]
            operation = calls[-1] if calls else operation
        if user_frames:
            places.append(ThreadPlace(user_frames[-1], user_frames[0], operation))
    # Threads in a collective first: they must not be cut off by a pool of idle workers.
    places.sort(key=lambda place: not place.operation)
    return tuple(dict.fromkeys(places))[:MOST_THREADS]


def _threads(text: str) -> dict[str, tuple[str, ...]]:
    stacks: dict[str, list[str]] = {}
    frames: list[str] = []
    for line in text.replace("\0", "").splitlines():
        if thread := _THREAD.match(line):
            frames = stacks[thread[1].lstrip("0")] = []
        elif frame := _FRAME.match(line):
            frames.append(frame_of(frame[1], frame[2], frame[3]))
    return {number: shortened(stack, MOST_FRAMES) for number, stack in stacks.items()}


def of_py_spy(text: str) -> tuple[str, ...]:
    """Return the main thread's stack from the output of ``py-spy dump --json``; () if it is damaged."""
    try:
        threads = json.loads(text)
        # A main thread has the process's number. It has a name only if Python has loaded threads.
        main = next((thread for thread in threads if thread["os_thread_id"] == thread["pid"]), threads[-1])
        frames = [
            frame_of(*(str(frame[key]) for key in ("filename", "line", "name"))) for frame in main["frames"]
        ]
        return shortened(frames, MOST_FRAMES)
    except (ValueError, LookupError, TypeError, AttributeError):
        return ()


def shortened(stack: Sequence[str], most: int) -> tuple[str, ...]:
    """Return ``most`` frames: the innermost ones, and the outermost, which shows whose stack it is."""
    return tuple(stack) if len(stack) <= most else (*stack[: most - 1], stack[-1])


def frame_of(file: str, line: str, function: str) -> str:
    # The package multiprocess, which datasets uses, is a copy of Python's multiprocessing.
    file = file.replace("-packages/multiprocess/", "-packages/multiprocessing/")
    return f"{file[-MOST_CHARACTERS:]}:{line if line.isdigit() else 0} {function[:MOST_CHARACTERS]}"


# --- processes below a rank ---


def in_data_loader(stack: tuple[str, ...]) -> bool:
    return any("/torch/utils/data/" in frame for frame in stack)


def joins_processes(stack: tuple[str, ...]) -> bool:
    """Return whether a process waits for processes that it started (``mp.spawn``, ``multiprocessing``)."""
    inner = next((depth for depth, frame in enumerate(stack) if not is_library(frame)), len(stack))
    return any("/multiprocessing/" in frame for frame in stack[:inner])


def waits_for_program(stack: tuple[str, ...]) -> bool:
    """Return whether a thread waits in ``subprocess`` for a program that it started."""
    return any("/subprocess.py:" in frame for frame in itertools.takewhile(is_library, stack))


def reads_of_process(stack: tuple[str, ...]) -> bool:
    """Return whether a thread reads what another process of ``multiprocessing`` sends."""
    reads = [frame for frame in stack[:4] if "/multiprocessing/" in frame or "/concurrent/futures/" in frame]
    return waits_for_pool(stack) or any(
        function_of(frame) in ("recv", "recv_bytes", "result") for frame in reads
    )


def waits_for_input(stack: tuple[str, ...]) -> bool:
    """Return whether a thread waits in Python's own library for data of a socket, or for asyncio's events."""
    return waits_for_coroutine(stack) or (bool(stack) and _READS_SOCKET.search(stack[0]) is not None)


def waits_for_coroutine(stack: tuple[str, ...]) -> bool:
    """Return whether a thread is in the event loop of asyncio, which has nothing to run."""
    return _is_inside(stack[1:2], "/asyncio/base_events.py:", "_run_once")


def hands_over_queue(stack: tuple[str, ...]) -> bool:
    """Return whether a process that ends waits until what it put into a queue is taken out."""
    return _is_inside(stack, "/multiprocessing/queues.py:", "_finalize_join")


def waits_for_semaphore(stack: tuple[str, ...]) -> bool:
    """Return whether a thread waits for a lock of ``multiprocessing``."""
    return _is_inside(stack[:1], "/multiprocessing/synchronize.py:", "__enter__")


def waits_for_pool(stack: tuple[str, ...]) -> bool:
    """Return whether a thread waits for a result of ``multiprocessing.Pool``."""
    return _is_inside(stack, "/multiprocessing/pool.py:", "get", "wait", "next")


def waits_for_ray(stack: tuple[str, ...]) -> bool:
    """Return whether a thread waits for a task or an object of Ray. It polls for it."""
    return _is_inside(stack, "/ray/_private/worker.py:", "get_objects", "wait")


def is_at_debugger(stack: tuple[str, ...]) -> bool:
    """Return whether a thread waits at the prompt of pdb."""
    return _is_inside(stack, "/pdb.py:", "_cmdloop", "interaction")


def _is_inside(stack: tuple[str, ...], file: str, *functions: str) -> bool:
    """Return whether one of the innermost frames is in one of these functions of a library's file."""
    return any(file in frame and function_of(frame) in functions for frame in stack[:6])


def is_idle_worker(stack: tuple[str, ...]) -> bool:
    """Return whether a worker of a pool or a data-loader waits for a task, or a process is its tracker."""
    for inner, frame in zip(stack, stack[1:]):
        if "/multiprocessing/pool.py:" in frame or works_for_a_loader((frame,)):
            return "/multiprocessing/queues.py:" in inner and function_of(inner) == "get"
    return any("/multiprocessing/resource_tracker.py:" in frame for frame in stack[:2])


def frame_of_worker(stack: tuple[str, ...]) -> str:
    """Return the user's innermost frame of a process of ``multiprocessing``; '' without one."""
    inner = own_stack(stack)
    return next((frame for frame in inner if not is_library(frame)), "") if len(inner) < len(stack) else ""


def own_stack(stack: tuple[str, ...]) -> tuple[str, ...]:
    """Return the frames below the start of a process of ``multiprocessing``. A fork has its parent's, too."""
    return tuple(itertools.takewhile(lambda frame: "/multiprocessing/process.py:" not in frame, stack))


def polls_for_lock_file(stack: tuple[str, ...]) -> bool:
    """Return whether a thread waits in a library's loop until another process removes a lock file."""
    inner = itertools.takewhile(is_library, stack)
    return any("/torch/utils/file_baton.py:" in frame or "/filelock/" in frame for frame in inner)


def joins_thread(stack: tuple[str, ...]) -> bool:
    """Return whether a thread waits for the end of another one, or for its result."""
    inner = [frame for frame in stack[:4] if "/threading.py:" in frame or "/concurrent/futures/" in frame]
    return any(function_of(frame) in ("join", "result") for frame in inner)


def works_for_a_loader(stack: tuple[str, ...]) -> bool:
    return any("/torch/utils/data/_utils/worker.py:" in frame for frame in stack)
