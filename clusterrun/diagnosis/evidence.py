"""The reports of nodes about running ranks: values that travel to the coordinator. They judge nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

from clusterrun.diagnosis.stacks import BACKWARD, Doing, StackLocation, ThreadPlace, is_in_backward, location
from clusterrun.model.frozen import Any, frozen

# Processors. A rank that uses less waits for something.
BUSY = 0.5
# The same if the kernel calls the process runnable: a crowded node gives it little.
CROWDED = 0.05
# Seconds without movement before ranks are blamed that import, or work before they are in any group.
START_PATIENCE = 60.0
# A busy rank with one of these in its stack compiles, or waits for a program that it started.
_COMPILES = (
    *("/torch/_inductor/compile_fx.py:", "/torch/_inductor/async_compile.py:", "/triton/compiler/"),
    *("/torch/_dynamo/convert_frame.py:", "/subprocess.py:"),
)
# Bytes per second by which a file must grow. A heartbeat or a line of a log is less.
WRITES = 16 << 10


@frozen
class LookOptions:
    """How to look at the ranks of a node.

    seconds: how long the look lasts
    records: number of flight records per group and rank
    """

    seconds: float = 1.0
    records: int = 64


@frozen
class Record:
    """One collective in a rank's flight recorder.

    sequence: its number within ``group``
    sizes, types: of its input, as text
    done: this rank has left it
    at: when it began, seconds since the epoch on the rank's own clock
    begun: number of calls that the rank had begun in the group, this one included. On gloo, sends and
        receives count as well. 0: unknown
    by_thread: neither the main thread nor a thread of autograd began it
    """

    group: str
    sequence: int
    operation: str
    sizes: str
    types: str
    done: bool
    at: float
    begun: int = 0
    by_thread: bool = False


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
    """A process group as one rank knows it.

    sequence: collectives that this rank has begun in it; -1: unknown
    ranks: global ranks, folded (``0-3,8``); '': unknown
    timeout: seconds in one collective after which the group ends the rank; 0: unknown
    """

    name: str
    size: int
    sequence: int = -1
    default: bool = False
    backend: str = ""
    ranks: str = ""
    timeout: float = 0.0


@frozen
class ChildProcess:
    """A process below a rank: a data-loader worker or a program.

    state: the kernel's letter
    lacks_thread: it waits for a lock or thread of its parent that its fork has not
    """

    pid: int
    name: str
    state: str
    waits_in: str = ""
    stack: tuple[str, ...] = ()
    lacks_thread: bool = False


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
    """The kernel's view of a rank's process during a look.

    state: the kernel's letter; '' if the process is gone
    waits_in: the kernel function that it sleeps in
    busy: processors that it kept busy
    seconds: length of the look
    addresses: IP addresses that it speaks from
    lock, lock_holder: the file whose lock it waits for ('': unknown) and the process that holds it (0: none)
    lock_older: if it waits until ``lock`` is removed: seconds by which that file is older than the process
    file, written: the file that grew most during the look, and by how many bytes per second
    idle: seconds since its main thread last ran; -1: unknown
    switches: how often its main thread has left a processor; -1: unknown
    """

    pid: int
    state: str
    waits_in: str = ""
    busy: float = 0.0
    seconds: float = 0.0
    children: tuple[ChildProcess, ...] = ()
    addresses: tuple[str, ...] = ()
    backlog: tuple[Backlog, ...] = ()
    lock: str = ""
    lock_holder: int = 0
    lock_older: float = 0.0
    file: str = ""
    written: float = 0.0
    idle: float = -1.0
    switches: int = -1


@frozen
class ThreadWait:
    """What a thread waits for inside its process.

    kind: ``lock``; ``join`` of a thread; ``put``, ``get`` or ``done`` (the join) of a queue; ``event``;
        ``result`` of a task; to ``read`` from a socket, or to ``connect`` it
    frame: where it waits, in the user's code
    holder: where the thread is that holds the lock, inside its ``with``, or that is joined; of a socket, the
        address of the peer; '' if unknown
    number: the place of that thread in the chain of waits, where 0 is the main thread; -1: unknown
    """

    kind: str
    frame: str
    holder: str = ""
    number: int = -1


@frozen
class PythonStacks:
    """The Python stacks of a rank.

    main: the main thread's, innermost frame first
    native: the functions of libraries that the innermost frame of the main thread has called, innermost first
    source: the tool that gave it
    threads: the other threads that run user code
    tasks: where asyncio's tasks are, ``FRAME`` or ``FRAME: ERROR`` if one failed
    waits: what the main thread waits for in its process, then what the holder of that waits for, and so on
    loop: the condition of the ``while`` around the main thread's place; '' if its innermost loop has none
    samples: frames of the user's code that the main thread was in during the look, outside of collectives
    """

    main: tuple[str, ...] = ()
    source: str = ""
    threads: tuple[ThreadPlace, ...] = ()
    tasks: tuple[str, ...] = ()
    waits: tuple[ThreadWait, ...] = ()
    loop: str = ""
    samples: tuple[str, ...] = ()
    native: tuple[str, ...] = ()


@frozen
class MainCall:
    """The call that the main thread is in, as far as flight records do not show it.

    function: the call of torch.distributed that it failed in, or is in; '' if unknown
    name: ``send`` or ``recv`` with ``peer`` and ``tag``; ``wait`` for operations begun before (``posts``);
        ``store`` for a ``key`` of the store; '' for none
    key_source: the source of ``key``, which may be no text of plain variables
    rooted, root: the collective with a root that it is in, and the rank it names (-1: unknown)
    named: ``FILE:LINE ROOT`` of rooted collectives near its line, as the variables say now
    counts: of ``all_to_all_single`` the rows that it sends to each rank, then those it expects from each; of
        ``broadcast_object_list`` the number of objects
    sets: ``FILE:LINE``, tab, key of a store that is set there; with a tab and the condition that is false
    is_of_all: the collective is known to take all ranks, because the script passed no group
    ignored: collectives that it called with a group of which it is no member. torch warns and does nothing
    """

    name: str = ""
    function: str = ""
    peer: int = -1
    tag: int = 0
    posts: tuple[PostedOp, ...] = ()
    key: str = ""
    key_source: str = ""
    rooted: str = ""
    root: int = -1
    counts: tuple[int, ...] = ()
    named: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    is_of_all: bool = False
    ignored: tuple[str, ...] = ()


@frozen
class GroupRequest:
    """The arguments of a rank that makes a group.

    world: ranks that it asks ``init_process_group`` for; 0: it is not in there
    started: ranks that it was started among
    asks: the rank that it says it is; -1: unknown
    store: ``HOST:PORT`` of the store it looks for
    made: number of groups that it has begun to make
    makes: name and ranks of the group that it is making
    """

    world: int = 0
    started: int = 0
    asks: int = -1
    store: str = ""
    made: int = 0
    makes: tuple[str, ...] = ()


@frozen
class RankSnapshot:
    """One rank during a look.

    clock: its node's wall clock at the end of the look
    quiet: seconds since it printed
    printed, moved: it printed, or began a collective, during the look
    answered: its own thread answered, so that groups, records, call and request are known
    problem: why its thread did not answer
    counts: variables of its script that counted since an earlier look: ``i=3 to 40``
    """

    rank: int
    node: str
    process: ProcessSample
    stacks: PythonStacks = PythonStacks()
    groups: tuple[Group, ...] = ()
    records: tuple[Record, ...] = ()
    call: MainCall = MainCall()
    request: GroupRequest = GroupRequest()
    clock: float = 0.0
    quiet: float = 0.0
    printed: bool = False
    moved: bool = False
    answered: bool = False
    problem: str = ""
    counts: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """The kernel's letter; '' if the process is gone."""
        return self.process.state

    @property
    def location(self) -> StackLocation:
        """Return the location of the main thread.

        A rank whose processes sleep in the backward pass waits for others there, if native frames could not
        be read. Another thread of the user's may be a hook of the pass, and wait for something else.
        """
        place = location(self.stacks.main, self.stacks.native)
        process, stacks = self.process, self.stacks
        sleeps = 0 < process.seconds <= process.idle and process.busy < CROWDED
        if sleeps and not (stacks.native or stacks.threads) and is_in_backward(stacks.main):
            return StackLocation(Doing.COLLECTIVE, place.frame, BACKWARD)
        return place

    @property
    def works(self) -> bool:
        """Return whether it computes, or would compute on a node that is not crowded."""
        return self.process.busy >= BUSY or (self.state == "R" and self.process.busy >= CROWDED)

    @property
    def writes(self) -> bool:
        """Whether a file of it grows: it saves something large."""
        return self.process.written >= WRITES

    @property
    def compiles(self) -> bool:
        """Whether it compiles, or a program that it waits for computes, also on a crowded node."""
        runs = self.process.busy >= CROWDED and any(child.state == "R" for child in self.process.children)
        return (self.works or runs) and any(path in frame for frame in self.stacks.main for path in _COMPILES)

    @property
    def may_spin(self) -> bool:
        """Whether a busy process may only wait for its GPU. gloo sleeps, and flight records would show it."""
        return not self.records and any(group.backend != "gloo" for group in self.groups)

    @property
    def default(self) -> Group | None:
        """The group that ``init_process_group`` made; None before that."""
        return next((group for group in self.groups if group.default), None)


@frozen
class Collected:
    """The snapshots of one node's ranks.

    clock: the node's wall clock when it was asked
    """

    node: str
    clock: float
    ranks: tuple[RankSnapshot, ...]


@frozen
class JobSnapshot:
    """One look at all ranks of a job.

    size: number of ranks that there should be
    mute: nodes that did not answer, with the reason
    offsets: each node's clock minus the coordinator's, in seconds
    stalled: seconds without movement as watched from outside; 0: nobody watched, or something moved
    since_begun: seconds since a rank was last seen to begin a call or join a group; infinite: nobody watched
    by_stacks: the ranks report nothing of themselves, as in a job that clusterrun did not start: stacks
        alone show their calls
    outside: of each look so far that saw ranks move, its clock and the ranks that others waited for
    """

    seen: tuple[RankSnapshot, ...]
    size: int
    mute: tuple[tuple[str, str], ...] = ()
    offsets: tuple[tuple[str, float], ...] = ()
    stalled: float = 0.0
    since_begun: float = math.inf
    by_stacks: bool = False
    outside: tuple[tuple[float, tuple[int, ...]], ...] = ()

    @property
    def newest(self) -> float:
        """When the newest collective began, on the coordinator's clock; 0 without any."""
        offsets = dict(self.offsets)
        times = [record.at - offsets.get(rank.node, 0.0) for rank in self.seen for record in rank.records]
        return max(times, default=0.0)


@frozen
class Pulse:
    """A rank in one line, every few seconds.

    seconds, output: processor time and bytes printed. They only grow
    answered, torch: its own thread answered; torch is loaded
    size: size of the default group; 0 without one
    begun: collectives begun in all groups; -1: unknown
    alone: it ended without having joined the others
    timeout: the smallest time-out of its groups in seconds; 0: unknown
    """

    rank: int
    pid: int
    state: str
    seconds: float
    output: int
    answered: bool = False
    torch: bool = False
    size: int = 0
    begun: int = -1
    alone: bool = False
    timeout: float = 0.0


@frozen
class Digest:
    """The pulses of one node.

    killed: processes that the kernel ended for lack of memory since the node's observer began
    inner_ranks: for each process that a rank has started and that is a rank itself, the rank that started
        it, the process's own ``RANK``, and its ``MASTER_ADDR:MASTER_PORT``
    gpus_work: every GPU that was busy since the start of the ranks reads memory or draws power; None: unknown
    blocked: the ranks below which an ``srun`` waits for resources that the run itself holds
    """

    ranks: tuple[Pulse, ...]
    killed: int = 0
    inner_ranks: tuple[tuple[int, int, str], ...] = ()
    gpus_work: bool | None = None
    blocked: tuple[int, ...] = ()
