"""The JSON of each command has exactly the fields of its schema in docs/schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterrun.coordinator import restart_policy
from clusterrun.reports.view import View, ViewField
from tests import make_schemas
from tests.cli.conftest import CommandLine, Said

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is of the extra dev")

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


def closed(part: Any) -> Any:
    """Return the schema with every object closed, so that an undescribed field is an error."""
    if isinstance(part, list):
        return [closed(entry) for entry in part]
    if not isinstance(part, dict):
        return part
    created = {key: closed(value) for key, value in part.items()}
    if "properties" in created and "required" in created:
        created.setdefault("additionalProperties", False)
    return created


def problems(name: str, document: Any, strict: bool = True) -> list[str]:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    if strict:
        schema = closed(schema)
    result = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{entry.json_path}: {entry.message}" for entry in result]


def printed_json(completed: Said, code: int = 0) -> Any:
    assert completed.code == code, completed
    return json.loads(completed.out)


def test_every_cause_of_an_attempt_is_in_the_schema() -> None:
    schema = json.loads((SCHEMAS / "status.json").read_text(encoding="utf-8"))
    causes = schema["properties"]["runs"]["items"]["properties"]["attempts"]["items"]["properties"]["cause"][
        "enum"
    ]
    created = {*restart_policy.CHARGED, *(cause for cause, _, _ in restart_policy.FREE_RESTARTS.values())}
    assert created <= {*causes}


@pytest.mark.parametrize("name", sorted({*make_schemas.SCHEMAS, *(path.stem for path in SCHEMAS.iterdir())}))
def test_a_schema_equals_the_declaration_of_its_view(name: str) -> None:
    path = SCHEMAS / f"{name}.json"
    assert path.read_text(encoding="utf-8") == make_schemas.text(name), "run `make schemas`"


def test_a_document_without_a_required_member_is_invalid() -> None:
    view = View("A thing.", ViewField("name", "Its name."), ViewField("more", "More.", is_required=False))
    assert view.document({"name": "x"}) == {"name": "x"}
    with pytest.raises(KeyError, match="name"):
        view.document({"more": "x"})


@pytest.mark.parametrize("path", sorted(SCHEMAS.iterdir()), ids=lambda path: path.stem)
def test_a_schema_is_valid_and_describes_each_field(path: Path) -> None:
    schema = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)

    def silent(part: Any) -> list[str]:
        if not isinstance(part, dict):
            return []
        below = [name for value in part.values() for name in silent(value)]
        return below + [
            n for n, f in part.get("properties", {}).items() if not (f.keys() & {"description", "$ref"})
        ]

    assert silent(schema) == []
    assert schema["title"]


def test_json_of_commands_about_runs_fits_the_schemas(ended: CommandLine) -> None:
    assert problems("status", printed_json(ended("status", "--json"))) == []
    assert problems("status", printed_json(ended("status", "--json", "last"))) == []
    assert problems("status", printed_json(ended("wait", "--json", "last"))) == []
    assert problems("report", json.loads(ended("report", "--json").out)) == []
    assert problems("diagnose", printed_json(ended("diagnose", "--json"))) == []
    assert problems("clean", printed_json(ended("clean", "--json", "--dry-run", "--keep", "0"))) == []
    assert problems("clean", printed_json(ended("clean", "--json", "--dry-run", "last"))) == []


def test_json_of_commands_about_a_live_run_fits_the_schemas(live: CommandLine) -> None:
    assert problems("status", printed_json(live("status", "--json", "last"))) == []
    assert problems("top", printed_json(live("top", "--json", "--once"))) == []
    assert problems("diagnose", printed_json(live("diagnose", "--json", "--limit", "20s"))) == []


def test_json_of_commands_about_a_failed_run_fits_the_schemas(clusterrun: CommandLine) -> None:
    arguments = ("submit", "--json", "--wait", "--ranks-per-node", "2", "--on-event", "cat >> events")
    result = clusterrun(*arguments, "train.py", "fail")
    assert result.code == 1, result
    assert problems("submit", json.loads(result.out)) == []
    document = printed_json(clusterrun("status", "--json", "last"))
    assert document["runs"][0]["attempts"][0]["failure"]["rank"] == 1
    assert problems("status", document) == []
    assert problems("diagnose", printed_json(clusterrun("diagnose", "--json"))) == []
    events = [json.loads(line) for line in (clusterrun.folder / "events").read_text().splitlines()]
    assert [event["event"] for event in events] == ["started", "failed", "ended"]
    assert [problem for event in events for problem in problems("event", event)] == []


def test_json_of_dry_runs_fits_the_schemas(clusterrun: CommandLine) -> None:
    assert problems("submit", printed_json(clusterrun("submit", "--dry-run", "--json", "train.py"))) == []
    contained = ("--container", "a/b:1", "--container-runtime", "podman", "train.py")
    answer = printed_json(clusterrun("submit", "--dry-run", "--json", *contained))
    assert problems("submit", answer) == [] != answer["container"]["mounts"]
    assert problems("config", printed_json(clusterrun("config", "show", "--json"))) == []
    advice = ("--parameters", "7B", "--nodes", "2", "--bandwidth", "25", "--step-time", "0.9")
    assert problems("advise", printed_json(clusterrun("bench", "advise", *advice, "--json"))) == []
    assert problems("lab-status", printed_json(clusterrun("lab", "status", "--json"))) == []


def test_the_nodes_that_were_unfit(ended: CommandLine) -> None:
    from clusterrun.model.document import encode
    from tests.reports.reports import FOUND

    folder = Path(ended.environment["CLUSTERRUN_HOME"], "findings", "local")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / f"{FOUND.run_id}.json").write_text(json.dumps(encode(FOUND)))
    document = printed_json(ended("nodes", "--json", "--cluster", "local", "--since", "3650d"))
    assert document["nodes"]
    assert problems("nodes", document) == []


def test_a_forecast_of_the_queue() -> None:
    from clusterrun.cli.queue_forecast import PLAN
    from clusterrun.operations.queue_forecast import SizeForecast, Waits

    forecast = SizeForecast("2x8", 2, 2, 8, 60.0, "big", 9.0, 2, 0, 0, Waits(1, 2.0, 2.0), None)
    unknown = SizeForecast("4", 4, 1, 0, 60.0, "big", None, 0, 1, 2, None, Waits(2, -3.0, 9.0))
    assert problems("plan", PLAN.document({"asked_at": 1795166880.0, "shapes": [forecast, unknown]})) == []


def test_a_study(clusterrun: CommandLine) -> None:
    script = clusterrun.folder / "paced.py"
    script.write_text("print('steps_per_second=12.5 samples_per_second=100 steps=10')\n")
    result = clusterrun("bench", "scaling", "--no-probe", "--worlds", "1", "--json", "paced.py")
    assert problems("bench", printed_json(result)) == []


def test_a_missing_field_and_a_field_of_another_type_are_detected() -> None:
    assert problems("config", {"options": [], "files": "none"}) == ["$.files: 'none' is not of type 'array'"]
    assert problems("config", {"files": []}) == ["$: 'options' is a required property"]
