"""Render a pre-flight report as lines of text that fit a screen, worst first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from clusterrun.diagnosis.known_errors import meaning
from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import fold
from clusterrun.model.phrases import count_of
from clusterrun.model.preflight_report import Grade, Measurement, Report
from clusterrun.model.visible import visible
from clusterrun.reports import quantity_tables
from clusterrun.reports.findings import NodeBlame, blamed

# Nodes and links that are shown in full. The remaining ones are named together.
MOST_BLOCKS = 12
# Messages of failed tests that are shown. Most failed tests print the same message.
MOST_WORDS = 3


@frozen
class ReportLine:
    """One line of the report."""

    text: str
    grade: Grade | None = None  # of the subject that the line is the heading of, None if it is no heading


def screen(report: Report, width: int = 100) -> list[ReportLine]:
    blocks = blamed(report)
    by = f" by {report.backend}" if report.backend else ""
    rounds = f", {count_of(report.rounds, 'round')} of tests" if report.rounds else ""
    if 0 < report.rounds < len(report.nodes) - 1:  # a round tests each node with one other
        rounds += ", not of every pair (--all-pairs)"
    took = f"{report.seconds:.1f} of {report.budget:.0f} s"
    facts = f"{report.level} check{by} of {report.run_id}{rounds}, {took}"
    lines = [*_wrapped([headline(report)], width, "", report.verdict), *_wrapped([facts], width)]
    for block in blocks[:MOST_BLOCKS]:
        lines += [ReportLine(""), *_shown(block, width)]
    if omitted := blocks[MOST_BLOCKS:]:
        remainder = f"and {len(omitted)} more (--json has all): {'; '.join(map(_title, omitted))}"
        lines += [ReportLine(""), *_wrapped([remainder], width)]
    for message, explanation in explained(report.tests)[:MOST_WORDS]:
        lines += [ReportLine(""), *_wrapped([f"a test said: {message}"], width)]
        lines += _wrapped([f"-> {explanation}"], width, "     ")
    lines += [ReportLine(line) for line in quantity_tables.lines(report)]
    lines += [ReportLine(""), *_wrapped(_rest(report), width)]
    return lines


def headline(report: Report) -> str:
    """Return the verdict and its reasons in one line."""
    reasons = []
    failed = _named(report, Grade.FAIL)
    if failed:
        verb = "is" if len(failed) == 1 else "are"
        reasons.append(f"{fold(failed)} {verb} unfit")
    broken = [link for link in report.links if link.verdict is Grade.FAIL]
    if broken:
        reasons.append("; ".join(f"the link {link.ends} is broken" for link in broken[:3]))
    unsure = [link for link in report.links if link.verdict is Grade.UNDETERMINED]
    if unsure:
        reasons.append("; ".join(f"the link {link.ends} could not be judged" for link in unsure[:3]))
    if report.set_message:
        reasons.append(report.set_message)
    unknown = _named(report, Grade.UNDETERMINED)
    if unknown:
        reasons.append(f"{fold(unknown)} could not be judged")
    if warned := _named(report, Grade.WARN):
        has = "has" if len(warned) == 1 else "have"
        reasons.append(f"{fold(warned)} {has} a warning")
    count = len(report.nodes)
    fit = count - len(failed) - len(unknown)
    if failed or unknown:
        if fit > 0:
            reasons.append(f"{fit} of {count} nodes are fit")
    elif report.set_message and not report.links:
        reasons.append("no node and no link is to blame")
    elif any(link.verdict is Grade.FAIL for link in report.links):
        works = f"{fold(report.world)} can train without it" if report.world else "every node works by itself"
        reasons.append("either node can train without the other" if len(report.nodes) == 2 else works)
    elif any(link.verdict is Grade.UNDETERMINED for link in report.links):
        reasons.append("every node passed a test")
    else:
        names = fold([node.node for node in report.nodes])
        reasons.append(f"all {count} nodes are fit" if count > 1 else f"{names} is fit")
    return f"{report.verdict.value.upper()}: {'; '.join(reasons)}"


def _named(report: Report, grade: Grade) -> list[str]:
    return [node.node for node in report.nodes if node.verdict is grade]


def _title(blame: NodeBlame) -> str:
    return f"{blame.title}: {blame.word}" if blame.word else blame.title


def _shown(blame: NodeBlame, width: int) -> Iterator[ReportLine]:
    yield from _wrapped([_title(blame)], width, "", blame.grade)
    for finding in blame.findings:
        mark = "" if finding.verdict is Grade.FAIL else f" ({finding.verdict.value})"
        check = f"{finding.check}{mark}: " if finding.check else ""
        yield from _wrapped([f"{check}{finding.message}"], width, "  ")
        if finding.remedy:
            yield from _wrapped([f"-> {finding.remedy}"], width, "     ")


def explained(tests: Iterable[Measurement]) -> list[tuple[str, str]]:
    """Return the messages of failed tests (mostly NCCL's own text) with their meaning, each meaning once.

    Unknown messages are omitted, and so are those of a rank that only lost its connection to another rank.
    """
    messages = dict.fromkeys(test.message for test in tests if test.outcome == "failed" and test.message)
    message_by_error = {
        row: message for message in messages if (row := meaning(message)) and not row.consequence
    }
    return [(message, f"{row.cause}: {row.remedy}") for row, message in message_by_error.items()]


def _rest(report: Report) -> Iterator[str]:
    verdicts = (Grade.PASS, Grade.WARN)
    fit = [node.node for node in report.nodes if node.verdict in verdicts and node.role in ("rank", "spare")]
    separated = [node.node for node in report.nodes if node.role == "separated"]
    if len(fit) == len(separated) == 1:  # either end of a link may be at fault
        yield f"fit, but not together: {fold(sorted([*fit, *separated]))}"
        fit = separated = []
    if fit:
        yield f"fit: {fold(fit)}"
    if separated:
        yield f"fit, but not with these: {fold(separated)}"
    if report.spares:
        yield f"spares left: {fold(report.spares)}"
    yield from (f"note: {notice}" for notice in report.notices)


def _wrapped(
    texts: Iterable[str], width: int, indent: str = "", grade: Grade | None = None
) -> Iterator[ReportLine]:
    """Yield lines of at most ``width`` columns. Control characters in foreign text become visible."""
    wrapper = textwrap.TextWrapper(max(width, 40), indent, indent + "  ", break_on_hyphens=False)
    for text in texts:
        yield from (ReportLine(line, grade) for line in wrapper.wrap(visible(text)))
