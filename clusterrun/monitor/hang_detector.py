"""Detects a hang of one attempt, from the coordinator, and asks who is to blame; touches nothing.

Laws
----
1. A rank moves when it prints, begins a collective or joins a group; one that is in no group, or that
   does not say, also when it computes. The run moves when any rank does.
2. A stall is declared once for each time that nothing moves for ``hang_seconds``, or for half of the
   time after which the waiting ranks' process group would end them; it is acted on after
   ``hang_seconds``. It is declared only while the observers speak: their silence is no stall.
3. One collection at a time; a question that comes meanwhile gets its answer. It ends when every node has
   answered or is mute, or at its limit. What might still come on its own is looked at once more, longer,
   and no earlier than it is known.
4. A body that cannot be read is as good as none.
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
    Pulse,
    RankSnapshot,
)
from clusterrun.diagnosis.solo_ranks import ALONE, Together
from clusterrun.diagnosis.verdict import Diagnosis, Verdict
from clusterrun.model import contract
from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.orders import Orders
from clusterrun.monitor.inner_worlds import InnerWorlds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

OWN = "diagnosis"
"""The name under which a stall that nobody asked about is kept."""
QUIET_PERIODS = 3.5
"""So many missed digests make an observer mute."""
LEAST_LIMIT = 4.0
"""Seconds: a group whose time-out is shorter than a few digests ends its ranks before a look at them."""
SLACK = 1.0
"""Seconds: what the clock of a node is known no better than."""
MOST_LATER = 12.0
MOST_LOOKS = 4
"""Whoever asks is answered within half a minute, where nodes answer soon."""
COMPUTES = 0.03
"""Of a processor: a rank that loads torch from a slow file system, on a crowded node, gets little more."""

ANSWER_SECONDS = 10.0
"""Beyond the look itself: what a node may take to answer."""
FIRST_LOOK, LONG_LOOK = 1.0, 5.5
MANY_RANKS, FEW_RECORDS = 256, 16
FEW_RANKS, MANY_RECORDS = 64, 256
"""A step may begin many collectives, and several steps are wanted."""


@frozen
class AskObserver:
    """Question ``number`` for the observer on node ``node`` of the allocation."""

    node: int
    number: int
    body: str


@frozen
class Warn:
    """A sentence for whoever looks at the run: noted, and kept among its warnings."""

    text: str


@frozen
class TakeBack:
    """No warning that begins like this holds any more; ``text`` says why."""

    beginning: str
    text: str


@frozen
class Save:
    """A file of the attempt, written whole."""

    name: str
    text: str


@frozen
class EndAttempt:
    """The attempt should be ended: ``restart`` it as after a failed rank, or ``kill`` the run."""

    what: str
    why: str


if TYPE_CHECKING:
    HangDetectorAction = Union[AskObserver, Warn, TakeBack, Save, EndAttempt]

Names = Mapping[int, str]
"""By number within the allocation."""


class Collection:
    """A look of ``seconds`` at all of ``nodes``: who has answered, until when."""

    def __init__(
        self, number: int, nodes: Names, mute: Names, now: float, wall: float, seconds: float
    ) -> None:
        self.number, self.seconds = number, seconds
        self.overdue_at = now + seconds + ANSWER_SECONDS
        self.answers: dict[int, Collected] = {}
        self.mute = dict(mute)
        self._nodes, self._wall = nodes, wall

    def asks(self, size: int) -> list[HangDetectorAction]:
        records = MANY_RECORDS if size <= FEW_RANKS else LookOptions().records
        wanted = LookOptions(self.seconds, FEW_RECORDS if size > MANY_RANKS else records)
        body = json.dumps({"collect": encode(wanted)})
        return [AskObserver(node, self.number, body) for node in self._nodes if node not in self.mute]

    @property
    def complete(self) -> bool:
        return all(node in self.answers or node in self.mute for node in self._nodes)

    def case(self, size: int, stalled: float, since_begun: float) -> JobSnapshot:
        """What there is to be judged; ``since_begun``: seconds since a rank was seen to begin a call."""
        silent = f"no answer within {self.seconds + ANSWER_SECONDS:g} s"
        missing = {node: self.mute.get(node, silent) for node in self._nodes if node not in self.answers}
        seen = sorted((s for one in self.answers.values() for s in one.ranks), key=lambda one: one.rank)
        return JobSnapshot(
            seen=tuple(seen),
            size=size,
            mute=tuple((self._nodes[node], why) for node, why in missing.items()),
            offsets=tuple((one.node, one.clock - self._wall) for one in self.answers.values()),
            stalled=stalled,
            since_begun=since_begun,
            ras=next((one.ras for one in self.answers.values() if one.ras), ()),
        )


class HangDetector:
    """The watch over an attempt's ranks; ``nodes`` train: number in the allocation, name, in rank order."""

    def __init__(
        self, orders: Orders, epoch: int, nodes: Sequence[tuple[int, str]], now: float, wall: float
    ) -> None:
        self._watch = orders.watch
        self._nodes = dict(nodes)
        self._size = len(self._nodes) * orders.ranks_per_node
        self._per_node, self._each = orders.per_node, orders.ranks_per_node
        independent = dict(orders.environment).get(contract.INDEPENDENT_VARIABLE) == "1"
        self._together = Together(1 if independent else self._size, now)
        self._watches_inner_worlds = not (independent or self._per_node)
        self._inner_worlds = InnerWorlds(self._size)
        self._pulses: dict[tuple[int, int], tuple[float, Pulse]] = {}
        self._heard_at: dict[int, float] = dict.fromkeys(self._nodes, now)
        self._mute: dict[int, str] = {}
        self._killed: dict[int, int] = {}
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

    def said(self, now: float, wall: float, node: int, number: int, body: str) -> list[HangDetectorAction]:
        try:
            words = json.loads(body)
            if "digest" in words:
                return self._digest(now, node, decode(Digest, words["digest"]))
            if "collected" in words and self._round and number == self._round.number:
                self._round.answers[node] = decode(Collected, words["collected"])
                return self._looked(now, wall)
            if "refused" in words and self._round and number == self._round.number:
                return self.lost(now, wall, node, str(words["refused"]))
        except (ValueError, TypeError, RecursionError, BadDocument) as error:
            return [Warn(f"the observer on {self._nodes.get(node, node)} said what cannot be read: {error}")]
        return []

    def lost(self, now: float, wall: float, node: int, why: str) -> list[HangDetectorAction]:
        self._mute[node] = why
        if self._round is None:
            return []
        self._round.mute[node] = why
        return self._looked(now, wall)

    def asked(self, now: float, wall: float, name: str, body: str) -> list[HangDetectorAction]:
        """Somebody wants to know now; the answer is ``name``.json. ``top`` reads the observers' files."""
        if name.startswith(contract.TOP_ASK):
            return [AskObserver(node, 0, body) for node in self._nodes]
        self._names.append(name)
        waits = self._round is not None or self._look_at is not None
        return [] if waits else self._look(now, wall, FIRST_LOOK)

    def tick(self, now: float, wall: float) -> list[HangDetectorAction]:
        if self._round is not None and now >= self._round.overdue_at:
            return self._judge(now, wall)
        if self._look_at is not None:
            return self._look(now, wall, LONG_LOOK) if now >= self._look_at else []
        if self._round is None and self._stall_due(now):
            self._stalled, self._again_at = True, None
            self._names.append(OWN)
            return self._look(now, wall, FIRST_LOOK)
        return []

    def over(self, now: float, wall: float, completed: bool) -> list[HangDetectorAction]:
        if not completed or self._inner_worlds.exist:
            return []
        return self._instead(self._together.warning, self._together.over(now))

    def wakes_at(self) -> float | None:
        if self._round is not None:
            return self._round.overdue_at
        return self._due_at() if self._look_at is None else self._look_at

    def _due_at(self) -> float | None:
        """When the ranks are looked at without being asked: the process groups must not time out first."""
        hang = self._watch.hang_seconds
        if not hang:
            return None
        timeouts = [pulse.timeout for _, pulse in self._pulses.values() if pulse.timeout]
        limit = min(hang, max(LEAST_LIMIT, min(timeouts) / 2)) if timeouts else hang
        return self._again_at if self._stalled else self._moved_at + limit

    def _digest(self, now: float, node: int, digest: Digest) -> list[HangDetectorAction]:
        self._heard_at[node] = now
        self._mute.pop(node, None)
        pulses = [self._known(node, pulse) for pulse in self._numbered(node, digest.ranks)]
        self._answers = self._answers or any(pulse.answered for pulse in pulses)
        moved = [pulse for pulse in pulses if self._moves(now, node, pulse)]
        if moved:
            self._moved_at = now
        actions: list[HangDetectorAction] = []
        if self._stalled and moved:
            # A rank that has ended, or was ended, has not gone on.
            lives = any(pulse.state for pulse in moved)
            actions += [Warn("what hung has gone on")] if self._reported and lives else []
            self._stalled = self._reported = False
        if digest.killed > self._killed.get(node, 0):
            self._killed[node] = digest.killed
            actions.append(Warn(f"out of memory on {self._nodes[node]}: the kernel ended a process there"))
        if self._watches_inner_worlds and (warning := self._inner_worlds.heard(digest.inner_ranks)):
            actions += self._instead(self._together.warning, warning)
        # Ranks of several worlds have the same numbers: together they look like one.
        return actions if self._inner_worlds.exist else actions + self._alone_or_not(now, pulses)

    def _numbered(self, node: int, pulses: Sequence[Pulse]) -> Sequence[Pulse]:
        """Launchers of one node each may number their ranks alike: here each has a number of its own."""
        if not self._per_node:
            return pulses
        first = list(self._nodes).index(node) * self._each
        return [replace(pulse, rank=first + place) for place, pulse in enumerate(pulses)]

    def _alone_or_not(self, now: float, pulses: Sequence[Pulse]) -> list[HangDetectorAction]:
        was_together, before = self._together.together, self._together.warning
        said = self._together.heard(now, pulses)
        if self._together.together and not was_together:
            news = "the ranks train together now: the warning that they do not is taken back"
            return [TakeBack(ALONE, news)]
        return self._instead(before, said)

    @staticmethod
    def _instead(before: str, said: str) -> list[HangDetectorAction]:
        """One sentence stands at a time."""
        return [*([TakeBack(ALONE, "")] if before and said else []), *([Warn(said)] if said else [])]

    def _known(self, node: int, pulse: Pulse) -> Pulse:
        """The pulse, with what a rank that does not answer said before: silence is no movement."""
        before = self._pulses.get((node, pulse.rank))
        if pulse.answered or before is None or before[1].pid != pulse.pid:
            return pulse
        known = before[1]
        return replace(pulse, torch=known.torch, size=known.size, begun=known.begun, timeout=known.timeout)

    def _moves(self, now: float, node: int, pulse: Pulse) -> bool:
        """Law 1; the pulse is remembered, by node: launchers may start more ranks than we know of."""
        at, before = self._pulses.get((node, pulse.rank), (now, None))
        self._pulses[node, pulse.rank] = (now, pulse)
        if before is None or before.pid != pulse.pid:
            self._begun_at = now
            return True
        self._compared.add((self._nodes.get(node, ""), pulse.rank, pulse.pid))
        if pulse.begun > before.begun >= 0 or pulse.size != before.size:
            self._begun_at = now
            return True
        ended = (pulse.state == "") != (before.state == "")
        if ended or pulse.output != before.output:
            return True
        # One that never answers holds Python's lock; where others have joined it, it is in their group.
        counted = pulse.size > 0 and pulse.begun >= 0
        if not pulse.answered and not counted:
            counted = any(other.size == self._size for _, other in self._pulses.values())
        computes = not counted and pulse.seconds - before.seconds >= COMPUTES * (now - at) > 0
        # Where no rank ever answers, one that waits for its GPU computes as well.
        self._begun_at = now if computes and self._answers else self._begun_at
        return computes

    def _stall_due(self, now: float) -> bool:
        due_at = self._due_at()
        if due_at is None or now < due_at:
            return False
        patience = QUIET_PERIODS * self._watch.sample_seconds
        for node, at in self._heard_at.items():
            if node not in self._mute and now - at > patience:
                self._mute[node] = f"its observer has said nothing for {now - at:.0f} s"
        if not self._pulses or len(self._mute) == len(self._nodes):
            self._moved_at = now  # nobody speaks: that is no stall, and is looked at again later
            self._again_at = now + self._watch.hang_seconds
            return False
        return True

    def _look(self, now: float, wall: float, seconds: float) -> list[HangDetectorAction]:
        self._number += 1
        self._look_at = None
        self._round = Collection(self._number, self._nodes, self._mute, now, wall, seconds)
        return self._round.asks(self._size) or self._judge(now, wall)

    def _looked(self, now: float, wall: float) -> list[HangDetectorAction]:
        return self._judge(now, wall) if self._round is not None and self._round.complete else []

    def _judge(self, now: float, wall: float) -> list[HangDetectorAction]:
        if self._round is None:
            return []
        # The rules are loaded by the first look, not with every coordinator: they take 15 ms.
        from clusterrun.diagnosis.calls import of_snapshot
        from clusterrun.diagnosis.decide import decide

        looked, self._round = self._round, None
        stalled = now - self._moved_at if self._stalled else 0.0
        case = looked.case(self._size, stalled, now - self._begun_at)
        case = replace(case, since_begun=0.0) if self._know_less(case.seen) else case
        if stalled and case.newest > wall - stalled + SLACK:
            # A collective was begun since: its digest is still to come.
            self._moved_at, self._stalled, stalled = now - max(0.0, wall - case.newest), False, 0.0
            case = looked.case(self._size, stalled, now - self._begun_at)
        if stalled and self._has_moved(case.seen):
            self._moved_at, self._stalled, stalled = now, False, 0.0
            case = looked.case(self._size, stalled, now - self._begun_at)
        if OWN in self._names and (not stalled or self._too_early(case)):
            self._names.remove(OWN)
            if not self._names:
                return []
        judged = decide(of_snapshot(case))
        self._looks += 1
        if not judged.certain and (looked.seconds < LONG_LOOK or (judged.later and self._looks < MOST_LOOKS)):
            pause = min(judged.later, MOST_LATER) - LONG_LOOK
            if pause <= 0:
                return self._look(now, wall, LONG_LOOK)
            self._look_at = now + pause
            return []
        # What moved while it was looked at does not hang.
        names = [name for name in self._names if stalled or name != OWN]
        self._names, self._looks = [], 0
        diagnosis = replace(judged.diagnosis, at=wall)
        text = json.dumps(encode(diagnosis), indent=1) + "\n"
        saved: list[HangDetectorAction] = [Save(f"{name}.json", text) for name in names]
        return saved + (self._consequences(diagnosis, stalled, judged.later) if OWN in names else [])

    def _know_less(self, seen: Sequence[RankSnapshot]) -> bool:
        """Whether a group or a call was seen of which no digest or record tells: it may just have begun."""
        pulses = {(self._nodes.get(node), rank): pulse for (node, rank), (_, pulse) in self._pulses.items()}
        for one in seen:
            pulse = pulses.get((one.node, one.rank))
            begun = sum(max(0, group.sequence) for group in one.groups)
            if one.groups and not one.records and (one.node, one.rank, one.process.pid) not in self._compared:
                return True
            if (
                one.groups
                and pulse
                and pulse.pid == one.process.pid
                and (not pulse.size or -1 < pulse.begun < begun)
            ):
                return True
        return False

    def _has_moved(self, seen: Sequence[RankSnapshot]) -> bool:
        """Whether a rank has ended, or has joined a group, of which no digest tells yet."""
        pulses = {(self._nodes.get(node), pulse.pid): pulse for (node, _), (_, pulse) in self._pulses.items()}
        known = [(one, pulses.get((one.node, one.process.pid))) for one in seen]
        return any(
            pulse and ((pulse.state and not one.state) or (one.groups and pulse.answered and not pulse.size))
            for one, pulse in known
        )

    def _too_early(self, snapshot: JobSnapshot) -> bool:
        """The time-out that made us look is of a group that nobody waits in: look again when it is due."""
        from clusterrun.diagnosis.calls import of_snapshot  # loaded by then

        hang = self._watch.hang_seconds
        timeout = of_snapshot(snapshot).shortest_timeout()
        due = min(hang, max(LEAST_LIMIT, timeout / 2)) if timeout else hang
        if snapshot.stalled >= due:
            return False
        self._again_at = self._moved_at + due
        return True

    def _consequences(self, diagnosis: Diagnosis, stalled: float, later: float) -> list[HangDetectorAction]:
        why = f"nothing has moved for {stalled:.0f} s: {diagnosis.said}"
        acts = self._watch.on_hang != "report"
        nothing = diagnosis.verdict is Verdict.NOTHING
        if nothing and stalled < START_PATIENCE:  # ranks that compute, after a short --hang-after
            self._again_at = self._moved_at + max(START_PATIENCE, stalled + later)
            return []
        early = stalled < self._watch.hang_seconds  # told before the process group ends the ranks
        if early and (acts or nothing):
            self._again_at = self._moved_at + self._watch.hang_seconds
        if nothing and not early:  # A rank that saves for long may hang later.
            self._again_at = self._moved_at + stalled + self._watch.hang_seconds
        if early or nothing or not acts:
            repeated = nothing and self._reported
            self._reported = True
            return [] if repeated else [Warn(why)]
        return [EndAttempt(self._watch.on_hang, why)]  # whoever grants it says why
