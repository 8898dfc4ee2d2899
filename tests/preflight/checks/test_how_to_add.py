"""docs/checks.md is true: its table is the list of checks, and the check that it shows works as it stands."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

from clusterrun.model.report import Finding
from clusterrun.preflight import catalogue
from tests.preflight.checks.values import ASKED, FAIL, UNDETERMINED, WARN, answer

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "checks.md").read_text(encoding="utf-8")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The check of the document, in a file, loaded and in the list."""
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert code is not None
    path = tmp_path / "scratch.py"
    path.write_text(code[1])
    spec = importlib.util.spec_from_file_location("scratch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(catalogue, "CHECKS", (*catalogue.CHECKS, module))
    return module


def test_the_tables_name_every_check_with_its_limit_or_what_it_judges():
    first, second = (
        {cells[0].strip(" `"): cells[1].strip(" `") for cells in rows}
        for rows in (
            [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| `")]
            for part in TEXT.split("These judge what was read already")
        )
    )
    assert first == {check.NAME: f"{check.LIMIT:g} s" for check in catalogue.CHECKS}
    assert second == {check.NAME: check.OF for check in catalogue.SECONDS}


def test_the_check_of_the_document_is_asked_for_and_reads_this_machine(scratch: ModuleType):
    assert scratch.NAME in catalogue.names(ASKED)
    assert catalogue.check_named("scratch") is scratch
    reading = json.loads(json.dumps(scratch.probe(ASKED)))
    assert set(reading) == {"free"}
    assert (reading["free"] is None) is not os.path.ismount("/scratch")


def test_the_check_of_the_document_names_nodes(scratch: ModuleType):
    answers = {
        "n1": answer(scratch={"free": 2**40}),
        "n2": answer(scratch={"free": None}),
        "n3": answer(scratch={"free": 2**30}),
    }
    assert catalogue.findings(ASKED, answers, {}, {}) == {
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
    from clusterrun.preflight.tasks import LocalAnswer, Reading

    raised = LocalAnswer((Reading("scratch", "", 0.0, why="OSError: [Errno 5] Input/output error"),))
    said = "could not be read: OSError: [Errno 5] Input/output error"
    assert catalogue.findings(ASKED, {"n1": raised}, {}, {}) == {
        "n1": (Finding("scratch", UNDETERMINED, said, ""),)
    }
