"""What the report of a pre-flight means for its run, in words; knows no test and no link."""

from __future__ import annotations

from clusterrun.coordinator.failures import RunOutcome
from clusterrun.model import contract
from clusterrun.model.preflight_report import Grade
from clusterrun.model.states import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterrun.model.preflight_report import LinkReport, NodeReport, Report

_MOST_NAMED = 4


def swaps(report: Report) -> Iterator[str]:
    """A sentence for each node that is left out although it was allocated."""
    for node in report.nodes:
        if node.role == "excluded":
            yield f"pre-flight left {node.node} out{_why(node)}"


def alone(report: Report) -> RunOutcome:
    """How a run ends that was a check and nothing else."""
    if report.verdict is Grade.FAIL:
        return RunOutcome(State.FAILED, f"pre-flight: {_causes(report)}", contract.ExitCode.UNFIT)
    return RunOutcome(State.COMPLETED, f"pre-flight: {report.verdict}", contract.ExitCode.DONE)


def unfit(report: Report, fit: int, asked: int) -> RunOutcome:
    """How a run ends that has not as many fit nodes as it asked for."""
    words = f"pre-flight: {_causes(report)}; {fit} fit of {asked} asked"
    return RunOutcome(State.FAILED, words, contract.ExitCode.UNFIT)


def _causes(report: Report) -> str:
    said = [f"{node.node} is unfit{_why(node)}" for node in report.nodes if node.verdict is Grade.FAIL]
    said += [f"{_way(link)}: {link.said}" for link in report.links if link.verdict is Grade.FAIL]
    said += [report.set_said] if report.set_said and not said else []
    more = [f"{len(said) - _MOST_NAMED} more"] if len(said) > _MOST_NAMED else []
    return "; ".join([*said[:_MOST_NAMED], *more]) or "the nodes are not fit to train together"


def _why(node: NodeReport) -> str:
    said = next((finding.said for finding in node.findings if finding.verdict is Grade.FAIL), "")
    return f": {said}" if said else ""


def _way(link: LinkReport) -> str:
    one_way = {"a->b": f"{link.a} -> {link.b}", "b->a": f"{link.b} -> {link.a}"}
    return one_way.get(link.direction, f"{link.a} - {link.b}")
