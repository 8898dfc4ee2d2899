"""Whether a node whose agent never joined is dead, or only out of the coordinator's reach; pure."""

from __future__ import annotations

from clusterrun.model.report import Finding, Grade, LinkReport
from clusterrun.preflight import control, scouting
from clusterrun.preflight.case import Link
from clusterrun.preflight.scouting import HOST
from clusterrun.preflight.tasks import DialTask, Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterrun.preflight.case import Case
    from clusterrun.preflight.subject import Subject

_PORTS = tuple(range(1, 25))
"""Nothing much listens there: a machine that lives refuses, and whoever hears that has a way to and fro.

Many, for each is dialled from another port of ours: where a range is blocked, some get through.
"""
_SECONDS = 4.0
_SLACK_SECONDS = 10.0
_MOST_WITNESSES = 16
_REMEDY = "look at switch port, cable and route of {} and {}: ip -s link, ethtool"


def rounds(case: Case, nonce: str) -> Iterator[tuple[type, ...]]:
    """Let those that are there knock at those that are not, by the addresses to which names lead them.

    One that answers all but the coordinator's node is looked at through another.
    """
    missing = [one for one in case.subjects.values() if one.absent]
    asked = False
    for one in case.present()[:_MOST_WITNESSES]:
        known = ((other, one.resolved.get(other.name, "").split()) for other in missing)
        targets = tuple(Target(to.node, to.name, found[0], _PORTS, _PORTS[0]) for to, found in known if found)
        if targets:
            asked = True
            case.ask(one.node, DialTask(nonce, one.node, targets, (), _SECONDS), _SECONDS + _SLACK_SECONDS)
    if asked:
        case.label = "a look at the nodes whose agents did not join"
        yield (DialTask,)
        yield from scouting.rounds(case, nonce, [one for one in missing if _answers(case, one)[1] == [HOST]])
    if missing:
        write(case)


def write(case: Case) -> None:
    """Write down what the knocking says."""
    missing = [one for one in case.subjects.values() if one.absent]
    ill = _coordinators_node_may_be_to_blame(case, len(missing))
    case.write("absent", (), [link for one in missing for link in _judged(case, one, ill)])


def _coordinators_node_may_be_to_blame(case: Case, missing: int) -> bool:
    """It has trouble with all others, or nobody but it is here to say who has."""
    there = [one.node for one in case.present()]
    if there == [HOST]:
        return missing > 1
    return any(one.nodes == (HOST,) for one in case.crossings.troubles(there))


def _answers(case: Case, one: Subject) -> tuple[list[int], list[int]]:
    """Who of those that knocked heard anything of it, and who nothing."""
    ways = [way for (_, to), way in case.crossings.ways.items() if to == one.node]
    heard = [way.a for way in ways if way.good or way.refused]
    return heard, [way.a for way in ways if way.a not in heard]


def _judged(case: Case, one: Subject, host_is_ill: bool) -> list[Link]:
    heard, deaf = _answers(case, one)
    if not heard and len(case.present()) > 1:
        return []
    said = one.absent + (f"; the machine itself answers {case.names(heard)}" if heard else "")
    said += f", but not {case.names(deaf)}" if heard and deaf else ""
    if host_is_ill:
        one.excused = True
        said += f"; over {case.subjects[HOST].name}, which may be to blame, it should have joined"
        one.write("gone", [Finding("agent", Grade.UNDETERMINED, said, "let another node be the first")])
        return []
    trouble = case.crossings.between(HOST, one.node) if one.listening is not None else None
    if not heard:
        return []
    # Only over its link to the coordinator's node an agent joins; that several broke is less likely.
    if deaf != [HOST] or (one.listening is not None and trouble is None):
        one.write(
            "gone", [Finding("agent", Grade.FAIL, said, "see job.out: was there a Python to start it?")]
        )
        return []
    if trouble is None:
        said += ": it was not examined"
        one.write("gone", [Finding("agent", Grade.UNDETERMINED, said, "mend the link, then check again")])
        return [_link(case, HOST, one)]
    said += ": it is left out for this link alone"
    one.write("gone", [Finding("agent", Grade.PASS, said, "mend the link")])
    return [control.link(case, trouble)]


def _link(case: Case, node: int, one: Subject) -> Link:
    a = case.subjects[node].name
    said = "no answer, though others get one; no agent could join over it, so the direction is not known"
    report = LinkReport(a, one.name, "both", Grade.FAIL, said, _REMEDY.format(a, one.name))
    return Link(node, one.node, report)
