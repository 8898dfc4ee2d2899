"""Pre-flight reports, written by hand, that several tests share. They use every field."""

from __future__ import annotations

from clusterrun.model.preflight_report import Finding, Grade, LinkReport, Measurement, NodeReport, Report

AT = 1_800_000_000.0
XID = Finding("gpu errors", Grade.FAIL, "GPU 3: Xid 79, fallen off the bus", "reboot the node")
PAIRS = Finding(
    "pair", Grade.FAIL, "failed with n0001, n0002 and n0004 (3 of 3 tests)", "look at its network"
)
SLOW = Finding("product", Grade.WARN, "12 % below the median: 44 of 50 teraflops", "look at its clocks")
FINE = Finding("disk", Grade.PASS, "81 % free")
CUT = LinkReport("n0001", "n0002", "a->b", Grade.FAIL, "nothing arrives: 3 of 3 tests", "cable and port")


def node(name: str, *findings: Finding, role: str = "rank") -> NodeReport:
    """Return a node with the worst verdict of its findings."""
    grades = [finding.verdict for finding in findings]
    worst = next((g for g in (Grade.FAIL, Grade.UNDETERMINED, Grade.WARN) if g in grades), Grade.PASS)
    return NodeReport(name, worst, role, findings)


HEALTHY = Report(
    run_id="20270115-080000-0000-train",
    cluster="lab",
    level="full",
    verdict=Grade.PASS,
    at=AT,
    seconds=6.25,
    budget=60.0,
    rounds=2,
    backend="gloo",
    world=("n0001", "n0002"),
    spares=(),
    excluded=(),
    nodes=(node("n0001", FINE), node("n0002", FINE)),
)
"""Two nodes, nothing found."""

FOUND = Report(
    run_id="20270115-080000-0000-train",
    cluster="lab",
    level="full",
    verdict=Grade.FAIL,
    at=AT,
    seconds=21.5,
    budget=60.0,
    rounds=5,
    backend="nccl",
    world=("n0001", "n0002", "n0005", "n0004"),
    spares=("n0006",),
    excluded=("n0003",),
    nodes=(
        node("n0001", FINE),
        node("n0002", FINE),
        node("n0003", XID, PAIRS, role="excluded"),
        node("n0004", SLOW),
        node("n0005", FINE),
        node("n0006", role="spare"),
    ),
    links=(CUT,),
    tests=(
        Measurement("pair", 0, ("n0001", "n0002"), "failed", 8.0, message="Connection closed by peer"),
        Measurement("pair", 0, ("n0003", "n0004"), "failed", 8.0),
        Measurement("pair", 1, ("n0001", "n0004"), "passed", 0.5, 20.0),
        Measurement("pair", 2, ("n0001", "n0005"), "passed", 0.5, 22.0),
        Measurement("set", 4, ("n0001", "n0002", "n0005", "n0004"), "passed", 1.5, 11.0),
    ),
    notices=("clocks differ by 2 s",),
)
"""One node unfit and swapped for a spare, a link cut one way, a slow node."""
