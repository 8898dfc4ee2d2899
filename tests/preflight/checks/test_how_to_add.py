"""The table of docs/checks.md lists every check, and the check in CONTRIBUTING.md works as it stands."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from clusterrun.model.preflight_report import Finding, LinkReport
from clusterrun.preflight import registry
from clusterrun.preflight.tasks import LocalAnswer, PeerTask, ProbeReading
from tests.preflight.checks.values import ASKED, FAIL, UNDETERMINED, WARN, answer
from tests.preflight.simulated import Cluster, Faults, orders

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(
    r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL
)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded(EXAMPLE, tmp_path, monkeypatch)


def loaded(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The check in ``code``, in a file, loaded and in the list."""
    path = folder / "scratch.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("scratch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    others = [check for check in registry.CHECKS if check.NAME != module.NAME]  # a site may have added it
    monkeypatch.setattr(registry, "CHECKS", (*others, module))
    return module


def test_the_tables_name_every_check():
    first, second = (
        re.findall(r"^\| `([a-z-]+)` \|", part, re.MULTILINE)
        for part in TEXT.split("These judge the readings of other checks")
    )
    assert sorted(first) == sorted(check.NAME for check in registry.CHECKS)
    assert sorted(second) == sorted(check.NAME for check in registry.SECONDARY_JUDGES)


def test_the_check_of_the_document_runs_on_this_machine(scratch: ModuleType):
    assert scratch.NAME in registry.check_names(ASKED)
    assert registry.check_named("scratch") is scratch
    reading = json.loads(json.dumps(scratch.probe(ASKED)))
    assert set(reading) == {"free"}
    assert (reading["free"] is None) is not os.path.ismount("/scratch")


def test_the_check_of_the_document_names_nodes(scratch: ModuleType):
    answers = {
        "n1": answer(scratch={"free": 2**40}),
        "n2": answer(scratch={"free": None}),
        "n3": answer(scratch={"free": 2**30}),
    }
    assert registry.findings(ASKED, answers, {}, {}) == {
        "n2": (Finding("scratch", FAIL, "/scratch is not mounted", "mount /scratch"),),
        "n3": (
            Finding(
                "scratch",
                WARN,
                "/scratch has 1.0 GiB free; limit 10 GiB",
                "remove old files from /scratch",
            ),
        ),
    }


def test_a_note_of_the_document_holds_an_exception_makes_a_check_undetermined(scratch: ModuleType):
    raised = LocalAnswer((ProbeReading("scratch", "", 0.0, why="OSError: [Errno 5] Input/output error"),))
    message = "could not be read: OSError: [Errno 5] Input/output error"
    assert registry.findings(ASKED, {"n1": raised}, {}, {}) == {
        "n1": (Finding("scratch", UNDETERMINED, message, ""),)
    }


class Detour(Cluster):
    """Packets from node 3 to node 4 take another way, which a check between nodes measures."""

    def answer(self, node: int, task: object) -> tuple[float, object]:
        delay, answer = super().answer(node, task)
        if isinstance(task, PeerTask):
            assert task.checks == ("names", "detour")
            hops = {peer.name: 1 + ((node, peer.node) == (3, 4)) for peer in task.asked.peers[1:]}
            answer = LocalAnswer((*answer.readings, ProbeReading("detour", json.dumps(hops), 0.1)))
        return delay, answer


def test_a_check_between_nodes_reports_a_link_with_its_direction(monkeypatch: pytest.MonkeyPatch):
    def judge(request: object, readings: dict[str, dict[str, int]]) -> Iterator[tuple[object, Finding]]:
        for name, hops in readings.items():
            for other in hops:
                if hops[other] > 1:
                    yield (name, other), Finding("detour", WARN, "two hops", "look at the routes")

    check = SimpleNamespace(NAME="detour", BETWEEN_NODES=True, LIMIT=1.0, judge=judge)
    monkeypatch.setattr(registry, "CHECKS", (*registry.CHECKS, check))
    outcome = Detour(orders(8), Faults()).outcome()
    link = LinkReport("n0003", "n0004", "a->b", WARN, "two hops", "look at the routes")
    assert (outcome.fit, outcome.report.links) == (True, (link,))
