"""The end report of runs on this machine, as `status`, `--json` and the end of `--follow` show it."""

from __future__ import annotations

import json

from clusterrun.cli.follow_run import end_report_lines as lines
from clusterrun.model.frozen import replace
from clusterrun.reports.efficiency import EndReport
from tests.cli.conftest import CommandLine

REPORTS = """
import os, sys, time
from clusterrun import training
again = os.environ["CLUSTERRUN_ATTEMPT"] == "1"
first = 4 if again else 0
training.progress(first, checkpoint=first or None)
for step in range(first + 1, 11):
    time.sleep(0.05)
    training.progress(step, checkpoint=step if step % 4 == 0 else None)
    if step == 6 and not again:
        sys.exit("lost")
"""


def test_time_and_goodput_of_a_run_with_a_restart(clusterrun: CommandLine) -> None:
    (clusterrun.folder / "reports.py").write_text(REPORTS)
    result = clusterrun("submit", "--follow", "--max-restarts", "1", "reports.py")
    assert result.code == 0, result
    messages = [line.split(None, 1) for line in result.err.splitlines() if line.startswith("  ")]
    heads = dict(line for line in messages if len(line) == 2)
    assert heads["time"].startswith("queue ") and "allocated" in heads["time"]
    assert "in steps that counted" in heads["goodput"]
    output = clusterrun("status", "last").out
    assert "\nend report\n  time       queue " in output and "  goodput    " in output
    (run,) = json.loads(clusterrun("status", "--json", "last").out)["runs"]
    report = run["end_report"]
    assert 0 < report["counted"] < report["steps"] < report["ranks"] <= report["allocated"]
    assert [attempt["ranks_at"] is not None for attempt in run["attempts"]] == [True, True]


def test_a_script_without_progress_gets_a_hint_about_progress(ended: CommandLine) -> None:
    assert "goodput    not measured: the script does not report its steps" in ended("status", "last").out
    assert json.loads(ended("status", "--json", "last").out)["runs"][0]["end_report"]["goodput"] is None


def test_a_run_that_lives_has_no_end_report(live: CommandLine) -> None:
    assert "end report" not in live("status", "stays").out
    assert json.loads(live("status", "--json", "stays").out)["runs"][0]["end_report"] is None


def test_energy_is_reported_with_its_source() -> None:
    measured = EndReport(queue=0, allocated=60, check=0, between=0, nodes=4)
    assert "energy" not in dict(lines(measured))
    assert dict(lines(replace(measured, gpu_joules=7.2e6, node_joules=14.4e6)))["energy"] == (
        "2 kWh by the GPUs, as they report; 4 kWh by the nodes (1 kWh each), as Slurm measured"
    )
    assert dict(lines(replace(measured, node_joules=3.6e6, nodes=1)))["energy"] == (
        "1 kWh by the node, as Slurm measured"
    )
    assert dict(lines(replace(measured, gpu_joules=142)))["energy"] == "0.039 Wh by the GPUs, as they report"


TRACKED = """
print("wandb: \\U0001f680 View run fox-1 at: https://wandb.ai/ada/gpt/runs/k3f9\\x1b]0;evil\\x07", flush=True)
"""


def test_status_shows_the_link_of_a_tracker(clusterrun: CommandLine) -> None:
    (clusterrun.folder / "tracked.py").write_text(TRACKED)
    assert clusterrun("submit", "--wait", "--nodes", "2", "tracked.py").code == 0
    output = clusterrun("status", "last").out
    assert "tracker    W&B https://wandb.ai/ada/gpt/runs/k3f9\\x1b]0;evil\\x07\n" in output
    assert "\x1b" not in output
    (run,) = json.loads(clusterrun("status", "--json", "last").out)["runs"]
    link = {"tool": "W&B", "url": "https://wandb.ai/ada/gpt/runs/k3f9\x1b]0;evil\x07", "rank": 0}
    assert run["trackers"] == [link]
