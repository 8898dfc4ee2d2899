"""Lets a rank answer while it hangs: stacks on a signal, torch's state from a sleeping thread.

It is imported by the ranks' Python, knows nothing of clusterrun and imports nothing that is not
loaded anyway (``__future__`` would have to be read). What it says lies in memory files that are named
for whoever may look at this process's descriptors; it writes a file only at the end of a rank that
failed in a process group, or that trained without the others (``00003.farewell.json``, for whoever
asks later).

    clusterrun.stacks.RANK.PID.MAIN   stacks of all threads; MAIN is the main thread's number, in hex
    clusterrun.facts.RANK.PID.PIPE    the answer to the newest question; PIPE is the descriptor to ask at

A question is a line ``NUMBER RECORDS``; the answer one line of JSON with that number in ``ask``.
It is found by the files of ``WITNESS``, beside this one, which a rank that nobody asks never reads.
"""

import _thread
import atexit
import faulthandler
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SWITCH = "CLUSTERRUN_PRELUDE"
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "conda", "mamba", "uv", "mpirun", "mpiexec", "srun")
"""Programs in Python, or started by one, whose children are the ranks: they are left alone."""
WORKED_SECONDS = 30.0
"""Of a processor: what is started per node may run short programs that use torch before it trains."""
RECORDS = 2000
SIZES = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")
DUMPS = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")
WITNESS = ("clusterrun_script_source.py", "clusterrun_witness.py")
REHEARSAL = "CLUSTERRUN_REHEARSAL"
ORIGINAL, COPY = "CLUSTERRUN_CODE_ORIGINAL", "CLUSTERRUN_CODE_COPY"
FAILED = b'{"failed": true, "alone": false}\n'
"""What is left of a rank that an exception ended before torch was loaded."""
LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


def begin(here: str) -> None:
    """Open the channels of this process where it is a rank; ``here`` is the prelude's folder."""
    if COPY in os.environ:
        from clusterrun_code_copy import redirect  # type: ignore[import-not-found, unused-ignore]

        redirect(os.environ[ORIGINAL], os.environ[COPY])
        sys.modules.pop("clusterrun_code_copy")
    rank, node = os.environ.get("RANK", ""), os.environ.get("NODE_RANK", "")
    if not (rank or node).isdigit() or launches():
        return
    run, attempt = os.environ.get("CLUSTERRUN_RUN_DIR", ""), int(os.environ.get("CLUSTERRUN_ATTEMPT", "0"))
    folder = f"{run}/attempts/{attempt:03d}"
    if not rank:  # started once per node: if it starts no ranks, it trains there without the other nodes
        size = int(os.environ.get("NNODES", "1"))
        atexit.register(farewell, f"{folder}/{int(node):05d}.farewell.json", os.getpid(), here, size, True)
        return
    number = int(os.environ.pop(SWITCH))
    forget_path(here)
    pid = os.getpid()
    asked, ask = os.pipe()
    facts = os.memfd_create(f"clusterrun.facts.{rank}.{pid}.{ask}")
    stacks = os.memfd_create(f"clusterrun.stacks.{rank}.{pid}.{_thread.get_ident():x}")
    faulthandler.register(number, file=stacks, all_threads=True, chain=False)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    _thread.start_new_thread(answer, (asked, facts, here, size))
    if not faulthandler.is_enabled():
        faulthandler.enable()  # a rank that aborts in a library says in which line of the user's
    name = f"{folder}/{int(rank):05d}.farewell.json"
    atexit.register(farewell, name, pid, here, size, False)
    if run:
        forget_failure(name)
        keep_records(folder)
    if run and REHEARSAL in os.environ:
        from clusterrun_rehearsal import start_watch  # type: ignore[import-not-found, unused-ignore]

        start_watch.begin(folder, int(rank), run)


def keep_records(folder: str) -> None:
    """Have torch keep flight records, and write them into the run directory when a collective times out.

    torch 2.4 to 2.6 keep none of NCCL's by default; torch 2.8 warns of the older names.
    """
    newest = torch_version() >= (2, 8)
    for names, value in ((SIZES, str(RECORDS)), (DUMPS, f"{folder}/flight-records-")):
        if not any(name in os.environ for name in names):
            os.environ[names[newest]] = value
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")


def forget_failure(name: str) -> None:
    """Take back what a Python before this one left: whatever started both went on in spite of it."""
    try:
        with open(name, "rb", buffering=0) as file:
            if file.read(len(FAILED) + 1) == FAILED:
                os.unlink(name)
    except OSError:
        pass


def torch_version() -> "tuple[int, int]":
    """Of the torch that this rank would import, from its file; (0, 0) where it is not found."""
    for place in sys.path:
        try:
            with open(os.path.join(place, "torch", "version.py"), "rb") as file:
                words = file.read(4096).partition(b"__version__ = '")[2].split(b".")
            return int(words[0]), int(words[1])
        except (OSError, ValueError, IndexError):
            continue
    return 0, 0


def launches() -> bool:
    """Whether this Python is about to run a program that starts the ranks."""
    with open("/proc/self/cmdline", "rb") as file:
        words = [os.fsdecode(word) for word in file.read(4096).split(b"\0")[1:]]
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        words.pop(0)
    if words[:1] == ["-m"]:
        return words[1:2] != [] and words[1] in LAUNCHER_MODULES
    return words != [] and os.path.basename(words[0]) in LAUNCHERS


def forget_path(here: str) -> None:
    """Take the prelude out of the path that children of this rank inherit."""
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place != here]
    if places:
        os.environ["PYTHONPATH"] = os.pathsep.join(places)
    else:
        os.environ.pop("PYTHONPATH", None)


def answer(asked: int, facts: int, here: str, size: int) -> None:
    known: dict[str, Any] = {}
    while True:
        try:
            number, records = os.read(asked, 4096).split(b"\n")[-2].split()
            try:
                if knows_others():
                    known = known or witness(here)
                    text = known["state_json"](int(number), int(records), size)
                else:
                    torch = "true" if "torch" in sys.modules else "false"
                    text = f'{{"ask": {int(number)}, "torch": {torch}}}'
            except Exception as error:  # noqa: BLE001 (torch of any version may refuse)
                text = f'{{"ask": {int(number)}, "problem": "{type(error).__name__}"}}'
            os.ftruncate(facts, 0)
            os.pwrite(facts, text.encode("ascii", "replace") + b"\n", 0)
        except (OSError, ValueError, IndexError, TypeError):
            return  # the script closed our descriptors, or the interpreter is being taken apart


def knows_others() -> bool:
    """Whether torch has loaded what joins ranks, and with it the modules that the witness uses."""
    return hasattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world")


def witness(here: str) -> "dict[str, Any]":
    """What the files of ``WITNESS`` define, in one space; the folder is on no path any more."""
    space: dict[str, Any] = {"__name__": "clusterrun_witness"}
    for name in WITNESS:
        path = os.path.join(here, name)
        with open(path, "rb") as file:
            exec(compile(file.read(), path, "exec"), space)
    return space


def farewell(name: str, pid: int, here: str, size: int, per_node: bool) -> None:
    """At the end of a rank: what only it knows; without torch that is whether an exception ended it.

    ``per_node``: it may be no rank. What works less than the processes that it starts is a launcher.
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
        witness(here)["dump_at_exit"](name, size)
    except Exception:  # noqa: BLE001 (the end of a rank is the user's, not ours)
        pass


def leave(name: str, said: bytes) -> None:
    """Write a file that is not there yet."""
    try:
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        os.write(file, said)
        os.close(file)
    except OSError:
        pass
