"""The reports of nodes about running ranks: values that travel to the coordinator. They judge nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

from clusterrun.diagnosis.stacks import (
    BACKWARD,
    ENDED_PYTHON,
    Doing,
    StackLocation,
    ThreadPlace,
    is_in_backward,
    joins_processes,
    location,
    waits_for_input,
    waits_for_program,
)
from clusterrun.model.frozen import Any, frozen

# Processors. A rank that uses less waits for something.
BUSY = 0.5
# The same if the kernel calls the process runnable: a crowded node gives it little.
CROWDED = 0.05
# Seconds between data of a slow server.
SOCKET_PAUSE = 10.0
# Seconds without movement before ranks are blamed that import, or work before they are in any group.
START_PATIENCE = 60.0
# A busy rank with one of these in its stack compiles.
_COMPILES = (
    *("/torch/_inductor/compile_fx.py:", "/torch/_inductor/async_compile.py:", "/triton/compiler/"),
    "/torch/_dynamo/convert_frame.py:",
)
# Bytes per second by which a file must grow. A heartbeat or a line of a log is less.
WRITES = 16 << 10


@frozen
class LookOptions:
    """How to look at the ranks of a node."""

    seconds: float = 1.0  # how long the look lasts
    records: int = 64  # number of flight records per group and rank


@frozen
class Record:
    """One collective in a rank's flight recorder."""

    group: str
    sequence: int  # its number within ``group``
    operation: str
    # sizes, types: of its input, as text
    sizes: str
    types: str
    done: bool  # this rank has left it
    at: float  # when it began, seconds since the epoch on the rank's own clock
    # number of calls that the rank had begun in the group, this one included. On gloo, sends and receives
    # count as well. 0: unknown
    begun: int = 0
    by_thread: bool = False  # neither the main thread nor a thread of autograd began it


def record_of_entry(entry: Mapping[str, Any], group: str) -> Record:
    """Return the record of one entry of torch's flight recorder. Damaged fields count as absent."""
    began = entry.get("at") or entry.get("time_discovered_started_ns") or entry.get("time_created_ns")
    return Record(
        group,
        whole_number(entry.get("collective_seq_id")),
        str(entry.get("profiling_name") or "").partition(":")[2],
        _text_of_sizes(entry.get("input_sizes")),
        _text_of_sizes(entry.get("input_dtypes")),
        bool(entry.get("retired")) or entry.get("state") == "completed",
        whole_number(began) / 1e9,
        whole_number(entry.get("op_id")),
        bool(entry.get("by_thread")),
    )


def whole_number(value: object) -> int:
    """Return a number of a file or an answer that may be damaged; 0 if it is none."""
    try:
        return int(str(value))
    except ValueError:
        return 0


def _text_of_sizes(value: Any) -> str:
    """Return sizes and types in readable form: ``[4, 2]``, ``Float``. Long lists are cut."""
    items = value if isinstance(value, list) else []
    text = ", ".join(str(item) for item in items[:8])
    return text + (f", and {len(items) - 8} more" if len(items) > 8 else "")


@frozen
class Group:
    """A process group as one rank knows it."""

    name: str
    size: int
    sequence: int = -1  # collectives that this rank has begun in it; -1: unknown
    default: bool = False
    backend: str = ""
    ranks: str = ""  # global ranks, folded (``0-3,8``); '': unknown
    timeout: float = 0.0  # seconds in one collective after which the group ends the rank; 0: unknown


@frozen
class ChildProcess:
    """A process below a rank: a data-loader worker or a program."""

    pid: int
    name: str
    state: str  # the kernel's letter
    waits_in: str = ""
    stack: tuple[str, ...] = ()
    lacks_thread: bool = False  # it waits for a lock or thread of its parent that its fork has not
    used: float = 0.0  # its processor seconds since it began
    waits_for_rank: bool = False  # it waits for data or room in a pipe whose other end the rank has


@frozen
class PostedOp:
    """A ``send`` or ``recv`` with rank ``peer`` that was begun together with others."""

    call: str
    peer: int
    tag: int = 0


@frozen
class Backlog:
    """Bytes that a peer does not acknowledge although they were sent ``retries`` times."""

    peer: str
    waiting: int
    retries: int


@frozen
class ProcessSample:
    """The kernel's view of a rank's process during a look."""

    pid: int
    state: str  # the kernel's letter; '' if the process is gone
    waits_in: str = ""  # the kernel function that it sleeps in
    busy: float = 0.0  # processors that it kept busy
    seconds: float = 0.0  # length of the look
    children: tuple[ChildProcess, ...] = ()
    ended: tuple[int, ...] = ()  # processes that it started and that have ended, without a wait for them
    addresses: tuple[str, ...] = ()  # IP addresses that it speaks from
    ports: tuple[int, ...] = ()  # TCP ports at which it listens
    backlog: tuple[Backlog, ...] = ()
    # the file whose lock it waits for ('': unknown), and the process that holds it (0: none)
    lock: str = ""
    lock_holder: int = 0
    # the age of ``lock`` minus that of the process in seconds, if it waits for the removal of that file
    lock_older: float = 0.0
    # file, written: the file that grew most during the look, and by how many bytes per second
    file: str = ""
    written: float = 0.0
    idle: float = -1.0  # seconds since its main thread last ran; -1: unknown
    switches: int = -1  # how often its main thread has left a processor; -1: unknown


@frozen
class ThreadWait:
    """The wait of a thread for an object of its own process."""

    # ``lock``; ``join`` of a thread; ``put``, ``get`` or ``done`` (the join) of a queue; ``event``;
    # ``result`` of a task; ``pool``, the same in a pool of threads that all wait so; to ``read`` from a
    # socket, or to ``connect`` it; ``input``, the standard one; ``request`` of a client of a server
    kind: str
    frame: str  # where it waits, in the user's code
    # where the thread is that holds the lock, inside its ``with``, or that is joined; of a socket, the
    # address of the peer; '' if unknown
    holder: str = ""
    # the place of that thread in the chain of waits, where 0 is the main thread; -1: unknown
    number: int = -1


@frozen
class PythonStacks:
    """The Python stacks of a rank."""

    main: tuple[str, ...] = ()  # the main thread's, innermost frame first
    source: str = ""  # the tool that gave it
    threads: tuple[ThreadPlace, ...] = ()  # the other threads that run user code
    tasks: tuple[str, ...] = ()  # where asyncio's tasks are, ``FRAME`` or ``FRAME: ERROR`` if one failed
    # the error in whose ``except`` or ``finally`` block the main thread is, as ``FRAME: ERROR``
    handles: str = ""
    # ``FRAME: finally``, ``FRAME: except ERROR``, ``FRAME: __exit__ after ERROR`` or ``FRAME: if RANK == …``
    # for the innermost such block that the main thread is in, if ``handles`` cannot be read
    block: str = ""
    # what the main thread waits for in its process, then what the holder of that waits for, and so on
    waits: tuple[ThreadWait, ...] = ()
    # the condition of the ``while`` around the main thread's place; '' if its innermost loop has none
    loop: str = ""
    # where the main thread is in the script, outermost frame first: ``in FILE FUNCTION``, ``line N`` of
    # each statement around its place, ``exit N`` of each line that leaves the loop or function, ``next N``
    # of each that ends a turn early, ``turn N`` of a loop (``turn ?``: unknown), ``if ARM`` of a branch,
    # ``with ?`` at the begin or end of a ``with``
    position: tuple[str, ...] = ()
    # frames of the user's code that the main thread was in during the look, outside of collectives
    samples: tuple[str, ...] = ()
    # the functions of libraries that the innermost frame of the main thread has called, innermost first
    native: tuple[str, ...] = ()


@frozen
class MainCall:
    """The call that the main thread is in, as far as flight records do not show it."""

    # ``send`` or ``recv`` with ``peer`` and ``tag``; ``wait`` for operations begun before (``posts``);
    # ``store`` for a ``key`` of the store; '' for none
    name: str = ""
    function: str = ""  # the call of torch.distributed that it failed in, or is in; '' if unknown
    peer: int = -1
    tag: int = 0  # -1: any, or unknown
    posts: tuple[PostedOp, ...] = ()
    key: str = ""
    key_source: str = ""  # the source of ``key``, which may be no text of plain variables
    # rooted, root: the collective with a root that it is in, and the rank it names (-1: unknown)
    rooted: str = ""
    root: int = -1
    # of ``all_to_all_single`` the rows that it sends to each rank, then those it expects from each; of
    # ``broadcast_object_list`` the number of objects
    counts: tuple[int, ...] = ()
    # ``FILE:LINE ROOT`` of rooted collectives near its line, as the variables say now
    named: tuple[str, ...] = ()
    # ``FILE:LINE``, tab, key of a store that is set there; with a tab and the condition that is false
    sets: tuple[str, ...] = ()
    is_of_all: bool = False  # the collective is known to take all ranks, because the script passed no group
    group: str = ""  # the source of the group that the script passed to the collective; '' if unknown
    # collectives that it called with a group of other ranks. torch warns and does nothing
    ignored: tuple[str, ...] = ()


@frozen
class GroupRequest:
    """The arguments of a rank that makes a group."""

    world: int = 0  # ranks that it asks ``init_process_group`` for; 0: it is not in there
    started: int = 0  # ranks that it was started among
    asks: int = -1  # the rank that it says it is; -1: unknown
    store: str = ""  # ``HOST:PORT`` of the store it looks for
    made: int = 0  # number of groups that it has made, with the unfinished one
    makes: tuple[str, ...] = ()  # name and ranks of the group that it is making
    meets: str = ""  # the only ranks that must make that group; '' if all must


@frozen
class RankSnapshot:
    """One rank during a look."""

    rank: int
    node: str
    process: ProcessSample
    stacks: PythonStacks = PythonStacks()
    groups: tuple[Group, ...] = ()
    records: tuple[Record, ...] = ()
    call: MainCall = MainCall()
    request: GroupRequest = GroupRequest()
    clock: float = 0.0  # its node's wall clock at the end of the look
    quiet: float = 0.0  # seconds since it printed
    # printed, moved: it printed, or began a collective, during the look
    printed: bool = False
    moved: bool = False
    answered: bool = False  # its own thread answered, so that groups, records, call and request are known
    problem: str = ""  # why its thread did not answer
    counts: tuple[str, ...] = ()  # variables of its script that counted since an earlier look: ``i=3 to 40``

    @property
    def state(self) -> str:
        """Return the kernel's letter; '' if the process is gone."""
        return self.process.state

    @property
    def location(self) -> StackLocation:
        """Return the location of the main thread.

        A rank whose processes sleep in the backward pass waits for others there, if native frames could not
        be read. Another thread of the user's may be a hook of the pass, and wait for something else. A rank
        that waits for the interpreter's lock may have come out of its collective.
        """
        place = location(self.stacks.main, self.stacks.native)
        if any(thread.holds_lock for thread in self.stacks.threads):
            return StackLocation(Doing.USER, place.frame)
        process, stacks = self.process, self.stacks
        sleeps = 0 < process.seconds <= process.idle and process.busy < CROWDED
        may_be_hook = any(not thread.begun for thread in stacks.threads)
        if sleeps and not (stacks.native or may_be_hook) and is_in_backward(stacks.main):
            return StackLocation(Doing.COLLECTIVE, place.frame, BACKWARD)
        return place

    @property
    def works(self) -> bool:
        """Return whether it or a process that it waits for computes, or would if its node had room."""
        states = [self.state]
        if self.stacks.main == (ENDED_PYTHON,):
            return False  # An exit function that waits for other ranks, as MPI_Finalize, polls.
        if self.location.doing is Doing.DATA or joins_processes(self.stacks.main):
            states += [child.state for child in self.process.children]
        return self.process.busy >= BUSY or ("R" in states and self.process.busy >= CROWDED)

    @property
    def writes(self) -> bool:
        """Return whether a file of it grows, so that it saves something large."""
        return self.process.written >= WRITES

    @property
    def receives(self) -> bool:
        """Return whether data or asyncio's events still come: it waits for them, and ran lately."""
        idle = self.process.idle
        if waits_for_input(self.stacks.main):
            return 0 <= idle < SOCKET_PAUSE
        return self.state == "D" and 0 <= idle < self.process.seconds

    @property
    def serves(self) -> bool:
        """Return whether it waits for a client, which may come late or never."""
        return any(wait.kind == "request" for wait in self.stacks.waits[:1])

    @property
    def compiles(self) -> bool:
        """Return whether it compiles, or a program that it waits for computes, also on a crowded node."""
        runs = self.process.busy >= CROWDED and any(child.state == "R" for child in self.process.children)
        stack = self.stacks.main
        is_inside = waits_for_program(stack) or any(path in frame for frame in stack for path in _COMPILES)
        return (self.works or runs) and is_inside

    @property
    def may_spin(self) -> bool:
        """Return whether a busy process may only wait for its GPU. gloo sleeps, and records would show it."""
        return not self.records and any(group.backend != "gloo" for group in self.groups)

    @property
    def meets(self) -> bool:
        """Return whether it waits for others in ``init_process_group``, where torch prints each retry."""
        return not self.groups and self.location.doing is Doing.RENDEZVOUS

    @property
    def default(self) -> Group | None:
        """Return the group that ``init_process_group`` made; None before that."""
        return next((group for group in self.groups if group.default), None)


@frozen
class Collected:
    """The snapshots of one node's ranks."""

    node: str
    clock: float  # the node's wall clock when it was asked
    ranks: tuple[RankSnapshot, ...]


@frozen
class JobSnapshot:
    """One look at all ranks of a job."""

    ranks: tuple[RankSnapshot, ...]
    size: int  # number of ranks that there should be
    mute: tuple[tuple[str, str], ...] = ()  # nodes that did not answer, with the reason
    offsets: tuple[tuple[str, float], ...] = ()  # each node's clock minus the coordinator's, in seconds
    # seconds without movement as watched from outside; 0: nobody watched, or something moved
    stalled: float = 0.0
    # seconds since a rank was last seen to begin a call or join a group; infinite: nobody watched
    since_begun: float = math.inf
    # the ranks report nothing of themselves, as in a job that clusterrun did not start: stacks alone show
    # their calls
    by_stacks: bool = False
    # of each look so far that saw ranks move, its clock and the ranks that others waited for
    outside: tuple[tuple[float, tuple[int, ...]], ...] = ()

    @property
    def newest(self) -> float:
        """Return when the newest collective began, on the coordinator's clock; 0 without any."""
        offsets = dict(self.offsets)
        times = [record.at - offsets.get(rank.node, 0.0) for rank in self.ranks for record in rank.records]
        return max(times, default=0.0)


@frozen
class Pulse:
    """A rank in one line, every few seconds."""

    rank: int
    pid: int
    state: str
    # seconds, output: processor time and bytes printed. They only grow
    seconds: float
    output: int
    # answered, torch: its own thread answered; torch is loaded
    answered: bool = False
    torch: bool = False
    size: int = 0  # size of the default group; 0 without one
    begun: int = -1  # collectives begun in all groups; -1: unknown
    alone: bool = False  # it ended without having joined the others
    timeout: float = 0.0  # the smallest time-out of its groups in seconds; 0: unknown
    meets: bool = False  # it is in ``init_process_group``


@frozen
class Digest:
    """The pulses of one node."""

    ranks: tuple[Pulse, ...]
    killed: int = 0  # processes that the kernel ended for lack of memory since the node's observer began
    # for each process that a rank has started and that is a rank itself, the rank that started it, the
    # process's own ``RANK``, and its ``MASTER_ADDR:MASTER_PORT``
    inner_ranks: tuple[tuple[int, int, str], ...] = ()
    # every GPU that was busy since the start of the ranks reads memory or draws power; None: unknown
    gpus_work: bool | None = None
    # the ranks below which an ``srun`` waits for resources that the run itself holds
    blocked: tuple[int, ...] = ()
