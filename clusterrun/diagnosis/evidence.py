"""What was seen of ranks while they ran: values that travel from nodes to whoever judges; judges nothing."""

from __future__ import annotations

from clusterrun.model.frozen import frozen

BUSY = 0.5
"""Processors: a rank that uses less than this waits for something."""
CROWDED = 0.05


@frozen
class LookOptions:
    """How long to look, in seconds, and how many flight records of each group to bring."""

    seconds: float = 1.0
    records: int = 64


@frozen
class Record:
    """One collective in a rank's flight recorder: ``sequence`` counts within ``group``.

    ``done``: this rank has left it. ``at`` is when it was begun, seconds since the epoch on the
    rank's own clock. ``sizes`` and ``types`` are those of its input, as text. With it the rank had
    ``begun`` so many calls of the group: over gloo sends and receives count as well (0: unknown).
    """

    group: str
    sequence: int
    operation: str
    sizes: str
    types: str
    done: bool
    at: float
    begun: int = 0


@frozen
class Group:
    """A process group as one rank knows it; ``ranks`` are global ones, folded (``0-3,8``; '' unknown).

    ``sequence`` is how many collectives this rank has begun in it, -1 where nobody counts. After
    ``timeout`` seconds in one collective the group ends the rank by itself (0: unknown).
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
    """A process below a rank: a data-loader worker, a program it runs. ``state`` is the kernel's letter."""

    pid: int
    name: str
    state: str
    waits_in: str = ""
    stack: tuple[str, ...] = ()


@frozen
class PostedOp:
    """A ``send`` or ``recv`` that was begun together with others, and waits for rank ``peer``."""

    call: str
    peer: int
    tag: int = 0


@frozen
class Backlog:
    """Bytes that a peer does not acknowledge: ``retries`` times they were sent anew."""

    peer: str
    waiting: int
    retries: int


@frozen
class RankSeen:
    """One rank, looked at for ``seconds``.

    ``state`` is the kernel's letter, '' where its process is gone; ``busy`` how many processors it
    kept busy. ``stack`` is the main thread's, innermost first, each ``FILE:LINE FUNCTION``, as
    ``source`` told it. ``answered``: the rank's own thread did, so that ``torch``, ``groups`` and
    ``records`` are known. ``moved``: it began a collective while it was looked at, ``printed``: it
    printed something; ``quiet`` is how many seconds ago it last did. ``clock`` is its node's wall
    clock when it was looked at, ``addresses`` are those it speaks from. ``call`` is ``send`` or ``recv``
    where its main thread waits in one, with rank ``peer`` and that ``tag``, ``wait`` where it waits for
    something begun before (``posts``, where these are at hand), ``store`` where it waits for a ``key``. In
    ``init_process_group`` it has asked for a world of ``world`` ranks and was started as one of
    ``started`` (0: not there), as rank ``asks`` (-1: unknown), at ``store`` (``HOST:PORT``, '' unknown).
    ``rooted`` is the collective with a root that its main thread is in, which names rank ``root`` (-1:
    unknown). It has begun to make ``made`` groups, and is about to make ``makes``: its name and its ranks.
    ``threads``: where in the user's code its other threads stand. ``named``: ``FILE:LINE ROOT`` of
    collectives above where it stands, as its variables say it now, ``sets``: ``FILE:LINE``, a tab and a key
    of a store that is set there, with another tab and the condition around it where that does not hold.
    ``tasks``: where asyncio's tasks stand, and how some have failed. It waits for the ``lock`` of a file ('':
    unknown) that process ``lock_holder`` of its node holds (0: it waits for none).
    """

    rank: int
    node: str
    pid: int
    state: str
    waits_in: str = ""
    busy: float = 0.0
    seconds: float = 0.0
    quiet: float = 0.0
    clock: float = 0.0
    moved: bool = False
    printed: bool = False
    stack: tuple[str, ...] = ()
    source: str = ""
    answered: bool = False
    torch: bool = False
    groups: tuple[Group, ...] = ()
    records: tuple[Record, ...] = ()
    children: tuple[ChildProcess, ...] = ()
    addresses: tuple[str, ...] = ()
    backlog: tuple[Backlog, ...] = ()
    problem: str = ""
    call: str = ""
    peer: int = -1
    tag: int = 0
    posts: tuple[PostedOp, ...] = ()
    world: int = 0
    started: int = 0
    asks: int = -1
    store: str = ""
    rooted: str = ""
    root: int = -1
    made: int = 0
    makes: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    key: str = ""
    sets: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    lock_holder: int = 0
    lock: str = ""

    @property
    def works(self) -> bool:
        """Whether it computes; on a crowded machine it may get little of a processor and still want one."""
        return self.busy >= BUSY or (self.state == "R" and self.busy >= CROWDED)

    @property
    def may_spin(self) -> bool:
        """Whether it could be waiting for a GPU while it looks busy: gloo sleeps, and records would tell."""
        return not self.records and any(group.backend != "gloo" for group in self.groups)

    @property
    def default(self) -> Group | None:
        """The group that ``init_process_group`` made, if it did."""
        return next((group for group in self.groups if group.default), None)


@frozen
class Collected:
    """What one node's observer saw of its ranks; ``clock`` is its wall clock when it was asked.

    ``ras`` is what NCCL's own report says, where there is one.
    """

    node: str
    clock: float
    ranks: tuple[RankSeen, ...]
    ras: tuple[str, ...] = ()


@frozen
class Pulse:
    """A rank in one line, every few seconds: has it moved, and is it in a group?

    ``seconds`` of processor time and bytes of ``output`` only grow. ``answered``, ``torch``: as in
    ``RankSeen``. ``size`` is that of the default group, 0 without one; ``begun`` how many collectives
    it has begun in all its groups, -1 where that is not known. ``alone``: it ended without the others.
    ``timeout`` is the smallest of its groups' (0: unknown).
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
    """The pulses of one node's ranks.

    ``killed``: processes that ran out of memory here since it began. ``inner_ranks``: for each process that
    a rank has started and that is a rank itself, the rank that started it and the process's own ``RANK``.
    """

    ranks: tuple[Pulse, ...]
    killed: int = 0
    inner_ranks: tuple[tuple[int, int], ...] = ()
