"""The table of calls: which rank is in which call, since when, and who has not come; the input of all rules.

Live snapshots, flight records, and the files that ranks leave at their end fill the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from clusterrun.diagnosis.evidence import Backlog, Group, JobSnapshot, RankSnapshot, Record
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.stacks import (
    GPU_WAIT,
    SOME_WAIT,
    TOGETHER,
    Doing,
    StackLocation,
    is_in_backward,
    short,
    waits_for_semaphore,
)
from clusterrun.diagnosis.verdict import unfolded
from clusterrun.model.frozen import frozen, replace

HALF = "a send or receive"
KEY = "a wait for a key of the store"
LOCK = "a wait for a lock"
# Every rank brings a tensor of one size and type. Of other collectives only the names can be compared.
EQUAL_SIZES = (
    *("all_reduce", "reduce", "broadcast", "gather"),
    *("all_gather", "_all_gather_base", "_reduce_scatter_base"),
)
STOPPED = ("T", "t")
# A parameter that may hold any group has one of these names.
UNNAMED_GROUPS = ("", "group", "process_group", "pg")
# Seconds without any movement before a wait is taken for a hang.
PATIENCE = 5.0
# The same if an awaited rank is outside of collectives: a rank that evaluates or saves for all is no hang.
WORK_PATIENCE = 10.0
# The same in a job whose earlier pauses are unknown.
STRANGER_PATIENCE = 30.0
# The same if all awaited ranks compute, which is not held against them.
BUSY_PATIENCE = 20.0
# How many times the longest pause of this run so far is still no hang.
USUAL = 1.5
# How often TCP sends data again over a link that is cut: for six seconds. A busy link loses data twice.
CUT_RETRIES = 5
# Records of a rank that show how it fares now.
RECENT = 64


@frozen
class Call:
    """One call of one rank."""

    rank: int
    # group, sequence: its process group, and its number there; 0: torch does not number it (a send or
    # receive, a wait for a key or a lock)
    group: str
    sequence: int
    operation: str
    # sizes, types: of its input, as text
    sizes: str = ""
    types: str = ""
    done: bool = False  # this rank has left it
    at: float = 0.0  # when it began, seconds since the epoch on the rank's clock; 0: unknown
    begun: int = 0  # calls that the rank had begun in the group, sends included; 0: unknown
    by_thread: bool = False  # neither the main thread nor a thread of autograd began it
    # peer, root, tag: of a send or receive, of a collective with a root; -1: none or unknown
    peer: int = -1
    root: int = -1
    tag: int = 0
    line: str = ""  # where the thread that called it is; '' if the rank has left it
    missing: tuple[int, ...] = ()  # members of the group that have not begun it
    is_of_all: bool = False  # its stack shows that all ranks take part

    @property
    def arguments(self) -> str:
        """Return ``all_reduce of [4] Float``."""
        arguments = " ".join(filter(None, (self.sizes, self.types)))
        return f"{self.operation} of {arguments}" if arguments else self.operation

    @property
    def title(self) -> str:
        """Return ``all_reduce (call 12 of group 0)``. A send or receive has no number."""
        group = self.group if len(self.group) <= 12 else self.group[:9] + "…"
        return self.operation + (f" (call {self.sequence} of group {group})" if self.sequence else "")

    @property
    def named(self) -> str:
        """Return ``all_reduce of group 0``."""
        return f"{self.operation} of group {self.group}" if self.sequence else self.operation

    @property
    def key(self) -> tuple[str, int, str]:
        """Return the key that equal calls of several ranks share."""
        return self.group, self.sequence, self.operation

    @property
    def shape(self) -> tuple[str, str, str]:
        return self.operation, self.sizes, self.types

    @property
    def comparable(self) -> tuple[str, str, str]:
        """Return the part of a call that all ranks of a group must agree on."""
        sized = self.operation in EQUAL_SIZES
        return self.operation, self.sizes if sized else "", self.types if sized else ""


class CallTable:
    """All calls of a job's ranks, and other facts about the ranks.

    ranks: in order; of a live run the observed ranks, of an ended run the ranks with records or a stack
    size: number of ranks of the job
    mute: nodes that did not answer, with the reason
    stalled: seconds without movement as watched from outside; 0: nobody watched, or something moved
    since_begun: seconds since a rank was last seen to begin a call or join a group
    by_stacks: the ranks report nothing of themselves; their stacks alone show their calls
    outside: of each look that saw ranks move, its clock and the ranks that others waited for
    end: the remains of an ended run; None while it runs
    """

    def __init__(self, ranks: Iterable[RankSnapshot], snapshot: JobSnapshot, end: Remains | None) -> None:
        self.ranks = tuple(sorted(ranks, key=lambda rank: rank.rank))
        self.by_rank = {rank.rank: rank for rank in self.ranks}
        self.size, self.mute = snapshot.size, snapshot.mute
        self.offsets = dict(snapshot.offsets)
        self.stalled, self.since_begun = snapshot.stalled, snapshot.since_begun
        self.by_stacks, self.outside = snapshot.by_stacks, snapshot.outside
        self.end = end
        self._behind_by_call: dict[tuple[str, str, int], tuple[int, ...]] = {}

    # --- ranks ---

    def of(self, rank: int) -> RankSnapshot:
        return self.by_rank[rank]

    def location(self, rank: int) -> StackLocation:
        return self.by_rank[rank].location

    def line(self, *ranks: int) -> str:
        """Return ``train.py:33 (step)`` if all ``ranks`` are in one line of the user's; else ''."""
        lines = {self.location(rank).line for rank in ranks if rank in self.by_rank} - {""}
        return lines.pop() if len(lines) == 1 else ""

    @property
    def living(self) -> list[RankSnapshot]:
        return [rank for rank in self.ranks if rank.state]

    @property
    def owed(self) -> list[tuple[RankSnapshot, Backlog]]:
        """Return ranks with the data that a peer does not acknowledge."""
        return [(rank, debt) for rank in self.ranks for debt in rank.process.backlog]

    @property
    def cut_links(self) -> list[tuple[RankSnapshot, Backlog]]:
        """Return those between nodes of the job that the kernel has sent often, not those to servers."""
        return [
            (rank, debt)
            for rank, debt in self.owed
            if debt.retries >= CUT_RETRIES and self.node_at(debt.peer) != debt.peer
        ]

    def node_at(self, address: str) -> str:
        """Return the node whose ranks speak from ``address``; the address itself if no rank does."""
        nodes = (rank.node for rank in self.ranks if address in rank.process.addresses)
        return next(nodes, address)

    def clock_of(self, call: Call) -> float:
        """Return when a call began, on the coordinator's clock."""
        return call.at - self.offsets.get(self.by_rank[call.rank].node, 0.0)

    # --- calls ---

    @cached_property
    def history(self) -> dict[int, list[Call]]:
        """Return the recorded calls of each rank, oldest first."""
        return {
            rank.rank: sorted((_of_record(rank, record) for record in rank.records), key=lambda call: call.at)
            for rank in self.ranks
        }

    @cached_property
    def calls(self) -> list[Call]:
        """Return all recorded calls."""
        return [call for calls in self.history.values() for call in calls]

    @cached_property
    def waits(self) -> list[Call]:
        """Return the call of each waiting rank: its oldest open collective, or one that no recorder knows."""
        waits = [wait for rank in self.ranks if (wait := self._wait_of(rank))]
        if not waits and self.stalled and not self.calls:
            # No records: by the groups' own counts, some members have begun more. gloo counts sends as well,
            # so its counts are not used.
            now = max((rank.clock for rank in self.ranks), default=0.0)
            for rank in self.ranks:
                for group in rank.groups:
                    counts = self._counts(group)
                    ahead = max(counts.values(), default=0)
                    missing = tuple(sorted(mate for mate, count in counts.items() if count < ahead))
                    if missing and rank.rank not in missing and "gloo" not in group.backend:
                        line = rank.location.line
                        call = Call(
                            rank.rank, group.name, ahead, "a collective", at=now - self.stalled, line=line
                        )
                        waits.append(replace(call, missing=missing))
                        break
        return waits

    @cached_property
    def wait_by_rank(self) -> dict[int, Call]:
        return {wait.rank: wait for wait in self.waits}

    @cached_property
    def is_crossed(self) -> bool:
        """Return whether every rank that waits, waits for a rank that has not come.

        Without records, ranks that are on their way from call to call look the same for a moment.
        """
        is_known = self.is_long_still or not self.by_stacks
        return is_known and bool(self.waits) and all(wait.missing for wait in self.waits)

    @cached_property
    def awaited(self) -> set[int]:
        """Return the ranks that some rank waits for."""
        return {rank for wait in self.waits for rank in wait.missing}

    def places(self) -> dict[tuple[str, str, int], dict[int, Call]]:
        """Return the calls by group (name and members) and number, then by rank."""
        places: dict[tuple[str, str, int], dict[int, Call]] = {}
        for rank in self.ranks:
            spans = {group.name: group.ranks for group in rank.groups}
            for call in self.history[rank.rank]:
                place = (call.group, spans.get(call.group, ""), call.sequence)
                places.setdefault(place, {})[rank.rank] = call
        return places

    def members(self, rank: RankSnapshot, name: str) -> tuple[int, ...]:
        """Return the ranks of the group called ``name`` that ``rank`` is in, as far as that is known."""
        group = next((group for group in rank.groups if is_called(group, name)), None)
        listed = unfolded(group.ranks) if group else ()
        if listed:
            return listed
        if group and group.size == len(self.ranks):
            return tuple(other.rank for other in self.ranks)
        return tuple(
            other.rank for other in self.ranks if any(is_called(group, name) for group in other.groups)
        )

    def participants(self, wait: Call) -> set[int]:
        """Return the ranks that take part in a call."""
        if wait.is_of_all:
            return set(self.by_rank)
        return set(self.members(self.of(wait.rank), wait.group)) or {wait.rank, *wait.missing}

    @cached_property
    def _begun(self) -> dict[tuple[int, str], int]:
        """Return how far each rank is in each group."""
        begun: dict[tuple[int, str], int] = {}
        recorded = {record.group for rank in self.ranks for record in rank.records}
        for rank in self.ranks:
            for group in rank.groups:
                # gloo counts sends as well. Without a record of its own, a rank has begun nothing but sends.
                only_sends = group.backend == "gloo" and group.name in recorded
                begun[rank.rank, group.name] = 0 if only_sends else group.sequence
            own_counts = {record.group: 0 for record in rank.records}
            for record in rank.records:
                own_counts[record.group] = max(own_counts[record.group], record.sequence)
            begun.update({(rank.rank, group): sequence for group, sequence in own_counts.items()})
        return begun

    def _wait_of(self, rank: RankSnapshot) -> Call | None:
        call, line = rank.call, rank.location.line
        inside = [record for record in rank.records if not record.done]
        name = call.function if call.name == "wait" else call.name
        if name in ("send", "recv") and call.peer >= 0:
            # A send or receive is a collective of two: has the other rank called its half?
            half = {"send": "recv", "recv": "send"}[name]
            peer = self.by_rank.get(call.peer)
            meets = peer is not None and (peer.call.name, peer.call.peer) == (half, rank.rank)
            if self.by_stacks and peer and peer.call.name == "wait":
                # It has begun several, perhaps that half.
                posts = [(post.call, post.peer) for post in peer.call.posts]
                meets = not posts or (half, rank.rank) in posts
            group = f"of ranks {min(rank.rank, call.peer)} and {max(rank.rank, call.peer)}"
            direction = "to" if name == "send" else "from"
            what = f"{name} {direction} rank {call.peer}{with_tag(call.tag)}"
            missing: tuple[int, ...] = () if meets else (call.peer,)
            return Call(rank.rank, group, 0, what, peer=call.peer, tag=call.tag, line=line, missing=missing)
        if call.name == "wait" and not inside and sends(rank):
            # Ranks that have begun fewer sends and receives: a single other rank that uses them, or the one
            # that differs from all that use them.
            counts = {other.rank: sends(other) for other in self.ranks if other is not rank and sends(other)}
            fewer = tuple(other for other, count in counts.items() if count < sends(rank))
            equal = [other for other, count in counts.items() if count == sends(rank)]
            is_known = len(counts) == 1 or (len(equal) > 1 and len(equal) + 1 == len(counts))
            missing = fewer if is_known else ()
            return Call(rank.rank, "", 0, HALF, line=line, missing=missing)
        if call.name == "store" and not self.by_stacks:
            setting = self.setters(rank) or tuple(
                other.rank for other in self.ranks if other.call.name != "store"
            )
            if len(setting) == 1:
                return Call(rank.rank, "", 0, KEY, line=line, missing=setting)
        holder = self._lock_holder(rank)
        if self.by_stacks and not holder:
            return self._wait_by_stack(rank)
        if inside:
            oldest = _of_record(rank, min(inside, key=lambda record: record.at))
            # The members of the group that have not begun the call. Equal calls are looked up once.
            span = next((group.ranks for group in rank.groups if is_called(group, oldest.group)), "")
            key = (oldest.group, span or str(rank.rank), oldest.sequence)
            if key not in self._behind_by_call:
                self._behind_by_call[key] = tuple(
                    mate
                    for mate in self.members(rank, oldest.group)
                    if mate != rank.rank and self._begun.get((mate, oldest.group), 0) < oldest.sequence
                )
            behind = self._behind_by_call[key]
            root = call.root if call.rooted == oldest.operation else -1
            if oldest.by_thread:
                frames = [thread.frame for thread in rank.stacks.threads if thread.operation]
                line = short(frames[0]) if frames else ""
            return replace(oldest, line=line, root=root, missing=behind)
        return Call(rank.rank, "", 0, LOCK, line=line, missing=holder) if holder else None

    def _wait_by_stack(self, rank: RankSnapshot) -> Call | None:
        """Return the collective in the stack of a rank, without a number.

        It waits for all ranks outside. If it takes all ranks and has no root, which a rank may leave before
        the others come, it waits for the ranks in other calls as well.
        """
        place = rank.location
        if place.doing not in TOGETHER or rank.state in STOPPED:
            return None
        members = unfolded(rank.request.meets)
        needs_all = rank.call.is_of_all or place.doing is Doing.RENDEZVOUS
        missing = []
        for other in self.ranks:
            operation = other.location.operation
            is_elsewhere = operation not in ("", place.operation, GPU_WAIT, SOME_WAIT)
            if self._is_outside(other) or (needs_all and is_elsewhere and not rank.call.rooted):
                missing.append(other.rank)
        if self.mute:
            missing += [number for number in range(self.size) if number not in self.by_rank]
        if members:
            missing = [number for number in missing if number in members]
        idle = rank.process.idle
        at = rank.clock - idle if idle >= rank.process.seconds else 0.0
        root = rank.call.root if rank.call.rooted == place.operation else -1
        has_name = rank.call.group not in UNNAMED_GROUPS
        operation = place.operation + (f" of group {rank.call.group}" if has_name else "")
        if rank.call.name == "store" and (key := rank.call.key or rank.call.key_source):
            operation = f"{operation} of key {key}"
        # Outside of user code, it polls a store in a loop.
        operation += f" while {rank.stacks.loop}" if rank.stacks.loop else ""
        return Call(
            rank.rank,
            "",
            0,
            operation,
            at=at,
            root=root,
            line=place.line,
            missing=tuple(missing),
            is_of_all=needs_all and not members,
        )

    @staticmethod
    def _is_outside(rank: RankSnapshot) -> bool:
        """Return whether a rank waits for no other rank. If its stack is unknown, it must show why."""
        doing = rank.location.doing
        if not rank.state or rank.state in STOPPED:
            return True
        if doing is Doing.UNKNOWN or rank.problem:
            return rank.state == "D" or rank.works
        return doing not in TOGETHER

    def _lock_holder(self, rank: RankSnapshot) -> tuple[int, ...]:
        """Return the rank that holds the lock that ``rank`` waits for, if it waits for others itself.

        A process of it that sleeps may hold the lock, such as a worker of its data-loader. A holder that
        computes, loads or reads will release the lock. The kernel does not list who holds a lock of
        ``multiprocessing``: the one rank that is further in the same function.
        """
        holder = rank.process.lock_holder
        if not holder and waits_for_semaphore(rank.stacks.main):
            passed = [
                other.rank for other in self.ranks if _has_passed(other, rank) and _waits_for_others(other)
            ]
            return tuple(passed) if len(passed) == 1 else ()
        if not holder:
            # Only the holder's node lists the lock. Ranks of other nodes wait for it in the same line.
            is_late = bool(self._holders_by_line) and not _waits_for_others(rank)
            return self._holders_by_line.get(rank.location.line, ()) if is_late else ()
        ranks = []
        for other in self.ranks:
            if other.node != rank.node or other is rank or not _waits_for_others(other):
                continue
            sleeping = {child.pid for child in other.process.children if child.state == "S"}
            if holder in sleeping | {other.process.pid}:
                ranks.append(other.rank)
        return tuple(ranks)

    @cached_property
    def _holders_by_line(self) -> dict[str, tuple[int, ...]]:
        """Return the holders of locks, by the line at which ranks of their nodes wait for the lock."""
        waiting = [rank for rank in self.ranks if rank.process.lock_holder and rank.location.line]
        return {rank.location.line: holder for rank in waiting if (holder := self._lock_holder(rank))}

    def setters(self, rank: RankSnapshot) -> tuple[int, ...]:
        """Return the ranks whose lines set the key of the store that ``rank`` waits for.

        A rank that waits for the key itself does not set it if another one does. A rank that passed its
        line under a false condition has not set it.
        """
        key = rank.call.key
        setting = [other for other in self.ranks if key and set_line(other, key)[0]]
        setting = [
            other for other in setting if (other.call.name, other.call.key) != ("store", key)
        ] or setting
        passed = [other for other in setting if set_line(other, key)[1]]
        return tuple(other.rank for other in (passed if len(passed) == 1 else setting))

    def _counts(self, group: Group) -> dict[int, int]:
        """Return the collectives that each member has begun in ``group``; {} unless all members report it."""
        counts = {
            rank.rank: other.sequence
            for rank in self.ranks
            for other in rank.groups
            if (other.name, other.ranks, other.size) == (group.name, group.ranks, group.size)
        }
        return counts if len(counts) == group.size and min(counts.values()) >= 0 else {}

    def shortest_timeout(self) -> float:
        """Return the smallest time-out of the groups that ranks wait in, in seconds; 0: none, or unknown."""
        groups = self.wait_by_rank
        unrecorded = any(
            rank.rank not in groups and rank.location.doing is Doing.COLLECTIVE for rank in self.ranks
        )
        timeouts = [
            group.timeout
            for rank in self.ranks
            for group in rank.groups
            if group.timeout
            and (unrecorded or (rank.rank in groups and is_called(group, groups[rank.rank].group)))
        ]
        return min(timeouts, default=0.0)

    # --- time ---

    @cached_property
    def longest_pause(self) -> float:
        """Return how long ranks usually pause between two collectives, in seconds.

        It is the third longest gap of the newest records: a checkpoint, or a hang that ended, is not usual.
        """
        longest = 0.0
        for rank in self.ranks:
            times = sorted(record.at for record in rank.records[-RECENT:])
            gaps = sorted((after - before for before, after in zip(times, times[1:])), reverse=True)
            longest = max(longest, gaps[min(2, len(gaps) - 1)] if gaps else 0.0)
        return longest

    @property
    def is_long_still(self) -> bool:
        """Return whether nothing has happened for longer than usual in this run."""
        return self.still_for(max(PATIENCE, USUAL * self.longest_pause)) <= 0

    def still_for(self, seconds: float) -> float:
        """Return how much of ``seconds`` without any movement is still missing; 0 if nothing is."""
        if self.stalled:
            return 0.0
        if self.ranks and all(rank.problem for rank in self.ranks):
            return seconds  # They may be in collectives, too busy to report them.
        ages = []
        for rank in self.ranks:
            newest = max((record.at for record in rank.records), default=0.0)
            quiet = self.since_begun if rank.meets else min(rank.quiet, self.since_begun)
            ages.append(max(0.0, rank.clock - newest) if newest else quiet)
        return max(0.0, seconds - min(ages, default=0.0))

    def blameless_for(self, seconds: float) -> float:
        """The same before a rank is blamed: calls that no record shows may have begun since."""
        unknown = 0.0 if self.stalled else seconds - self.since_begun
        return max(self.still_for(seconds), unknown)

    def gets_on(self, rank: RankSnapshot) -> bool:
        """Return whether a late rank shows progress. Only a growing file counts after a noticed hang."""
        shows_progress = rank.compiles or rank.receives or rank.serves or bool(rank.counts)
        return rank.writes or (not self.stalled and shows_progress)

    def patience(self, late: Sequence[RankSnapshot]) -> float:
        """Return the seconds for which ranks at work may let the others wait: as long as they often did."""
        calls = {(wait.group, wait.operation) for wait in self.waits}
        begun: dict[tuple[str, int], list[tuple[float, int]]] = {}
        for call in self.calls:
            if call.done and (call.group, call.operation) in calls:
                begun.setdefault((call.group, call.sequence), []).append((self.clock_of(call), call.rank))
        ranks = {rank.rank for rank in late}
        spans = map(sorted, begun.values())
        waits = sorted((span[-1][0] - span[0][0] for span in spans if span[-1][1] in ranks), reverse=True)
        # The longest one may be a hang that ended. The second longest is a custom.
        custom = USUAL * waits[1] if len(waits) > 1 else 0.0
        least = STRANGER_PATIENCE if self.by_stacks else WORK_PATIENCE
        if all(rank.works for rank in late):
            least = BUSY_PATIENCE
        return max(least, USUAL * self.longest_pause, custom)


def of_snapshot(snapshot: JobSnapshot) -> CallTable:
    """Fill the table from a look at running ranks."""
    return CallTable(snapshot.ranks, snapshot, None)


def of_remains(remains: Remains) -> CallTable:
    """Fill the table from what an ended run left: last records, and stacks of ranks told to end."""
    ranks = {rank.rank: rank for rank in remains.stood}
    for rank in remains.last:
        stood = ranks.get(rank.rank)
        if stood:
            rank = replace(rank, process=stood.process, stacks=stood.stacks)
        ranks[rank.rank] = rank
    return CallTable(ranks.values(), JobSnapshot(ranks=(), size=len(remains.nodes)), remains)


def _of_record(rank: RankSnapshot, record: Record) -> Call:
    return Call(rank=rank.rank, **vars(record))  # large jobs have many: ``fields`` takes longer


def with_tag(tag: int) -> str:
    return f" with tag {tag}" if tag > 0 else ""


def is_called(group: Group, name: str) -> bool:
    """A group of two backends has two counts. The second is reported as ``NAME (gloo)``."""
    return name in (group.name, f"{group.name} (gloo)")


def sends(rank: RankSnapshot) -> int:
    """Return the number of sends and receives that a rank has begun over gloo, which does not record them."""
    of_gloo = [group for group in rank.groups if group.backend == "gloo" and group.sequence >= 0]
    recorded = {record.group: record.sequence for record in rank.records}
    return sum(max(0, group.sequence - recorded.get(group.name, 0)) for group in of_gloo)


def _has_passed(other: RankSnapshot, rank: RankSnapshot) -> bool:
    """Return whether ``other`` is on a later line of the function in which ``rank`` waits, on its node."""
    place, _, function = rank.location.frame.partition(" ")
    file, _, line = place.rpartition(":")
    later = [
        frame
        for frame in other.stacks.main
        if frame.startswith(f"{file}:") and frame.endswith(f" {function}")
        if int(frame[len(file) + 1 :].partition(" ")[0]) > int(line)
    ]
    return bool(later) and other is not rank and other.node == rank.node


def _waits_for_others(rank: RankSnapshot) -> bool:
    """Return whether its main thread is in a collective, perhaps one that the backward pass began."""
    is_open = any(not record.done for record in rank.records)
    is_backward = is_open and is_in_backward(rank.stacks.main)
    return rank.location.doing in (Doing.COLLECTIVE, Doing.RENDEZVOUS) or is_backward


def set_line(rank: RankSnapshot, keys: str) -> tuple[str, str]:
    """Return the line at which a rank sets one of ``keys`` ('': unknown), and its false condition."""
    lines = [entry.split("\t") for entry in rank.call.sets]
    matching = [(line, "".join(under)) for line, key, *under in lines if key in keys.split(", ")]
    return min(matching, key=lambda pair: pair[1] != "", default=("", ""))


def roots(waits: Sequence[Call]) -> tuple[int, ...]:
    """Return the ranks that others wait for and that wait in no call themselves."""
    inside = {wait.rank for wait in waits}
    return tuple(sorted({rank for wait in waits for rank in wait.missing} - inside))
