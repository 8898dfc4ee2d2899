"""Turn the looks of all nodes at a job that clusterrun did not start into tables and a diagnosis; pure.

A job may hold several worlds: two runs side by side, or ranks that each train alone. Ranks with equal numbers
are of different worlds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from clusterrun.diagnosis.calls import PATIENCE, STOPPED, STRANGER_PATIENCE, WORK_PATIENCE, of_snapshot
from clusterrun.diagnosis.decide import Judgement, decide
from clusterrun.diagnosis.evidence import (
    CROWDED,
    ChildProcess,
    JobSnapshot,
    ProcessSample,
    RankSnapshot,
    ThreadWait,
)
from clusterrun.diagnosis.explain_rank import loop_remedy, reason
from clusterrun.diagnosis.job_looks import DRIVER, JobLook, SeenLauncher, SeenRank
from clusterrun.diagnosis.kernel_waits import ENDLESS, KernelWait, kernel_wait
from clusterrun.diagnosis.rules import absent_rank
from clusterrun.diagnosis.stacks import (
    TOGETHER,
    Doing,
    is_in_backward,
    polls_for_lock_file,
    script_has_ended,
    short,
    waits_for_program,
    waits_for_ray,
)
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.vote import RankVote
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.phrases import count_of, some_of

MOST = 8
# Seconds in which all looks together find ranks that run now and then in the same lines.
WHOLE_LOOK = 20.0
# Switches a second above which a thread polls, and the share of a processor.
POLLS, BUSY = 100.0, 0.2
# Share of the busiest rank's use of processors. A rank in the backward pass that uses less waits for it.
IDLE_SHARE = 0.5
# Numbers a second that a sleeping rank counts if it works.
COUNTS = 2.0
MOST_COUNTS = 3
# Names of variables that count how often the same thing was tried.
_RETRIES = re.compile(r"(?i)attempt|(?<![a-z])tr(?:y|ies)|retr|poll|wait|elapsed|seconds")
# Seconds by which the clocks of two looks, and the times at which a thread ran, may differ.
SLACK = 0.5
_NO_STACK = "no stack"
FIRST_NODE_REMEDY = "set it to the first node: $(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)"
# A number of tasks on a node, and the number of consecutive nodes with as many: ``2(x4)``.
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@frozen
class JobWorld:
    """Ranks that train together."""

    ranks: tuple[RankSnapshot, ...]
    size: int
    # variables of the script that count steps, by rank
    counters: tuple[tuple[int, tuple[str, ...]], ...] = ()
    # whole numbers of the script at the end of the look and at its beginning, by rank
    numbers: tuple[tuple[int, tuple[tuple[str, ...], tuple[str, ...]]], ...] = ()
    changed: tuple[int, ...] = ()  # ranks that came to another place during the look
    is_numbered: bool = True  # a variable of the processes numbers the ranks

    @property
    def waiting(self) -> list[RankSnapshot]:
        """Return the ranks that wait for others."""
        return [rank for rank in self.ranks if rank.state and rank.location.doing in TOGETHER]


@frozen
class Rest:
    """How long the ranks have not begun anything."""

    seconds: float  # 0 if they poll
    seconds_in_place: float  # though they poll, each look found them in the same lines
    is_polling: bool  # they ran during the look: found in one line by chance, or they poll there


class JobHistory:
    """The looks at one job so far. A rank that stays in one place from look to look has not moved."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], tuple[float, object]] = {}
        # The clock and the switches at the newest look, of ranks in a collective.
        self._looks: dict[tuple[str, int], tuple[float, int]] = {}
        # The clocks of looks at a world that moved, and the ranks that others waited for.
        self._outside: dict[frozenset[tuple[str, int]], tuple[tuple[float, tuple[int, ...]], ...]] = {}
        # The clock, and the processor seconds of each process below a rank that waits for a program, at the
        # first look.
        self._programs: dict[tuple[str, int], tuple[float, Mapping[int, float]]] = {}
        # The clock at the first look, and the script's whole numbers at each look.
        self._numbers: dict[tuple[str, int], tuple[float, list[dict[str, int]]]] = {}

    def with_counts(
        self, rank: RankSnapshot, before: Sequence[str], after: Sequence[str]
    ) -> tuple[RankSnapshot, float]:
        """Return ``rank`` with the variables that counted since the first look, and the seconds since then.

        A rank that sleeps and counts slowly in a ``while`` may try the same thing for ever. The processor
        time of a program that it waits for counts too, and the processes that the program starts. A number
        that has fallen meanwhile may be a random one, so it shows no progress of a rank that computes.
        """
        began, looks = self._numbers.setdefault(
            (rank.node, rank.process.pid), (rank.clock - rank.process.seconds, [])
        )
        for numbers in (before, after):
            pairs = (number.partition("=") for number in numbers)
            looks.append({name: int(number) for name, _, number in pairs})
        seconds = max(0.0, rank.clock - began)
        counts = []
        for name, number in looks[-1].items():
            values = [numbers[name] for numbers in looks if name in numbers]
            grown = number - looks[0].get(name, number)
            may_retry = bool(rank.stacks.loop) or _RETRIES.search(name) is not None
            is_quick = rank.process.busy >= CROWDED or grown >= COUNTS * seconds
            is_random = rank.works and values != sorted(values)
            if grown > 0 and (is_quick or not may_retry) and not is_random:
                counts.append(f"{name}={looks[0][name]} to {number}")
        if waits_for_program(rank.stacks.main):
            children = rank.process.children
            used_at_first = {child.pid: child.used for child in children}
            start, used = self._programs.setdefault(
                (rank.node, rank.process.pid), (rank.clock, used_at_first)
            )
            for child in children:
                computed = child.used - used.get(child.pid, 0.0)
                if child.pid not in used:
                    counts.append(f"{child.name}, process {child.pid}, was started")
                elif computed > CROWDED * max(1.0, rank.clock - start):
                    counts.append(f"{child.name}, process {child.pid}, computed for {computed:.1f} s")
        return replace(rank, counts=tuple(counts[:MOST_COUNTS])), seconds

    def with_movement(self, rank: RankSnapshot) -> RankSnapshot:
        """Return ``rank`` as moved if it has left the collective in which the look before saw it.

        The main thread of a rank sleeps in such a call, and at most a look wakes it. Some libraries poll.
        """
        process, key = rank.process, (rank.node, rank.process.pid)
        doing = rank.location.doing
        clock, switches = self._looks.pop(key, (rank.clock, process.switches))
        polls = waits_for_ray(rank.stacks.main) or rank.location.operation.startswith("MPI_")
        polls = polls or (doing in TOGETHER and bool(rank.stacks.loop))
        if process.switches < 0 or process.idle < 0 or polls:
            return rank
        seconds, added_switches = rank.clock - clock, process.switches - switches
        has_left = added_switches > 0 and process.idle < seconds - SLACK
        if doing is Doing.COLLECTIVE or is_in_backward(rank.stacks.main):
            self._looks[key] = (rank.clock, process.switches)
            has_left = has_left and process.busy <= BUSY and added_switches <= POLLS * max(1.0, seconds)
        else:
            has_left = has_left and doing in (Doing.USER, Doing.DATA) and not rank.problem
        return replace(rank, moved=rank.moved or has_left)

    def outside(self, ranks: Sequence[RankSnapshot]) -> tuple[tuple[float, tuple[int, ...]], ...]:
        """Return the clock of each look at a world that moved, and the ranks that others waited for."""
        key = frozenset((rank.node, rank.process.pid) for rank in ranks)
        # A rank that idles in the backward pass while another computes waits there. The native frames of a
        # rank that moves, which would show that, are not read.
        least = IDLE_SHARE * max((rank.process.busy for rank in ranks), default=0.0)
        late = tuple(
            rank.rank
            for rank in ranks
            if rank.location.doing not in TOGETHER
            and (rank.process.busy >= least or not is_in_backward(rank.stacks.main))
        )
        looks = self._outside.get(key, ())
        if any(rank.moved for rank in ranks):
            late = late if len(late) < len(ranks) else ()
            looks = self._outside[key] = (*looks, (max(rank.clock for rank in ranks), late))
        return looks

    def still_for(self, rank: RankSnapshot, counters: Sequence[str]) -> float:
        """Return for how many seconds a rank has been in one place, as far as that was seen."""
        process = rank.process
        place = (rank.stacks.main, tuple(counters))
        began, before = self._since.get((rank.node, process.pid), (0.0, None))
        if before != place or rank.moved:
            began = rank.clock - process.seconds
            self._since[rank.node, process.pid] = (began, place)
        observed = max(0.0, rank.clock - began)
        return max(observed, process.idle) if process.idle >= process.seconds else observed


def worlds_of(looks: Sequence[JobLook], is_complete: bool) -> list[JobWorld]:
    """Return the worlds of a job, the largest first. ``is_complete``: every node has answered."""
    nodes = [look.node for look in looks]
    ranks_of_job = _in_script(_with_equal_spawns([rank for look in looks for rank in look.ranks]))
    worlds = [_world(ranks, nodes, is_complete) for ranks in _split(ranks_of_job, list(_KEYS))]
    return sorted(worlds, key=lambda world: -len(world.ranks))


def _with_equal_spawns(ranks: Sequence[SeenRank]) -> list[SeenRank]:
    """Number the ranks of ``torch.multiprocessing.spawn`` as if every task had started as many.

    A task that does not join its processes does not show how many it started. Its last ones may have ended.
    """
    most = max((rank.name.spawns for rank in ranks), default=0)
    renumbered = []
    for rank in ranks:
        name = rank.name
        if 0 < name.spawns < most:
            first = name.rank // name.spawns * most
            name = replace(name, rank=first + name.spawned, size=name.size // name.spawns * most)
        renumbered.append(replace(rank, name=name))
    return renumbered


def _in_script(ranks: Sequence[SeenRank]) -> list[SeenRank]:
    """Return the ranks without unnumbered processes that run no line of a script, as Ray's controller.

    If no process is known to run such a line, all are returned. Ray's driver is a rank if there is no other.
    """
    in_script = [
        rank
        for rank in ranks
        if rank.name.variable or not rank.snapshot.stacks.main or rank.snapshot.location.frame
    ]
    workers = [rank for rank in in_script if rank.name.variable != DRIVER]
    in_script = workers or in_script
    return in_script if any(rank.snapshot.location.frame for rank in in_script) else list(ranks)


# The properties that ranks of one world share, in the order in which they are tried.
_KEYS: tuple[Callable[[SeenRank], object], ...] = (
    lambda rank: rank.name.variable,
    lambda rank: rank.name.step,
    lambda rank: rank.name.address,
    lambda rank: rank.snapshot.node,
    lambda rank: rank.name.parent,
)


def _split(unsplit: Sequence[SeenRank], keys: list[Callable[[SeenRank], object]]) -> list[list[SeenRank]]:
    """Divide ranks into parts without equal numbers."""
    numbered = [_by_task(unsplit)] if _by_task(unsplit) else [list(unsplit)]
    numbers = [rank.name.rank for rank in numbered[0] if rank.name.rank >= 0]
    if len(set(numbers)) == len(numbers):
        return numbered if unsplit else []
    if not keys:
        return [[rank] for rank in unsplit]
    parts: dict[object, list[SeenRank]] = {}
    for rank in unsplit:
        parts.setdefault(keys[0](rank), []).append(rank)
    return [part for ranks in parts.values() for part in _split(ranks, keys[1:])]


def _by_task(ranks: Sequence[SeenRank]) -> list[SeenRank]:
    """Return the ranks numbered by Slurm's tasks if they all have one number of their own; else []."""
    tasks = {rank.name.task for rank in ranks}
    numbers = {rank.name.rank for rank in ranks}
    if len(ranks) < 2 or len(numbers) > 1 or len(tasks) < len(ranks) or -1 in tasks:
        return []
    return [replace(rank, name=replace(rank.name, rank=rank.name.task, size=0)) for rank in ranks]


def _world(ranks: Sequence[SeenRank], nodes: Sequence[str], is_complete: bool) -> JobWorld:
    is_numbered = any(rank.name.rank >= 0 for rank in ranks)
    if not is_numbered and {rank.name.own for rank in ranks} == {*range(len(ranks))}:
        is_numbered = True
        ranks = [replace(rank, name=replace(rank.name, rank=rank.name.own)) for rank in ranks]
    place = {node: number for number, node in enumerate(nodes)}
    order = sorted(ranks, key=lambda rank: (place[rank.snapshot.node], rank.snapshot.process.pid))
    free = iter(number for number in range(len(order)) if number not in {rank.name.rank for rank in order})
    numbers = {id(rank): rank.name.rank if rank.name.rank >= 0 else next(free) for rank in order}
    size = max((*(rank.name.size for rank in order), max(numbers.values()) + 1))
    snapshots = []
    for rank in order:
        snapshot, request = rank.snapshot, rank.snapshot.request
        # Ranks that are only counted may lack some that were never started.
        if request.world and is_numbered:
            request = replace(request, started=size)
        quiet = snapshot.quiet if snapshot.quiet >= 0 else math.inf
        snapshots.append(replace(snapshot, rank=numbers[id(rank)], request=request, quiet=quiet))
    missing = sorted({*range(size)}.difference(numbers.values())) if is_complete else []
    are_tasks = all(numbers[id(rank)] == rank.name.task for rank in order)
    layout = order[0].name.layout if are_tasks else ""
    counts = [
        int(count)
        for count, times in _TASKS.findall(layout or f"{size // len(nodes)}(x{len(nodes)})")
        for _ in range(int(times or 1))
    ]
    homes = [node for node, count in zip(nodes, counts) for _ in range(count)]
    is_placed = len(homes) == size and all(homes[rank.rank] == rank.node for rank in snapshots)
    for number in missing:
        node = homes[number] if is_placed else ""
        snapshots.append(RankSnapshot(number, node, ProcessSample(0, ""), quiet=math.inf))
    counters = tuple((numbers[id(rank)], rank.counters) for rank in order)
    whole_numbers = tuple((numbers[id(rank)], (rank.numbers, rank.before)) for rank in order)
    changed = tuple(numbers[id(rank)] for rank in order if rank.changed)
    ordered = tuple(sorted(snapshots, key=lambda rank: rank.rank))
    return JobWorld(ordered, size, counters, whole_numbers, changed, is_numbered)


def judge_world(
    world: JobWorld, history: JobHistory, mute: Sequence[tuple[str, str]] = (), quiet: float = math.inf
) -> Judgement:
    """Return the diagnosis of a world from one look, and those before it.

    ``quiet`` are the seconds since a rank of this world printed; infinite: unknown.
    """
    world, seconds_seen = _with_history(world, history)
    rest = _rest_of(world, history, seconds_seen)
    # A rank may have ended a moment ago, as the others are about to.
    is_early = not all(rank.state for rank in world.ranks) and rest.seconds < PATIENCE
    ranks = tuple(rank for rank in _with_servers(world.ranks) if rank.state or not is_early)
    if not world.waiting:  # nobody waits for the others, so each rank that gets on shows progress
        ranks = tuple(replace(rank, moved=rank.moved or rank.rank in world.changed) for rank in ranks)
    if quiet < rest.seconds - PATIENCE:  # a rank at work has printed, because the others wait
        ranks = tuple(
            replace(rank, printed=True)
            if (rank.works or rank.counts) and rank.location.doing not in TOGETHER
            else rank
            for rank in ranks
        )
    answering = [rank for rank in ranks if rank.state and rank.state not in STOPPED]
    has_records = bool(answering) and all(rank.groups for rank in answering)
    if not has_records:
        ranks = tuple(replace(rank, groups=(), records=(), answered=False) for rank in ranks)
    snapshot = JobSnapshot(
        ranks=ranks,
        size=world.size,
        mute=tuple(mute),
        since_begun=rest.seconds,
        by_stacks=not has_records,
        outside=history.outside(world.ranks),
    )
    judgement = decide(of_snapshot(snapshot))
    diagnosis = judgement.diagnosis
    if rest.is_polling and diagnosis.verdict is Verdict.NOTHING and quiet >= rest.seconds_in_place:
        diagnosis = _not_enough_seen(diagnosis, ranks, rest.seconds_in_place)
    evidence = [*diagnosis.evidence, *_differing_counters(dict(world.counters)), *_without_stacks(world)]
    if has_records:
        evidence.append("torch's own flight records of these ranks show their calls")
    if not world.is_numbered and len(world.ranks) > 1:
        processes = {rank.rank: f"rank {rank.rank} is process {rank.process.pid}" for rank in world.ranks}
        pids = ", ".join([*processes.values()][:MOST])
        evidence.append(f"no variable numbers these ranks; they are counted by node and process: {pids}")
        blamed = {culprit.rank for culprit in diagnosis.culprits}
        pids_blamed = [process for rank, process in processes.items() if rank in blamed]
        if pids_blamed:
            message = f"{diagnosis.message} (counted, not its own number: {', '.join(pids_blamed[:MOST])})"
            diagnosis = replace(diagnosis, message=message)
    judgement = replace(judgement, diagnosis=replace(diagnosis, evidence=tuple(evidence)))
    return replace(judgement, certain=False, later=PATIENCE) if is_early else judgement


def _with_servers(ranks: Sequence[RankSnapshot]) -> tuple[RankSnapshot, ...]:
    """Return the ranks; those that wait for data of another rank show it, and what its threads wait for."""
    joined = []
    for rank in ranks:
        wait = next(iter(rank.stacks.waits), None)
        address, _, port = wait.holder.rpartition(":") if wait and wait.kind == "read" else ("", "", "")
        for server in ranks:
            process = server.process
            if wait and port.isdigit() and int(port) in process.ports and address in process.addresses:
                threads = [thread for thread in server.stacks.threads if thread.waits]
                waits = [ThreadWait(thread.waits, thread.frame) for thread in threads]
                holder = f"rank {server.rank}, which listens at {wait.holder},"
                stacks = replace(rank.stacks, waits=(replace(wait, holder=holder), *waits))
                rank = replace(rank, stacks=stacks)
                break
        joined.append(rank)
    return tuple(joined)


def _with_history(world: JobWorld, history: JobHistory) -> tuple[JobWorld, float]:
    """Return the world with what earlier looks add to its ranks, and for how long they saw ranks at work."""
    numbers = dict(world.numbers)
    seconds_seen, ranks = math.inf, []
    for moved_rank in map(history.with_movement, world.ranks):
        after, before = numbers.get(moved_rank.rank, ((), ()))
        rank, seconds = history.with_counts(moved_rank, before, after)
        ranks.append(rank)
        # A step of a loop may sleep. The condition of a ``while`` that polls stays true.
        is_asleep = kernel_wait(rank.process.waits_in) is KernelWait.SLEEP and not rank.stacks.loop
        may_count = rank.works or (is_asleep and 0 <= rank.process.idle < STRANGER_PATIENCE)
        if may_count and after and rank.location.doing not in TOGETHER:
            # Only several looks show whether it counts.
            seconds_seen = min(seconds_seen, seconds)
        if waits_for_program(rank.stacks.main) and not _is_stuck(rank.process.children):
            # A program that works computes or starts processes more often than a rank at work joins others.
            seconds_seen = min(seconds_seen, seconds * STRANGER_PATIENCE / WORK_PATIENCE)
    return replace(world, ranks=tuple(ranks)), seconds_seen


def _is_stuck(children: Sequence[ChildProcess]) -> bool:
    """Return whether the programs below a rank are stopped, or wait for what only another process ends."""
    innermost = [child for child in children if kernel_wait(child.waits_in) is not KernelWait.PROCESS]
    return bool(innermost) and all(
        child.state in STOPPED or child.waits_for_rank or kernel_wait(child.waits_in) in ENDLESS
        for child in innermost
    )


def _rest_of(world: JobWorld, history: JobHistory, seconds_seen: float) -> Rest:
    counters, waiting = dict(world.counters), world.waiting
    # A rank that polls while others make a group runs now and then, and has not begun anything since.
    polling = [
        rank
        for rank in waiting
        if rank.location.doing is Doing.RENDEZVOUS and rank.process.idle < rank.process.seconds
    ]
    considered = (
        waiting if len(polling) == len(waiting) else [rank for rank in waiting if rank not in polling]
    )
    considered = considered or [rank for rank in world.ranks if rank.state]
    still_seconds = {rank.rank: history.still_for(rank, counters.get(rank.rank, ())) for rank in world.ranks}
    # The kernel forgets when some sleeping threads ran.
    timed = [rank for rank in considered if rank.process.idle >= 0 or rank.moved]
    seconds = min([*(still_seconds[rank.rank] for rank in timed or considered), seconds_seen])
    by_chance = [
        rank
        for rank in considered
        if not (polls_for_lock_file(rank.stacks.main) or waits_for_ray(rank.stacks.main))
        if not script_has_ended(rank.stacks.main)
        if not any(child.lacks_thread for child in rank.process.children)
    ]
    is_polling = not waiting and any(-1 < rank.process.idle < rank.process.seconds for rank in by_chance)
    return Rest(0.0 if is_polling else seconds, seconds, is_polling)


def _not_enough_seen(diagnosis: Diagnosis, ranks: Sequence[RankSnapshot], seconds: float) -> Diagnosis:
    """Say that the ranks stayed in the same lines, unless they move. One rank that computes is no hang."""
    works = any(rank.works or rank.state == "R" for rank in ranks)
    is_moving = any(rank.moved or rank.counts for rank in ranks)
    if is_moving or seconds < WHOLE_LOOK or (works and len(ranks) == 1):
        return diagnosis
    places = {rank.location.line for rank in ranks}
    where = f"at {places.pop()}" if len(places) == 1 and "" not in places else "in the same lines"
    if not works and all(rank.stacks.loop for rank in ranks):
        verdict, remedy = Verdict.WAITING, loop_remedy(ranks[0].stacks.loop)
        message = f"all {len(ranks)} ranks have waited for {seconds:.0f} s in a loop {where}, "
        message += "and its condition stays true"
    else:
        does = "poll there, or pause between steps"
        if works:
            does = "compute there, or wait in a busy loop, as MPI does"
        verdict = Verdict.UNDETERMINED
        message = f"not enough seen: for {seconds:.0f} s each look found all {len(ranks)} ranks {where}, "
        message += f"outside of collectives: they {does}"
        remedy = "does their output grow? If not, what do these lines wait for?"
    whys = {rank.rank: f"on {rank.node}: {reason(rank).why}" for rank in ranks}
    lines = [f"{ranks_in_words(members)} {why}" for why, members in RankVote(whys).sides[:MOST]]
    evidence = (*diagnosis.evidence, *lines)
    return replace(diagnosis, verdict=verdict, message=message, evidence=evidence, remedy=remedy)


def _differing_counters(counters: Mapping[int, Sequence[str]]) -> Iterable[str]:
    """Yield the variables that count steps and differ: who is behind, as far as the script shows it."""
    by_name: dict[str, dict[int, str]] = {}
    for rank, values in counters.items():
        for value in values:
            by_name.setdefault(value.partition("=")[0], {})[rank] = value
    for values_by_rank in by_name.values():
        vote = RankVote(values_by_rank)
        if len(values_by_rank) > 1 and not vote.is_unanimous and len(vote.sides) <= MOST:
            yield "; ".join(f"{ranks_in_words(ranks)}: {value}" for value, ranks in vote.sides)


def _without_stacks(world: JobWorld) -> Iterable[str]:
    """Yield what is known of ranks without stacks: state, wait channel and use of processors."""
    unseen = [rank for rank in world.ranks if rank.state and not rank.stacks.main]
    kinds: dict[str, list[int]] = {}
    for rank in unseen:
        process = rank.process
        where = f" in {process.waits_in}" if process.waits_in else ""
        busy = round(process.busy, 1)
        ago = ""
        if process.idle >= process.seconds:
            ago = ", did not run for a minute" if process.idle >= 60 else ", did not run during the look"
        sockets = f", TCP sockets on {', '.join(process.addresses[:2])}" if process.addresses else ""
        leaves = dict.fromkeys(child.name for child in process.children[-MOST_COUNTS:])
        programs = f", with {', '.join(leaves)} below it" if leaves else ""
        kind = f"state {process.state}{where}, {busy:g} processors{ago}{sockets}{programs}"
        kinds.setdefault(kind, []).append(rank.rank)
    for kind, ranks in list(kinds.items())[:MOST]:
        yield f"{ranks_in_words(ranks)}: {_NO_STACK}; {kind}"


def diagnose_looks(
    looks: Sequence[JobLook], mute: Sequence[tuple[str, str]], history: JobHistory, quiet: float = math.inf
) -> Judgement:
    """Return the diagnosis of a job from the looks of its nodes.

    ``mute`` are the nodes that did not answer, with the reason. ``quiet`` are the seconds since the job's
    output grew; infinite: unknown. The world with a fault is reported, and the others as evidence.
    """
    worlds = worlds_of(looks, not mute)
    has_stacks = any(rank.snapshot.stacks.main for look in looks for rank in look.ranks)
    # A task of srun without Python may be the shell that starts torchrun later.
    if not worlds or (not has_stacks and any(map(_meets, looks))):
        diagnosis = _without_ranks(looks, mute)
        evidence = (*diagnosis.evidence, *_circumstances(looks, mute))
        return Judgement(replace(diagnosis, evidence=evidence))
    # Worlds of one job share its output.
    quiet = quiet if len(worlds) == 1 else math.inf
    judgements = [judge_world(world, history, mute, quiet) for world in worlds]
    # A single process beside a world of several ranks serves them, and may wait for its next request.
    is_harmless = [
        judgement.diagnosis.verdict in (Verdict.NOTHING, Verdict.NOT_RUNNING)
        or len(world.ranks) == 1 < len(worlds[0].ranks)
        for judgement, world in zip(judgements, worlds)
    ]
    order = sorted(
        range(len(worlds)), key=lambda place: (not judgements[place].diagnosis.culprits, is_harmless[place])
    )
    worst = judgements[order[0]]
    others = []
    for place in order[1 : 1 + MOST]:
        other = judgements[place].diagnosis
        others.append(f"{_named(worlds[place])}: {other.verdict.value}, {other.message}")
    diagnosis = worst.diagnosis
    if len(worlds) > 1:
        others.insert(
            0, f"the job has {len(worlds)} worlds of ranks; this is that of {_named(worlds[order[0]])}"
        )
        diagnosis = _alone(worlds, diagnosis)
    evidence = (*diagnosis.evidence, *others, *_circumstances(looks, ()))
    certain = all(judgement.certain for judgement in judgements)
    later = max(judgement.later for judgement in judgements)
    return Judgement(replace(diagnosis, evidence=evidence), certain, later)


def _named(world: JobWorld) -> str:
    nodes = sorted({rank.node for rank in world.ranks if rank.node})
    listed = ", ".join(nodes[:4]) + (", …" if len(nodes) > 4 else "")
    return f"{count_of(len(world.ranks), 'rank')} on {listed}"


def _alone(worlds: Sequence[JobWorld], diagnosis: Diagnosis) -> Diagnosis:
    """Say that every node trains alone, if each has a world of the same size and nothing else is wrong."""
    homes = [{rank.node for rank in world.ranks} for world in worlds]
    sizes = {world.size for world in worlds}
    nodes = [next(iter(home)) for home in homes if len(home) == 1]
    if diagnosis.culprits or len(sizes) > 1 or len(nodes) < len(worlds) or len(set(nodes)) < len(nodes):
        return diagnosis
    ranks = count_of(sizes.pop(), "rank")
    sentence = f"each of {len(nodes)} nodes has a world of its own, of {ranks}: none waits for another node"
    remedy = "if they should train together, give every node the same --nnodes, MASTER_ADDR and MASTER_PORT"
    return replace(diagnosis, verdict=Verdict.ALONE, message=sentence, remedy=remedy)


def _circumstances(looks: Sequence[JobLook], mute: Sequence[tuple[str, str]]) -> Iterable[str]:
    for node, why in mute:
        yield f"no answer from {node}: {why}"
    problems: dict[str, list[str]] = {}
    for look in looks:
        for problem in look.problems:
            problems.setdefault(problem, []).append(look.node)
    for problem, nodes in problems.items():
        yield f"{some_of(nodes, MOST)}: {problem}"
    for look in looks[:MOST]:
        if look.gpus:
            use = ", ".join(f"{gpu.busy:.0f} %" if gpu.busy >= 0 else "unknown" for gpu in look.gpus)
            yield f"GPUs of {look.node} are busy: {use}"
    ranks = [rank for look in looks for rank in look.ranks]
    in_script = {id(rank) for rank in _in_script(ranks)}
    unused = [rank.snapshot for rank in ranks if id(rank) not in in_script and rank.name.variable != DRIVER]
    for rank in unused[:MOST]:
        yield f"process {rank.process.pid} on {rank.node} is in no line of a script: has its task ended?"
    idle = [look.node for look in looks if not look.ranks]
    if idle and len(idle) < len(looks):
        launchers = sorted({launcher.name for look in looks if not look.ranks for launcher in look.launchers})
        started = f"; there runs {', '.join(launchers)}" if launchers else ""
        yield f"no rank runs on {some_of(idle, MOST)}{started}"


def _meets(look: JobLook) -> SeenLauncher | None:
    """Return the launcher of a node that waits for those of other nodes; None without one."""
    waiting = (
        launcher for launcher in look.launchers if any("rendezvous" in frame for frame in launcher.stack)
    )
    return next(waiting, None)


def _without_ranks(looks: Sequence[JobLook], mute: Sequence[tuple[str, str]]) -> Diagnosis:
    """Return the diagnosis of a job in which no rank runs: its launchers may wait for each other."""
    launchers = {look.node: launcher for look in looks if (launcher := _meets(look))}
    if launchers:
        return _of_launchers(launchers, looks, mute)
    count = sum(look.processes for look in looks)
    names = {launcher.name for look in looks for launcher in look.launchers}
    names.update(program for look in looks for program in look.programs)
    running = f" ({', '.join(sorted(names)[:MOST])})" if names else ""
    sentence = f"the job has {count} processes{running}, and none of them is known to be a rank"
    if mute:
        sentence = f"{some_of([node for node, _ in mute], MOST)} did not answer; elsewhere {sentence}"
        return Diagnosis(Verdict.UNDETERMINED, sentence, remedy=absent_rank.SILENT_NODE_REMEDY)
    remedy = "if it still starts, look again in a moment; a rank has RANK, SLURM_PROCID or a variable of MPI"
    return Diagnosis(Verdict.UNDETERMINED, sentence, remedy=remedy)


def _of_launchers(
    launchers: Mapping[str, SeenLauncher], looks: Sequence[JobLook], mute: Sequence[tuple[str, str]]
) -> Diagnosis:
    """Return the diagnosis of ``launchers``, by node, that wait for the launchers of other nodes."""
    node, first = next(iter(launchers.items()))
    name, endpoint = first.name, first.endpoint
    count = len(looks) + len(mute)
    sentence = f"{name} on {some_of(list(launchers), MOST)} waits for other nodes, and has started no rank"
    frame = next(frame for frame in first.stack if "rendezvous" in frame)
    evidence = [f"{name} on {node} is at {short(frame)}"]
    settings = {
        "--nnodes": [str(launcher.nodes) for launcher in launchers.values()],
        "--rdzv-endpoint": [launcher.endpoint for launcher in launchers.values()],
        "--rdzv-id": [launcher.run_id for launcher in launchers.values()],
    }
    for setting, values in settings.items():
        if len(set(values)) > 1:
            listing = ", ".join(f"{value or 'none'} on {at}" for value, at in zip(values[:MOST], launchers))
            sentence += f": each node waits for nodes with its own {setting}, {listing}"
            remedy = f"give every node the same {setting}; $RANDOM and $(hostname) differ between nodes"
            return Diagnosis(Verdict.MISMATCH, sentence, evidence=tuple(evidence), remedy=remedy)
    if first.nodes > count:
        sentence += f": it waits for {first.nodes} nodes, and the job has {count}"
        remedy = "give it the number of nodes of the job: --nnodes $SLURM_NNODES"
        return Diagnosis(Verdict.NEVER_ARRIVED, sentence, evidence=tuple(evidence), remedy=remedy)
    if endpoint:
        evidence.append(f"its rendezvous endpoint is {endpoint}")
    verdict, remedy, culprits = Verdict.UNDETERMINED, FIRST_NODE_REMEDY, []
    host = endpoint.partition(":")[0]
    names = {look.node.partition(".")[0] for look in looks}
    # An address, or the name of an interface such as n0001-ib, may belong to a node of the job.
    is_foreign = re.fullmatch(r"[a-z][\w.-]*", host) and not host.startswith((*names, "localhost"))
    if count > 1 and re.match(r"localhost|127\.|\[?::1", endpoint):
        sentence += ": its rendezvous endpoint is each node's own loopback, so each node waits for itself"
        verdict = Verdict.MISMATCH
    elif is_foreign and not mute:
        sentence += ": its rendezvous endpoint names no node of the job"
    else:
        remedy = "start it once on each node (srun --ntasks-per-node=1), with the same --nnodes and "
        remedy += "rendezvous endpoint; the endpoint's port must be reachable from every node"
        for look in looks if not mute else ():
            if look.node in launchers:
                continue
            children = [child for rank in look.ranks for child in rank.snapshot.process.children]
            running = ", ".join(f"{child.name} (process {child.pid})" for child in children[:MOST])
            why = f"no {name} waits there" + (f"; there runs {running}" if running else "")
            culprits.append(Culprit(-1, look.node, why))
            verdict = Verdict.NEVER_ARRIVED
    certainty = absent_rank.CERTAINTY if culprits else 0
    return Diagnosis(verdict, sentence, tuple(culprits), (), tuple(evidence), remedy, certainty=certainty)
