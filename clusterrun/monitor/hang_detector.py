"""Detect a hang of one attempt, in the coordinator, and request the evidence for its diagnosis.

Laws
----
1. A rank moves when it prints, begins a collective or joins a group. Retries in ``init_process_group``
   are no movement. A rank that is in no group, or that does not answer, also moves when it computes. The run
   moves when any rank moves, or when the GPUs of all nodes work: replays of whole-step CUDA graphs begin no
   collective. A collective that hangs leaves GPUs that wait.
2. A stall is declared once each time that no rank moves for ``hang_seconds``, or for half of the timeout of
   the waiting ranks' process group. Action is taken after ``hang_seconds``. A stall is declared only while
   the observers report: their silence is no stall.
3. Only one collection runs at a time. Requests that arrive meanwhile get its answer. It ends when every node
   has answered or is mute, or at its limit. A mute node is asked but not awaited. If a rank may still
   continue by itself, one more and longer look follows, no earlier than the diagnosis can know the outcome.
4. A body that cannot be read is ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from clusterrun.diagnosis.evidence import (
    START_PATIENCE,
    Collected,
    Digest,
    JobSnapshot,
    LookOptions,
    ProcessSample,
    Pulse,
    RankSnapshot,
)
from clusterrun.diagnosis.explain_rank import STEP_REMEDY
from clusterrun.diagnosis.solo_ranks import ALONE, Together
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.model import contract
from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.orders import Orders
from clusterrun.monitor.inner_worlds import InnerWorlds
from clusterrun.runtime.machine_events import Now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

# The file name of the diagnosis of a stall that the detector itself declared.
OWN = "diagnosis"
# The beginning of a warning.
BLOCKED = "an srun cannot start"
# An observer is mute after this number of missed digests.
QUIET_PERIODS = 3.5
# Seconds. A group whose timeout is shorter than a few digests ends its ranks before the first look.
LEAST_LIMIT = 4.0
# Seconds. The clock of a node is known to this precision.
SLACK = 1.0
MOST_LATER = 12.0
# A request is answered within half a minute if the nodes answer soon.
MOST_LOOKS = 4
# Share of a processor. A rank that loads torch from a slow file system on a crowded node uses little more.
COMPUTES = 0.03

# The time that a node may take to answer, in addition to the look itself.
ANSWER_SECONDS = 10.0
FIRST_LOOK, LONG_LOOK = 1.0, 5.5
MANY_RANKS, FEW_RECORDS = 256, 16
# A step may begin many collectives, and the records should cover several steps.
FEW_RANKS, MANY_RECORDS = 64, 256


@frozen
class AskObserver:
    """Send request ``number`` to the observer on node ``node`` of the allocation."""

    node: int
    number: int
    body: str


@frozen
class Warn:
    """Log ``text`` and add it to the warnings of the run."""

    text: str
    hangs: bool = False  # it says that the run hangs


@frozen
class TakeBack:
    """Remove the warnings that start with ``beginning``. ``text`` is the reason."""

    beginning: str
    text: str


@frozen
class Save:
    """Write a file of the attempt, atomically."""

    name: str
    text: str


@frozen
class EndAttempt:
    """Request the end of the attempt."""

    what: str  # ``restart`` it as after a failed rank, or ``kill`` the run
    why: str
    stalled: float  # seconds since anything moved
    error: str = ""  # the diagnosis if the script itself causes the hang, which may then recur


if TYPE_CHECKING:
    HangDetectorAction = Union[AskObserver, Warn, TakeBack, Save, EndAttempt]

# Names of nodes by their number within the allocation.
Names = Mapping[int, str]


class Collection:
    """A look of ``seconds`` at all of ``nodes``, with the answers and the deadline."""

    def __init__(self, number: int, nodes: Names, mute: Names, now: Now, seconds: float) -> None:
        self.number, self.seconds = number, seconds
        self.overdue_at = now.steady + seconds + ANSWER_SECONDS
        self.answers: dict[int, Collected] = {}
        self.mute = dict(mute)
        self._nodes, self._wall = nodes, now.wall

    def asks(self, size: int) -> list[HangDetectorAction]:
        records = MANY_RECORDS if size <= FEW_RANKS else LookOptions().records
        options = LookOptions(self.seconds, FEW_RECORDS if size > MANY_RANKS else records)
        body = json.dumps({"collect": encode(options)})
        return [AskObserver(node, self.number, body) for node in self._nodes]

    @property
    def complete(self) -> bool:
        return all(node in self.answers or node in self.mute for node in self._nodes)

    def case(self, size: int, stalled: float, since_begun: float) -> JobSnapshot:
        """Return the evidence of all nodes. ``since_begun``: seconds since a rank last began a call."""
        silent = f"no answer within {self.seconds + ANSWER_SECONDS:g} s"
        missing = {node: self.mute.get(node, silent) for node in self._nodes if node not in self.answers}
        answers = self.answers.values()
        ranks = [rank for answer in answers for rank in answer.ranks]
        return JobSnapshot(
            ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)),
            size=size,
            mute=tuple((self._nodes[node], why) for node, why in missing.items()),
            offsets=tuple((answer.node, answer.clock - self._wall) for answer in answers),
            stalled=stalled,
            since_begun=since_begun,
        )


class _WatchedNode:
    """A node of the attempt, as its observer reported it last."""

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.heard_at = now
        self.gpus_worked_at = -math.inf  # when all its GPUs were last seen at work
        self.mute = ""  # why its observer does not answer; '' if it does
        self.killed = 0  # processes that the kernel ended for lack of memory
        self.blocked: tuple[int, ...] = ()  # ranks that wait for a step of their own


class HangDetector:
    """The watch over an attempt's ranks.

    ``nodes`` are the nodes that train, in rank order: number in the allocation, and name.
    """

    def __init__(self, orders: Orders, nodes: Sequence[tuple[int, str]], now: float) -> None:
        self._watch = orders.watch
        self._nodes = {number: _WatchedNode(name, now) for number, name in nodes}
        self._size = len(self._nodes) * orders.ranks_per_node
        self._per_node, self._each = orders.per_node, orders.ranks_per_node
        independent = dict(orders.environment).get(contract.INDEPENDENT_VARIABLE) == "1"
        self._together = Together(1 if independent else self._size, now)
        self._watches_inner_worlds = not (independent or self._per_node)
        self._inner_worlds = InnerWorlds()
        self._pulses: dict[tuple[int, int], tuple[float, Pulse]] = {}
        self._moved_at = now
        self._begun_at = -math.inf
        self._compared: set[tuple[str, int, int]] = set()
        self._stalled = self._reported = self._answers = False
        self._again_at: float | None = None
        self._number = 0
        self._round: Collection | None = None
        self._look_at: float | None = None
        self._looks = 0
        self._names: list[str] = []

    def on_answer(self, now: Now, node: int, number: int, body: str) -> list[HangDetectorAction]:
        watched = self._nodes.get(node)
        if watched is None:
            return []
        try:
            message = json.loads(body)
            if "digest" in message:
                return self._digest(now.steady, node, watched, decode(Digest, message["digest"]))
            if "collected" in message and self._round and number == self._round.number:
                self._round.answers[node] = decode(Collected, message["collected"])
                return self._looked(now)
            if "refused" in message and self._round and number == self._round.number:
                return self.lost(now, node, str(message["refused"]))
        except (ValueError, TypeError, RecursionError, BadDocument) as error:
            return [Warn(f"the observer on {watched.name} sent a message that cannot be read: {error}")]
        return []

    def lost(self, now: Now, node: int, why: str) -> list[HangDetectorAction]:
        if node in self._nodes:
            self._nodes[node].mute = why
        if self._round is None:
            return []
        self._round.mute[node] = why
        own = {key: entry for key, entry in self._pulses.items() if key[0] == node}
        if why == contract.NO_RANKS and own:
            # Its ranks have ended, and its observer with them.
            name = self._nodes[node].name
            self._pulses.update({key: (at, replace(pulse, state="")) for key, (at, pulse) in own.items()})
            ended = [RankSnapshot(rank, name, ProcessSample(own[node, rank][1].pid, "")) for _, rank in own]
            self._round.answers[node] = Collected(name, now.wall, tuple(ended))
        return self._looked(now)

    def on_request(self, now: Now, name: str, body: str) -> list[HangDetectorAction]:
        """Handle a user's request. The answer is ``name``.json; ``top`` reads the observers' files."""
        if name.startswith(contract.TOP_ASK):
            return [AskObserver(node, 0, body) for node in self._nodes]
        self._names.append(name)
        waits = self._round is not None or self._look_at is not None
        return [] if waits else self._look(now, FIRST_LOOK)

    def tick(self, now: Now) -> list[HangDetectorAction]:
        if self._round is not None and now.steady >= self._round.overdue_at:
            return self._judge(now)
        if self._look_at is not None:
            return self._look(now, LONG_LOOK) if now.steady >= self._look_at else []
        if self._round is None and self._stall_due(now.steady):
            self._stalled, self._again_at = True, None
            self._names.append(OWN)
            return self._look(now, FIRST_LOOK)
        return []

    def over(self, now: float, completed: bool) -> list[HangDetectorAction]:
        if not completed or self._inner_worlds.exist:
            return []
        return self._instead(self._together.warning, self._together.over(now))

    def stalled(self, now: float) -> float:
        """Return the seconds since a rank moved; 0 if they are few, or no observer reported lately."""
        seconds, patience = now - self._moved_at, QUIET_PERIODS * self._watch.sample_seconds
        reports = any(now - watched.heard_at <= patience for watched in self._nodes.values())
        return seconds if self._pulses and reports and seconds >= START_PATIENCE else 0.0

    def wakes_at(self) -> float | None:
        if self._round is not None:
            return self._round.overdue_at
        return self._due_at() if self._look_at is None else self._look_at

    def _due_at(self) -> float | None:
        """Return the time of the next look without a request. It is before the process groups time out."""
        hang = self._watch.hang_seconds
        if not hang:
            return None
        timeouts = [pulse.timeout for _, pulse in self._pulses.values() if pulse.timeout]
        limit = min(hang, max(LEAST_LIMIT, min(timeouts) / 2)) if timeouts else hang
        return self._again_at if self._stalled else self._moved_at + limit

    def _digest(
        self, now: float, node: int, watched: _WatchedNode, digest: Digest
    ) -> list[HangDetectorAction]:
        watched.heard_at, watched.mute = now, ""
        ranks = digest.ranks
        if self._per_node:
            # Launchers of one node each may reuse rank numbers, so number the ranks of all nodes anew.
            first = list(self._nodes).index(node) * self._each
            ranks = tuple(replace(pulse, rank=first + index) for index, pulse in enumerate(ranks))
        pulses = [self._known(node, pulse) for pulse in ranks]
        self._answers = self._answers or any(pulse.answered for pulse in pulses)
        moved = [pulse for pulse in pulses if self._moves(now, node, pulse)]
        if digest.gpus_work:
            watched.gpus_worked_at = now
        elif digest.gpus_work is not None:
            watched.gpus_worked_at = -math.inf
        oldest = min(each.gpus_worked_at for each in self._nodes.values())
        all_gpus_work = now - oldest <= QUIET_PERIODS * self._watch.sample_seconds
        if moved or all_gpus_work:
            self._moved_at = now
        actions: list[HangDetectorAction] = []
        if self._stalled and moved:
            # A rank that has ended has not continued.
            lives = any(pulse.state for pulse in moved)
            actions += [Warn("the ranks that hung continue")] if self._reported and lives else []
            self._stalled = self._reported = False
        if digest.killed > watched.killed:
            watched.killed = digest.killed
            actions.append(Warn(f"out of memory on {watched.name}: the kernel ended a process there"))
        # Ranks that wait for a step of their own: one warning names all, and is replaced if they change.
        blocked_before = {rank for each in self._nodes.values() for rank in each.blocked}
        watched.blocked = digest.blocked
        blocked_now = {rank for each in self._nodes.values() for rank in each.blocked}
        if blocked_now != blocked_before and blocked_before:
            actions.append(TakeBack(BLOCKED, ""))
        if blocked_now != blocked_before and blocked_now:
            actions.append(Warn(f"{BLOCKED} in {ranks_in_words(sorted(blocked_now))}: {STEP_REMEDY}"))
        if self._watches_inner_worlds and (warning := self._inner_worlds.heard(digest.inner_ranks)):
            actions += self._instead(self._together.warning, warning)
        # Ranks of several worlds have the same numbers, so they look like one world.
        if self._inner_worlds.exist:
            return actions
        was_together, before = self._together.together, self._together.warning
        warning = self._together.heard(now, pulses)
        if self._together.together and not was_together:
            news = "the ranks train together now: the earlier warning no longer applies"
            return [*actions, TakeBack(ALONE, news)]
        return actions + self._instead(before, warning)

    @staticmethod
    def _instead(before: str, warning: str) -> list[HangDetectorAction]:
        """Replace the earlier warning: only one is shown at a time."""
        return [*([TakeBack(ALONE, "")] if before and warning else []), *([Warn(warning)] if warning else [])]

    def _known(self, node: int, pulse: Pulse) -> Pulse:
        """Return the pulse. A rank that does not answer keeps its last answer: silence is no movement."""
        before = self._pulses.get((node, pulse.rank))
        if pulse.answered or before is None or before[1].pid != pulse.pid:
            return pulse
        last_answer = before[1]
        return replace(
            pulse,
            torch=last_answer.torch,
            size=last_answer.size,
            begun=last_answer.begun,
            meets=last_answer.meets,
            timeout=last_answer.timeout,
        )

    def _moves(self, now: float, node: int, pulse: Pulse) -> bool:
        """Return whether the rank has moved (law 1), and remember its pulse.

        Pulses are kept by node as well, because launchers may start more ranks than the order names.
        """
        at, before = self._pulses.get((node, pulse.rank), (now, None))
        self._pulses[node, pulse.rank] = (now, pulse)
        if before is None or before.pid != pulse.pid:
            self._begun_at = now
            return True
        self._compared.add((self._nodes[node].name, pulse.rank, pulse.pid))
        if pulse.begun > before.begun >= 0 or pulse.size != before.size:
            self._begun_at = now
            return True
        ended = (pulse.state == "") != (before.state == "")
        if ended or (pulse.output != before.output and not (pulse.meets and before.meets)):
            return True
        # A rank that never answers holds Python's lock. It is in a group if other ranks have joined one.
        counted = pulse.size > 0 and pulse.begun >= 0
        if not pulse.answered and not counted:
            counted = any(other.size == self._size for _, other in self._pulses.values())
        computes = not counted and pulse.seconds - before.seconds >= COMPUTES * (now - at) > 0
        # If no rank ever answers, a rank that waits for its GPU computes as well.
        self._begun_at = now if computes and self._answers else self._begun_at
        return computes

    def _stall_due(self, now: float) -> bool:
        due_at = self._due_at()
        if due_at is None or now < due_at:
            return False
        patience = QUIET_PERIODS * self._watch.sample_seconds
        for watched in self._nodes.values():
            silence = now - watched.heard_at
            if not watched.mute and silence > patience:
                watched.mute = f"its observer has not reported for {silence:.0f} s"
        if not self._pulses or all(watched.mute for watched in self._nodes.values()):
            self._moved_at = now  # no observer reports: that is no stall, so check again later
            self._again_at = now + self._watch.hang_seconds
            return False
        return True

    def _look(self, now: Now, seconds: float) -> list[HangDetectorAction]:
        self._number += 1
        self._look_at = None
        names = {number: watched.name for number, watched in self._nodes.items()}
        mute = {number: watched.mute for number, watched in self._nodes.items() if watched.mute}
        self._round = Collection(self._number, names, mute, now, seconds)
        return self._judge(now) if self._round.complete else self._round.asks(self._size)

    def _looked(self, now: Now) -> list[HangDetectorAction]:
        return self._judge(now) if self._round is not None and self._round.complete else []

    def _judge(self, now: Now) -> list[HangDetectorAction]:
        if self._round is None:
            return []
        # The first look loads the rules, not every coordinator: they take 15 ms.
        from clusterrun.diagnosis.calls import of_snapshot
        from clusterrun.diagnosis.decide import decide

        looked, self._round = self._round, None
        stalled = now.steady - self._moved_at if self._stalled else 0.0
        since_begun = now.steady - self._begun_at
        case = looked.case(self._size, stalled, since_begun)
        case = replace(case, since_begun=0.0) if self._know_less(case.ranks) else case
        if stalled and case.newest > now.wall - stalled + SLACK:
            # A collective was begun since then. Its digest has not arrived yet.
            self._moved_at = now.steady - max(0.0, now.wall - case.newest)
            self._stalled, stalled = False, 0.0
            case = looked.case(self._size, stalled, since_begun)
        if stalled and self._has_moved(case.ranks):
            self._moved_at, self._stalled, stalled = now.steady, False, 0.0
            case = looked.case(self._size, stalled, since_begun)
        if OWN in self._names and (not stalled or self._too_early(case)):
            self._names.remove(OWN)
            if not self._names:
                return []
        judged = decide(of_snapshot(case))
        self._looks += 1
        if not judged.certain and (looked.seconds < LONG_LOOK or (judged.later and self._looks < MOST_LOOKS)):
            pause = min(judged.later, MOST_LATER) - LONG_LOOK
            if pause <= 0:
                return self._look(now, LONG_LOOK)
            self._look_at = now.steady + pause
            return []
        # A run that moved during the look does not hang.
        names = [name for name in self._names if stalled or name != OWN]
        self._names, self._looks = [], 0
        diagnosis = replace(judged.diagnosis, at=now.wall)
        text = json.dumps(encode(diagnosis), indent=1) + "\n"
        saved: list[HangDetectorAction] = [Save(f"{name}.json", text) for name in names]
        return saved + (self._consequences(diagnosis, stalled, judged.later) if OWN in names else [])

    def _know_less(self, ranks: Sequence[RankSnapshot]) -> bool:
        """Return whether a rank has a group or call that no digest or record reports: it may be new."""
        pulses = {(self._nodes[node].name, rank): pulse for (node, rank), (_, pulse) in self._pulses.items()}
        for rank in ranks:
            if not rank.groups:
                continue
            if not rank.records and (rank.node, rank.rank, rank.process.pid) not in self._compared:
                return True
            pulse = pulses.get((rank.node, rank.rank))
            begun = sum(max(0, group.sequence) for group in rank.groups)
            if pulse is None or pulse.pid != rank.process.pid:
                continue
            if not pulse.size or -1 < pulse.begun < begun:
                return True
        return False

    def _has_moved(self, ranks: Sequence[RankSnapshot]) -> bool:
        """Return whether a rank has ended or joined a group since its last digest."""
        pulses = {
            (self._nodes[node].name, pulse.pid): pulse for (node, _), (_, pulse) in self._pulses.items()
        }
        for rank in ranks:
            pulse = pulses.get((rank.node, rank.process.pid))
            if pulse is None:
                continue
            has_ended = pulse.state and not rank.state
            has_joined = rank.groups and pulse.answered and not pulse.size
            if has_ended or has_joined:
                return True
        return False

    def _too_early(self, snapshot: JobSnapshot) -> bool:
        """Return whether the timeout that triggered the look is of a group in which no rank waits.

        The next look is then scheduled for the timeout of the groups in use.
        """
        from clusterrun.diagnosis.calls import of_snapshot  # loaded by then

        hang = self._watch.hang_seconds
        timeout = of_snapshot(snapshot).shortest_timeout()
        due = min(hang, max(LEAST_LIMIT, timeout / 2)) if timeout else hang
        if snapshot.stalled >= due:
            return False
        self._again_at = self._moved_at + due
        return True

    def _consequences(self, diagnosis: Diagnosis, stalled: float, later: float) -> list[HangDetectorAction]:
        why = f"nothing has moved for {stalled:.0f} s: {diagnosis.message}"
        acts = self._watch.on_hang != "report"
        nothing = diagnosis.verdict is Verdict.NOTHING
        # Ranks that compute while they start, with a short --hang-after.
        if nothing and stalled < START_PATIENCE:
            self._again_at = self._moved_at + max(START_PATIENCE, stalled + later)
            return []
        early = stalled < self._watch.hang_seconds  # reported before the process group ends the ranks
        if early and (acts or nothing):
            self._again_at = self._moved_at + self._watch.hang_seconds
        # A rank that saves for a long time may hang later.
        if nothing and not early:
            self._again_at = self._moved_at + stalled + self._watch.hang_seconds
        if early or nothing or not acts:
            repeated = nothing and self._reported
            self._reported = True
            return [] if repeated else [Warn(why, hangs=True)]
        error = diagnosis.message if diagnosis.verdict is Verdict.MISMATCH else ""
        return [EndAttempt(self._watch.on_hang, why, stalled, error)]  # the coordinator reports the reason
