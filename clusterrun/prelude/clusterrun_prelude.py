"""What a rank answers while it hangs: stacks on a signal, torch's own facts from a sleeping thread.

It is imported by the ranks' Python, knows nothing of clusterrun and imports nothing that is not
loaded anyway. What it says lies in memory files that are named for whoever may look at this
process's descriptors; it writes a file only at the end of a rank that failed in a process group, or
that trained without the others (``00003.farewell.json``, for whoever asks later).

    clusterrun.stacks.RANK.PID.MAIN   stacks of all threads; MAIN is the main thread's number, in hex
    clusterrun.facts.RANK.PID.PIPE    the answer to the newest question; PIPE is the descriptor to ask at

A question is a line ``NUMBER RECORDS``; the answer one line of JSON with that number in ``ask``.
"""

from __future__ import annotations

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
MOST_GROUPS = 64
LAST_RECORDS = 16
MOST_RANKS = 2000
"""Characters of a group's list of ranks."""
KEPT = ("collective_seq_id", "profiling_name", "input_sizes", "output_sizes", "input_dtypes", "retired")
"""What is wanted of a flight record beside its group, its state and its times."""


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
    _thread.start_new_thread(answer, (asked, facts))
    if not faulthandler.is_enabled():
        faulthandler.enable()  # a rank that aborts in a library says in which line of the user's
    attempt = int(os.environ.get("CLUSTERRUN_ATTEMPT", "0"))
    name = f"{os.environ.get('CLUSTERRUN_RUN_DIR', '')}/attempts/{attempt:03d}/{int(rank):05d}.farewell.json"
    atexit.register(farewell, name, pid, int(os.environ.get("WORLD_SIZE", "1")))


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


def answer(asked: int, facts: int) -> None:
    """Sleep until somebody asks, write the answer, for ever."""
    while True:
        try:
            number, records = os.read(asked, 4096).split(b"\n")[-2].split()
            try:
                text = words(int(number), int(records))
            except Exception as error:  # noqa: BLE001 (torch of any version may refuse)
                text = f'{{"ask": {int(number)}, "problem": "{type(error).__name__}"}}'
            os.ftruncate(facts, 0)
            os.pwrite(facts, text.encode("ascii", "replace") + b"\n", 0)
        except (OSError, ValueError, IndexError, TypeError):
            return  # the script closed our descriptors, or the interpreter is being taken apart


def farewell(name: str, pid: int, size: int) -> None:
    """At the end of a rank: leave the flight records of one that failed, or word of one that was alone."""
    try:
        torch = sys.modules.get("torch")
        json = sys.modules.get("json")
        failed = hasattr(sys, "last_type") or hasattr(sys, "last_exc")
        if torch is None or json is None or os.getpid() != pid or size < 2:
            return
        said = json.loads(words(0, LAST_RECORDS))
        largest = max((group["size"] for group in said.get("groups", ())), default=0)
        alone = largest == 1 or not (largest or said.get("records"))
        if alone or (failed and said.get("records")):
            said.update({"failed": failed, "alone": alone, "size": size})
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            os.write(file, json.dumps(said).encode() + b"\n")
            os.close(file)
    except Exception:  # noqa: BLE001 (the end of a rank is the user's, not ours)
        return


def words(number: int, records: int) -> str:
    """The answer to a question, as JSON; ``records``: how many flight records of each group are wanted."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    json = sys.modules.get("json")  # never imported here: a file of the user might bear that name
    if c10d is None or json is None or not hasattr(c10d, "_world"):
        torch = "true" if "torch" in sys.modules else "false"
        return f'{{"ask": {number}, "torch": {torch}}}'
    said = {"ask": number, "torch": True, "groups": groups(c10d, records > 0)}
    if records:
        said["records"], said["states"] = flight(json, records)
    return str(json.dumps(said))


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


def flight(json: Any, most: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The newest ``most`` records of each group from torch's flight recorder, oldest first."""
    torch = sys.modules["torch._C._distributed_c10d"]
    dump = getattr(torch, "_dump_fr_trace_json", None) or getattr(torch, "_dump_nccl_trace_json", None)
    if dump is None:
        return [], {}
    trace = json.loads(dump(True, False))
    kept = []
    count: dict[str, int] = {}
    for entry in reversed(trace.get("entries") or ()):
        name = str(entry.get("process_group", [entry.get("pg_id")])[0])
        count[name] = count.get(name, 0) + 1
        if count[name] <= most and not entry.get("is_p2p"):
            kept.append({"group": name, "state": entry.get("state"), "at": moment(entry)})
            kept[-1].update((key, entry.get(key)) for key in KEPT)
    return kept[::-1], trace.get("pg_status") or {}


def moment(entry: dict[str, Any]) -> int:
    """When a collective was begun, in nanoseconds since the epoch."""
    return int(entry.get("time_discovered_started_ns") or entry.get("time_created_ns") or 0)
