"""`clusterrun sweep` end to end on this machine: points to runs, results, and failed runs again."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.cli.test_schemas import problems

SCRIPT = """
import json, os, sys
from clusterrun.training import report
lr, place = float(sys.argv[1]), sys.argv[2]
if lr == 3 and not os.path.exists("mended"):
    raise ValueError("too fast")
if os.environ["RANK"] == "0":
    if lr > 1:
        report(loss=lr / 10, word=place)
    else:
        print(json.dumps({"loss": lr / 10}))
"""


def test_the_commands_to_type_next_quote_the_name_of_a_sweep(clusterrun: CommandLine) -> None:
    result = clusterrun("sweep", "--name", "two words", "--set", "i=1", "--env", "I={i}", "train.py")
    assert "clusterrun status 'two words'\n" in result.err
    assert clusterrun("wait", "two words").code == 0


def test_a_sweep_from_its_points_to_the_best_of_its_runs(clusterrun: CommandLine) -> None:
    (clusterrun.folder / "s.py").write_text(SCRIPT)
    options = ["--preflight", "off", "--nodes", "2", "--name", "rates", "--at-most", "2"]
    result = clusterrun("sweep", *options, "--set", "lr=2,1,3", "--json", "s.py", "{lr}", "$(id) '{lr}")
    document = json.loads(result.out)
    runs = [point["run_id"] for point in document["points"]]
    assert [point["point"] for point in document["points"]] == [{"lr": "2"}, {"lr": "1"}, {"lr": "3"}]
    assert [run.rpartition("-")[2] for run in runs] == ["rates.0", "rates.1", "rates.2"]
    waited = clusterrun("wait", "rates")
    assert waited.code == 1
    assert waited.out.split("\n")[:3] == [f"{runs[0]} COMPLETED", f"{runs[1]} COMPLETED", f"{runs[2]} FAILED"]
    rows = list(csv.reader(clusterrun("sweep", "results", "rates", "--csv").out.splitlines()))
    assert [row[:5] for row in rows] == [
        ["run", "state", "lr", "loss", "word"],
        [runs[1], "COMPLETED", "1", "0.1", ""],
        [runs[0], "COMPLETED", "2", "0.2", "$(id) '2"],
        [runs[2], "FAILED", "3", "", ""],
    ]
    why = json.loads(clusterrun("status", "--json", runs[2]).out)["runs"][0]["reason"]
    assert "exited with code 1" in why
    assert [row[5:] for row in rows] == [["reason"], [""], [""], [f"{why}; ValueError: too fast"]]
    output = json.loads(clusterrun("status", "--json", "rates").out)["runs"]
    assert [(run["sweep"], run["point"]) for run in output] == [
        (document["sweep_id"], f"lr={lr}") for lr in "213"
    ]
    (row,) = [line for line in clusterrun("status").out.splitlines() if document["sweep_id"] in line]
    assert "sweep: 2 COMPLETED, 1 FAILED" in row and "FAILED" in row.split()
    assert "too fast" in clusterrun("logs", "rates").out
    (clusterrun.folder / "mended").touch()
    assert clusterrun("sweep", "retry", "--time", "2h", "rates").code == 0
    assert clusterrun("wait", "rates").code == 0
    again = json.loads(clusterrun("status", "--json", "rates.2").out)["runs"][0]
    assert json.loads((Path(again["run_dir"]) / "record.json").read_text())["spec"]["time"] == 7200
    best = json.loads(clusterrun("sweep", "results", "rates", "--max", "--json").out)
    assert [(entry["name"], entry["reported"]["loss"]) for entry in best["results"]] == [
        ("rates.2", 0.3),
        ("rates.0", 0.2),
        ("rates.1", 0.1),
    ]
    assert best["results"][0]["run_id"] not in runs
    assert problems("sweep", document) == problems("sweep-results", best) == []
    assert problems("sweep-list", json.loads(clusterrun("sweep", "list", "--json").out)) == []
    newest = [entry["run_id"] for entry in best["results"]]
    assert clusterrun("clean", "--yes", *newest).code == 0
    assert clusterrun("sweep", "list").out == ""


def test_an_impossible_sweep_is_refused_before_anything_is_written(clusterrun: CommandLine) -> None:
    (clusterrun.folder / "s.py").write_text(SCRIPT)
    refusals = {
        ("--set", "lr=1,2", "s.py"): "lr stands nowhere in the command",
        ("--set", "lr=", "s.py", "{lr}"): "has a point without a value",
        ("--set", "lr=range(1000000)", "s.py", "{lr}"): "1,000,000 points are more than 10,000",
        ("--nodes", "2", "s.py"): "a sweep needs --set NAME=VALUES or --points FILE",
        ("resluts",): "Did you mean results?",
        ("results", "nothing"): "there is no sweep 'nothing'",
    }
    for arguments, message in refusals.items():
        result = clusterrun("sweep", *arguments)
        assert (result.code in (2, 5), message in result.err) == (True, True), result.err
    planned = clusterrun("sweep", "--dry-run", "--json", "--set", "lr=1,2", "s.py", "{lr}")
    assert [entry["command"] for entry in json.loads(planned.out)["points"]] == [["s.py", "1"], ["s.py", "2"]]
    assert clusterrun("sweep", "list").out == clusterrun("status").out == ""


def test_results_are_drawn(clusterrun: CommandLine) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'clusterrun[plot]'")
    (clusterrun.folder / "s.py").write_text(SCRIPT)
    started = clusterrun("sweep", "--preflight", "off", "--set", "lr=0.2,0.4", "s.py", "{lr}", "x")
    assert started.code == 0, started.err
    assert clusterrun("wait", "s").code == 0
    results = clusterrun("sweep", "results", "s", "--json", "--plot", "s.svg")
    assert [row["reported"]["loss"] for row in json.loads(results.out)["results"]] == [0.02, 0.04]
    assert (clusterrun.folder / "s.svg").stat().st_size
    assert "drawn: s.svg" in results.err
