"""What a rank answers while it hangs: stacks on a signal, torch's own facts from a sleeping thread.

It is imported by the ranks' Python, knows nothing of clusterrun and imports nothing that is not
loaded anyway (``__future__`` would have to be read). What it says lies in memory files that are named
for whoever may look at this process's descriptors; it writes a file only at the end of a rank that
failed in a process group, or that trained without the others (``00003.farewell.json``, for whoever
asks later).

    clusterrun.stacks.RANK.PID.MAIN   stacks of all threads; MAIN is the main thread's number, in hex
    clusterrun.facts.RANK.PID.PIPE    the answer to the newest question; PIPE is the descriptor to ask at

A question is a line ``NUMBER RECORDS``; the answer one line of JSON with that number in ``ask``.
It is found by ``clusterrun_witness.py``, beside this file, which a rank that nobody asks never reads.
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
LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


def begin(here: str) -> None:
    """Open the doors of this process where it is a rank; ``here`` is the prelude's folder."""
    rank = os.environ.get("RANK", "")
    if not rank.isdigit() or launches():
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
    attempt = int(os.environ.get("CLUSTERRUN_ATTEMPT", "0"))
    name = f"{os.environ.get('CLUSTERRUN_RUN_DIR', '')}/attempts/{attempt:03d}/{int(rank):05d}.farewell.json"
    atexit.register(farewell, name, pid, here, size)


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
    """Sleep until somebody asks, write the answer, for ever."""
    known: dict[str, Any] = {}
    while True:
        try:
            number, records = os.read(asked, 4096).split(b"\n")[-2].split()
            try:
                known = known or witness(here)
                text = known["words"](int(number), int(records), size)
            except Exception as error:  # noqa: BLE001 (torch of any version may refuse)
                text = f'{{"ask": {int(number)}, "problem": "{type(error).__name__}"}}'
            os.ftruncate(facts, 0)
            os.pwrite(facts, text.encode("ascii", "replace") + b"\n", 0)
        except (OSError, ValueError, IndexError, TypeError):
            return  # the script closed our descriptors, or the interpreter is being taken apart


def witness(here: str) -> "dict[str, Any]":
    """What ``clusterrun_witness.py`` defines; the folder is on no path any more."""
    path = os.path.join(here, "clusterrun_witness.py")
    space: dict[str, Any] = {"__name__": "clusterrun_witness"}
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), space)
    return space


def farewell(name: str, pid: int, here: str, size: int) -> None:
    """At the end of a rank that used torch among others: what only it knows."""
    if size < 2 or os.getpid() != pid or "torch" not in sys.modules:
        return
    try:
        witness(here)["last_words"](name, size)
    except Exception:  # noqa: BLE001 (the end of a rank is the user's, not ours)
        pass
