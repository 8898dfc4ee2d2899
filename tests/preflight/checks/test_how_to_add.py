"""The table of docs/checks.md lists every check, and the checks in CONTRIBUTING.md work as they stand."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

from clusterrun.model.preflight_report import Finding
from clusterrun.preflight import registry
from clusterrun.preflight.tasks import LocalAnswer, PeerTask, ProbeReading
from tests.preflight.checks.values import ASKED, FAIL, UNDETERMINED, WARN, answer
from tests.preflight.simulated import Cluster, Faults, orders

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
EXAMPLE, BETWEEN_NODES = re.findall(
    r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL
)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded(EXAMPLE, tmp_path, monkeypatch)


def loaded(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load the check in ``code`` from a file and add it to the list."""
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


def test_the_tables_name_every_check() -> None:
    first, second = (
        re.findall(r"^\| `([a-z-]+)` \|", part, re.MULTILINE)
        for part in TEXT.split("These judge the readings of other checks")
    )
    assert sorted(first) == sorted(check.NAME for check in registry.CHECKS)
    assert sorted(second) == sorted(check.NAME for check in registry.SECONDARY_JUDGES)


def test_the_check_of_the_document_runs_on_this_machine(scratch: ModuleType) -> None:
    assert scratch.NAME in registry.check_names(ASKED)
    assert registry.check_named("scratch") is scratch
    reading = json.loads(json.dumps(scratch.probe(ASKED)))
    assert set(reading) == {"free"}
    assert (reading["free"] is None) is not os.path.ismount("/scratch")


def test_the_check_of_the_document_names_nodes(scratch: ModuleType) -> None:
    answers = {
        "n1": answer(scratch={"free": 2**40}),
        "n2": answer(scratch={"free": None}),
        "n3": answer(scratch={"free": 2**30}),
    }
    assert registry.findings(ASKED, answers, {}, {}) == {
        "n2": (Finding("scratch", FAIL, "/scratch is not mounted", "mount /scratch"),),
        "n3": (
            Finding(
                "scratch", WARN, "/scratch has 1.0 GiB free; limit 10 GiB", "remove old files from /scratch"
            ),
        ),
    }


def test_a_note_of_the_document_holds_an_exception_makes_a_check_undetermined(scratch: ModuleType) -> None:
    raised = LocalAnswer((ProbeReading("scratch", "", why="OSError: [Errno 5] Input/output error"),))
    message = "could not be read: OSError: [Errno 5] Input/output error"
    assert registry.findings(ASKED, {"n1": raised}, {}, {}) == {
        "n1": (Finding("scratch", UNDETERMINED, message, ""),)
    }


class Detour(Cluster):
    """More routers than usual are on these ways, which a check between nodes counts."""

    def __init__(self, ways: set[tuple[int, int]]) -> None:
        super().__init__(orders(8), Faults())
        self.ways = ways

    def answer(self, node: int, task: object) -> tuple[float, object]:
        delay, answer = super().answer(node, task)
        if isinstance(task, PeerTask):
            assert task.checks[-1] == "routers"
            counts = {peer.name: 1 + ((node, peer.node) in self.ways) for peer in task.needs.peers[1:]}
            answer = LocalAnswer((*answer.readings, ProbeReading("routers", json.dumps(counts))))
        return delay, answer


LINK, NODE = (
    {(3, 4), (4, 3)},
    {ends for other in (*range(3), *range(4, 8)) for ends in ((3, other), (other, 3))},
)


@pytest.mark.parametrize(
    ("ways", "links", "nodes"),
    [
        ({(3, 4)}, [("n0003", "n0004", "a->b")], []),
        (LINK, [("n0003", "n0004", "a->b")], []),
        (NODE, [], ["n0003"]),
    ],
    ids=["one way", "both ways of a link", "all ways of a node"],
)
def test_the_check_between_nodes_of_the_document_tells_a_node_from_a_link(
    ways: set[tuple[int, int]],
    links: list[tuple[str, str, str]],
    nodes: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded(BETWEEN_NODES, tmp_path, monkeypatch)
    outcome = Detour(ways).outcome()
    assert outcome.fit
    assert [(link.a, link.b, link.direction) for link in outcome.report.links] == links
    assert [
        node.node for node in outcome.report.nodes if "routers" in {f.check for f in node.findings}
    ] == nodes
