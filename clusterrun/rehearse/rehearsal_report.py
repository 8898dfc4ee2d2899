"""Show a rehearsal as a self-contained HTML page, as JUnit XML and as a document for ``--json``; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

from clusterrun.model.visible import visible
from clusterrun.rehearse.discoveries import Discovery, Severity
from clusterrun.rehearse.rehearsal import Result
from clusterrun.reports.html import render
from clusterrun.reports.markup import Markup, joined, number, tag
from clusterrun.reports.view import BOOLEAN, INTEGER, NUMBER, TEXT, View, ViewField, many, one_of

CLASS = {Severity.OK: "pass", Severity.NOTE: "warn", Severity.FAIL: "fail", Severity.UNKNOWN: "undetermined"}
WIDTH, HEIGHT = 640, 180
# The curve of the control, then of each start of the disturbed run.
COLOURS = ("var(--soft)", "var(--r5)", "var(--r1)", "var(--fail)")


_LEVEL = one_of(("ok", "note", "fail", "unknown"))
_FINDING = View(
    "One finding.",
    ViewField("level", "How bad it is.", _LEVEL, lambda finding: finding.level.value.lower()),
    ViewField("cause", "Its name, empty where all is well.", TEXT, lambda finding: finding.cause.value),
    ViewField("message", "What was seen.", former="said"),
    ViewField("remedy", "What to write instead, where that is known."),
    ViewField("lines", "Places in the script, `train.py:88`.", many(TEXT)),
    ViewField("step", "The step that differs first, or after which it continued; 0 for neither.", INTEGER),
)
_RESULT = View(
    "One row of the table.",
    ViewField(
        "fault",
        "`control`, or the name of the fault, as in `--list-faults`.",
        TEXT,
        lambda result: result.name,
    ),
    ViewField("level", "The worst of its findings.", _LEVEL, lambda result: result.level.value.lower()),
    ViewField("seconds", "How long it took.", NUMBER, lambda result: round(result.seconds, 1)),
    ViewField("findings", "What was seen, the cause first.", many(_FINDING)),
)
REHEARSAL = View(
    "What `rehearse --json` prints.",
    ViewField("command", "The script and its arguments.", many(TEXT)),
    ViewField("steps", "Optimizer steps of an undisturbed run; 0 where there were none.", INTEGER),
    ViewField("ok", "Whether every result is ok or a note; the exit code says the same.", BOOLEAN),
    ViewField("results", "The control first, then the faults.", many(_RESULT)),
)


def well(results: Sequence[Result]) -> bool:
    return all(result.level in (Severity.OK, Severity.NOTE) for result in results)


def document(results: Sequence[Result], command: Sequence[str], steps: int) -> dict[str, Any]:
    members = {"command": command, "steps": steps, "ok": well(results), "results": results}
    return REHEARSAL.document(members)


def junit(results: Sequence[Result], name: str) -> str:
    """Return the results for CI systems: a failure for FAIL, an error for UNKNOWN."""
    suite = ElementTree.Element("testsuite", name=visible(f"rehearse {name}"), tests=str(len(results)))
    suite.set("failures", str(sum(result.level is Severity.FAIL for result in results)))
    suite.set("errors", str(sum(result.level is Severity.UNKNOWN for result in results)))
    suite.set("time", f"{sum(result.seconds for result in results):.1f}")
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname="rehearse", name=result.title)
        case.set("time", f"{result.seconds:.1f}")
        kind = {Severity.FAIL: "failure", Severity.UNKNOWN: "error"}.get(result.level)
        body = ElementTree.SubElement(case, kind or "system-out")
        body.text = "\n".join(map(visible, lines_of(result.findings)))
        if kind:
            body.set("message", visible(result.findings[0].message if result.findings else ""))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, "unicode") + "\n"


def lines_of(findings: Sequence[Discovery]) -> Iterator[str]:
    """Yield the lines of every finding: what happened, places in the script, what to write instead."""
    for finding in findings:
        yield finding.message
        if finding.lines:
            yield f"  {', '.join(finding.lines)}"
        if finding.remedy:
            yield f"  {finding.remedy}"


def page(results: Sequence[Result], command: str) -> str:
    """Return the page. It loads nothing and runs no script."""
    control = results[0].curves[:1] if results else ()
    return render(
        "rehearsal.html.j2",
        command=command,
        grade="pass" if well(results) else "fail",
        good=sum(result.level in (Severity.OK, Severity.NOTE) for result in results),
        results=[(result, joined(_curves(result, control))) for result in results],
        classes=CLASS,
    )


def _curves(result: Result, control: tuple[tuple[int, tuple[float, ...]], ...]) -> list[Markup]:
    """Draw the losses over the steps, the control first, and mark the first step that differs."""
    curves = result.curves if result.name == "control" else (*control, *result.curves)
    failed = (finding.step for finding in result.findings if finding.level is Severity.FAIL)
    step = next(filter(None, failed), 0)
    finite = [loss for _, losses in curves for loss in losses if math.isfinite(loss)]
    if not finite:
        return []
    most = max(begin + len(losses) for begin, losses in curves)
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0

    def place(n: int, loss: float) -> str:
        return f"{40 + (WIDTH - 50) * n / max(1, most):.1f},{10 + (HEIGHT - 30) * (high - loss) / span:.1f}"

    drawn = []
    for order, (begin, losses) in enumerate(curves):
        points = " ".join(
            place(begin + j, loss_value)
            for j, loss_value in enumerate(losses, 1)
            if math.isfinite(loss_value)
        )
        colour = COLOURS[min(order, len(COLOURS) - 1)]
        width = "3" if order == 0 else "1.5"
        drawn.append(tag("polyline", points=points, fill="none", stroke=colour, stroke_width=width))
    if step:
        x = place(step, high).split(",")[0]
        dash = {"stroke": "var(--fail)", "stroke_dasharray": "4 3"}
        drawn.append(tag("line", x1=x, x2=x, y1=10, y2=HEIGHT - 20, **dash))
    style: dict[str, str | int] = {"fill": "var(--soft)", "font_size": 11}
    drawn.append(tag("text", number(high) if high > 0 else f"{high:.3g}", x=2, y=14, **style))
    drawn.append(tag("text", number(low) if low > 0 else f"{low:.3g}", x=2, y=HEIGHT - 20, **style))
    drawn.append(tag("text", f"step {most}", x=WIDTH - 60, y=HEIGHT - 5, **style))
    picture = Markup(tag("svg", joined(drawn), viewBox=f"0 0 {WIDTH} {HEIGHT}", width="100%"))
    caption = "Loss of rank 0: the control (thick), then each start of the disturbed run"
    where = f"; the dashed line is step {step}, the first that differs." if step else "."
    return [picture, tag("p", caption + where, class_="soft")]
