"""Faults of nodes and links as a pre-flight check meets them: how each is made, and what must be named."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterrun.lab.lab import Lab
from clusterrun.model.hostlist import fold
from clusterrun.preflight.session.state import OVERLOADED
from tests.lab.test_slurm_runs import Site

LIMIT = 240.0

Link = tuple[str, str, str]
"""Two nodes in the order of their names, and ``->``, ``<-`` or ``--`` between them."""


@dataclass(frozen=True)
class Blame:
    """The nodes and directed links that are reported as unfit."""

    nodes: frozenset[str] = frozenset()
    links: frozenset[Link] = frozenset()


def blame(nodes: Iterable[str] = (), links: Iterable[Link] = ()) -> Blame:
    return Blame(frozenset(nodes), frozenset(links))


def blamed(report: dict[str, Any], grade: str = "fail") -> Blame:
    """Return the nodes and links of ``grade`` in a report (``report --json``)."""
    nodes = [name for name, node in report.get("nodes", {}).items() if node["verdict"] == grade]
    return blame(nodes, [_link(link) for link in report.get("links", ()) if link["verdict"] == grade])


def _link(link: dict[str, str]) -> Link:
    ends, way = (link["a"], link["b"]), {"a->b": "->", "b->a": "<-"}.get(link["direction"], "--")
    turned = {"->": "<-", "<-": "->"}.get(way, way)
    return (*ends, way) if ends[0] < ends[1] else (ends[1], ends[0], turned)


@dataclass(frozen=True)
class Found:
    """The outcome of a case: the report, the run's state and exit code, and its duration in seconds."""

    report: dict[str, Any]
    status: dict[str, Any]
    seconds: float

    @property
    def blamed(self) -> Blame:
        return blamed(self.report)

    @property
    def said(self) -> str:
        """Return all findings except passes in one line, to explain an inexact verdict."""
        nodes = self.report.get("nodes", {}).items()
        messages = [
            f"{n}: {f['check']} {f['verdict']}: {f['said']}" for n, value in nodes for f in value["findings"]
        ]
        links = [f"{x['a']} {x['direction']} {x['b']}: {x['said']}" for x in self.report.get("links", ())]
        return "; ".join([*(line for line in messages if " pass: " not in line), *links]) or "nothing"


@dataclass(frozen=True)
class Case:
    """One situation: ``strike`` makes the fault on the lab; ``after`` is a word of the check's progress.

    ``after`` empty: the fault is there before the job is queued, as what ``before`` makes always is.
    ``grade`` is that of the blame; of the graver one, ``fail``, nobody has any then.
    """

    name: str
    nodes: int
    strike: Callable[[Lab, Site], None]
    named: Blame
    spares: int = 0
    words: tuple[str, ...] = ()
    after: str = ""
    grade: str = "fail"
    before: Callable[[Lab, Site], None] = lambda lab, site: None

    def exact(self, found: Found) -> bool:
        """Return whether exactly the right ones are named.

        An overload of this machine during the check turns a failure into "undetermined". Only the report of
        the overload excuses that.
        """
        grade = "undetermined" if self.grade == "fail" and OVERLOADED in found.said else self.grade
        innocent = grade == "fail" or blamed(found.report) == blame()
        return bool(found.report) and innocent and blamed(found.report, grade) == self.named


def node(number: int) -> str:
    return f"n{number:04d}"


def play(case: Case, site: Site, budget: str = "60s") -> Found:
    """Run the case: queue a run of ``tell.py`` on the first nodes of the lab, strike, and read the report."""
    lab = site.lab
    chosen = [node(number) for number in range(1, case.nodes + case.spares + 1)]
    options = ("--nodes", str(case.nodes), "--spares", str(case.spares), "--nodelist", fold(chosen))
    case.before(lab, site)
    if not case.after:
        case.strike(lab, site)
    options = (*options, "--preflight", "full", "--preflight-budget", budget)
    answer = site.submit(*options, *case.words, "tell.py")
    began = time.monotonic()
    if case.after:
        wait_for(lambda: case.after in _doing(site, answer), LIMIT, f"{case.after} in the progress")
        case.strike(lab, site)
    status = ended(site, answer)
    took = time.monotonic() - began
    return Found(report(answer), status, took)


def report(answer: dict[str, Any], attempt: int = 0) -> dict[str, Any]:
    """Return the report of an attempt as ``report --json`` has it; empty if there is none."""
    from clusterrun.model.document import decode
    from clusterrun.model.preflight_report import Report
    from clusterrun.reports.json_document import REPORT

    path = Path(answer["run_dir"], "attempts", f"{attempt:03d}", "preflight.json")
    if not path.exists():
        return {}
    return REPORT.document(decode(Report, json.loads(path.read_text())))


def state(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the coordinator's current state of the run; empty before the first one."""
    path = Path(answer["run_dir"], "state.json")
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return result


def _doing(site: Site, answer: dict[str, Any]) -> str:
    run_state = state(answer)
    assert run_state.get("phase") not in ("training", "ended"), run_state
    return str(run_state.get("reason", "")) if run_state.get("phase") == "preflight" else ""


def ended(site: Site, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the status of the run at its end."""
    site.run("wait", answer["run_id"], limit=LIMIT)
    return site.status(answer["run_id"])


def wait_for(true: Callable[[], bool], limit: float, what: str) -> None:
    """Return when it is so; fails by name where that takes longer than ``limit`` seconds."""
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, f"waited {limit} s in vain for {what}"
        time.sleep(0.05)


def fault(kind: str, number: int = 0, **details: str | int | bool) -> Callable[[Lab, Site], None]:
    """Return a function that makes a fault of the lab on node ``number``."""
    return lambda lab, site: lab.fault(kind, node(number) if number else "", **details) and None


def both(*strikes: Callable[[Lab, Site], None]) -> Callable[[Lab, Site], None]:
    def strike(lab: Lab, site: Site) -> None:
        for entry in strikes:
            entry(lab, site)

    return strike


def no_python(number: int) -> Callable[[Lab, Site], None]:
    """Put the ranks' Python into a folder that one node does not see."""

    def strike(lab: Lab, site: Site) -> None:
        folder = site.project / "python"
        folder.mkdir()
        (folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (folder / "python").chmod(0o755)
        hidden = lab.exec(["mount", "-t", "tmpfs", "none", str(folder)], host=node(number))
        assert hidden.code == 0, hidden.err

    return strike


def nothing(lab: Lab, site: Site) -> None:
    """Make no fault."""


N3 = blame(["n0003"])
COORDINATORS = 1
"""The first node of a job runs its batch script, and with it the coordinator."""
PAIRS = "pair"
"""A word of the check's progress while pairs of nodes are tested."""

CASES = (
    Case("healthy, 4 nodes", 4, nothing, blame()),
    Case("healthy, 5 nodes", 5, nothing, blame()),
    Case("healthy, 2 nodes", 2, nothing, blame()),
    Case("node dead before the start", 4, fault("kill", 3), N3),
    Case("no Python on a node", 4, no_python(3), N3, words=("--python", "python/python")),
    Case("node dies during the check", 4, fault("kill", 3), N3, after=PAIRS),
    Case("link of a node down", 4, fault("cut", 3), N3),
    Case("link of a node goes down during the check", 4, fault("cut", 3), N3, after=PAIRS),
    Case("one-way cut", 5, fault("cut", 2, to="n0003"), blame(links=[("n0002", "n0003", "->")])),
    Case(
        "one-way cut, against the ring",
        5,
        fault("cut", 3, to="n0002"),
        blame(links=[("n0002", "n0003", "<-")]),
    ),
    Case(
        "one-way cut, from the coordinator's node",
        5,
        fault("cut", 1, to="n0003"),
        blame(links=[("n0001", "n0003", "->")]),
    ),
    Case(
        "one-way cut, to the coordinator's node",
        5,
        fault("cut", 3, to="n0001"),
        blame(links=[("n0001", "n0003", "<-")]),
    ),
    Case("cut both ways", 5, fault("cut", 2, to="n0003", both=True), blame(links=[("n0002", "n0003", "--")])),
    Case(
        "a range of ports blocked between two nodes",
        5,
        fault("cut", 2, to="n0003", port="40000-60000"),  # of connections the other way it takes the answers
        blame(links=[("n0002", "n0003", "--")]),
    ),
    Case("a range of ports blocked on a node", 5, fault("cut", 3, port="40000-60000"), blame(["n0003"])),
    Case(
        "a range of ports blocked on the coordinator's node",
        5,
        fault("cut", COORDINATORS, port="40000-60000"),  # from the start, Slurm itself calls the node down
        blame(["n0001"]),
        after="local",
    ),
    Case("a narrow range of ports blocked on a node", 6, fault("cut", 3, port="40000-41500"), N3),
    Case(
        "ports blocked between two groups of nodes",
        6,
        both(
            *(
                fault("cut", a, to=node(b), port="45000-52000", both=True)
                for a in (1, 2, 3)
                for b in (4, 5, 6)
            )
        ),
        blame(),
    ),
    Case("connections that a node begins are dropped", 5, fault("firewall", 3), N3),
    Case("a node loses what it sends", 5, fault("lose", 3, share="20"), N3),
    Case("a node loses a little of what it sends", 6, fault("lose", 4, share="8"), blame(["n0004"])),
    Case(
        "packets lost one way between two nodes",
        6,
        fault("lose", 2, to="n0003", share="20"),
        blame(links=[("n0002", "n0003", "->")]),
    ),
    Case("the network of a node comes and goes", 6, fault("flap", 3, down="4", every="10"), N3),
    Case("slow network of a node", 5, fault("slow", 3, rate="20mbit"), N3),
    Case(
        "slow link of a pair",
        6,
        fault("slow-link", 2, to="n0003", rate="20mbit"),
        blame(links=[("n0002", "n0003", "--")]),
    ),
    Case(
        "slow link of a pair, seven nodes",
        7,
        fault("slow-link", 3, to="n0004", rate="20mbit"),
        blame(links=[("n0003", "n0004", "--")]),
    ),
    Case("own name is 127.0.1.1", 4, fault("name", 3, name="n0003", address="127.0.1.1"), N3, grade="warn"),
    Case("clock 90 s off", 4, fault("clock", 3, offset="90s"), N3),
    Case("node frozen during the check", 4, fault("freeze", 3), N3, after=PAIRS),
    Case("examiner frozen", 4, fault("freeze", 3, process="examine"), N3, after="local"),
    Case("rank that corrupts the sum", 4, nothing, N3, words=("--env", "CLUSTERRUN_TEST_CORRUPT_NODE=n0003")),
    Case(
        "two at once: one cut off, one corrupts",
        6,
        fault("cut", 5),
        blame(["n0003", "n0005"]),
        words=("--env", "CLUSTERRUN_TEST_CORRUPT_NODE=n0003"),
    ),
    Case(
        "node cut off and a link cut",
        6,
        both(fault("cut", 5), fault("cut", 2, to="n0003")),
        blame(["n0005"], [("n0002", "n0003", "->")]),
    ),
    Case(
        "three of twelve",
        12,
        fault("slow", 5, rate="20mbit"),
        blame(["n0003", "n0005", "n0009"]),
        words=("--env", "CLUSTERRUN_TEST_CORRUPT_NODE=n0003,n0009"),
    ),
    Case(
        "three of twelve, two of them dead",
        12,
        both(fault("cut", 5), fault("kill", 9)),
        blame(["n0003", "n0005", "n0009"]),
        words=("--env", "CLUSTERRUN_TEST_CORRUPT_NODE=n0003"),
    ),
    Case(
        "2 nodes, one corrupts, a spare",
        2,
        nothing,
        blame(["n0002"]),
        spares=1,
        words=("--env", "CLUSTERRUN_TEST_CORRUPT_NODE=n0002"),
    ),
    Case("2 nodes, one cut off, no spare", 2, fault("cut", 2), blame(["n0002"])),
    Case("2 nodes, one cut off, a spare", 2, fault("cut", 2), blame(["n0002"]), spares=1),
)
"""Each is exactly this blame, and nothing else."""
