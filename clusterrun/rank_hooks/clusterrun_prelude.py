"""Let a rank answer while it hangs: stacks on a signal, torch's state from a sleeping thread.

The ranks' Python imports it. It does not depend on clusterrun, and imports only modules that are already
loaded (``__future__`` would have to be read). Its answers are in memory files, whose names the observer reads
from this process's descriptors. It writes a file only at the end of a rank that failed in a process group, or
that trained without the others (``00003.farewell.json``, for a later diagnosis).

    clusterrun.stacks.RANK.PID.MAIN   stacks of all threads; MAIN is the main thread's number, in hex
    clusterrun.facts.RANK.PID.PIPE    the newest answer; PIPE is the descriptor that takes requests

A request is a line ``NUMBER RECORDS``. The answer is one line of JSON with that number in ``ask``.
The files of ``WITNESS`` next to this file compute it. A rank reads them only on its first request.
"""

import _signal  # type: ignore[import-not-found, unused-ignore]
import _thread
import atexit
import faulthandler
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SWITCH = "CLUSTERRUN_PRELUDE"
# Programs in Python, or started by one, whose children are the ranks. The prelude skips them.
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "conda", "mamba", "uv", "mpirun", "mpiexec", "srun")
# Processor seconds. A program started per node may run short programs that use torch before it trains.
WORKED_SECONDS = 30.0
RECORDS = 2000
SIZES = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")
DUMPS = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")
WITNESS = ("clusterrun_script_source.py", "clusterrun_witness.py")
REHEARSAL = "CLUSTERRUN_REHEARSAL"
ORIGINAL, COPY = "CLUSTERRUN_CODE_ORIGINAL", "CLUSTERRUN_CODE_COPY"
# The file of a rank that an exception ended before torch was loaded.
FAILED = b'{"failed": true, "alone": false}\n'
LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


def begin(prelude_folder: str) -> None:
    """Open the channels of this process if it is a rank."""
    if COPY in os.environ:
        from clusterrun_code_copy import redirect  # type: ignore[import-not-found, unused-ignore]

        redirect(os.environ[ORIGINAL], os.environ[COPY])
        sys.modules.pop("clusterrun_code_copy")
    rank, node = os.environ.get("RANK", ""), os.environ.get("NODE_RANK", "")
    if not (rank or node).isdigit() or launches():
        return
    run, attempt = os.environ.get("CLUSTERRUN_RUN_DIR", ""), int(os.environ.get("CLUSTERRUN_ATTEMPT", "0"))
    folder = f"{run}/attempts/{attempt:03d}"
    # A program started once per node that starts no ranks trains without the other nodes.
    if not rank:
        size = int(os.environ.get("NNODES", "1"))
        atexit.register(
            farewell, f"{folder}/{int(node):05d}.farewell.json", os.getpid(), prelude_folder, size, True
        )
        return
    number = int(os.environ.pop(SWITCH))
    forget_path(prelude_folder)
    pid = os.getpid()
    requests, ask = os.pipe()
    facts = os.memfd_create(f"clusterrun.facts.{rank}.{pid}.{ask}")
    stacks = os.memfd_create(f"clusterrun.stacks.{rank}.{pid}.{_thread.get_ident():x}")
    faulthandler.register(number, file=stacks, all_threads=True, chain=False)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    # The thread takes no signal. A script may block its signals in all of its threads, and call sigwait.
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - {number})
    _thread.start_new_thread(answer, (requests, facts, prelude_folder, size))
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    if not faulthandler.is_enabled():
        faulthandler.enable()  # a rank that aborts in a library then prints the user's line
    name = f"{folder}/{int(rank):05d}.farewell.json"
    atexit.register(farewell, name, pid, prelude_folder, size, False)
    if run:
        forget_failure(name)
        keep_records(folder)
    if run and REHEARSAL in os.environ:
        from clusterrun_rehearsal import start_watch  # type: ignore[import-not-found, unused-ignore]

        start_watch.begin(folder, int(rank), run)


def keep_records(folder: str) -> None:
    """Make torch keep flight records, and write them into the run directory when a collective times out.

    torch 2.4 to 2.6 keep no records of NCCL by default. torch 2.8 warns of the older names.
    """
    newest = torch_version() >= (2, 8)
    for names, value in ((SIZES, str(RECORDS)), (DUMPS, f"{folder}/flight-records-")):
        if not any(name in os.environ for name in names):
            os.environ[names[newest]] = value
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")


def forget_failure(name: str) -> None:
    """Remove the failure file of an earlier Python of this rank: the rank continued in spite of it."""
    try:
        with open(name, "rb", buffering=0) as file:
            if file.read(len(FAILED) + 1) == FAILED:
                os.unlink(name)
    except OSError:
        pass


def torch_version() -> "tuple[int, int]":
    """Return the version of the torch that this rank would import; (0, 0) if there is none."""
    for place in sys.path:
        try:
            with open(os.path.join(place, "torch", "version.py"), "rb") as file:
                parts = file.read(4096).partition(b"__version__ = '")[2].split(b".")
            return int(parts[0]), int(parts[1])
        except (OSError, ValueError, IndexError):
            continue
    return 0, 0


def launches() -> bool:
    """Return whether this Python is about to run a program that starts the ranks."""
    with open("/proc/self/cmdline", "rb") as file:
        arguments = [os.fsdecode(argument) for argument in file.read(4096).split(b"\0")[1:]]
    while arguments and arguments[0].startswith("-") and arguments[0] not in ("-m", "-c"):
        arguments.pop(0)
    if arguments[:1] == ["-m"]:
        return arguments[1:2] != [] and arguments[1] in LAUNCHER_MODULES
    return arguments != [] and os.path.basename(arguments[0]) in LAUNCHERS


def forget_path(prelude_folder: str) -> None:
    """Remove the prelude from the path that children of this rank inherit."""
    places = [
        place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place != prelude_folder
    ]
    if places:
        os.environ["PYTHONPATH"] = os.pathsep.join(places)
    else:
        os.environ.pop("PYTHONPATH", None)


def answer(requests: int, facts: int, prelude_folder: str, size: int) -> None:
    space: dict[str, Any] = {}
    while True:
        try:
            number, records = os.read(requests, 4096).split(b"\n")[-2].split()
            try:
                if knows_others():
                    space = space or witness(prelude_folder)
                    text = space["state_json"](int(number), int(records), size)
                else:
                    torch = "true" if "torch" in sys.modules else "false"
                    text = f'{{"ask": {int(number)}, "torch": {torch}}}'
            except Exception as error:  # noqa: BLE001 (torch of any version may refuse)
                text = f'{{"ask": {int(number)}, "problem": "{type(error).__name__}"}}'
            os.ftruncate(facts, 0)
            os.pwrite(facts, text.encode("ascii", "replace") + b"\n", 0)
        except (OSError, ValueError, IndexError, TypeError):
            return  # the script closed the descriptors, or the interpreter is finalizing


def knows_others() -> bool:
    """Return whether torch.distributed is loaded, and with it the modules that the witness uses."""
    return hasattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world")


def witness(prelude_folder: str) -> "dict[str, Any]":
    """Return the namespace that the files of ``WITNESS`` define. Their folder is no longer on any path."""
    space: dict[str, Any] = {"__name__": "clusterrun_witness"}
    for name in WITNESS:
        path = os.path.join(prelude_folder, name)
        with open(path, "rb") as file:
            exec(compile(file.read(), path, "exec"), space)
    return space


def farewell(name: str, pid: int, prelude_folder: str, size: int, per_node: bool) -> None:
    """Write the facts that only this rank knows at its end; without torch only whether an exception ended it.

    ``per_node``: this process may be no rank. It is a launcher if it computes less than its children.
    """
    if os.getpid() != pid:
        return
    if not knows_others() and not per_node and (hasattr(sys, "last_type") or hasattr(sys, "last_exc")):
        leave(name, FAILED)
    if size < 2 or not knows_others():
        return
    user, system, *children = os.times()[:4]
    if per_node and user + system < max(WORKED_SECONDS, sum(children)):
        return
    try:
        witness(prelude_folder)["dump_at_exit"](name, size)
    except Exception:  # noqa: BLE001 (a fault of the prelude must not change the end of a rank)
        pass


def leave(name: str, content: bytes) -> None:
    """Write a file if it does not exist yet."""
    try:
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        os.write(file, content)
        os.close(file)
    except OSError:
        pass
